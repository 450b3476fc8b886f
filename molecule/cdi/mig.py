"""Inside a host: checks MIG devices and a change of them: mig.py ENGINE... prints JSON, as Report does."""

from __future__ import annotations

import sys

import checks
import simulated_gpus
from toolkits import Report


def check_devices(
    report: Report, what: str, engine: str, host: simulated_gpus.SimulatedHost, devices: dict[str, tuple[int, int]]
) -> None:
    """Check that containers get the nodes of MIG devices."""
    for name, mig in devices.items():
        found = checks.seen(engine, name)
        wanted = checks.Seen(dict(sorted(host.mig_nodes(mig).items())), host.libraries(), checks.VARIABLES)
        report.check(f"{engine}, {what}, {name}", found == wanted, found)
    found = checks.seen(engine, "all")
    nodes = dict(sorted(host.mig_nodes(*devices.values()).items()))
    report.check(f"{engine}, {what}, all", found.nodes == nodes, found)


def main() -> None:
    """Run all checks. The specification is removed at the end."""
    report, engines = Report(), sys.argv[1:]
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    report.worked("before", checks.specification(), changed=True)
    host = simulated_gpus.create(simulated_gpus.SimulatedHost(migs=2))
    with_mig = checks.specification()
    report.worked("with MIG", with_mig, changed=True)
    names = {"0:0", "0:1", simulated_gpus.mig_uuid(0, 0), simulated_gpus.mig_uuid(0, 1), "all"}
    report.check("with MIG, devices", set(with_mig.get("devices", [])) == names, with_mig)
    report.worked("with MIG, again", checks.specification(), changed=False)
    migs = {"0:0": (0, 0), simulated_gpus.mig_uuid(0, 1): (0, 1)}
    for engine in engines:
        check_devices(report, "with MIG", engine, host, migs)
    # No unit notices this change. Only the next run of the role does.
    host = simulated_gpus.create(simulated_gpus.SimulatedHost(migs=3))
    for engine in engines:
        found = checks.seen(engine, "0:2")
        report.check(f"{engine}, before the run after MIG", f"{checks.KIND}=0:2" in found.complaint, found)
    changed = checks.specification()
    report.worked("after MIG", changed, changed=True)
    report.check("after MIG, reasons", "It lacks the devices 0:2" in " ".join(changed.get("reasons", [])), changed)
    report.worked("after MIG, again", checks.specification(), changed=False)
    for engine in engines:
        check_devices(report, "after MIG", engine, host, {**migs, "0:2": (0, 2)})
    (simulated_gpus.CAPS / f"nvidia-cap{simulated_gpus.capabilities(0, 1)[1]}").unlink()
    report.failed("a node is missing", checks.specification(), "nvidia-cap6.*nvidia-smi")
    checks.specification(state="absent")
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    report.print()


if __name__ == "__main__":
    main()
