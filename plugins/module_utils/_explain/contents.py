# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Return what of NVIDIA a running container has: its measured device nodes, and the driver's files among its mounts.

The kernel lists the mounts. No file of the container is opened.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import container_nodes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The names of the driver's files: libraries, and programs such as nvidia-smi.
_FILE = re.compile(r"(?:\A|/)(?:lib(?:nvidia|cuda|nv|GLX?_nvidia|EGL_nvidia|vdpau_nvidia)|nvidia-|gsp_)[^/]*\Z")
_VERSIONED = re.compile(r"\.so\.([0-9]+\.[0-9.]*[0-9])\Z")
# Libraries whose version is that of the driver. Others, such as libnvidia-egl-gbm, have versions of their own.
CUDA, NVML = "libcuda.so", "libnvidia-ml.so"
_ESCAPE = re.compile(r"\\([0-7]{3})")
# The directory of the driver's files in WSL. They have no version.
_WSL_FILES = "/usr/lib/wsl/"
# /proc/PID/mountinfo of a container with thousands of mounts, in bytes.
_MOUNTS = 4 << 20


class DriverFile(t.NamedTuple):
    """A file of the driver that is mounted: its path in the container, and the version in its name; empty: none."""

    path: str
    version: str = ""

    def is_library(self, name: str) -> bool:
        """Return whether it is the library ``name``."""
        return posixpath.basename(self.path).startswith(f"{name}.")


class Contents(t.NamedTuple):
    """What a running container has. ``files_known`` is False if the kernel's list of its mounts could not be read."""

    measured: container_nodes.Measured = container_nodes.Measured()
    files: tuple[DriverFile, ...] = ()
    files_known: bool = True

    def libraries(self, name: str) -> list[DriverFile]:
        """Return the mounted files of the library ``name``."""
        return [file for file in self.files if file.is_library(name)]

    def other_versions(self, driver: str) -> list[DriverFile]:
        """Return the libraries that are mounted only in other versions than ``driver``.

        Besides that of the driver, nvidia-container-cli mounts a newer libcuda that an image has for forward
        compatibility (src/nvc_mount.c of libnvidia-container 1.17.8).
        """
        found = [[file for file in self.libraries(name) if file.version] for name in (CUDA, NVML)]
        return [file for files in found if driver not in [one.version for one in files] for file in files]


def read_contents(host: hostfs.HostFS, pid: int) -> Contents:
    """Return what the container of the process ``pid`` has."""
    mountinfo = host.read_text(f"/proc/{pid}/mountinfo", _MOUNTS)
    return Contents(container_nodes.measure(host, pid), driver_files(mountinfo), files_known=bool(mountinfo))


def driver_files(mountinfo: str) -> tuple[DriverFile, ...]:
    """Return the driver's files in the text of /proc/PID/mountinfo (proc_pid_mountinfo(5)), sorted by path."""
    found = {}
    for line in mountinfo.splitlines():
        columns = line.partition(" - ")[0].split(" ")
        if len(columns) < 5:
            continue
        root, point = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), column) for column in columns[3:5])
        if point.startswith(("/dev/", "/proc/")) or not (_FILE.search(point) or point.startswith(_WSL_FILES)):
            continue
        # A library may be mounted under a name without version.
        version = _VERSIONED.search(point) or _VERSIONED.search(root)
        found[point] = DriverFile(point, version[1] if version else "")
    return tuple(found[path] for path in sorted(found))
