"""A stand-in for /usr/bin/snap, which the unit of MicroK8s 1.28 calls as `snap run microk8s.daemon-containerd`.

It does what the snap's script run-containerd-with-args does: it replaces the placeholders of the template, and then
executes the real containerd.
"""

from __future__ import annotations

import os
from pathlib import Path

import child

# The link that prepare_host.py creates.
REVISION = os.readlink("/snap/microk8s/current")
SNAP, DATA, COMMON = f"/snap/microk8s/{REVISION}", f"/var/snap/microk8s/{REVISION}", "/var/snap/microk8s/common"
ADDRESS = f"{COMMON}/run/containerd.sock"


def main() -> None:
    """Write the configuration and execute containerd."""
    gpu = Path(DATA, "var/lock/gpu").exists()
    # MicroK8s uses the native snapshotter on hosts without overlay file systems, such as these.
    placeholders = {
        "SNAP": SNAP,
        "SNAP_DATA": DATA,
        "SNAPSHOTTER": "native",
        "RUNTIME": "nvidia-container-runtime" if gpu else "runc",
        "RUNTIME_TYPE": "io.containerd.runc.v2",
    }
    text = Path(DATA, "args/containerd-template.toml").read_text()
    for name, value in placeholders.items():
        text = text.replace(f"${{{name}}}", value)
    file = Path(DATA, "args/containerd.toml")
    child.generate(file, text)
    environ = {**os.environ, "PATH": f"{SNAP}/bin:{os.environ['PATH']}"}
    options = ["--config", str(file), "--root", f"{COMMON}/var/lib/containerd", "--state", f"{COMMON}/run/containerd"]
    os.execve(f"{SNAP}/bin/containerd", ["containerd", *options, "--address", ADDRESS], environ)
