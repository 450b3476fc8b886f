# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detect whether a host has an NVIDIA GPU: PCI devices, WSL, or a Tegra system. NVML is not used."""

from __future__ import annotations

import posixpath
import re
import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


VERSION_FILES = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")
# The driver's control nodes, and the command that creates each of them.
CONTROL_NODES = {
    "/dev/nvidia-modeset": "nvidia-modprobe -m",
    "/dev/nvidia-uvm-tools": "nvidia-modprobe -u -c 0",
    "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0",
    "/dev/nvidiactl": "nvidia-modprobe -c 0",
}
# The nodes that every GPU container needs in addition to the GPU's own node.
NEEDED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_VERSION = re.compile(r"\b[0-9]{3,}\.[0-9]+(?:\.[0-9]+)*\b")
_PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
_NVIDIA = "0x10de"
# The class of display controllers (PCI Code and ID Assignment). NVIDIA's are GPUs; an NVSwitch is a bridge (0x0680).
_DISPLAY = "0x03"
# The paravirtualized GPUs of Windows, whose driver is outside of WSL.
_WSL_DEVICE = "/dev/dxg"
_DEVICE_TREE = "/proc/device-tree/compatible"
_TEGRA_NAME = "nvidia,tegra"

# How a GPU was found. A GPU on the PCI bus needs a loaded driver; WSL and Tegra have their drivers elsewhere.
DRIVER, PCI, WSL, TEGRA = "driver", "pci", "wsl", "tegra"


class GpuPresence(t.NamedTuple):
    """Whether a host has a GPU; ``present`` is None if that is unknown.

    ``kind`` is how it was found: DRIVER for a loaded driver, otherwise PCI, WSL or TEGRA; None without a GPU.
    ``evidence`` is a sentence about it. ``driver`` is the loaded driver's version, or None if it is unknown.
    """

    present: bool | None
    evidence: str
    driver: str | None
    kind: str | None = None


class LoadedDriver(t.NamedTuple):
    """A loaded kernel module. ``path`` is the file that shows it, and ``version`` is None if the file has none."""

    path: str
    version: str | None


def gpu_of(host: hostfs.HostFS) -> GpuPresence:
    """Return whether ``host`` has a GPU, and how it was found. An offline tree has no hardware to check."""
    if not host.live:
        return GpuPresence(None, "The host is an offline tree, which has no hardware.", None)
    driver = loaded_driver(host)
    if driver is not None:
        return GpuPresence(
            present=True, evidence=f"The driver is loaded: {driver.path} is there.", driver=driver.version, kind=DRIVER
        )
    kind, evidence = _hardware(host)
    if kind is not None:
        return GpuPresence(present=True, evidence=evidence, driver=None, kind=kind)
    if not host.exists("/sys/bus"):
        return GpuPresence(None, "/sys is not mounted, and no driver of NVIDIA is loaded.", None)
    nothing = "No driver of NVIDIA is loaded, no GPU of NVIDIA is on the PCI bus, and this is neither WSL nor Tegra."
    return GpuPresence(present=False, evidence=nothing, driver=None)


def _hardware(host: hostfs.HostFS) -> tuple[str | None, str]:
    """Return how the hardware shows a GPU, and a sentence about it; None without a GPU."""
    for path, device_class in (nvidia_devices(host) or {}).items():
        if device_class.startswith(_DISPLAY):
            return PCI, f"{path} is a GPU of NVIDIA; no driver is loaded."
    if host.exists(_WSL_DEVICE):
        return WSL, f"{_WSL_DEVICE} is there: Windows shares its GPUs with this host."
    if any(name.startswith(_TEGRA_NAME) for name in host.read_text(_DEVICE_TREE).split("\0")):
        return TEGRA, f"{_DEVICE_TREE} names a Tegra."
    return None, ""


def loaded_driver(host: hostfs.HostFS) -> LoadedDriver | None:
    """Return NVIDIA's kernel module, or None if it is not loaded."""
    path = next((path for path in VERSION_FILES if host.exists(path)), None)
    if path is None:
        return None
    version = _VERSION.search(host.read_text(path))
    return LoadedDriver(path, version.group() if version else None)


def nvidia_devices(host: hostfs.HostFS) -> dict[str, str] | None:
    """Return NVIDIA's devices on the PCI bus with their classes; None if the bus cannot be read."""
    vendors = host.glob(_PCI_VENDORS)
    devices = [posixpath.dirname(path) for path in vendors if host.read_text(path).strip() == _NVIDIA]
    return {path: host.read_text(f"{path}/class").strip() for path in devices} if vendors else None
