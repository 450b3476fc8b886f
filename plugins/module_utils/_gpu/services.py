# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Describe the service of the driver that connects GPUs: the fabric manager of NVSwitches.

A host without NVSwitches costs two reads of directories and no command.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The driver makes one directory for each NVSwitch that it drives (kernel-open/nvidia/procfs_nvswitch.c of
# open-gpu-kernel-modules 595.45.04). It drives bridges of NVIDIA with the PCI class 0x068000 (linux_nvswitch.c there).
_SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
_SWITCH_NODES = "/dev/nvidia-nvswitch[0-9]*"
# The program of the package nvidia-fabricmanager, and the name of its process, which the kernel cuts after 15
# characters (TASK_COMM_LEN).
_FABRIC_MANAGER, _PROCESS = "nv-fabricmanager", "nv-fabricmanage"
FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"
# A kernel thread that only the first PID namespace has. In another one, such as that of an LXC container, the driver
# shows the NVSwitches of the host, but its processes are not visible.
_KERNEL_THREAD = "kthreadd"
# The fabric manager prints "Fabric Manager version is : 580.159.03".
_VERSION = re.compile(r"version is\s*:\s*([0-9]+(?:\.[0-9]+)+)")


def describe_fabric_manager(host: hostfs.HostFS, run: core_plan.Runner) -> dict[str, t.Any] | None:
    """Return the fabric manager of a live host whose driver is loaded; None without NVSwitches."""
    if not host.readable_entries(_SWITCHES) and not host.glob(_SWITCH_NODES):
        return None
    path, names = host.find_executable([_FABRIC_MANAGER]), _process_names(host)
    pids = [pid for pid, name in (names or {}).items() if name == _PROCESS]
    version = None
    # A container has a program of its own, whose version may differ from that of the host.
    if path is not None and not any(_in_container(host, pid) for pid in pids):
        status, output, error = run(host.argv([path, "--version"]))
        found = _VERSION.search(output + error) if status == 0 else None
        version = found.group(1) if found else None
    return {"program": path, "version": version, "running": None if names is None else bool(pids)}


def fabric_manager_problem(service: t.Mapping[str, t.Any], driver: str) -> errors.Problem | None:
    """Return the problem of a fabric manager that does not run, or that will not start again; None if there is none.

    CUDA then returns cudaErrorSystemNotReady, and a fabric manager of another version does not start (NVIDIA, Fabric
    Manager for NVSwitch Systems).

    Args:
        service: Its description, as of describe_fabric_manager(). It is empty without NVSwitches.
        driver: The version of the driver, empty if it is unknown.
    """
    is_running, version = service.get("running"), service.get("version")
    if not isinstance(is_running, bool):
        return None
    if not is_running and not service.get("program"):
        message = "The host has NVSwitches, but no fabric manager. CUDA does not start without it."
        advice = (
            f"Install nvidia-fabricmanager in the version of the driver ({driver}), and start {FABRIC_MANAGER_UNIT}."
        )
    elif isinstance(version, str) and driver and version != driver:
        state = "It does not start again after it stops." if is_running else "It does not start, and neither does CUDA."
        message = f"The fabric manager has version {version}, the driver {driver}. {state}"
        advice = f"Install nvidia-fabricmanager in version {driver}, and restart {FABRIC_MANAGER_UNIT}."
    elif not is_running:
        message = "The host has NVSwitches, but the fabric manager does not run. CUDA does not start without it."
        advice = f"Run `systemctl enable --now {FABRIC_MANAGER_UNIT}`. If that fails, see its journal."
    else:
        return None
    return errors.Problem("fabric-manager-unusable", message, advice)


def _process_names(host: hostfs.HostFS) -> dict[str, str] | None:
    """Return the names of all processes by their numbers, including those in containers.

    Return None if not all processes of the host are visible.
    """
    pids = (name for name in host.readable_entries("/proc") if name.isdecimal())
    names = {pid: host.read_text(f"/proc/{pid}/comm").strip() for pid in pids}
    return names if _KERNEL_THREAD in names.values() else None


def _in_container(host: hostfs.HostFS, pid: str) -> bool:
    """Return whether a process has a PID namespace of its own, such as that of NVIDIA's GPU operator."""
    lines = host.read_text(f"/proc/{pid}/status").splitlines()
    # The numbers of the process in all nested namespaces (proc_pid_status(5)).
    return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in lines)
