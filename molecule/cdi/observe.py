"""Inside a host: prints its state of CDI as JSON: observe.py [--fresh] [ENGINE...]

files: each specification; seen: what a container of each engine gets with nvidia.com/gpu=all; right: the engines with a
container that gets all GPUs of the host; touched: files that were written since the last call, even with the same
bytes; left: files that differ from those of the fresh host. --fresh saves this state as that of the fresh host.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import checks
import simulated_gpus
from observing import differences
from watched import TREES, lasting, watched

FOLDERS = ("/etc/cdi", "/var/run/cdi")
# The scenario's own directory, and a file that podman writes when it restarts a host.
PRIVATE = (str(simulated_gpus.HOME), "/etc/hosts")


def main() -> None:
    """Read and compare the files before any container is started, then print the result."""
    engines = [word for word in sys.argv[1:] if word != "--fresh"]
    now = watched(TREES, PRIVATE)
    if "--fresh" in sys.argv:
        for name in ("fresh", "before"):
            (simulated_gpus.HOME / name).write_text(json.dumps(now))
    fresh, before = (json.loads((simulated_gpus.HOME / name).read_text()) for name in ("fresh", "before"))
    (simulated_gpus.HOME / "before").write_text(json.dumps(now))
    host = simulated_gpus.now()
    looked = {engine: checks.seen(engine, "all") for engine in engines}
    report = {
        "files": sorted(str(path) for folder in FOLDERS for path in Path(folder).glob("*")),
        "touched": differences(before, now),
        "left": differences(lasting(fresh), lasting(now)),
        "right": sorted(engine for engine, found in looked.items() if found == checks.whole(host, *range(host.gpus))),
        "seen": looked,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
