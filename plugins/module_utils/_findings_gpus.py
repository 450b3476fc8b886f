# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the description of the GPUs says of those that no container can use.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    CRITICAL,
    WARNING,
    Described,
    Finding,
    number,
    rows,
    table,
    text,
    texts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import NEEDED_NODES

DRIVER = "driver"
# In what describe_gpus() says of drivers: about GPUs without one, modules, and libraries.
UNDRIVEN = "driver does not drive the GPU"
DIFFERENT_MODULES = "kernel modules are of different versions"
DIFFERENT_LIBRARY = "library and its loaded kernel module are of different versions"
# In what gpu_of() says of a GPU on the bus; Windows and Tegra have no such driver to load.
UNLOADED = "no driver is loaded"
NOUVEAU = "which nouveau drives"
CAPABILITY_NODES = "/dev/nvidia-caps/"

_TROUBLES = (
    (NOUVEAU, "gpu-driven-by-nouveau", "Install NVIDIA's driver, keep nouveau from loading, and restart the host."),
    (UNDRIVEN, "gpu-without-driver", "Install NVIDIA's driver, or load it with modprobe nvidia."),
    (DIFFERENT_MODULES, "driver-modules-differ", "Restart the host."),
    (DIFFERENT_LIBRARY, "driver-library-differs", "Restart the host, or load the installed kernel module."),
)


def driver(described: Described) -> t.Iterator[Finding]:
    """What is wrong with the driver as a whole."""
    problems = texts(described.gpus.get("problems"))
    found = []
    for sentence in problems:
        trouble = next((trouble for trouble in _TROUBLES if trouble[0] in sentence), None)
        if trouble is not None:
            found.append(Finding(CRITICAL, trouble[1], DRIVER, sentence, trouble[2]))
    yield from found
    if UNLOADED in text(table(described.toolkit.get("gpu")).get("evidence")) and not found:
        yield Finding(
            CRITICAL,
            "driver-not-loaded",
            DRIVER,
            "The host has a GPU, but no driver of NVIDIA is loaded.",
            "Load it with modprobe nvidia, and look at the kernel's log for NVRM if that fails.",
        )


def devices(described: Described) -> t.Iterator[Finding]:
    """GPUs and MIG devices that a container could not use."""
    for place, gpu in enumerate(rows(described.gpus.get("devices"))):
        index = number(gpu.get("index"))
        name = f"gpu {place if index is None else index}"
        own = texts(gpu.get("reasons"))
        if gpu.get("healthy") is False:
            yield _unusable(name, "gpu-unusable", own)
        parts = rows(gpu.get("mig_devices"))
        for number_of_part, part in enumerate(parts):
            reasons = [reason for reason in texts(part.get("reasons")) if reason not in own]
            if part.get("healthy") is False and reasons:
                kind = "mig-without-capability" if any(CAPABILITY_NODES in one for one in reasons) else "mig-unusable"
                index = number(part.get("index"))
                yield _unusable(f"{name}, MIG {number_of_part if index is None else index}", kind, reasons)
        if gpu.get("mig_enabled") is True and not parts:
            yield Finding(
                WARNING,
                "mig-without-devices",
                name,
                "The GPU is in MIG mode and has no MIG devices, so that no container can get any of it.",
                "Make MIG devices (nvidia-smi mig -cgi … -C), or switch MIG mode off.",
            )


def _unusable(subject: str, kind: str, reasons: t.Sequence[str]) -> Finding:
    said = few(reasons) or "Containers cannot use it."
    advice = (
        "Run nvidia-smi as root, which makes the nodes, after each change of the MIG devices, and write the CDI"
        " specification again."
        if kind == "mig-without-capability"
        else "Do what the sentence says; look at the kernel's log for NVRM and Xid if it says nothing."
    )
    return Finding(CRITICAL, kind, subject, said, advice)


def nodes(described: Described) -> t.Iterator[Finding]:
    for node in rows(described.gpus.get("missing_nodes")):
        path = text(node.get("path"))
        if path:
            severity = CRITICAL if path in NEEDED_NODES else WARNING
            advice = text(node.get("advice")) or "Run nvidia-smi as root."
            yield Finding(severity, "node-missing", path, f"The device node {path} is not there.", advice)


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
