# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the description of the GPUs says of those that no container can use.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_problems import DRIVER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    CRITICAL,
    WARNING,
    Described,
    Finding,
    number,
    problems_in,
    rows,
    table,
    text,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import MIG_NODE, NODE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import NEEDED_NODES, PCI

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import Problem

# How many messages a finding quotes.
_QUOTED = 5
_RECREATE = (
    "Run nvidia-smi as root, which makes the nodes, after each change of the MIG devices. Then write the CDI"
    " specification again."
)
_FOLLOW = "Follow the advice in the message. If it has none, look for NVRM and Xid in the kernel's log."


def driver(described: Described) -> t.Iterator[Finding]:
    """A GPU on the PCI bus without a loaded driver, if the description of the GPUs does not report it."""
    undriven = ("gpu-driven-by-nouveau", "gpu-without-driver")
    reported = any(problem.code in undriven for problem in problems_in(described.gpus.get("problems")))
    if table(described.toolkit.get("gpu")).get("kind") == PCI and not reported:
        yield Finding(
            CRITICAL,
            "driver-not-loaded",
            DRIVER,
            "The host has a GPU, but no driver of NVIDIA is loaded.",
            "Load it with modprobe nvidia, and look at the kernel's log for NVRM if that fails.",
        )


def devices(described: Described) -> t.Iterator[Finding]:
    """GPUs and MIG devices that a container could not use: one finding for all with the same reasons."""
    unusable: dict[tuple[str, tuple[str, ...]], list[tuple[str, list[str]]]] = {}
    for place, gpu in enumerate(rows(described.gpus.get("devices"))):
        index = number(gpu.get("index"))
        name = f"gpu {place if index is None else index}"
        own = problems_in(gpu.get("reasons"))
        if gpu.get("healthy") is False and not _is_reported_with_nodes(described, own):
            messages = [reason.message for reason in own]
            unusable.setdefault(("gpu-unusable", tuple(messages)), []).append((name, messages))
        parts = rows(gpu.get("mig_devices"))
        for number_of_part, part in enumerate(parts):
            reasons = [reason for reason in problems_in(part.get("reasons")) if reason not in own]
            if part.get("healthy") is False and reasons:
                index = number(part.get("index"))
                messages = [reason.message for reason in reasons]
                # The nodes of all MIG devices have one cause.
                nodes_only = any(reason.code == MIG_NODE for reason in reasons)
                key = ("mig-without-capability", ()) if nodes_only else ("mig-unusable", tuple(messages))
                part_name = f"{name}, MIG {number_of_part if index is None else index}"
                unusable.setdefault(key, []).append((part_name, messages))
        if gpu.get("mig_enabled") is True and not parts:
            yield Finding(
                WARNING,
                "mig-without-devices",
                name,
                "The GPU is in MIG mode and has no MIG devices, so that no container can get any of it.",
                "Make MIG devices (nvidia-smi mig -cgi … -C), or switch MIG mode off.",
            )
    for (kind, _reasons), found in unusable.items():
        messages = list(dict.fromkeys(message for _name, own_messages in found for message in own_messages))
        said = " ".join(messages[:_QUOTED]) or "Containers cannot use it."
        advice = _RECREATE if kind == "mig-without-capability" else _FOLLOW
        yield Finding(CRITICAL, kind, few([name for name, _messages in found]), said, advice)


def _is_reported_with_nodes(described: Described, reasons: t.Sequence[Problem]) -> bool:
    """Whether all reasons are device nodes that the finding about missing nodes names."""
    return bool(reasons and rows(described.gpus.get("missing_nodes"))) and all(one.code == NODE for one in reasons)


def nodes(described: Described) -> t.Iterator[Finding]:
    """Missing device nodes: one finding for all that the same command makes."""
    by_advice: dict[str, list[str]] = {}
    for node in rows(described.gpus.get("missing_nodes")):
        if text(node.get("path")):
            by_advice.setdefault(text(node.get("advice")) or "Run nvidia-smi as root.", []).append(text(node["path"]))
    for advice, paths in by_advice.items():
        severity = CRITICAL if any(path in NEEDED_NODES for path in paths) else WARNING
        are_missing = "is missing" if len(paths) == 1 else "are missing"
        said = f"The device node{'s' if len(paths) > 1 else ''} {few(paths)} {are_missing}."
        yield Finding(severity, "node-missing", paths[0], said, advice)


def modules(described: Described) -> t.Iterator[Finding]:
    """A GPU in compute use needs this one; it is loaded on demand, but not from within a container."""
    loaded = table(described.gpus.get("modules"))
    if "nvidia" in loaded and "nvidia_uvm" not in loaded:
        yield Finding(
            WARNING,
            "uvm-not-loaded",
            DRIVER,
            "The kernel module nvidia_uvm, which CUDA needs, is not loaded.",
            "Load it with nvidia-modprobe -u -c 0.",
        )


RULES = (driver, devices, nodes, modules)
