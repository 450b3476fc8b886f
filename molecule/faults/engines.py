"""What the programs in this folder share: the two engines of a host, its modules, and what is remembered of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from cri import SOCKET, Cri
from observe_docker import ask
from observing import trees

if TYPE_CHECKING:
    from collections.abc import Iterable

# Gone with the host.
MEMORY = Path("/run/gpufleet-faults")
# Where prepare.yml puts the collection, and what its modules need of ansible-core.
COLLECTIONS = "/root/gpufleet-collections"
MODULES = "ansible_collections.gpufleet.nvidia.plugins.modules"
STATE = "/var/lib/gpufleet-nvidia"
IMAGE = "docker.io/gpufleet/busybox:1"
# Seconds for anything at all.
PATIENCE = 60.0
# What fills a disk, and what a run that was killed leaves behind, are no part of a configuration.
FILLER = "filler"
TEMPORARY = ".gpufleet-"


class Engine(NamedTuple):
    """One engine as Debian installs it."""

    name: str
    file: str
    program: str

    @property
    def folder(self) -> str:
        return os.path.dirname(self.file)

    @property
    def unit(self) -> str:
        return f"{self.name}.service"


ENGINES = {
    "docker": Engine("docker", "/etc/docker/daemon.json", "/usr/sbin/dockerd"),
    "containerd": Engine("containerd", "/etc/containerd/config.toml", "/usr/bin/containerd"),
}


def run(*command: str, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run a command that may fail, also by taking too long."""
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end after {seconds} seconds")


def module(name: str, arguments: dict[str, Any], *before: str) -> list[str]:
    """The command that runs a module in one process, as Ansible does; ``before`` stands before its name."""
    MEMORY.mkdir(exist_ok=True)
    file = MEMORY / f"{name}-{time.monotonic_ns()}.json"
    file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    return [sys.executable, "-B", *(before or ("-m",)), f"{MODULES}.{name}", str(file)]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Run a module to its end; what it returned, or why it failed."""
    ended = subprocess.run(
        module(name, arguments), check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=COLLECTIONS
    )
    try:
        return dict(json.loads(ended.stdout))
    except ValueError:
        return {"failed": True, "msg": f"{name} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"}


def kill_points(word: str) -> tuple[str, Iterable[int]]:
    """The name of a case and the points at which its run is killed: "switch@3,9"; every point if none is named."""
    name, _at, numbers = word.partition("@")
    return name, [int(number) for number in numbers.split(",")] if numbers else count(1)


def status(unit: str) -> dict[str, str]:
    """What systemd says of a unit."""
    shown = run("systemctl", "show", unit, "--property=ActiveState,SubState,MainPID,Job")
    return dict(line.split("=", 1) for line in shown.stdout.splitlines())


def settled(unit: str) -> dict[str, str]:
    """The same, as soon as nothing is under way any more."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = status(unit)
        if not (found["Job"] or found["SubState"].startswith("auto-restart")) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def live(engine: Engine) -> dict[str, Any] | None:
    """The default runtime of the daemon and those of its runtimes that are ours; None if it does not answer."""
    # Whoever asks a stopped Docker starts it, through its socket.
    if status(engine.unit)["ActiveState"] != "active":
        return None
    if engine.name == "docker":
        try:
            info = ask("/info")
        except (OSError, ValueError):
            return None
        return {"default": info["DefaultRuntime"], "ours": ours(info["Runtimes"])}
    try:
        config: Any = Cri(SOCKET).status()["config"]
    except grpc.RpcError:
        return None
    return {"default": config["containerd"]["defaultRuntimeName"], "ours": ours(config["containerd"]["runtimes"])}


def start(engine: Engine) -> str:
    """Start a container that names no runtime, and remove it; what went wrong, or nothing."""
    if engine.name == "docker":
        deadline = time.monotonic() + PATIENCE
        while True:
            complaint = run("docker", "run", "--rm", "--network=none", IMAGE, "true", seconds=30).stderr.strip()
            # After a restart of containerd, Docker 20.10 takes a moment to find it again.
            if "/run/containerd/containerd.sock" not in complaint or time.monotonic() > deadline:
                return complaint
            time.sleep(0.5)
    cri = Cri(SOCKET)
    try:
        cri.remove(cri.start(""))
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


def ours(runtimes: dict[str, Any]) -> list[str]:
    """The NVIDIA ones."""
    return sorted(name for name in runtimes if name.startswith("nvidia"))


def files(engine: Engine) -> dict[str, str]:
    """The engine's folder, as observing.py describes files."""
    found = trees([engine.folder])
    return {path: found[path] for path in found if not os.path.basename(path).startswith((FILLER, TEMPORARY))}


def at_work() -> list[Any] | None:
    """The container of that name: whether it runs, its process, and since when; None if there is none."""
    if status(ENGINES["docker"].unit)["ActiveState"] != "active":
        return None
    try:
        state = ask("/containers/at-work/json").get("State")
    except (OSError, ValueError):
        return None
    return [state[key] for key in ("Running", "Pid", "StartedAt")] if state else None


def remember(name: str, value: Any) -> None:
    """Keep something for later."""
    MEMORY.mkdir(exist_ok=True)
    (MEMORY / name).write_text(json.dumps(value))


def remembered(name: str) -> Any:
    """What was kept; None if there is nothing."""
    path = MEMORY / name
    return json.loads(path.read_text()) if path.exists() else None
