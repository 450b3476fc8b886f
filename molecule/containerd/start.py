"""Inside a host: starts a pod with each of the given handlers, one after the other ("default": without a handler).

Prints as JSON which programs of the stand-in created each pod, or the error of the CRI. No program of the stand-in
creates pods of other runtimes. The pause image is made of the host's busybox, with the name in the configuration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tomllib

CALLS = Path("/var/log/nvidia-container-runtime.calls")
CTR = ["ctr", "--namespace=k8s.io"]


def calls() -> list[str]:
    """Return all recorded calls."""
    return CALLS.read_text().splitlines() if CALLS.exists() else []


def load_image() -> None:
    """Import the pause image if it is missing."""
    plugins = tomllib.loads(subprocess.check_output(["containerd", "config", "dump"], text=True))["plugins"]
    images = plugins.get("io.containerd.cri.v1.images")
    name = images["pinned_images"]["sandbox"] if images else plugins["io.containerd.grpc.v1.cri"]["sandbox_image"]
    if not subprocess.check_output([*CTR, "images", "ls", "--quiet", f"name=={name}"]):
        subprocess.check_call(["/fx/load-busybox", "k8s.io", name], stdout=sys.stderr)


def start(handler: str) -> list[str] | str:
    """Start and remove a pod. Return the programs that were called to create it."""
    known = len(calls())
    chosen = "" if handler == "default" else handler
    pod = subprocess.run(["python3", "/fx/cri.py", "run", chosen], check=False, stderr=subprocess.PIPE, text=True)
    if pod.returncode:
        return pod.stderr.strip()
    # containerd 2 also calls each runtime with "features" when it starts.
    return [os.path.basename(call.split()[0]) for call in calls()[known:] if "create" in call.split()]


if __name__ == "__main__":
    load_image()
    print(json.dumps({handler: start(handler) for handler in sys.argv[1:]}))
