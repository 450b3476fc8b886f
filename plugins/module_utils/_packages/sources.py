# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of this collection's package repository, and package sources that conflict with it.

If two sources have the same address but different keys (Signed-By), apt refuses both. dnf and zypper accept both and
may use either. `apt_sources` reads the sources of apt, `rpm_sources` those of dnf and zypper.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The names, without suffix, of the source files that NVIDIA's old and new installation instructions create.
NVIDIA_SOURCE_NAMES = (
    "nvidia-docker",
    "libnvidia-container",
    "nvidia-container-runtime",
    "nvidia-container-toolkit",
)
# The first part of the addresses in these files, without the scheme.
NVIDIA_ADDRESSES = (
    "nvidia.github.io/libnvidia-container",
    "nvidia.github.io/nvidia-docker",
    "nvidia.github.io/nvidia-container-runtime",
)
# The role stores fetched keys here until it installs them.
STAGED_KEYS = f"/var/cache/gpufleet-nvidia-key-{packages_base.SHORT_FINGERPRINT}.asc"


# Scheme ("https", "mirror+http"), user and password, host, port, path. All but user and password are groups.
_ADDRESS = re.compile(
    r"(?:([a-z0-9.+-]+):/*)?(?:[^/@]*@)?(\[[^]/]*\]|[^/:]*)(?::([0-9]+))?(/.*)?",
    re.IGNORECASE,
)
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# Architectures in addresses, and the variables that apt, dnf and zypper replace with an architecture.
_ARCHITECTURES = ("$(ARCH)", "$basearch", "$arch", "amd64", "arm64", "x86_64", "aarch64", "ppc64el", "ppc64le")


class MixedSourceFile(t.NamedTuple):
    """A file that has entries for NVIDIA's packages and also other entries.

    ``line`` and ``address`` are those of the first entry for NVIDIA's packages. ``address`` has no user and password.
    """

    path: str
    line: int
    address: str


class Conflicts(t.NamedTuple):
    """The files that conflict. ``files`` can be removed as a whole. The user must edit those in ``mixed``."""

    files: list[str]
    mixed: list[MixedSourceFile]


def conflicts(host: hostfs.HostFS, repository: packages_base.Repository, address: str | None = None) -> Conflicts:
    """Return the sources on ``host`` that conflict with this collection's source.

    A source conflicts if it has the same address, or an address of NVIDIA's. A file with a name from NVIDIA's
    instructions also conflicts if each of its addresses looks like a mirror of the toolkit's packages. Disabled sources
    and files that cannot be read do not conflict.

    Args:
        host: The host.
        repository: How the package manager of the host reads repositories.
        address: The address of this collection's source, if it is known.
    """
    found = Conflicts([], [])
    for path in repository.source_files(host):
        active = list(repository.entries(path, host.read_text(path)))
        conflicting = [entry for entry in active if is_nvidia_address(entry.address) or _is_same(entry, address)]
        if path in repository.files or not active:
            continue
        if conflicting and len(conflicting) < len(active):
            found.mixed.append(MixedSourceFile(path, conflicting[0].line, _plain(conflicting[0].address)))
        elif conflicting or (_has_nvidia_name(path) and all(_looks_like_toolkit(entry.address) for entry in active)):
            found.files.append(path)
    return found


def own_files(host: hostfs.HostFS) -> list[str]:
    """Return the existing files of this collection's repository, including keys that are fetched but not installed."""
    keys = [path for pattern in (*key_patterns(), STAGED_KEYS) for path in host.glob(pattern)]
    return [path for path in repository_files() if host.lexists(path)] + keys


def repository_files() -> tuple[str, ...]:
    """Return the paths of this collection's repository files, except keys, for all package managers."""
    return tuple(path for repository in detect.repositories() for path in repository.files)


def key_patterns() -> tuple[str, ...]:
    """Return patterns for the paths of the repository's keys, for all package managers."""
    return tuple(repository.key_pattern for repository in detect.repositories())


def _has_nvidia_name(path: str) -> bool:
    return posixpath.splitext(posixpath.basename(path))[0] in NVIDIA_SOURCE_NAMES


def is_nvidia_address(address: str) -> bool:
    """Return whether ``address`` is one of NVIDIA's addresses for the toolkit, with any scheme and port."""
    host, _port, path = _parts(address)
    return any(f"{host}{path}/".startswith(known + "/") for known in NVIDIA_ADDRESSES)


def _is_same(entry: packages_base.Entry, address: str | None) -> bool:
    """Return whether a flat entry has the host, the port and the path of ``address``.

    Different architectures in the paths are treated as equal.
    """
    return entry.flat and bool(address) and _comparable(entry.address) == _comparable(str(address))


def _comparable(address: str) -> list[str]:
    return ["$" if part in _ARCHITECTURES else part for part in _plain(address).split("/")]


def _looks_like_toolkit(address: str) -> bool:
    _host, _slash, path = _plain(address).partition("/")
    return any(name in path for name in NVIDIA_SOURCE_NAMES)


def _plain(address: str) -> str:
    """Return ``address`` without scheme and user."""
    return "".join(_parts(address))


def _parts(address: str) -> tuple[str, str, str]:
    """Return the host in lower case, the port with its colon, and the path.

    The port is empty if it is the default of the scheme.
    """
    found = _ADDRESS.fullmatch(address)
    scheme, host, port, path = found.groups("") if found is not None else ("", "", "", address)
    is_default = port in ("", _DEFAULT_PORTS.get(scheme.lower().rpartition("+")[2]))
    return host.lower(), "" if is_default else f":{port}", re.sub("/+", "/", path).rstrip("/")
