# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detect GPUs, and read what the driver reports below /proc and /sys: GPUs, modules and MIG capabilities.

The files are those of the kernel module (kernel-open/nvidia/nv-procfs.c of open-gpu-kernel-modules), and of "Device
Nodes and Capabilities" in NVIDIA's MIG user guide.
"""

from __future__ import annotations

import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

# -- presence of a GPU and of the driver -------------------------------------------------------------------------------

VERSION_FILES = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")
_DRIVER_VERSION = re.compile(r"\b[0-9]{3,}\.[0-9]+(?:\.[0-9]+)*\b")
_PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
_NVIDIA = "0x10de"
# The class of display controllers (PCI Code and ID Assignment). NVIDIA's are GPUs; an NVSwitch is a bridge (0x0680).
_DISPLAY = "0x03"
# The paravirtualized GPUs of Windows, whose driver is outside of WSL.
_WSL_DEVICE = "/dev/dxg"
_DEVICE_TREE = "/proc/device-tree/compatible"
_TEGRA_NAME = "nvidia,tegra"
_IS_TEGRA = f"{_DEVICE_TREE} contains the name of a Tegra system."
# Parts of the names of integrated GPUs. The toolkit recognizes the second one (isIntegratedGPUName in
# pkg/nvlib/info/property-extractor.go of go-nvlib): first 1.17.7, last without it 1.17.6.
_INTEGRATED = ("(nvgpu)", "NVIDIA Thor")

# How a GPU was found. A GPU on the PCI bus needs a loaded driver; WSL and most Tegras have theirs elsewhere.
DRIVER, PCI, WSL, TEGRA = "driver", "pci", "wsl", "tegra"


class GpuPresence(t.NamedTuple):
    """Whether a host has a GPU; ``present`` is None if that is unknown.

    ``kind`` is how it was found: TEGRA for an integrated GPU, DRIVER for another with a loaded driver, otherwise PCI or
    WSL; None without a GPU.
    ``message`` is a sentence about it.
    """

    present: bool | None
    message: str
    kind: str | None = None


class LoadedDriver(t.NamedTuple):
    """A loaded kernel module. ``path`` is the file that shows it, and ``version`` is None if the file has none."""

    path: str
    version: str | None


def detect_gpu(host: hostfs.HostFS) -> GpuPresence:
    """Return whether ``host`` has a GPU, and how it was found. An offline tree has no hardware to check."""
    if not host.live:
        return GpuPresence(None, "The host is an offline tree, which has no hardware.")
    driver = loaded_driver(host)
    if driver is not None:
        message = f"The NVIDIA driver is loaded: {driver.path} exists."
        if is_tegra(host):
            return GpuPresence(present=True, message=_IS_TEGRA, kind=TEGRA)
        return GpuPresence(present=True, message=message, kind=DRIVER)
    kind, message = _hardware(host)
    if kind is not None:
        return GpuPresence(present=True, message=message, kind=kind)
    if not host.exists("/sys/bus"):
        return GpuPresence(None, "No NVIDIA driver is loaded, and /sys is not mounted.")
    message = "No NVIDIA driver is loaded, no NVIDIA GPU is on the PCI bus, and the host is neither WSL nor Tegra."
    return GpuPresence(present=False, message=message)


def _hardware(host: hostfs.HostFS) -> tuple[str | None, str]:
    """Return how the hardware shows a GPU, and a sentence about it; None without a GPU."""
    for path in _gpus_on_pci(host):
        return PCI, f"{path} is an NVIDIA GPU. No NVIDIA driver is loaded."
    if host.exists(_WSL_DEVICE):
        return WSL, f"{_WSL_DEVICE} exists: Windows shares its GPUs with this host."
    if is_tegra(host):
        return TEGRA, _IS_TEGRA
    return None, ""


def is_tegra(host: hostfs.HostFS) -> bool:
    """Return whether the GPU of ``host`` is part of a Tegra.

    NVIDIA's tools need a name of NVML for that (ResolvePlatform in pkg/nvlib/info of go-nvlib). /proc has the same name
    if the GPU is on the PCI bus. On Orin it is not there, and the driver of the screen is loaded nevertheless.
    """
    if not _is_tegra_board(host):
        return False
    descriptions = (host.read_text(f"{GPUS}/{name}/information") for name in host.readable_entries(GPUS))
    return not _gpus_on_pci(host) or any(map(is_integrated, descriptions))


def has_other_nodes(host: hostfs.HostFS) -> bool:
    """Return whether the GPU of ``host`` has other device nodes than usual, as that of a Tegra off the PCI bus."""
    return _is_tegra_board(host) and not _gpus_on_pci(host)


def _is_tegra_board(host: hostfs.HostFS) -> bool:
    return any(name.startswith(_TEGRA_NAME) for name in host.read_text(_DEVICE_TREE).split("\0"))


def is_integrated(name: str) -> bool:
    """Return whether a GPU with this name is part of a Tegra."""
    return any(part in name for part in _INTEGRATED)


def loaded_driver(host: hostfs.HostFS) -> LoadedDriver | None:
    """Return NVIDIA's kernel module, or None if it is not loaded."""
    path = next((path for path in VERSION_FILES if host.exists(path)), None)
    if path is None:
        return None
    version = _DRIVER_VERSION.search(host.read_text(path))
    return LoadedDriver(path, version.group() if version else None)


