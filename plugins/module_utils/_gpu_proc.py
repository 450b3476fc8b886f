# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: GPUs as the loaded kernel module tells of them below /proc/driver/nvidia, without NVML.
#
# The files are written by the module's procfs (kernel-open/nvidia/nv-procfs.c of open-gpu-kernel-modules): a name, a
# colon, tabs and spaces, a value.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import open_regular
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import explain

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

GPUS = "/proc/driver/nvidia/gpus"
# Graphics for a screen, which the tools of NVIDIA leave out of every list (go-nvlib, pkg/nvlib/device).
SKIPPED_NAMES = ("DGX Display", "NVIDIA DGX Display")

# The real files have some 300 bytes.
_MOST = 1 << 16
_BUS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\Z")
# What stands in the places of digits before anything has used the GPU (NVIDIA's README, "The /proc Interface").
_UNKNOWN = "?"
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,80}\Z")
_MINOR = re.compile(r"[0-9]{1,7}\Z")
# The latter until driver 450.
_EXCLUDED = ("GPU Excluded", "Blacklisted")
_RESTART = "Look at the kernel's log for NVRM and Xid, then restart the host."


class Information(t.NamedTuple):
    """One GPU as its file ``information`` has it; ``uuid`` is empty where the driver does not know it yet."""

    bus: str
    uuid: str
    minor: int
    name: str
    excluded: bool


def normal_bus(address: str) -> str:
    """A PCI address in lower case, with a domain of four digits, or of eight where four do not hold it.

    So the reference has them: NVML tells eight digits, the kernel as many as it needs, at least four.  Raises
    ValueError for a text that is no address.
    """
    found = _BUS.match(address)
    if found is None:
        raise ValueError
    domain = int(found.group(1), 16)
    width = 4 if domain <= 0xFFFF else 8
    return f"{domain:0{width}x}:{found.group(2)}:{found.group(3)}.{found.group(4)}".lower()


def read_information(text: str, path: str) -> Information:
    """What a file ``information`` says; ``path`` is the one to name.

    Raises ConfigurationError where the address or the minor number is missing or is none, and where the UUID is none:
    to leave out such a GPU would tell of fewer than there are.
    """
    values: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), (number, value.strip()))
    if not values:
        # What the kernel module writes when the GPU does not wake up (rm_ref_dynamic_power in nv-procfs.c).
        raise ConfigurationError(path, "the file is empty: the GPU does not answer the driver", _RESTART)
    excluded = any(values.get(name, (0, ""))[1] == "Yes" for name in _EXCLUDED)
    place, address = _value(values, "Bus Location", path)
    try:
        bus = normal_bus(address)
    except ValueError:
        raise _garbled(path, "Bus Location is not a PCI address", place) from None
    # Of a GPU that is left out nothing else matters, and not all of it is known.
    return Information(bus, "", 0, "", excluded) if excluded else _usable(values, bus, path)


def information(host: HostRoot) -> list[Information]:
    """All GPUs of the loaded driver in the order of their PCI addresses, without excluded ones.

    NVML lists them in this order, too, as far as anyone has seen.  Raises HostError or ConfigurationError where a file
    cannot be read, or two files tell of one GPU.
    """
    paths = [f"{GPUS}/{name}/information" for name in host.entries(GPUS)]
    found = [(read_information(bounded_text(host, path, _MOST), path), path) for path in paths]
    seen: dict[t.Any, str] = {}
    for gpu, path in found:
        keys = [gpu.bus, *([] if gpu.excluded else [gpu.minor]), *([gpu.uuid] if gpu.uuid else [])]
        for key in keys:
            if key in seen:
                raise HostError(f"{path} and {seen[key]} tell of one GPU. Load the driver again, or restart the host.")
            seen[key] = path
    return sorted((gpu for gpu, _path in found if not gpu.excluded), key=lambda gpu: _place(gpu.bus))


def bounded_text(host: HostRoot, path: str, most: int) -> str:
    """The text of a file of at most ``most`` bytes.

    Raises HostError where it cannot be read or is longer: a file of that size is not the kernel's.
    """
    try:
        with open_regular(host.outer(path), path) as stream:
            content = stream.read(most + 1)
    except FileNotFoundError:
        raise HostError(f"{path} is not there. Load NVIDIA's driver again, or restart the host.") from None
    except OSError as error:
        raise explain(path, "read", error) from error
    if len(content) > most:
        raise HostError(f"{path} has more than {most} bytes, which the driver's own file never has. Look at it.")
    return content.decode("utf-8", "replace")


def _usable(values: t.Mapping[str, tuple[int, str]], bus: str, path: str) -> Information:
    # The kernel module leaves the line out where it cannot make a UUID.
    line, uuid = values.get("GPU UUID", (0, _UNKNOWN))
    if _UNKNOWN in uuid:
        uuid = ""
    elif _UUID.match(uuid) is None:
        raise _garbled(path, "GPU UUID is not a UUID", line)
    line, minor = _value(values, "Device Minor", path)
    if _MINOR.match(minor) is None:
        raise _garbled(path, "Device Minor is not a number", line)
    return Information(bus, uuid, int(minor), values.get("Model", (0, ""))[1], excluded=False)


def _value(values: t.Mapping[str, tuple[int, str]], name: str, path: str) -> tuple[int, str]:
    """The line number of a value, and the value."""
    if name not in values:
        raise _garbled(path, f"{name} is missing", None)
    return values[name]


def _garbled(path: str, problem: str, line: int | None) -> ConfigurationError:
    return ConfigurationError(path, problem, "Load NVIDIA's driver again, or let NVML be asked.", line)


def _place(bus: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", bus))
