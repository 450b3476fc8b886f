# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which directories each release of K3s and RKE2 searches for NVIDIA's runtimes.

Both distributions share this code and have the version of their Kubernetes. This module reads no settings except the
environment that its callers pass.
"""

from __future__ import annotations

import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

if t.TYPE_CHECKING:
    Version = t.Tuple[int, ...]


# The first Kubernetes of either distribution. A lower version is that of its containerd.
_FIRST = (1, 16)

# By minor series: the first patch release with a feature. Later series always have it, earlier ones never.
# K3s pull requests 8936 and 9027 with their backports, December 2023: the flag default-runtime.
_DEFAULT_RUNTIME = {26: 12, 27: 9, 28: 5}
# 9311 (K3s v1.26.14's notes), February 2024: programs are searched in a list of directories instead of two.
_FIXED_PATH = {26: 14, 27: 11, 28: 7, 29: 2}
# 10953 and 11065, and RKE2's documentation, October 2024: PATH is searched too, and nvidia-cdi is registered.
_OWN_PATH_AND_CDI = {28: 15, 29: 10, 30: 6, 31: 2}

# The directory of the GPU operator, which is searched first (pkg/agent/containerd/runtimes.go, config_linux.go).
_OPERATOR = "/usr/local/nvidia/toolkit"
_WASM = "/opt/kwasm/bin"

# Name and program of each NVIDIA runtime that the distributions search (runtimes.go).
_ALWAYS = {
    engines_base.MAIN_NAME: core_constants.MAIN_PROGRAM,
    "nvidia-experimental": core_constants.MAIN_PROGRAM + "-experimental",
}
_WITH_CDI = {engines_base.MODE_NAMES["cdi"]: core_constants.MODE_PROGRAMS["cdi"]}
# The runtimes of all releases together.
PROGRAMS: t.Mapping[str, str] = types.MappingProxyType({**_ALWAYS, **_WITH_CDI})


def release_of(version: Version | None) -> Version | None:
    """Return ``version`` if it may be the distribution's, None if it is unknown or its containerd's."""
    return version if version is not None and version[:1] == _FIRST[:1] and version >= _FIRST else None


def sets_default(version: Version | None) -> bool:
    """Return whether the release has the setting default-runtime. An unknown release is treated as a recent one."""
    return _reached(version, _DEFAULT_RUNTIME)


def default_since() -> str:
    """Return the first releases with that setting, as text for a message."""
    return _in_words(_DEFAULT_RUNTIME)


def own_path_since() -> str:
    """Return the first releases that search their own PATH, as text for a message."""
    return _in_words(_OWN_PATH_AND_CDI)


def programs_of(version: Version | None) -> dict[str, str]:
    """Return name and program of each NVIDIA runtime that the release registers if it finds the program."""
    return {**_ALWAYS, **(_WITH_CDI if _reached(version, _OWN_PATH_AND_CDI) else {})}


def folders_of(host: hostfs.HostFS, version: Version | None, environment: t.Mapping[str, str]) -> list[str]:
    """Return the directories in which the release searches these programs, in this order.

    ``environment`` is that of its unit.
    """
    if not _reached(version, _FIXED_PATH):
        return [_OPERATOR, "/usr/bin"]
    if not _reached(version, _OWN_PATH_AND_CDI):
        return [_OPERATOR, _WASM, "/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"]
    # Go refuses to run a program from a relative directory (os/exec, ErrDot).
    own = environment["PATH"].split(":") if "PATH" in environment else _service_path(host)
    return list(dict.fromkeys([_OPERATOR, _WASM, *(folder for folder in own if folder.startswith("/"))]))


def _service_path(host: hostfs.HostFS) -> list[str]:
    """Return the PATH of a service, without directories that are links to other directories in it.

    systemd omits sbin where that is a link to bin (as in Fedora 42).
    """
    real = {folder: host.resolve(folder) for folder in hostfs.SERVICE_PATH}
    return [folder for folder in hostfs.SERVICE_PATH if real[folder] == folder or real[folder] not in real]


def found_on(host: hostfs.HostFS, version: Version | None, environment: t.Mapping[str, str]) -> dict[str, str]:
    """Return the NVIDIA runtimes that the release would register at its next start, and their programs' paths."""
    folders = folders_of(host, version, environment)
    places = {
        name: host.find_executable(f"{folder.rstrip('/')}/{program}" for folder in folders)
        for name, program in programs_of(version).items()
    }
    return {name: place for name, place in places.items() if place is not None}


def _reached(version: Version | None, since: t.Mapping[int, int]) -> bool:
    release = release_of(version)
    if release is None or len(release) < 2:
        return True
    minor, patch = (*release[1:3], 0)[:2]
    return minor > max(since) or (minor in since and patch >= since[minor])


def _in_words(since: t.Mapping[int, int]) -> str:
    return ", ".join(f"v1.{minor}.{patch}" for minor, patch in since.items()) + f" and v1.{max(since) + 1}.0"
