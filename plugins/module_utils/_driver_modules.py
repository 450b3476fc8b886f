# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the kernel modules of NVIDIA's driver, and those that others add for its GPUs, as /sys has
# them; and GPUs on the bus that none of these drives.

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError, Problem, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import nvidia_devices
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_proc import bounded_text, normal_bus

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# These are always of one version.
_OF_THE_DRIVER = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_vgpu_vfio")
MODULES = (*_OF_THE_DRIVER, "nvidia_fs", "gdrdrv")
# The files of the kernel are much smaller.
_MOST = 1 << 12
_DISPLAY = "0x03"
# A GPU with one of these is given to a virtual machine as a whole.
_GIVEN_AWAY = ("vfio-pci", "pci-stub")
_NOUVEAU = "nouveau"


class Module(t.NamedTuple):
    """A loaded module; ``refcount`` is how many modules and open files use it.  None is what /sys does not tell."""

    name: str
    version: str | None
    refcount: int | None


def loaded_modules(host: HostRoot) -> list[Module]:
    """Those of MODULES that are loaded."""
    found = []
    for name in MODULES:
        # What is built into a kernel has no such file.
        users = _told(host, name, "refcnt")
        if users is not None:
            refcount = int(users) if users.isdecimal() else None
            found.append(Module(name, _told(host, name, "version") or None, refcount))
    return found


def different_versions(modules: t.Iterable[Module]) -> list[Problem]:
    """The problem that modules of the driver have different versions; none if they have one."""
    versions = {module.name: module.version for module in modules if module.name in _OF_THE_DRIVER and module.version}
    if len(set(versions.values())) < 2:
        return []
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    message = f"The driver's kernel modules are of different versions: {told}. Restart the host."
    return [Problem("driver-modules-differ", message)]


def undriven_gpus(host: HostRoot, addresses: t.Collection[str]) -> list[Problem]:
    """The problem that the bus has GPUs beside ``addresses``, those that the driver knows; none if it has not."""
    found, drivers = [], set()
    for path, kind in (nvidia_devices(host) or {}).items():
        name = posixpath.basename(path)
        if not kind.startswith(_DISPLAY) or normal_or_same(name) in addresses:
            continue
        driver = _driver(host, path)
        if driver not in _GIVEN_AWAY:
            drivers.add(driver)
            found.append(f"{name} ({f'which {driver} drives' if driver else 'without a driver'})")
    if not found:
        return []
    advice = "Load it with modprobe nvidia, and look at the kernel's log for NVRM and Xid if that fails."
    code = "gpu-driven-by-nouveau" if _NOUVEAU in drivers else "gpu-without-driver"
    return [Problem(code, f"NVIDIA's driver does not drive the GPU {few(found)}. {advice}")]


def normal_or_same(address: str) -> str:
    """normal_bus(), but what is no PCI address stays as it is."""
    try:
        return normal_bus(address)
    except ValueError:
        return address


def _driver(host: HostRoot, device: str) -> str:
    try:
        return posixpath.basename(os.readlink(host.outer(f"{device}/driver", last=False)))
    except (HostError, OSError):
        return ""


def _told(host: HostRoot, name: str, file: str) -> str | None:
    try:
        return bounded_text(host, f"/sys/module/{name}/{file}", _MOST).strip()
    except GpufleetError:
        return None