def nvidia_devices(host: hostfs.HostFS) -> dict[str, str] | None:
    """Return NVIDIA's devices on the PCI bus with their classes; None if the bus cannot be read."""
    vendors = host.glob(_PCI_VENDORS)
    devices = [posixpath.dirname(path) for path in vendors if host.read_text(path).strip() == _NVIDIA]
    return {path: host.read_text(f"{path}/class").strip() for path in devices} if vendors else None


def _gpus_on_pci(host: hostfs.HostFS) -> list[str]:
    """Return the GPUs on the PCI bus. A system container sees all of its machine, whoever uses them."""
    if host.is_system_container():
        return []
    return [path for path, kind in (nvidia_devices(host) or {}).items() if kind.startswith(_DISPLAY)]


# -- /proc/driver/nvidia/gpus ------------------------------------------------------------------------------------------

GPUS = "/proc/driver/nvidia/gpus"
# Display adapters, which NVIDIA's tools omit from every list (go-nvlib, pkg/nvlib/device).
SKIPPED_NAMES = ("DGX Display", "NVIDIA DGX Display")

# The limit in bytes. The real files have some 300 bytes.
MAX_INFORMATION = 1 << 16
_BUS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z")
# The driver writes this instead of digits until the GPU is used (NVIDIA's README, "The /proc Interface").
_UNKNOWN = "?"
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,80}\Z")
_MINOR = re.compile(r"[0-9]{1,7}\Z")
# The second name was used until driver 450.
_EXCLUDED = ("GPU Excluded", "Blacklisted")
CHECK_LOG = "Check the kernel's log for NVRM and Xid."
RELOAD = "Reload the NVIDIA driver, or restart the host."


class ProcGpu(t.NamedTuple):
    """A GPU as its file ``information`` reports it. ``uuid`` is empty if the driver does not know it yet."""

    bus: str
    uuid: str
    minor: int
    name: str
    excluded: bool


def normalize_address(address: str) -> str:
    """Return a PCI address as the kernel writes it: in lower case, the domain with the digits it needs, at least four.

    The names in /sys and /dev/dri/by-path have this form. NVML reports eight digits. Raises ValueError for an invalid
    address.
    """
    found = _BUS.match(address)
    if found is None:
        raise ValueError
    return f"{int(found.group(1), 16):04x}:{found.group(2)}:{found.group(3)}.{found.group(4)}".lower()


def parse_information(text: str, path: str) -> ProcGpu:
    """Return the GPU of a file ``information``; ``path`` is used in messages.

    Raises:
        ConfigurationError: The address or the minor number is missing or invalid, or the UUID is invalid. Such a GPU is
            not skipped, because the list would then have fewer GPUs than the host.
    """
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    if not values:
        # The kernel module writes an empty file if the GPU does not wake up (rm_ref_dynamic_power in nv-procfs.c).
        raise errors.ConfigurationError(
            path, "the file is empty: the GPU does not answer the driver", f"{CHECK_LOG} Restart the host."
        )
    excluded = any(values.get(name) == "Yes" for name in _EXCLUDED)
    try:
        bus = normalize_address(values.get("Bus Location", ""))
    except ValueError:
        raise errors.ConfigurationError(path, "Bus Location is not a PCI address", RELOAD) from None
    # Of an excluded GPU only the address is used, and its other values may be unknown.
    return ProcGpu(bus, "", 0, "", excluded) if excluded else _parse_gpu(values, bus, path)


