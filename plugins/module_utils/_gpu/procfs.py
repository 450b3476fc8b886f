# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what the driver reports below /proc and /sys: GPUs, modules and MIG capabilities.

The files are those of the kernel module (kernel-open/nvidia/nv-procfs.c of open-gpu-kernel-modules), and of "Device
Nodes and Capabilities" in NVIDIA's MIG user guide.
"""

from __future__ import annotations

import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect

GPUS = "/proc/driver/nvidia/gpus"
# Display adapters, which NVIDIA's tools omit from every list (go-nvlib, pkg/nvlib/device).
SKIPPED_NAMES = ("DGX Display", "NVIDIA DGX Display")

# The limit in bytes. The real files have some 300 bytes.
_MAX_INFORMATION = 1 << 16
_BUS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z")
# The driver writes this instead of digits until the GPU is used (NVIDIA's README, "The /proc Interface").
_UNKNOWN = "?"
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,80}\Z")
_MINOR = re.compile(r"[0-9]{1,7}\Z")
# The second name was used until driver 450.
_EXCLUDED = ("GPU Excluded", "Blacklisted")
_RESTART = "Look at the kernel's log for NVRM and Xid, then restart the host."


class ProcGpu(t.NamedTuple):
    """A GPU as its file ``information`` reports it. ``uuid`` is empty if the driver does not know it yet."""

    bus: str
    uuid: str
    minor: int
    name: str
    excluded: bool


def normal_bus(address: str) -> str:
    """Return a PCI address in lower case, with a domain of four digits, or of eight if four are not enough.

    nvidia-ctk writes addresses in this form. NVML reports eight digits, and the kernel as many as are needed, at least
    four. Raises ValueError for an invalid address.
    """
    found = _BUS.match(address)
    if found is None:
        raise ValueError
    domain = int(found.group(1), 16)
    width = 4 if domain <= 0xFFFF else 8
    return f"{domain:0{width}x}:{found.group(2)}:{found.group(3)}.{found.group(4)}".lower()


def read_information(text: str, path: str) -> ProcGpu:
    """Return the GPU of a file ``information``; ``path`` is used in messages.

    Raises:
        ConfigurationError: The address or the minor number is missing or invalid, or the UUID is invalid. Such a GPU is
            not skipped, because the list would then have fewer GPUs than the host.
    """
    values: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), (number, value.strip()))
    if not values:
        # The kernel module writes an empty file if the GPU does not wake up (rm_ref_dynamic_power in nv-procfs.c).
        raise errors.ConfigurationError(path, "the file is empty: the GPU does not answer the driver", _RESTART)
    excluded = any(values.get(name, (0, ""))[1] == "Yes" for name in _EXCLUDED)
    place, address = _value(values, "Bus Location", path)
    try:
        bus = normal_bus(address)
    except ValueError:
        raise _garbled_information(path, "Bus Location is not a PCI address", place) from None
    # Of an excluded GPU only the address is used, and its other values may be unknown.
    return ProcGpu(bus, "", 0, "", excluded) if excluded else _usable(values, bus, path)


def information(host: hostfs.HostFS) -> list[ProcGpu]:
    """Return all GPUs of the loaded driver, sorted by PCI address, without excluded ones.

    NVML used the same order in all observed cases.

    Raises:
        HostError: A file cannot be read, or two files describe the same GPU.
        ConfigurationError: A file is invalid.
    """
    paths = [f"{GPUS}/{name}/information" for name in host.entries(GPUS)]
    found = [(read_information(bounded_text(host, path, _MAX_INFORMATION), path), path) for path in paths]
    seen: dict[t.Any, str] = {}
    for gpu, path in found:
        keys = [gpu.bus, *([] if gpu.excluded else [gpu.minor]), *([gpu.uuid] if gpu.uuid else [])]
        for key in keys:
            if key in seen:
                raise errors.HostError(
                    f"{path} and {seen[key]} tell of one GPU. Load the driver again, or restart the host."
                )
            seen[key] = path
    return sorted((gpu for gpu, _path in found if not gpu.excluded), key=lambda gpu: _place(gpu.bus))


def bounded_text(host: hostfs.HostFS, path: str, most: int) -> str:
    """Return the text of a file of at most ``most`` bytes.

    Raises:
        HostError: The file cannot be read, or is longer and therefore not a file of the kernel.
    """
    try:
        with hostfs.open_regular(host.real_path(path), path) as stream:
            content = stream.read(most + 1)
    except FileNotFoundError:
        raise errors.HostError(f"{path} is not there. Load NVIDIA's driver again, or restart the host.") from None
    except OSError as error:
        raise atomic_write.os_error(path, "read", error) from error
    if len(content) > most:
        raise errors.HostError(f"{path} has more than {most} bytes, which the driver's own file never has. Look at it.")
    return content.decode("utf-8", "replace")


def _usable(values: t.Mapping[str, tuple[int, str]], bus: str, path: str) -> ProcGpu:
    # The kernel module omits the line if it has no UUID.
    line, uuid = values.get("GPU UUID", (0, _UNKNOWN))
    if _UNKNOWN in uuid:
        uuid = ""
    elif _UUID.match(uuid) is None:
        raise _garbled_information(path, "GPU UUID is not a UUID", line)
    line, minor = _value(values, "Device Minor", path)
    if _MINOR.match(minor) is None:
        raise _garbled_information(path, "Device Minor is not a number", line)
    return ProcGpu(bus, uuid, int(minor), values.get("Model", (0, ""))[1], excluded=False)


def _value(values: t.Mapping[str, tuple[int, str]], name: str, path: str) -> tuple[int, str]:
    """Return a value with its line number."""
    if name not in values:
        raise _garbled_information(path, f"{name} is missing", None)
    return values[name]


def _garbled_information(path: str, problem: str, line: int | None) -> errors.ConfigurationError:
    return errors.ConfigurationError(path, problem, "Load NVIDIA's driver again, or let NVML be asked.", line)


def _place(bus: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", bus))


# The modules of the driver, which always have the same version.
_OF_THE_DRIVER = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_vgpu_vfio")
MODULES = (*_OF_THE_DRIVER, "nvidia_fs", "gdrdrv")
# The limit in bytes. The real files are much smaller.
_MAX_MODULE_FILE = 1 << 12
_DISPLAY = "0x03"
# A GPU with one of these drivers is passed through to a virtual machine.
_GIVEN_AWAY = ("vfio-pci", "pci-stub")
_NOUVEAU = "nouveau"


class Module(t.NamedTuple):
    """A loaded module; ``refcount`` is the number of its users. None stands for a value that /sys does not have."""

    name: str
    version: str | None
    refcount: int | None


def loaded_modules(host: hostfs.HostFS) -> list[Module]:
    """Return the loaded modules of MODULES."""
    found = []
    for name in MODULES:
        # Code that is built into the kernel has no such file.
        users = _told(host, name, "refcnt")
        if users is not None:
            refcount = int(users) if users.isdecimal() else None
            found.append(Module(name, _told(host, name, "version") or None, refcount))
    return found


def different_versions(modules: t.Iterable[Module]) -> list[errors.Problem]:
    """Return a problem if the driver's modules have different versions; otherwise an empty list."""
    versions = {module.name: module.version for module in modules if module.name in _OF_THE_DRIVER and module.version}
    if len(set(versions.values())) < 2:
        return []
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    message = f"The driver's kernel modules are of different versions: {told}. Restart the host."
    return [errors.Problem("driver-modules-differ", message)]


