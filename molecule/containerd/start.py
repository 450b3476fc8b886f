"""Inside a host: starts a pod through each handler named ("default": with none named), one after the other.

Prints as JSON which of the stand-in's programs created each pod (none did for a runtime that is not ours), or what the
CRI said instead. The pods' image is made of the host's busybox, under the name that the configuration has for it.
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
    """All calls so far."""
    return CALLS.read_text().splitlines() if CALLS.exists() else []


def load_image() -> None:
    """Make the image of pods, if it is not there."""
    plugins = tomllib.loads(subprocess.check_output(["containerd", "config", "dump"], text=True))["plugins"]
    images = plugins.get("io.containerd.cri.v1.images")
    name = images["pinned_images"]["sandbox"] if images else plugins["io.containerd.grpc.v1.cri"]["sandbox_image"]
    if not subprocess.check_output([*CTR, "images", "ls", "--quiet", f"name=={name}"]):
        subprocess.check_call(["/fx/load-busybox", "k8s.io", name], stdout=sys.stderr)


def start(handler: str) -> list[str] | str:
    """Start a pod and remove it; the programs that were told to create it."""
    known = len(calls())
    chosen = "" if handler == "default" else handler
    pod = subprocess.run(["python3", "/fx/cri.py", "run", chosen], check=False, stderr=subprocess.PIPE, text=True)
    if pod.returncode:
        return pod.stderr.strip()
    # Containerd 2 also asks each runtime for its features, when it starts.
    return [os.path.basename(call.split()[0]) for call in calls()[known:] if "create" in call.split()]


if __name__ == "__main__":
    load_image()
    print(json.dumps({handler: start(handler) for handler in sys.argv[1:]}))
