# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which directories each release of K3s and RKE2 searches for NVIDIA's runtimes.

Both are the same code in this, and have the version of their Kubernetes.
"""

from __future__ import annotations

import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

if t.TYPE_CHECKING:
    Version = t.Tuple[int, ...]


# The first Kubernetes of either distribution; a lower version is that of the containerd inside.
_FIRST = (1, 16)

# By minor series, the first patch release that has something.  Later series always have it, earlier ones never.
# K3s pull requests 8936 and 9027 with their backports: the flag default-runtime, December 2023.
_DEFAULT_RUNTIME = {26: 12, 27: 9, 28: 5}
# 9311 (K3s v1.26.14's notes): programs are looked up in a list of folders instead of two, February 2024.
_FIXED_PATH = {26: 14, 27: 11, 28: 7, 29: 2}
# 10953 and 11065, and RKE2's documentation: PATH is searched too, and there is nvidia-cdi, October 2024.
_OWN_PATH_AND_CDI = {28: 15, 29: 10, 30: 6, 31: 2}

# The GPU operator's folder, which comes before all others (pkg/agent/containerd/runtimes.go, config_linux.go).
_OPERATOR = "/usr/local/nvidia/toolkit"
_WASM = "/opt/kwasm/bin"

# Name to program of each runtime of NVIDIA's that they look for (runtimes.go).
_ALWAYS = {
    engines_base.MAIN_NAME: core_constants.MAIN_PROGRAM,
    "nvidia-experimental": core_constants.MAIN_PROGRAM + "-experimental",
}
_WITH_CDI = {engines_base.MODE_NAMES["cdi"]: core_constants.MODE_PROGRAMS["cdi"]}
# All of these, of whatever release.
PROGRAMS: t.Mapping[str, str] = types.MappingProxyType({**_ALWAYS, **_WITH_CDI})


def release_of(version: Version | None) -> Version | None:
    """``version`` if it may be that of the distribution, None where it is unknown or that of its containerd."""
    return version if version is not None and version[:1] == _FIRST[:1] and version >= _FIRST else None


def sets_default(version: Version | None) -> bool:
    """Whether the release has the setting default-runtime; one of which nothing is known is taken for a newer one."""
    return _reached(version, _DEFAULT_RUNTIME)


def default_since() -> str:
    """The first releases with that setting, in words."""
    return _in_words(_DEFAULT_RUNTIME)


def own_path_since() -> str:
    """The first releases that search their own PATH, in words."""
    return _in_words(_OWN_PATH_AND_CDI)


def programs_of(version: Version | None) -> dict[str, str]:
    """Name to program of each runtime of NVIDIA's that the release registers where it finds the program."""
    return {**_ALWAYS, **(_WITH_CDI if _reached(version, _OWN_PATH_AND_CDI) else {})}


def folders_of(host: hostfs.HostFS, version: Version | None, environment: t.Mapping[str, str]) -> list[str]:
    """Where the release looks for these programs, in this order; ``environment`` is that of its unit."""
    if not _reached(version, _FIXED_PATH):
        return [_OPERATOR, "/usr/bin"]
    if not _reached(version, _OWN_PATH_AND_CDI):
        return [_OPERATOR, _WASM, "/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"]
    # What is relative there Go refuses to run (os/exec, ErrDot).
    own = environment["PATH"].split(":") if "PATH" in environment else _service_path(host)
    return list(dict.fromkeys([_OPERATOR, _WASM, *(folder for folder in own if folder.startswith("/"))]))


def _service_path(host: hostfs.HostFS) -> list[str]:
    """The PATH of a service, without links to others of its folders.

    systemd itself has no sbin in it where that is a link to bin (as in Fedora 42).
    """
    real = {folder: host.resolve(folder) for folder in hostfs.SERVICE_PATH}
    return [folder for folder in hostfs.SERVICE_PATH if real[folder] == folder or real[folder] not in real]


def found_on(host: hostfs.HostFS, version: Version | None, environment: t.Mapping[str, str]) -> dict[str, str]:
    """The runtimes of NVIDIA's that it would register at its next start, and where it finds their programs."""
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