def undriven_gpus(host: hostfs.HostFS, addresses: t.Collection[str]) -> list[errors.Problem]:
    """Return a problem if the bus has GPUs that are not in ``addresses``, the GPUs of the driver."""
    found, drivers = [], set()
    for path, kind in (gpu_detect.nvidia_devices(host) or {}).items():
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
    return [errors.Problem(code, f"NVIDIA's driver does not drive the GPU {core_text.listed(found)}. {advice}")]


def normal_or_same(address: str) -> str:
    """Return normal_bus() of the address, or the text itself if it is not a PCI address."""
    try:
        return normal_bus(address)
    except ValueError:
        return address


def _driver(host: hostfs.HostFS, device: str) -> str:
    try:
        return posixpath.basename(os.readlink(host.real_path(f"{device}/driver", last=False)))
    except (errors.HostError, OSError):
        return ""


def _told(host: hostfs.HostFS, name: str, file: str) -> str | None:
    try:
        return bounded_text(host, f"/sys/module/{name}/{file}", _MAX_MODULE_FILE).strip()
    except errors.NvidiaError:
        return None


# This file exists on every host that supports MIG. It has a line for each possible capability.
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
# This directory has only the instances that exist.
CAPABILITIES = "/proc/driver/nvidia/capabilities"
NODES = "/dev/nvidia-caps"

