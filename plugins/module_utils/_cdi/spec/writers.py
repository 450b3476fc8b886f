# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which program writes the CDI specifications of a kind, and what to do if one is missing or stale.

nvidia_cdi_spec writes specifications of the GPUs of NVIDIA. Others belong to a program that writes them again itself.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants

OWN = "Create the specification again with nvidia_cdi_spec, or request a defined device."


class _Writer(t.NamedTuple):
    """The vendor of kinds, the class (empty: all classes), and the advice."""

    vendor: str
    device_class: str
    advice: str


_DEVICE_PLUGIN = "NVIDIA's device plugin defines this device. Restart its pod on this node, and delete this pod."
_DRA = (
    "NVIDIA's DRA driver defines this device when it prepares the claim. Look at the log of its pod on this node, and"
    " delete the pod of the container."
)
_TOOL = "nvidia_cdi_spec defines it with class {0} and mode {0}, if the host has the devices."
_WRITERS = (
    # deviceVendor in cmd/gpu-kubelet-plugin/cdi.go of k8s-dra-driver-gpu 25.8; cdiVendor is "k8s." and the driver.
    _Writer("k8s.gpu.nvidia.com", "", _DRA),
    _Writer("k8s.compute-domain.nvidia.com", "", _DRA),
    # DefaultCDIVendor in internal/cdi of k8s-device-plugin 0.18.
    _Writer("k8s.device-plugin.nvidia.com", "", _DEVICE_PLUGIN),
    # createManagementSpec of nvidia-ctk-installer of nvidia-container-toolkit 1.20.
    _Writer(
        "management.nvidia.com",
        "",
        "The toolkit container of NVIDIA's GPU Operator defines it: restart its pod on this node. Without the operator,"
        " use nvidia_cdi_spec with vendor: management.nvidia.com and mode: management.",
    ),
    _Writer(
        "runtime.nvidia.com",
        "",
        "Only the runtime nvidia generates this kind. Request it with NVIDIA_VISIBLE_DEVICES and the runtime nvidia, or"
        " request nvidia.com/gpu.",
    ),
    *(
        _Writer("nvidia.com", name, _TOOL.format(name))
        for name in ("gds", "gdrcopy", "mofed", "nvswitch")
    ),
    _Writer("nvidia.com", "imex-channel", "nvidia_cdi_spec defines it with class: imex-channel and mode: imex."),
)  # fmt: skip


def advice_for(name: str) -> str:
    """Return what to do if a device, or the file of a kind, is missing or stale.

    ``name`` is a kind or the qualified name of a device.
    """
    kind = name.partition("=")[0]
    vendor, device_class = cdi_schema.split_kind(kind)
    if kind == core_constants.GPU_KIND:
        return OWN
    for writer in _WRITERS:
        if writer.vendor == vendor and writer.device_class in ("", device_class):
            return writer.advice
    if f".{vendor}".endswith(".nvidia.com"):
        return (
            f"Write it again with the program that has written the kind {kind}, or with nvidia_cdi_spec and the same"
            " vendor and class."
        )
    return f"The tools of the vendor {vendor} write the kind {kind}. Write it again with them."


def advice_to_write_again(name: str) -> str:
    """Return what to do if the file that defines the device ``name`` is incomplete."""
    advice = advice_for(name)
    return "Load the modules of the driver, and run nvidia_cdi_spec again." if advice == OWN else advice


def is_own(kind: str) -> bool:
    """Return whether nvidia_cdi_spec with its defaults writes the specifications of a kind."""
    return kind == core_constants.GPU_KIND
