# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about the driver: GPUs and their device nodes, the module, the next kernel, and services.

The rules about problems that the code in _gpu reports, such as nouveau, are in rules_host.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, inventory, procfs, services

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors


# -- GPUs and device nodes -------------------------------------------------------------------------------------------

_RECREATE = f"{device_nodes.fix_for_node('/dev/nvidia-caps/nvidia-cap0')}. Then write the CDI specification again."
_READ_LOG = f"{procfs.CHECK_LOG} Restart the host if the GPU does not recover."


def driver(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a GPU on the PCI bus without a loaded driver, unless the part on GPUs reports it."""
    codes = {problem.code for problem in report.problems_in(facts.gpus.get("problems"))}
    is_reported = codes & set(procfs.WITHOUT_DRIVER)
    if report.table(facts.toolkit.get("gpu")).get("kind") == procfs.PCI and not is_reported:
        message = "The host has a GPU, but NVIDIA's driver is not loaded."
        yield report.critical("driver-not-loaded", report.DRIVER, message, procfs.LOAD, facts.without_driver)


def devices(facts: report.HostFacts) -> report.Findings:
    """Yield findings for unusable GPUs and MIG devices: one finding for all whose reasons are of the same kinds."""
    unusable: dict[tuple[str, tuple[str, ...]], dict[str, list[errors.Problem]]] = {}
    undivided: list[str] = []
    for position, gpu in enumerate(report.rows(facts.gpus.get("devices"))):
        index = report.number(gpu.get("index"))
        name = f"gpu {position if index is None else index}"
        reasons = report.problems_in(gpu.get("reasons"))
        if gpu.get("healthy") is False and not _is_reported_with_nodes(facts, reasons):
            unusable.setdefault(("gpu-unusable", _codes(reasons)), {})[name] = reasons
        parts = report.rows(gpu.get("mig_devices"))
        for part_position, part in enumerate(parts):
            own = [reason for reason in report.problems_in(part.get("reasons")) if reason not in reasons]
            if part.get("healthy") is False and own:
                index = report.number(part.get("index"))
                # Missing nodes of MIG devices always have the same cause.
                is_node = any(reason.code == inventory.MIG_NODE for reason in own)
                key = ("device-node-missing", ()) if is_node else ("gpu-unusable", _codes(own))
                unusable.setdefault(key, {})[f"{name}, MIG {part_position if index is None else index}"] = own
        if gpu.get("mig_enabled") is True and not parts:
            undivided.append(name)
    if undivided:
        message = "In MIG mode, containers can use only MIG devices, and there are none."
        advice = "Create MIG devices (nvidia-smi mig -cgi … -C), or disable MIG mode."
        yield report.warning("mig-without-devices", core_text.listed(undivided), message, advice)
    for (kind, _own), by_name in unusable.items():
        found = [reason for reasons in by_name.values() for reason in reasons]
        text = report.joined(reason.message for reason in found) or "Containers cannot use it."
        default = _RECREATE if kind == "device-node-missing" else _READ_LOG
        advice = report.joined(reason.advice for reason in found) or default
        yield report.critical(kind, core_text.listed(list(by_name)), text, advice)


def _codes(reasons: t.Iterable[errors.Problem]) -> tuple[str, ...]:
    # A reason of an unknown kind has no code.
    return tuple(sorted({reason.code or reason.message for reason in reasons}))


def _is_reported_with_nodes(facts: report.HostFacts, reasons: t.Sequence[errors.Problem]) -> bool:
    """Return whether all reasons are device nodes that the finding about missing nodes lists."""
    missing = [inventory.missing_node(path) for path in report.texts(facts.gpus.get("missing_nodes"))]
    return bool(reasons) and all(reason in missing for reason in reasons)


def nodes(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all missing device nodes, with the commands that create them.

    It is critical if a GPU lacks a node. The rule about unusable devices also reports MIG devices without a node.
    """
    paths = report.texts(facts.gpus.get("missing_nodes"))
    if paths:
        *others, last = dict.fromkeys(map(device_nodes.command_for_node, paths))
        commands = f"{', '.join(others)} and {last}" if others else last
        is_needed = any(
            node in device_nodes.NEEDED_NODES or device_nodes.GPU_NODE.fullmatch(node)
            for node in map(device_nodes.node_in_containers, paths)
        )
        severity = report.CRITICAL if is_needed else report.WARNING
        message = f"Missing device nodes: {core_text.listed(paths)}."
        yield report.Finding(severity, "device-node-missing", paths[0], message, f"Run {commands} as root.")


def modules(facts: report.HostFacts) -> report.Findings:
    """Yield a finding if nvidia_uvm is not loaded: CUDA needs it, and a container cannot load it.

    An integrated GPU, which NVML may not list either, has another module.
    """
    loaded = report.table(facts.gpus.get("modules"))
    models = [report.text(gpu.get("model")) for gpu in report.rows(facts.gpus.get("devices"))]
    is_needed = any(not procfs.is_integrated(model) for model in models)
    if is_needed and "nvidia" in loaded and "nvidia_uvm" not in loaded:
        message = "The kernel module nvidia_uvm, which CUDA needs, is not loaded."
        advice = f"Load it with {device_nodes.CONTROL_NODES['/dev/nvidia-uvm']}."
        yield report.warning("uvm-not-loaded", report.DRIVER, message, advice)


# -- the kernel and the module ---------------------------------------------------------------------------------------


def next_kernel(facts: report.HostFacts) -> report.Findings:
    """Yield findings for a loaded driver: its other modules cannot be loaded, or the next restart loads no driver."""
    kernel = report.table(facts.gpus.get("kernel"))
    if not kernel or report.text(facts.gpus.get("source")) == "":
        return
    release, newest = report.text(kernel.get("release")), report.text(kernel.get("next_release"))
    if kernel.get("has_modules") is False:
        message = (
            f"The modules of the running kernel {release} were removed, so nvidia_uvm and others cannot be loaded."
        )
        yield report.warning("reboot-required", report.DRIVER, message, steps.RESTART_HOST)
    if newest and report.text(kernel.get("module")) and not report.text(kernel.get("next_module")):
        message = f"The newer kernel {newest} has no module nvidia. With it, the host has no GPUs after a restart."
        advice = (
            f"Before the restart, run dkms autoinstall -k {newest}, or install the driver's modules for this kernel."
        )
        yield report.warning("next-kernel-without-driver", report.DRIVER, message, advice)


# -- services --------------------------------------------------------------------------------------------------------

_LICENSING = "nvidia-gridd.service"


def fabric_manager(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for NVSwitches without a fabric manager of the driver's version."""
    service = report.table(facts.gpus.get("fabric_manager"))
    found = services.fabric_manager_problem(service, report.text(facts.gpus.get("driver_version")))
    if found is not None:
        severity = report.WARNING if service["running"] else report.CRITICAL
        yield report.Finding(severity, found.code, services.FABRIC_MANAGER_UNIT, found.message, found.advice)


def vgpu_license(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all vGPUs without a license. The driver then lowers their performance step by step.

    NVIDIA, Virtual GPU Client Licensing User Guide.
    """
    gpus = [
        gpu for gpu in report.rows(facts.gpus.get("devices")) if report.table(gpu.get("vgpu")).get("licensed") is False
    ]
    names = [f"gpu {report.number(gpu.get('index'))}" for gpu in gpus]
    if names:
        products = [report.text(report.table(gpu.get("vgpu")).get("product")) for gpu in gpus]
        needed = f" for {core_text.listed(list(dict.fromkeys(filter(None, products))))}" if any(products) else ""
        message = f"The vGPU has no license{needed} ({core_text.listed(names)}). The driver limits what it can do."
        advice = (
            f"Put the token of your license server into /etc/nvidia/ClientConfigToken, and restart {_LICENSING}."
            " Its journal says why it gets no license."
        )
        yield report.warning("vgpu-not-licensed", _LICENSING, message, advice)


RULES = (
    driver,
    devices,
    nodes,
    modules,
    next_kernel,
    fabric_manager,
    vgpu_license,
)
