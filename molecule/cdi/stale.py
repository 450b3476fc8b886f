"""Inside a host: lets specifications go out of date, sees what engines make of that, and that it is mended.

stale.py ENGINE... prints JSON, as Report does.
"""

from __future__ import annotations

import sys

import looks
import machine
from toolkits import Report

BASE = machine.Machine()


def told(report: Report, what: str, *patterns: str) -> None:
    """Foretell why it is to be replaced, and replace it."""
    foretold = looks.specification(_ansible_check_mode=True)
    report.worked(f"{what}, foretold", foretold, changed=True)
    written = looks.specification()
    report.worked(what, written, changed=True)
    reasons = written.get("reasons", [])
    report.check(f"{what}, both say the same", foretold.get("reasons") == reasons, (foretold, written))
    for pattern in patterns:
        report.check(f"{what}, reasons", pattern in " ".join(reasons), reasons)
    report.worked(f"{what}, again", looks.specification(), changed=False)


def right(report: Report, what: str, engines: list[str], host: machine.Machine) -> None:
    """Whether containers get all that there is."""
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(f"{engine}, {what}, right", found == looks.whole(host, *range(host.gpus)), found)


def try_driver(report: Report, engines: list[str]) -> None:
    """Another version of the driver: its files have other names, and no container starts."""
    host = machine.become(BASE._replace(version=machine.NEW))
    gone = f"libcuda.so.{machine.OLD}"
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(
            f"{engine}, another driver, does not start", looks.blames(engine, found, f".so.{machine.OLD}"), found
        )
    change = f"It is for driver {machine.OLD}, but the driver is {machine.NEW}."
    told(report, "another driver", change, f"These paths no longer exist: {machine.FOLDER}/{gone}")
    right(report, "another driver", engines, host)


def try_number(report: Report, engines: list[str]) -> None:
    """Another number of nvidia-uvm, as after many a boot: containers start, and get the device of another driver."""
    host = machine.become(machine.now()._replace(uvm=508))
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(f"{engine}, another number, the former one", found.nodes["/dev/nvidia-uvm"] == "1fe:0", found)
    told(report, "another number", "It has device number 510:0 for /dev/nvidia-uvm instead of 508:0.")
    right(report, "another number", engines, host)


def try_gpu(report: Report, engines: list[str]) -> None:
    """One more GPU, of which containers know nothing; and one less, without which they do not start."""
    host = machine.become(machine.now()._replace(gpus=2))
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(f"{engine}, a GPU more, only the other one", found == looks.whole(host, 0), found)
        found = looks.seen(engine, "1")
        report.check(f"{engine}, a GPU more, unknown", f"{looks.KIND}=1" in found.complaint, found)
    told(report, "a GPU more", f"It lacks the devices 1, {machine.uuid(1)}")
    right(report, "a GPU more", engines, host)
    host = machine.become(machine.now()._replace(gpus=1))
    told(report, "a GPU less", f"It has the devices 1, {machine.uuid(1)}, which no longer exist.")
    right(report, "a GPU less", engines, host)


def try_broken(report: Report, engines: list[str]) -> None:
    """What engines skip; and what somebody may not read."""
    looks.SPECIFICATION.write_text('{"cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "devices": []}\n')
    for engine in engines:
        found = looks.seen(engine, "0")
        report.check(f"{engine}, broken, unknown", looks.KIND in found.complaint, found)
    told(report, "broken", "Engines skip it.")
    looks.SPECIFICATION.chmod(0o600)
    told(report, "unreadable", "0600")
    report.check("unreadable, mode", looks.mode(looks.SPECIFICATION) == "0644 0:0", looks.mode(looks.SPECIFICATION))
    right(report, "broken", engines, machine.now())


def main() -> None:
    """Do it, and leave no specification."""
    report, engines = Report(), sys.argv[1:]
    machine.become(BASE)
    looks.specification()
    try_driver(report, engines)
    try_number(report, engines)
    try_gpu(report, engines)
    try_broken(report, engines)
    looks.specification(state="absent")
    machine.become(BASE)
    report.print()


if __name__ == "__main__":
    main()