def read_gpus(host: hostfs.HostFS) -> list[ProcGpu]:
    """Return the GPUs of ``host`` that the driver uses, sorted by PCI address, without excluded ones.

    NVML used the same order in all observed cases.

    Raises:
        HostError: A file cannot be read.
        ConfigurationError: A file is invalid.
    """
    paths = [f"{GPUS}/{name}/information" for name in host.entries(GPUS)]
    found = [parse_information(read_bounded(host, path, MAX_INFORMATION), path) for path in paths]
    usable = [gpu for gpu in found if not gpu.excluded and is_given(host, gpu.minor)]
    return sorted(usable, key=lambda gpu: _sort_key(gpu.bus))


def is_given(host: hostfs.HostFS, minor: int) -> bool:
    """Return whether a GPU is one of ``host``: a system container lacks the nodes of GPUs that it was not given."""
    return host.lexists(f"/dev/nvidia{minor}") or not host.is_system_container()


def read_bounded(host: hostfs.HostFS, path: str, limit: int) -> str:
    """Return the text of a file of at most ``limit`` bytes.

    Raises:
        HostError: The file cannot be read, or is longer and therefore not a file of the kernel.
    """
    try:
        with hostfs.open_regular(host.real_path(path), path) as stream:
            content = stream.read(limit + 1)
    except FileNotFoundError:
        raise errors.with_advice(errors.HostError, f"{path} does not exist.", RELOAD) from None
    except OSError as error:
        raise errors.os_error(path, "read", error) from error
    if len(content) > limit:
        problem = f"{path} has more than {limit} bytes, so it is not a file of the driver."
        raise errors.with_advice(errors.HostError, problem, "Check what is mounted there.")
    return content.decode("utf-8", "replace")


def _parse_gpu(values: t.Mapping[str, str], bus: str, path: str) -> ProcGpu:
    # The kernel module omits the line if it has no UUID.
    uuid, minor = values.get("GPU UUID", _UNKNOWN), values.get("Device Minor", "")
    if _UNKNOWN in uuid:
        uuid = ""
    elif _UUID.match(uuid) is None:
        raise errors.ConfigurationError(path, "GPU UUID is not a UUID", RELOAD)
    if _MINOR.match(minor) is None:
        raise errors.ConfigurationError(path, "Device Minor is not a number", RELOAD)
    return ProcGpu(bus, uuid, int(minor), values.get("Model", ""), excluded=False)


