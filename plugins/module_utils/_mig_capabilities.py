# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the capabilities that MIG devices are used with, each a device node below
# /dev/nvidia-caps.  "Device Nodes and Capabilities" in NVIDIA's MIG user guide tells of both trees.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_proc import bounded_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# There on every host that could have MIG devices, and with a line for each that it could have.
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
# Has only those instances that there are.
CAPABILITIES = "/proc/driver/nvidia/capabilities"
NODES = "/dev/nvidia-caps"

# Some 4,300 lines and 110,000 bytes for 32 GPUs.
_MOST = 1 << 22
_LINE = re.compile(r"([^ \t]{1,200})[ \t]+([0-9]{1,7})[ \t\r]*\Z")
_NUMBERED = {kind: re.compile(kind + r"([0-9]{1,7})\Z") for kind in ("gpu", "gi", "ci")}


class Instance(t.NamedTuple):
    """A GPU instance of MIG; ``minor`` is that of its GPU, ``compute`` the numbers of its compute instances."""

    minor: int
    gi: int
    compute: tuple[int, ...]


def instances(host: HostRoot) -> list[Instance]:
    """The GPU instances that there are, in the order of their numbers; raises HostError where they cannot be read."""
    found: list[Instance] = []
    for minor, gpu in _numbered(host, CAPABILITIES, "gpu"):
        for gi, folder in _numbered(host, f"{gpu}/mig", "gi"):
            compute = tuple(number for number, _path in _numbered(host, folder, "ci"))
            found.append(Instance(minor, gi, compute))
    return found


def read_minors(text: str, path: str = MIG_MINORS) -> dict[str, int]:
    """The minor number of each capability, by its name in mig-minors; ``path`` is the one to name.

    Raises ConfigurationError for a line that is no name and number, and for a name that stands there twice.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        match = _LINE.match(line)
        if match is None:
            raise _garbled(path, "is not a capability and its minor number", number)
        if match.group(1) in found:
            raise _garbled(path, "tells of a capability for the second time", number)
        found[match.group(1)] = int(match.group(2))
    return found


class Capabilities:
    """The capabilities of one host's MIG devices; mig-minors is read when it is first needed, and once."""

    def __init__(self, host: HostRoot) -> None:
        self._host = host
        self._minors: dict[str, int] | None = None

    def of(self, minor: int, gi: int, ci: int) -> tuple[int, int]:
        """The minor numbers of the nodes of a GPU instance and of a compute instance on the GPU with ``minor``.

        Raises HostError or ConfigurationError where mig-minors does not tell them.
        """
        gpu_instance = f"gpu{minor}/gi{gi}"
        return self._minor(f"{gpu_instance}/access"), self._minor(f"{gpu_instance}/ci{ci}/access")

    def nodes(self, minor: int, gi: int, ci: int) -> tuple[str, str]:
        """The paths of these nodes below /dev; raises as of()."""
        first, second = self.of(minor, gi, ci)
        return f"{NODES}/nvidia-cap{first}", f"{NODES}/nvidia-cap{second}"

    def _minor(self, name: str) -> int:
        if self._minors is None:
            self._minors = read_minors(bounded_text(self._host, MIG_MINORS, _MOST))
        if name not in self._minors:
            raise HostError(
                f"{MIG_MINORS} does not have {name}, although there is such a MIG device. Load NVIDIA's driver again,"
                " or restart the host."
            )
        return self._minors[name]


def _numbered(host: HostRoot, folder: str, kind: str) -> list[tuple[int, str]]:
    """The entries of ``folder`` that are called ``kind`` and a number: that, and the path."""
    matches = [(_NUMBERED[kind].match(name), name) for name in host.entries(folder)]
    return sorted((int(match.group(1)), f"{folder}/{name}") for match, name in matches if match)


def _garbled(path: str, problem: str, line: int) -> ConfigurationError:
    return ConfigurationError(path, f"this line {problem}", "Load NVIDIA's driver again, or restart the host.", line)
