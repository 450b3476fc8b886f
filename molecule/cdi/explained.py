"""Inside a host: what the module explains of containers of each engine: explained.py ENGINE...

Prints JSON, as Report does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import checks
import simulated_gpus
from engines import IMAGE, call, run
from toolkits import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = f"{checks.KIND}=all"
VISIBLE = ("--env", "NVIDIA_VISIBLE_DEVICES=all", "--env", "NVIDIA_API_KEY=secret")
# The options of each container of Docker and Podman, and the code of its explanation.
CONTAINERS = {
    "whole": (("--device", ALL), "ok"),
    "unknown": (("--device", f"{checks.KIND}=7"), "cdi-device-missing"),
}
# The stand-ins for the runtime and for its hook, which Docker runs for --gpus, add nothing.
OF_DOCKER = {
    "ignored": (("--runtime", "runc", *VISIBLE), "devices-missing"),
    "empty": (("--runtime", "nvidia", *VISIBLE), "devices-missing"),
    "gpus": (("--gpus", "all"), "devices-missing"),
}


def explain(name: str, **options: str) -> dict[str, Any]:
    """Call the module."""
    return call("nvidia_runtime_verify", container=name, **options)


def paths(found: dict[str, Any], kind: str) -> list[str]:
    """Return the paths of the nodes or files that the container of an explanation has."""
    return [entry["path"] for entry in (found.get("has") or {}).get(kind, [])]


def specification(**options: str) -> dict[str, Any]:
    """Call the module that writes it, as JSON, which a host can read without a package of the controller."""
    return checks.specification(path=str(checks.JSON_SPECIFICATION), **options)


def try_engine(report: Report, engine: str, host: simulated_gpus.SimulatedHost) -> None:
    """Containers that run, and such that could not be started."""
    chosen = {**CONTAINERS, **(OF_DOCKER if engine == "docker" else {})}
    for name, (options, code) in chosen.items():
        run(engine, "run", "--detach", "--network=none", "--name", name, *options, IMAGE, "sleep", "600")
        result = explain(name, engine=engine)
        found = result.get("explanation", {})
        report.check(f"{engine}, {name}", found.get("code") == code, result)
        report.check(f"{engine}, {name}, secret", "secret" not in str(found), found)
        state = "created" if code == "cdi-device-missing" else "running"
        asked = found.get("asked", {})
        report.check(f"{engine}, {name}, state", asked.get("state") == state, found)
        if name == "whole":
            report.check(f"{engine}, nodes", paths(found, "nodes") == sorted(host.nodes(0, 1)), found)
            report.check(f"{engine}, files", set(host.libraries()) <= set(paths(found, "files")), found)
            by_id = explain(asked.get("id", "")[:12])
            report.check(f"{engine}, by its ID", by_id.get("explanation") == found, by_id)


def try_names(report: Report, engines: list[str]) -> None:
    """A name in two engines, and one in none."""
    if len(engines) > 1:
        report.failed("two engines", explain("whole"), "matches several containers: whole .docker, .*whole .podman, ")
    report.failed("no such container", explain("nope"), "No container has the name or ID 'nope'. Searched: docker ")


def pods(devices: list[str]) -> Iterator[str]:
    """The ID of a container in a pod, which is removed afterwards."""
    cri = checks.Pods(checks.SOCKET)
    pod = cri.start("")
    try:
        container = cri.create(pod, devices, annotation=False)
        cri.call("StartContainer", checks.field(1, container))
        yield container
    finally:
        cri.remove(pod)


def try_pods(report: Report, host: simulated_gpus.SimulatedHost) -> None:
    """A container with CDI devices, and one without."""
    for devices, code in ((["0"], "ok"), ([], "no-gpu-requested")):
        for identifier in pods(devices):
            result = explain(identifier[:12])
            found = result.get("explanation", {})
            report.check(f"pod, {devices}", found.get("code") == code, result)
            if devices:
                report.check("pod, nodes", paths(found, "nodes") == sorted(host.nodes(0)), found)


def try_driver(report: Report, engine: str) -> None:
    """A container that runs since before a change of the driver."""
    simulated_gpus.create(simulated_gpus.SimulatedHost(gpus=2, version=simulated_gpus.NEW))
    specification()
    result = explain("whole", engine=engine)
    report.check(f"{engine}, another driver", result.get("explanation", {}).get("code") == "libraries-stale", result)
    simulated_gpus.create(simulated_gpus.SimulatedHost(gpus=2))
    specification()


def main() -> None:
    """Do it, and leave neither containers nor a specification."""
    report, engines = Report(), sys.argv[1:]
    host = simulated_gpus.create(simulated_gpus.SimulatedHost(gpus=2))
    report.worked("specification", specification(), changed=True)
    by_command = [engine for engine in engines if engine != "containerd"]
    for engine in by_command:
        try_engine(report, engine, host)
    try_driver(report, by_command[0])
    try_names(report, by_command)
    for engine in by_command:
        run(engine, "rm", "--force", *CONTAINERS, *(OF_DOCKER if engine == "docker" else ()))
    if "containerd" in engines:
        try_pods(report, host)
    report.worked("absent", specification(state="absent"), changed=True)
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    report.print()


if __name__ == "__main__":
    main()