def _sort_key(bus: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", bus))


# -- kernel modules ---------------------------------------------------------------------------------------------------

# The modules of the driver, which always have the same version.
_DRIVER_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nvidia_vgpu_vfio")
MODULES = (*_DRIVER_MODULES, "nvidia_fs", "gdrdrv")
# The limit in bytes. The real files are much smaller.
_MAX_MODULE_FILE = 1 << 12
# A GPU with one of these drivers is passed through to a virtual machine. The last one is that of Grace Hopper
# (drivers/vfio/pci/nvgrace-gpu of Linux).
_PASSTHROUGH_DRIVERS = ("vfio-pci", "pci-stub", "nvgrace_gpu_vfio_pci")
_NOUVEAU = "nouveau"
_REPLACE_NOUVEAU = "Install NVIDIA's driver, keep nouveau from loading, and restart the host."
_REPLACE_DRIVER = f"Install a driver that supports this GPU. {CHECK_LOG}"
# What to do about a GPU without a driver.
LOAD = f"Install NVIDIA's driver, or load it with modprobe nvidia. {CHECK_LOG}"
# The codes of problems with GPUs on the PCI bus that NVIDIA's driver does not use.
WITHOUT_DRIVER = ("gpu-driven-by-nouveau", "driver-not-loaded")


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
        users = _read_attribute(host, name, "refcnt")
        if users is not None:
            refcount = int(users) if users.isdecimal() else None
            found.append(Module(name, _read_attribute(host, name, "version") or None, refcount))
    return found


def version_problems(modules: t.Iterable[Module]) -> list[errors.Problem]:
    """Return a problem if the driver's modules have different versions; otherwise an empty list."""
    versions = {module.name: module.version for module in modules if module.name in _DRIVER_MODULES and module.version}
    if len(set(versions.values())) < 2:
        return []
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    message = f"The driver's kernel modules have different versions: {listed}."
    return [errors.Problem("driver-version-differs", message, "Restart the host.")]


def gpus_without_driver(host: hostfs.HostFS, addresses: t.Collection[str]) -> list[errors.Problem]:
    """Return a problem for the GPUs on the PCI bus that NVIDIA's driver does not use.

    ``addresses`` are those of the GPUs that it uses. GPUs that are passed through to virtual machines are ignored, and
    so are virtual functions (SR-IOV), of which the driver makes vGPUs for virtual machines.
    """
    found, drivers = [], set()
    for path in _gpus_on_pci(host):
        name = posixpath.basename(path)
        if normalize_or_keep(name) in addresses or host.lexists(f"{path}/physfn"):
            continue
        driver = _driver(host, path)
        if driver not in _PASSTHROUGH_DRIVERS:
            drivers.add(driver)
            found.append(f"{name} ({f'driver {driver}' if driver else 'no driver'})")
    if not found:
        return []
    # If the driver uses other GPUs, it is loaded.
    load = _REPLACE_DRIVER if addresses else LOAD
    code, advice = (WITHOUT_DRIVER[0], _REPLACE_NOUVEAU) if _NOUVEAU in drivers else (WITHOUT_DRIVER[1], load)
    return [errors.Problem(code, f"The NVIDIA driver does not use the GPU {core_text.listed(found)}.", advice)]


def normalize_or_keep(address: str) -> str:
    """Return normalize_address() of the address, or the text itself if it is not a PCI address."""
    try:
        return normalize_address(address)
    except ValueError:
        return address


def _driver(host: hostfs.HostFS, device: str) -> str:
    try:
        return posixpath.basename(os.readlink(host.real_path(f"{device}/driver", last=False)))
    except (errors.HostError, OSError):
        return ""


def _read_attribute(host: hostfs.HostFS, name: str, file: str) -> str | None:
    try:
        return read_bounded(host, f"/sys/module/{name}/{file}", _MAX_MODULE_FILE).strip()
    except errors.NvidiaError:
        return None


# -- MIG --------------------------------------------------------------------------------------------------------------

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


def mig_instances(host: hostfs.HostFS) -> list[Instance]:
    """Return the existing GPU instances, sorted by number. Raises HostError if they cannot be read."""
    found: list[Instance] = []
    for minor, gpu in _numbered(host, CAPABILITIES, "gpu"):
        for gi, folder in _numbered(host, f"{gpu}/mig", "gi"):
            compute = tuple(number for number, _path in _numbered(host, folder, "ci"))
            found.append(Instance(minor, gi, compute))
    return found


def parse_minors(text: str, path: str = MIG_MINORS) -> dict[str, int]:
    """Return the minor number of each capability by its name in mig-minors; ``path`` is used in messages.

    Raises:
        ConfigurationError: A line is not a name and a number.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise errors.ConfigurationError(path, "the line is not a capability with its minor number", RELOAD, number)
        found[match.group(1)] = int(match.group(2))
    return found


class MigCapabilities:
    """The capabilities of the MIG devices of one host. mig-minors is read once, when it is first needed."""

    def __init__(self, host: hostfs.HostFS) -> None:
        self._host = host
        self._minors: dict[str, int] | None = None

    def minors(self, minor: int, gi: int, ci: int) -> tuple[int, int]:
        """Return the minor numbers of the nodes of a GPU instance and a compute instance on the GPU with ``minor``.

        Raises:
            HostError: mig-minors cannot be read, or lacks one of the two.
            ConfigurationError: mig-minors is invalid.
        """
        gpu_instance = f"gpu{minor}/gi{gi}"
        return self._minor(f"{gpu_instance}/access"), self._minor(f"{gpu_instance}/ci{ci}/access")

    def nodes(self, minor: int, gi: int, ci: int) -> tuple[str, str]:
        """Return the paths of these nodes below /dev. Raises the errors of minors()."""
        first, second = self.minors(minor, gi, ci)
        return f"{NODES}/nvidia-cap{first}", f"{NODES}/nvidia-cap{second}"

    def known_nodes(self, minor: int, gi: int, ci: int) -> tuple[str, ...]:
        """Return the same as nodes(), or nothing if the numbers of the nodes cannot be read."""
        try:
            return self.nodes(minor, gi, ci)
        except errors.NvidiaError:
            return ()

    def _minor(self, name: str) -> int:
        if self._minors is None:
            self._minors = parse_minors(read_bounded(self._host, MIG_MINORS, _MAX_CAPABILITIES))
        if name not in self._minors:
            problem = f"{MIG_MINORS} does not contain {name}, although the MIG device exists."
            raise errors.with_advice(errors.HostError, problem, RELOAD)
        return self._minors[name]


def _numbered(host: hostfs.HostFS, folder: str, kind: str) -> list[tuple[int, str]]:
    """Return the entries of ``folder`` named ``kind`` plus a number: the number and the path."""
    matches = [(_NUMBERED[kind].match(name), name) for name in host.entries(folder)]
    return sorted((int(match.group(1)), f"{folder}/{name}") for match, name in matches if match)