# The limit in bytes. For 32 GPUs the file has some 4,300 lines and 110,000 bytes.
_MAX_CAPABILITIES = 1 << 22
_LINE = re.compile(r"([^ \t]{1,200})[ \t]+([0-9]{1,7})[ \t\r]*\Z")
_NUMBERED = {kind: re.compile(kind + r"([0-9]{1,7})\Z") for kind in ("gpu", "gi", "ci")}


class Instance(t.NamedTuple):
    """A GPU instance of MIG; ``minor`` is the minor number of its GPU, ``compute`` its compute instances."""

    minor: int
    gi: int
    compute: tuple[int, ...]


def instances(host: hostfs.HostFS) -> list[Instance]:
    """Return the existing GPU instances, sorted by number. Raises HostError if they cannot be read."""
    found: list[Instance] = []
    for minor, gpu in _numbered(host, CAPABILITIES, "gpu"):
        for gi, folder in _numbered(host, f"{gpu}/mig", "gi"):
            compute = tuple(number for number, _path in _numbered(host, folder, "ci"))
            found.append(Instance(minor, gi, compute))
    return found


def read_minors(text: str, path: str = MIG_MINORS) -> dict[str, int]:
    """Return the minor number of each capability by its name in mig-minors; ``path`` is used in messages.

    Raises:
        ConfigurationError: A line is not a name and a number, or a name occurs twice.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise _garbled_capability(path, "is not a capability and its minor number", number)
        if match.group(1) in found:
            raise _garbled_capability(path, "tells of a capability for the second time", number)
        found[match.group(1)] = int(match.group(2))
    return found


class Capabilities:
    """The capabilities of the MIG devices of one host. mig-minors is read once, when it is first needed."""

    def __init__(self, host: hostfs.HostFS) -> None:
        self._host = host
        self._minors: dict[str, int] | None = None

    def of(self, minor: int, gi: int, ci: int) -> tuple[int, int]:
        """Return the minor numbers of the nodes of a GPU instance and a compute instance on the GPU with ``minor``.

        Raises:
            HostError: mig-minors cannot be read, or lacks one of the two.
            ConfigurationError: mig-minors is invalid.
        """
        gpu_instance = f"gpu{minor}/gi{gi}"
        return self._minor(f"{gpu_instance}/access"), self._minor(f"{gpu_instance}/ci{ci}/access")

    def nodes(self, minor: int, gi: int, ci: int) -> tuple[str, str]:
        """Return the paths of these nodes below /dev. Raises the errors of of()."""
        first, second = self.of(minor, gi, ci)
        return f"{NODES}/nvidia-cap{first}", f"{NODES}/nvidia-cap{second}"

    def _minor(self, name: str) -> int:
        if self._minors is None:
            self._minors = read_minors(bounded_text(self._host, MIG_MINORS, _MAX_CAPABILITIES))
        if name not in self._minors:
            raise errors.HostError(
                f"{MIG_MINORS} does not have {name}, although there is such a MIG device. Load NVIDIA's driver again,"
                " or restart the host."
            )
        return self._minors[name]


def _numbered(host: hostfs.HostFS, folder: str, kind: str) -> list[tuple[int, str]]:
    """Return the entries of ``folder`` named ``kind`` plus a number: the number and the path."""
    matches = [(_NUMBERED[kind].match(name), name) for name in host.entries(folder)]
    return sorted((int(match.group(1)), f"{folder}/{name}") for match, name in matches if match)


def _garbled_capability(path: str, problem: str, line: int) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        path, f"this line {problem}", "Load NVIDIA's driver again, or restart the host.", line
    )
