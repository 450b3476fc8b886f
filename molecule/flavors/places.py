"""Inside a host: the units and sockets of the engines that belong to its name, and functions that ask these engines."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cri import Cri
from engines import PATIENCE, run

# A directory that is not compared, and is lost with the host.
MEMORY = Path("/run/gpufleet-flavors")
KIND = socket.gethostname().rpartition("-")[2]
USER, UID = "alice", 1000
RUNTIME_DIR = f"/run/user/{UID}"
AS_USER = ("runuser", "-u", USER, "--", "env", f"XDG_RUNTIME_DIR={RUNTIME_DIR}")
K3S_SOCKET = "/run/k3s/containerd/containerd.sock"
GPU_SOCKET = "/run/containerd-gpu/containerd.sock"


class Place(NamedTuple):
    """A kind of host: the units of its engines, and the CRI and Docker sockets by their targets."""

    units: tuple[str, ...] = ()
    cri: dict[str, str] = {}  # noqa: RUF012
    docker: dict[str, str] = {}  # noqa: RUF012
    user_units: tuple[str, ...] = ()


_GPU_UNIT = "containerd-gpu.service"
PLACES = {
    "k3s": Place(
        ("k3s.service", "containerd.service", "docker.service"),
        {"containerd/k3s": K3S_SOCKET},
        {"docker": "/run/docker.sock"},
    ),
    "rke2": Place(("rke2-agent.service",), {"containerd/rke2": K3S_SOCKET}),
    "k0s": Place(("k0sworker.service",), {"containerd/k0s": "/run/k0s/containerd.sock"}),
    "microk8s": Place(
        ("snap.microk8s.daemon-containerd.service",),
        {"containerd/microk8s": "/var/snap/microk8s/common/run/containerd.sock"},
    ),
    "units": Place(
        ("containerd.service", _GPU_UNIT),
        {"containerd": "/run/containerd/containerd.sock", f"containerd/system/{_GPU_UNIT}": GPU_SOCKET},
    ),
    "users": Place((), {}, {f"docker/rootless/{USER}": f"{RUNTIME_DIR}/docker.sock"}, ("docker.service",)),
}
HERE = PLACES[KIND]


def started() -> dict[str, str]:
    """Return a value for each unit that changes at each of its starts."""
    commands = {name: ["systemctl"] for name in HERE.units}
    commands.update({f"{name} of {USER}": [*AS_USER, "systemctl", "--user"] for name in HERE.user_units})
    found = {}
    for unit, command in commands.items():
        shown = run(*command, "show", unit.split()[0], "--property=ActiveState,InvocationID", "--value")
        found[unit] = shown.stdout.replace("\n", " ").strip()
    return found


def docker(address: str, *words: str) -> Any:
    """Run the client of Docker."""
    return run("docker", "--host", f"unix://{address}", *words)


def answer_of_docker(address: str) -> dict[str, Any] | None:
    """Return the default runtime and the NVIDIA runtimes that a Docker reports; None if it does not answer."""
    shown = docker(address, "info", "--format={{json .}}")
    info = json.loads(shown.stdout) if shown.returncode == 0 else {}
    return compared(info["DefaultRuntime"], info["Runtimes"]) if "Runtimes" in info else None


def answer_of_cri(address: str) -> dict[str, Any] | None:
    """Return the same for a CRI."""
    try:
        config: Any = Cri(address).status()["config"]
    except grpc.RpcError:
        return None
    return compared(config["containerd"]["defaultRuntimeName"], config["containerd"]["runtimes"])


def compared(default: str, runtimes: dict[str, Any]) -> dict[str, Any]:
    """Return the compared runtimes. MicroK8s itself has a runtime nvidia-container-runtime, which is omitted."""
    own = (name for name in runtimes if name.startswith("nvidia") and name != "nvidia-container-runtime")
    return {"default": default, "own": sorted(own)}


def engines() -> dict[str, dict[str, Any] | None]:
    """Return the runtimes that each engine reports. Wait until all engines answer."""
    deadline = time.monotonic() + PATIENCE / 4
    while True:
        found = {name: answer_of_cri(address) for name, address in HERE.cri.items()}
        found.update({name: answer_of_docker(address) for name, address in HERE.docker.items()})
        if None not in found.values() or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


def ctr(address: str, *words: str) -> str:
    """Run the client of containerd. Return its output."""
    return run("ctr", f"--address={address}", "--namespace=k8s.io", *words).stdout
