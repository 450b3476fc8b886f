"""Shared by the programs here and in other scenarios: two engines of a host, calls of modules, values kept in /run."""

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

# Values that the programs keep for later calls. They are lost with the host.
MEMORY = Path("/run/gpufleet-faults")
# prepare.yml copies the collection and the parts of ansible-core that its modules import to this directory.
COLLECTIONS = "/opt/gpufleet-collections"
MODULES = "ansible_collections.gpufleet.nvidia.plugins.modules"
STATE = "/var/lib/gpufleet-nvidia"
IMAGE = "docker.io/gpufleet/busybox:1"
# The maximum number of seconds for any command or wait.
PATIENCE = 60.0
# The file that fills a disk, and the prefix of temporary files of a killed run. They are not part of a configuration.
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
    """Run a command, which may fail or exceed its time."""
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end after {seconds} seconds")


def module(name: str, arguments: dict[str, Any], *before: str) -> list[str]:
    """Return the command that runs a module in one process, as Ansible does. ``before`` precedes its name."""
    MEMORY.mkdir(exist_ok=True)
    file = MEMORY / f"{name}-{time.monotonic_ns()}.json"
    file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    return [sys.executable, "-B", *(before or ("-m",)), f"{MODULES}.{name}", str(file)]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Run a module. Return its result, or the reason why it failed."""
    ended = subprocess.run(
        module(name, arguments), check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=COLLECTIONS
    )
    try:
        return dict(json.loads(ended.stdout))
    except ValueError:
        return {"failed": True, "msg": f"{name} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"}


def kill_points(word: str) -> tuple[str, Iterable[int]]:
    """Return the name of a case and the points at which its run is killed: "switch@3,9", "switch@/5" for each fifth.

    Default: all.
    """
    name, _at, numbers = word.partition("@")
    if numbers.startswith("/"):
        return name, count(1, int(numbers[1:]))
    return name, [int(number) for number in numbers.split(",")] if numbers else count(1)


def status(unit: str) -> dict[str, str]:
    """Return the properties of a unit that systemctl reports."""
    shown = run("systemctl", "show", unit, "--property=ActiveState,SubState,MainPID,Job")
    return dict(line.split("=", 1) for line in shown.stdout.splitlines())


def settled(unit: str) -> dict[str, str]:
    """Return the same as status(), but wait until the unit has no job and no automatic restart is pending."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = status(unit)
        if not (found["Job"] or found["SubState"].startswith("auto-restart")) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def live(engine: Engine) -> dict[str, Any] | None:
    """Return the default runtime of the daemon and its NVIDIA runtimes; None if it does not answer."""
    # A request to a stopped Docker would start it through its socket.
    if status(engine.unit)["ActiveState"] != "active":
        return None
    if engine.name == "docker":
        try:
            info = ask("/info")
        except (OSError, ValueError):
            return None
        return {"default": info["DefaultRuntime"], "own": own(info["Runtimes"])}
    try:
        config: Any = Cri(SOCKET).status()["config"]
    except grpc.RpcError:
        return None
    return {"default": config["containerd"]["defaultRuntimeName"], "own": own(config["containerd"]["runtimes"])}


def start(engine: Engine) -> str:
    """Start a container without a runtime option, and remove it. Return the error, empty if there is none."""
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


def own(runtimes: dict[str, Any]) -> list[str]:
    """Return the names of the NVIDIA runtimes."""
    return sorted(name for name in runtimes if name.startswith("nvidia"))


def files(engine: Engine) -> dict[str, str]:
    """Return the files of the engine's directory, as observing.py describes files."""
    found = trees([engine.folder])
    return {path: found[path] for path in found if not os.path.basename(path).startswith((FILLER, TEMPORARY))}


def at_work() -> list[Any] | None:
    """Return whether the container "at-work" runs, its process and its start time; None if there is none."""
    if status(ENGINES["docker"].unit)["ActiveState"] != "active":
        return None
    try:
        state = ask("/containers/at-work/json").get("State")
    except (OSError, ValueError):
        return None
    return [state[key] for key in ("Running", "Pid", "StartedAt")] if state else None


def remember(name: str, value: Any) -> None:
    """Keep a value for later calls."""
    MEMORY.mkdir(exist_ok=True)
    (MEMORY / name).write_text(json.dumps(value))


def remembered(name: str) -> Any:
    """Return a value that was kept; None if there is none."""
    path = MEMORY / name
    return json.loads(path.read_text()) if path.exists() else None
