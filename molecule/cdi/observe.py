"""Inside a host: tells as JSON how it stands with CDI: observe.py [--fresh] [ENGINE...]

files: each specification; seen: what a container of each engine gets with nvidia.com/gpu=all; right: the engines whose
container has all that the machine has; touched and left: as molecule/directory/observe.py has them. --fresh makes this
look the one to compare with.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import looks
import machine
from observing import differences

FOLDERS = ("/etc/cdi", "/var/run/cdi")
# What podman writes when it restarts a host.
PRIVATE = (str(machine.HOME), "/etc/hosts")


def watched() -> dict[str, str]:
    """All files that are watched, as molecule/directory does it."""
    place = importlib.util.spec_from_file_location("observe_directory", "/molecule/directory/observe.py")
    if place is None or place.loader is None:
        raise SystemExit("/molecule/directory is not there")
    other = importlib.util.module_from_spec(place)
    place.loader.exec_module(other)
    other.PRIVATE = (*other.PRIVATE, *PRIVATE)
    return {str(path): str(words) for path, words in other.trees().items()}


def plain(found: dict[str, str]) -> dict[str, str]:
    """Without what only stays if nobody writes."""
    return {path: words.split("\t")[0] for path, words in found.items()}


def main() -> None:
    """Look, compare, remember, and only then try something."""
    engines = [word for word in sys.argv[1:] if word != "--fresh"]
    now = watched()
    if "--fresh" in sys.argv:
        for name in ("fresh", "before"):
            (machine.HOME / name).write_text(json.dumps(now))
    fresh, before = (json.loads((machine.HOME / name).read_text()) for name in ("fresh", "before"))
    (machine.HOME / "before").write_text(json.dumps(now))
    host = machine.now()
    looked = {engine: looks.seen(engine, "all") for engine in engines}
    report = {
        "files": sorted(str(path) for folder in FOLDERS for path in Path(folder).glob("*")),
        "touched": differences(before, now),
        "left": differences(plain(fresh), plain(now)),
        "right": sorted(engine for engine, found in looked.items() if found == looks.whole(host, *range(host.gpus))),
        "seen": looked,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
