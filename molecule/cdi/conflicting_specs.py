"""Inside a host: several files describe the same devices: conflicting_specs.py ENGINE... prints JSON, as Report does.

The files of the other tool are JSON, because a host needs PyYAML to read YAML.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import checks
import simulated_gpus
from toolkits import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHER = checks.SPECIFICATION.with_name("gpus.json")
BEFORE = checks.JSON_SPECIFICATION
# Engines read this directory last. Its files have precedence over all others.
LATER = Path("/var/run/cdi/nvidia.json")


def foreign_specification(device: str = "all") -> bytes:
    """Return a specification of another tool. It sets a variable in containers."""
    edits = {"env": ["GPUFLEET_THEIRS=1"]}
    document = {"cdiVersion": "0.5.0", "kind": checks.KIND, "devices": [{"name": device, "containerEdits": edits}]}
    return json.dumps(document, indent=3).encode()


def conflicts(written: dict[str, Any]) -> list[tuple[str, str]]:
    """Return path and effect of each conflict in a result."""
    return [(entry["path"], entry["effect"]) for entry in written.get("conflicts", [])]


def try_one_folder(report: Report, engines: Sequence[str]) -> None:
    """Check two files in one directory: engines load none of the devices that both files have."""
    host = simulated_gpus.now()
    OTHER.write_bytes(foreign_specification())
    written = checks.specification()
    report.worked("two files", written, changed=True)
    report.check("two files, reported", conflicts(written) == [(str(OTHER), "collides")], written)
    report.check("two files, warned", "exclusive: true" in str(written.get("warnings")), written)
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, two files, unknown", f"{checks.KIND}=all" in found.complaint, found)
        found = checks.seen(engine, "0")
        report.check(f"{engine}, two files, what one has", found == checks.whole(host, 0), found)
    report.worked("two files, again", checks.specification(), changed=False)
    alone = checks.specification(exclusive=True)
    report.worked("exclusive", alone, changed=True)
    report.check("exclusive, reported", alone.get("removed_files") == [str(OTHER)], alone)
    report.check("exclusive, gone", not OTHER.exists())
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, exclusive", found == checks.whole(host, 0), found)
    report.worked("exclusive, again", checks.specification(exclusive=True), changed=False)


def try_absent(report: Report, engines: Sequence[str]) -> None:
    """Check that a removal restores the file of the other tool byte for byte."""
    gone = checks.specification(state="absent")
    report.worked("absent", gone, changed=True)
    report.check("absent, reported", gone.get("restored_files") == [str(OTHER)], gone)
    report.check("absent, the bytes", OTHER.read_bytes() == foreign_specification())
    report.check("absent, own", not checks.SPECIFICATION.exists())
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, absent, foreign", "GPUFLEET_THEIRS=1" in found.variables, found)
    report.worked("absent, again", checks.specification(state="absent"), changed=False)
    OTHER.unlink()


def try_same_path(report: Report, engines: Sequence[str]) -> None:
    """Check a file of another tool at the path of the specification."""
    host = simulated_gpus.now()
    BEFORE.write_bytes(foreign_specification("0"))
    BEFORE.chmod(0o640)
    written = checks.specification(path=str(BEFORE))
    report.worked("the same path", written, changed=True)
    report.check("the same path, JSON", "all" in [device["name"] for device in checks.document()["devices"]])
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, the same path", found == checks.whole(host, 0), found)
    report.worked("the same path, again", checks.specification(path=str(BEFORE)), changed=False)
    report.worked("the same path, absent", checks.specification(state="absent"), changed=True)
    back = (BEFORE.read_bytes(), checks.mode(BEFORE))
    report.check("the same path, back", back == (foreign_specification("0"), "0640 0:0"), back)
    BEFORE.unlink()


def try_later_folder(report: Report, engines: Sequence[str]) -> None:
    """Check a file of another tool in the directory that has precedence."""
    host = simulated_gpus.now()
    LATER.parent.mkdir(parents=True, exist_ok=True)
    LATER.write_bytes(foreign_specification())
    written = checks.specification()
    report.check("another folder, reported", conflicts(written) == [(str(LATER), "shadows")], written)
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, another folder, foreign", "GPUFLEET_THEIRS=1" in found.variables, found)
    report.worked("another folder, exclusive", checks.specification(exclusive=True), changed=True)
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, another folder, own", found == checks.whole(host, 0), found)
    report.worked("another folder, absent", checks.specification(state="absent"), changed=True)
    report.check("another folder, back", LATER.exists() and LATER.read_bytes() == foreign_specification())
    shutil.rmtree(LATER.parent)


def main() -> None:
    """Run all checks. The specification is removed at the end."""
    report, engines = Report(), sys.argv[1:]
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    checks.SPECIFICATION.parent.mkdir(exist_ok=True)
    try_one_folder(report, engines)
    try_absent(report, engines)
    try_same_path(report, engines)
    try_later_folder(report, engines)
    checks.SPECIFICATION.parent.rmdir()
    report.print()


if __name__ == "__main__":
    main()
