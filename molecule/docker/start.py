"""Inside a host: starts a container with each given runtime, one after the other ("default": without a runtime).

Prints as JSON which programs of the stand-in created each container. They create no containers of other runtimes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CALLS = Path("/var/log/nvidia-container-runtime.calls")
IMAGE = "docker.io/gpufleet/busybox:1"


def calls() -> list[str]:
    """Return all recorded calls."""
    return CALLS.read_text().splitlines() if CALLS.exists() else []


def start(runtime: str) -> list[str]:
    """Run a container. Return the programs that were called to create it."""
    known = len(calls())
    chosen = [] if runtime == "default" else ["--runtime", runtime]
    command = ["docker", "run", "--rm", "--network=none", *chosen, IMAGE, "echo", "ran"]
    output = subprocess.check_output(command, text=True)
    if output != "ran\n":
        raise SystemExit(f"{runtime}: the container printed {output!r}")
    # dockerd also calls each runtime with "features".
    return [os.path.basename(call.split()[0]) for call in calls()[known:] if "create" in call.split()]


if __name__ == "__main__":
    print(json.dumps({runtime: start(runtime) for runtime in sys.argv[1:]}))
