"""Inside a host: makes specifications out of date, checks the effect on engines, and checks that they are replaced.

stale.py ENGINE... prints JSON, as Report does.
"""

from __future__ import annotations

import sys

import checks
import simulated_gpus
from toolkits import Report

BASE = simulated_gpus.SimulatedHost()


def replace(report: Report, what: str, *patterns: str) -> None:
    """Replace the file. Check mode predicts the reasons, which contain ``patterns``; a second run changes nothing."""
    predicted = checks.specification(_ansible_check_mode=True)
    report.worked(f"{what}, predicted", predicted, changed=True)
    written = checks.specification()
    report.worked(what, written, changed=True)
    reasons = written.get("reasons", [])
    report.check(f"{what}, both say the same", predicted.get("reasons") == reasons, (predicted, written))
    for pattern in patterns:
        report.check(f"{what}, reasons", pattern in " ".join(reasons), reasons)
    report.worked(f"{what}, again", checks.specification(), changed=False)


def right(report: Report, what: str, engines: list[str], host: simulated_gpus.SimulatedHost) -> None:
    """Check that containers get all GPUs of the host."""
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, {what}, right", found == checks.whole(host, *range(host.gpus)), found)


def try_driver(report: Report, engines: list[str]) -> None:
    """Check another version of the driver: its files have other names, and no container starts."""
    host = simulated_gpus.create(BASE._replace(version=simulated_gpus.NEW))
    gone = f"libcuda.so.{simulated_gpus.OLD}"
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(
            f"{engine}, another driver, does not start",
            checks.fails_with(engine, found, f".so.{simulated_gpus.OLD}"),
            found,
        )
    change = f"It is for driver {simulated_gpus.OLD}, but the driver is {simulated_gpus.NEW}."
    replace(report, "another driver", change, f"These paths no longer exist: {simulated_gpus.FOLDER}/{gone}")
    right(report, "another driver", engines, host)


def try_number(report: Report, engines: list[str]) -> None:
    """Check another number of nvidia-uvm, as after some boots: containers start with the previous number."""
    host = simulated_gpus.create(simulated_gpus.now()._replace(uvm=508))
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, another number, the former one", found.nodes.get("/dev/nvidia-uvm") == "1fe:0", found)
    replace(report, "another number", "It has device number 510:0 for /dev/nvidia-uvm instead of 508:0.")
    right(report, "another number", engines, host)


def try_gpu(report: Report, engines: list[str]) -> None:
    """Check one more GPU, which containers do not get before the file is replaced, and one GPU less."""
    host = simulated_gpus.create(simulated_gpus.now()._replace(gpus=2))
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, a GPU more, only the other one", found == checks.whole(host, 0), found)
        found = checks.seen(engine, "1")
        report.check(f"{engine}, a GPU more, unknown", f"{checks.KIND}=1" in found.complaint, found)
    replace(report, "a GPU more", f"It lacks the devices 1, {simulated_gpus.uuid(1)}")
    right(report, "a GPU more", engines, host)
    host = simulated_gpus.create(simulated_gpus.now()._replace(gpus=1))
    replace(report, "a GPU less", f"It has the devices 1, {simulated_gpus.uuid(1)}, which no longer exist.")
    right(report, "a GPU less", engines, host)


def try_broken(report: Report, engines: list[str]) -> None:
    """Check a file that engines skip because it is invalid, and one that other users cannot read."""
    checks.SPECIFICATION.write_text('{"cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "devices": []}\n')
    for engine in engines:
        found = checks.seen(engine, "0")
        report.check(f"{engine}, broken, unknown", checks.KIND in found.complaint, found)
    replace(report, "broken", "Engines skip it.")
    checks.SPECIFICATION.chmod(0o600)
    replace(report, "unreadable", "0600")
    report.check("unreadable, mode", checks.mode(checks.SPECIFICATION) == "0644 0:0", checks.mode(checks.SPECIFICATION))
    right(report, "broken", engines, simulated_gpus.now())


def main() -> None:
    """Run all checks. The specification is removed at the end."""
    report, engines = Report(), sys.argv[1:]
    simulated_gpus.create(BASE)
    checks.specification()
    try_driver(report, engines)
    try_number(report, engines)
    try_gpu(report, engines)
    try_broken(report, engines)
    checks.specification(state="absent")
    simulated_gpus.create(BASE)
    report.print()


if __name__ == "__main__":
    main()
