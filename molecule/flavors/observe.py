"""Run inside a host: print the state of its engines as JSON: observe.py [--fresh] [--start]

engines: the default runtime and the NVIDIA runtimes of each engine, by its target
restarted: the units that were restarted since the last observation
pods: the number of running containers
touched: the files that were written since the last observation, even with the same bytes
left: the files that differ from the fresh host
overwritten: generated files that another program than their generator has written
With --start, it also starts containers. wrong: the differences from the engines' answers; cdi: whether Podman and the
rootless Docker add the devices of the CDI specification. --fresh saves this observation as that of the fresh host.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import checks
import grpc
import places
import simulated_gpus
from cri import Cri
from elf_programs import CALLS
from observing import differences
from watched import lasting, watched

TREES = ("/etc", "/home", "/opt", "/root", "/snap", "/usr/local", "/usr/share/containers", "/var/lib", "/var/snap")
# Data of engines, and files that other programs write while a host runs.
PRIVATE = (
    "/var/lib/containerd-gpu",
    *(f"/var/lib/rancher/{name}/agent/containerd" for name in ("k3s", "rke2")),
    "/var/lib/k0s/containerd",
    "/var/snap/microk8s/common",
    "/home/alice/.local",
    "/etc/hosts",
    str(simulated_gpus.HOME),
)
GENERATED = Path("/run/gpufleet-generated.json")
PROGRAMS = {"nvidia": ["nvidia-container-runtime"], "nvidia-cdi": ["nvidia-container-runtime.cdi"], "runc": []}


def overwritten() -> list[str]:
    """Return the generated files that another program than their generator has written since."""
    known = json.loads(GENERATED.read_text()) if GENERATED.exists() else {}
    now = {path: os.stat(path) if os.path.exists(path) else None for path in known}
    return [path for path, state in now.items() if not state or known[path] != f"{state.st_ino} {state.st_mtime_ns}"]


def pods() -> dict[str, int]:
    """Return the number of running containers of each engine."""
    rows = {target: places.ctr(address, "tasks", "ls") for target, address in places.HERE.cri.items()}
    return {target: listed.count("RUNNING") for target, listed in rows.items()}


def calls() -> list[list[str]]:
    """Return the arguments of all calls of the toolkit's programs."""
    return [line.split() for line in Path(CALLS).read_text().splitlines()]


def creators(known: int) -> list[str]:
    """Return the programs that were called to create a container after the first ``known`` calls."""
    return [os.path.basename(words[1]) for words in calls()[known:] if "create" in words]


def pod(address: str, handler: str) -> list[str] | str:
    """Start and remove a pod. Return the programs that created it, or the error of the CRI."""
    known = len(calls())
    cri = Cri(address)
    try:
        cri.remove(cri.start(handler))
    except grpc.RpcError as error:
        return str(error.details())
    return creators(known)


def wrong_pods(engines: dict[str, Any]) -> list[str]:
    """Start pods in each CRI with each NVIDIA runtime, runc and the default. Return those of an unexpected program."""
    found = []
    for target, address in places.HERE.cri.items():
        reported = engines[target]
        expected = {"": PROGRAMS[reported["default"]], "runc": []}
        expected.update({name: PROGRAMS[name] for name in reported["own"]})
        made = {handler: pod(address, handler) for handler in {"nvidia", *expected}}
        unknown = made["nvidia"] if "nvidia" not in expected else 'no runtime for "nvidia" is configured'
        if 'no runtime for "nvidia" is configured' not in unknown:
            found.append(f"{target}: nvidia is not known, and made {unknown}")
        found += [f"{target}, {name}: {made[name]}" for name, programs in expected.items() if made[name] != programs]
    return found


def wrong_containers(engines: dict[str, Any]) -> list[str]:
    """Do the same for containers of Docker without a runtime option."""
    found = []
    for target, address in places.HERE.docker.items():
        known = len(calls())
        ended = places.docker(address, "run", "--rm", "--network=none", checks.IMAGE, "true")
        if ended.returncode or creators(known) != PROGRAMS[engines[target]["default"]]:
            found.append(f"{target}: {creators(known)} {ended.stderr}")
    return found


def cdi() -> dict[str, Any]:
    """Return for each engine True if a container with all GPUs gets them, otherwise its error or devices."""
    found = {"podman": checks.seen("podman", "all")}
    os.environ["DOCKER_HOST"] = f"unix://{places.RUNTIME_DIR}/docker.sock"
    found["rootless"] = checks.seen("docker", "all")
    whole = checks.whole(simulated_gpus.now(), 0)
    return {name: True if seen == whole else seen.complaint or seen for name, seen in found.items()}


def main() -> None:
    """Read and compare the files before any container is started, then print the result."""
    now = watched(TREES, PRIVATE)
    places.MEMORY.mkdir(exist_ok=True)
    if "--fresh" in sys.argv:
        for name in ("fresh", "before"):
            (places.MEMORY / name).write_text(json.dumps(now))
    fresh, before = (json.loads((places.MEMORY / name).read_text()) for name in ("fresh", "before"))
    (places.MEMORY / "before").write_text(json.dumps(now))
    memory = places.MEMORY / "units"
    engines, units = places.engines(), places.started()
    known = json.loads(memory.read_text()) if memory.exists() else units
    memory.write_text(json.dumps(units))
    report = {
        "engines": engines,
        "restarted": sorted(name for name in units if units[name] != known[name]),
        "pods": pods(),
        "touched": differences(before, now),
        "left": differences(lasting(fresh), lasting(now)),
        "overwritten": overwritten(),
    }
    if "--start" in sys.argv:
        silent = [target for target, reported in engines.items() if reported is None]
        report["wrong"] = silent or wrong_pods(engines) + wrong_containers(engines)
        report["cdi"] = cdi() if places.KIND == "users" else {}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
