# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Findings about GPUs and the driver. They are derived from the report; the host is not read again."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import rules_problems
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors


# The number of messages that a finding quotes.
_QUOTED = 5
_RECREATE = (
    "Run nvidia-smi as root, which makes the nodes, after each change of the MIG devices. Then write the CDI"
    " specification again."
)
_FOLLOW = "Follow the advice in the message. If it has none, look for NVRM and Xid in the kernel's log."


def driver(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding for a GPU on the PCI bus without a loaded driver, unless the part on GPUs reports it."""
    undriven = ("gpu-driven-by-nouveau", "gpu-without-driver")
    reported = any(problem.code in undriven for problem in audit_finding.problems_in(described.gpus.get("problems")))
    if audit_finding.table(described.toolkit.get("gpu")).get("kind") == gpu_detect.PCI and not reported:
        yield audit_finding.Finding(
            audit_finding.CRITICAL,
            "driver-not-loaded",
            rules_problems.DRIVER,
            "The host has a GPU, but no driver of NVIDIA is loaded.",
            "Load it with modprobe nvidia, and look at the kernel's log for NVRM if that fails.",
        )


def devices(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for unusable GPUs and MIG devices: one finding for all with the same reasons."""
    unusable: dict[tuple[str, tuple[str, ...]], list[tuple[str, list[str]]]] = {}
    for place, gpu in enumerate(audit_finding.rows(described.gpus.get("devices"))):
        index = audit_finding.number(gpu.get("index"))
        name = f"gpu {place if index is None else index}"
        own = audit_finding.problems_in(gpu.get("reasons"))
        if gpu.get("healthy") is False and not _is_reported_with_nodes(described, own):
            messages = [reason.message for reason in own]
            unusable.setdefault(("gpu-unusable", tuple(messages)), []).append((name, messages))
        parts = audit_finding.rows(gpu.get("mig_devices"))
        for number_of_part, part in enumerate(parts):
            reasons = [reason for reason in audit_finding.problems_in(part.get("reasons")) if reason not in own]
            if part.get("healthy") is False and reasons:
                index = audit_finding.number(part.get("index"))
                messages = [reason.message for reason in reasons]
                # Missing nodes of MIG devices always have the same cause.
                nodes_only = any(reason.code == inventory.MIG_NODE for reason in reasons)
                key = ("mig-without-capability", ()) if nodes_only else ("mig-unusable", tuple(messages))
                part_name = f"{name}, MIG {number_of_part if index is None else index}"
                unusable.setdefault(key, []).append((part_name, messages))
        if gpu.get("mig_enabled") is True and not parts:
            yield audit_finding.Finding(
                audit_finding.WARNING,
                "mig-without-devices",
                name,
                "The GPU is in MIG mode and has no MIG devices, so that no container can get any of it.",
                "Make MIG devices (nvidia-smi mig -cgi … -C), or switch MIG mode off.",
            )
    for (kind, _reasons), found in unusable.items():
        messages = list(dict.fromkeys(message for _name, own_messages in found for message in own_messages))
        said = " ".join(messages[:_QUOTED]) or "Containers cannot use it."
        advice = _RECREATE if kind == "mig-without-capability" else _FOLLOW
        yield audit_finding.Finding(
            audit_finding.CRITICAL, kind, core_text.listed([name for name, _messages in found]), said, advice
        )


def _is_reported_with_nodes(described: audit_finding.Described, reasons: t.Sequence[errors.Problem]) -> bool:
    """Return whether all reasons are device nodes that the finding about missing nodes lists."""
    return bool(reasons and audit_finding.rows(described.gpus.get("missing_nodes"))) and all(
        one.code == inventory.NODE for one in reasons
    )


def nodes(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for missing device nodes: one finding for all nodes that the same command creates."""
    by_advice: dict[str, list[str]] = {}
    for node in audit_finding.rows(described.gpus.get("missing_nodes")):
        if audit_finding.text(node.get("path")):
            by_advice.setdefault(audit_finding.text(node.get("advice")) or "Run nvidia-smi as root.", []).append(
                audit_finding.text(node["path"])
            )
    for advice, paths in by_advice.items():
        severity = (
            audit_finding.CRITICAL if any(path in gpu_detect.NEEDED_NODES for path in paths) else audit_finding.WARNING
        )
        are_missing = "is missing" if len(paths) == 1 else "are missing"
        said = f"The device node{'s' if len(paths) > 1 else ''} {core_text.listed(paths)} {are_missing}."
        yield audit_finding.Finding(severity, "node-missing", paths[0], said, advice)


def modules(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding if nvidia_uvm is not loaded: CUDA needs it, and a container cannot load it."""
    loaded = audit_finding.table(described.gpus.get("modules"))
    if "nvidia" in loaded and "nvidia_uvm" not in loaded:
        yield audit_finding.Finding(
            audit_finding.WARNING,
            "uvm-not-loaded",
            rules_problems.DRIVER,
            "The kernel module nvidia_uvm, which CUDA needs, is not loaded.",
            "Load it with nvidia-modprobe -u -c 0.",
        )


RULES = (driver, devices, nodes, modules)
