"""Inside a host: what nvidia_container_info reports about a kubelet and a device plugin.

Both are stand-ins that speak gRPC. Prints JSON, as Report does.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import checks
import node_standins
import simulated_gpus
from engines import call, run
from toolkits import Report

KUBELET, PLUGIN = node_standins.SERVICES
GPUS = [simulated_gpus.uuid(number) for number in (0, 1)]
# The findings about Kubernetes that the cases compare.
FINDINGS = ("devices-not-offered", "device-plugin-not-serving")
SECONDS = 20.0
# As JSON, which a host can read without a package of the controller.
SPECIFICATION = str(checks.JSON_SPECIFICATION)


def describe() -> dict[str, Any]:
    """Call nvidia_container_info."""
    return call("nvidia_container_info", gather_subset=["engines", "toolkit", "gpus", "cdi", "kubernetes", "findings"])


def offered(result: dict[str, Any]) -> list[str]:
    """Return the devices that the kubelet offers."""
    resources = (result.get("kubernetes") or {}).get("resources", [])
    return sorted(name for row in resources for name in row["allocatable"] or [])


def check(report: Report, case: str, devices: list[str], findings: list[str]) -> dict[str, Any]:
    """Wait until the kubelet offers these devices, then check the findings. Return the part about Kubernetes."""
    deadline = time.monotonic() + SECONDS
    while offered(result := describe()) != devices and time.monotonic() < deadline:
        time.sleep(0.5)
    found = sorted({row["id"] for row in result.get("findings") or []} & set(FINDINGS))
    report.check(f"{case}: devices", offered(result) == devices, result.get("kubernetes") or result)
    report.check(f"{case}: findings", found == findings, result.get("findings"))
    return dict(result.get("kubernetes") or {})


def start_plugin(**devices: str) -> None:
    """Start the plugin again with these devices and their health."""
    lines = (f"{GPUS[int(name[-1])]} {health}\n" for name, health in devices.items())
    node_standins.DEVICES.write_text("".join(lines))
    run("systemctl", "restart", PLUGIN)


def main() -> None:
    """Do it, and leave nothing."""
    report = Report()
    simulated_gpus.create(simulated_gpus.SimulatedHost(gpus=2))
    report.worked("specification", checks.specification(path=SPECIFICATION), changed=True)
    node_standins.install()
    run("systemctl", "start", KUBELET)
    start_plugin(gpu0="Healthy", gpu1="Healthy")
    node = check(report, "both GPUs", GPUS, [])
    report.check("engine", (node.get("engine"), node.get("problems")) == ("containerd", []), node)

    start_plugin(gpu0="Healthy")
    check(report, "one GPU is missing", GPUS[:1], ["devices-not-offered"])
    start_plugin(gpu0="Healthy", gpu1="Unhealthy")
    check(report, "one GPU is unhealthy", GPUS[:1], ["devices-not-offered"])

    main_pid = int(run("systemctl", "show", "--property=MainPID", "--value", PLUGIN).stdout)
    os.kill(main_pid, signal.SIGKILL)
    check(report, "killed plugin", [], ["device-plugin-not-serving"])

    start_plugin(gpu0="Healthy", gpu1="Healthy")
    check(report, "restarted plugin", GPUS, [])
    # This plugin does not register again. The checkpoint has its devices, so it had loaded NVML, and the finding is not
    # pod-without-runtime.
    run("systemctl", "restart", KUBELET)
    check(report, "restarted kubelet", [], ["device-plugin-not-serving"])

    node_standins.remove()
    report.worked("absent", checks.specification(state="absent", path=SPECIFICATION), changed=True)
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    report.print()


if __name__ == "__main__":
    main()
