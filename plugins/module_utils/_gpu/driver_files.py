# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the files of the driver in directories and in ld.so.cache, and read the soname of a library.

The format of ld.so.cache is glibc's (sysdeps/generic/dl-cache.h). A cache may begin with a table of the format
before 2.2; only the table behind it is used. The search follows nvidia-ctk 1.20 and was compared with the output of
that program.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import elf as gpu_elf
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import file_lookup

CACHE = "/etc/ld.so.cache"
# The limit in bytes. The cache of a desktop has some 200 kB.
_MAX_CACHE = 1 << 25

_OLD, _NEW = b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_HEADER, _ENTRY = 48, struct.Struct("<iIIIQ")
_KIND, _ELF = 0xFF, 1
_MACHINE = 0xFF00
# x86-64, 64-bit PowerPC, AArch64: FLAG_X8664_LIB64, FLAG_POWERPC_LIB64, FLAG_AARCH64_LIB64.
_WIDE = frozenset({0x0300, 0x0500, 0x0A00})
# The maximum length of a path (PATH_MAX).
_PATH_MAX = 4096


def cached_libraries(cache: bytes) -> list[str]:
    """Return the paths of the 64-bit libraries in ``cache`` in its order, without duplicates.

    Unreadable parts are ignored, because the loader and NVIDIA's tools also work without a cache.
    """
    start = _start(cache)
    if start is None or start + _HEADER > len(cache):
        return []
    (count,) = struct.unpack_from("<I", cache, start + len(_NEW))
    # A wrong count must not cost more than the size of the file.
    count = min(count, (len(cache) - start - _HEADER) // _ENTRY.size)
    found: dict[str, None] = {}
    for number in range(count):
        flags, _key, value, _version, _features = _ENTRY.unpack_from(cache, start + _HEADER + number * _ENTRY.size)
        if flags & _KIND & _ELF and flags & _MACHINE in _WIDE:
            path = _text(cache, start + value)
            if path.startswith("/"):
                found[path] = None
    return list(found)


def _start(cache: bytes) -> int | None:
    """Return the offset of the table in the newer format."""
    if cache.startswith(_NEW):
        return 0
    if not cache.startswith(_OLD) or len(cache) < _OLD_HEADER:
        return None
    (count,) = struct.unpack_from("<I", cache, len(_OLD))
    end = _OLD_HEADER + count * _OLD_ENTRY
    # The table is aligned to 4 or 8 bytes.
    start = cache.find(_NEW, end, end + 8 + len(_NEW))
    return start if start >= 0 else None


def _text(cache: bytes, start: int) -> str:
    end = cache.find(b"\0", start, start + _PATH_MAX)
    return cache[start:end].decode("utf-8", "surrogateescape") if end > start else ""


_MULTIARCH = ("x86_64-linux-gnu", "aarch64-linux-gnu")
# The directories below the driver's root, in the order of the search.
LIBRARY_FOLDERS = (
    "/",
    "/usr/lib64",
    *(f"/usr/lib/{triplet}" for triplet in _MULTIARCH),
    *(f"/usr/lib/{triplet}/nvidia/current" for triplet in _MULTIARCH),
    "/lib64",
    *(f"/lib/{triplet}" for triplet in _MULTIARCH),
    *(f"/lib/{triplet}/nvidia/current" for triplet in _MULTIARCH),
)
# NVIDIA's generator replaces the second and the third by XDG_DATA_DIRS if it is set. Here the result must not depend on
# the environment of the task.
CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
# The generator begins with PATH, which has the same directories.
PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Files with the driver's version in their names, which is used if no driver is loaded. NVIDIA's generator uses the
# first match of *.* (updateInfo in internal/lookup/root/root.go, v1.20.0), which may be a copy or of a previous driver.
_VERSIONED = ("libcuda.so.", "libnvidia-ml.so.")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)+\Z")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,60}\Z")
_FIRMWARE_FOLDER, _KERNEL = "/sys/module/firmware_class/parameters/path", "/proc/sys/kernel/osrelease"
_MACHINES = {gpu_elf.X86_64: "x86_64", gpu_elf.AARCH64: "aarch64"}


class DriverFile(t.NamedTuple):
    """A file of the driver: its path on the host, and its path relative to the driver's root, with a leading slash."""

    host: str
    inside: str


class DriverFiles:
    """The files of the driver whose root is ``root``, a path on the host.

    ``library_folders`` and ``config_folders`` replace the default directories. They are paths on the host, not below
    ``root``. Methods raise HostError for a file that exists but may not be read.
    """

    def __init__(
        self,
        lookup: file_lookup.CachedFS,
        root: str,
        library_folders: t.Sequence[str] = (),
        config_folders: t.Sequence[str] = (),
    ) -> None:
        self.lookup = lookup
        self.root = root
        self._library_folders = [folder for folder in library_folders if folder.startswith("/")]
        self._config_folders = tuple(config_folders)
        self._cached: list[str] | None = None

    @property
    def label(self) -> str:
        """The root of the driver, for messages."""
        if self.root == "/":
            return self.root
        exists = self.lookup.is_directory(self.root)
        return f"{errors.option:driver_root} {self.root}" + (
            "" if exists else ", which is not a directory on this host"
        )

    def version(self) -> str:
        """Return the driver's version from its library's name. Raises HostError unless there is exactly one."""
        for stem in _VERSIONED:
            versions: dict[str, str] = {}
            for found in self.libraries(f"{stem}*.*"):
                version = posixpath.basename(found.host)[len(stem) :]
                if _NUMBERS.match(version):
                    versions.setdefault(version, found.host)
            if len(versions) > 1:
                raise errors.HostError(
                    f"This host has libraries of several NVIDIA drivers: {', '.join(versions.values())}. Remove unused"
                    f" drivers, or set {errors.option:library_search_paths} to the directory of one driver."
                )
            if versions:
                return _check_version(next(iter(versions)))
        raise errors.HostError(
            f"There is no libcuda.so.VERSION of an NVIDIA driver below {self.label}. Install the driver, or set"
            f" {errors.option:driver_root} or {errors.option:library_search_paths}."
        )

    def require_version(self, version: str) -> None:
        """Raise HostError unless there are libraries of this version."""
        _check_version(version)
        if not any(self.libraries(f"{stem}{version}") for stem in _VERSIONED):
            raise errors.HostError(
                f"The loaded NVIDIA driver has version {version}, but there is no libcuda.so.{version} below"
                f" {self.label}. Install the libraries of that version, restart the host if the driver was updated"
                f" while it was loaded, or set {errors.option:driver_root} or {errors.option:library_search_paths}."
            )

    def libraries(self, pattern: str) -> list[DriverFile]:
        """Return the matching libraries, resolved and unique: from directories, or else from ld.so.cache."""
        if self._library_folders:
            return self._resolved(self._matches(self._library_folders, pattern))
        default = [file_lookup.under(self.root, folder) for folder in LIBRARY_FOLDERS]
        return self._resolved(self._matches(default, pattern)) or self._resolved(self._cache_matches(pattern))

    def library_folders(self, version: str) -> list[str]:
        """Return the directories of libraries of this version, relative to the driver's root."""
        return list(dict.fromkeys(posixpath.dirname(found.inside) for found in self.libraries(f"lib*.so.{version}")))

    def in_folders(self, folders: t.Sequence[str], pattern: str) -> list[DriverFile]:
        """Return the matching libraries in ``folders`` (relative to the driver's root), resolved and unique."""
        resolved = self._resolved(self._matches([file_lookup.under(self.root, folder) for folder in folders], pattern))
        return [
            DriverFile(path, found.inside)
            for found in resolved
            for path in [file_lookup.under(self.root, found.inside)]
            if self.lookup.is_file(path)
        ]

    def first(self, folders: t.Iterable[str], name: str) -> DriverFile | None:
        """Return the first file ``name`` in ``folders`` (relative to the driver's root), without resolving links."""
        for folder in folders:
            inside = posixpath.join(folder, name)
            path = file_lookup.under(self.root, inside)
            if self.lookup.is_file(path):
                return DriverFile(path, inside)
        return None

    def config(self, name: str) -> str | None:
        """Return the path on the host of a configuration file of another program, such as a Vulkan ICD."""
        if self._config_folders:
            candidates = [posixpath.join(folder, name) for folder in self._config_folders]
        else:
            candidates = [file_lookup.under(self.root, posixpath.join(folder, name)) for folder in CONFIG_FOLDERS]
        return next((path for path in candidates if self.lookup.is_file(path)), None)

    def program(self, name: str) -> DriverFile | None:
        for folder in PROGRAM_FOLDERS:
            path = file_lookup.under(self.root, f"{folder}/{name}")
            if self.lookup.is_program(path):
                return DriverFile(path, f"{folder}/{name}")
        return None

    def firmware(self, version: str) -> list[DriverFile]:
        """Return the firmware of the GPU System Processor (GSP), from all firmware directories of the kernel."""
        host = self.lookup.host
        # An offline tree does not belong to the running kernel.
        kernel = host.read_text(_KERNEL).strip() or (os.uname().release if host.live else "")
        folders = [host.read_text(_FIRMWARE_FOLDER).strip()]
        for folder in ("/lib/firmware/updates", "/lib/firmware"):
            folders += [f"{folder}/{kernel}" if kernel else "", folder]
        found: dict[str, None] = {}
        for folder in folders:
            if folder.startswith("/"):
                path = file_lookup.under(self.root, f"{posixpath.normpath(folder)}/nvidia/{version}")
                found.update(dict.fromkeys(self.lookup.glob(path, "gsp*.bin")))
        return [DriverFile(path, file_lookup.strip_root(self.root, path)) for path in found]

    def soname(self, library: DriverFile) -> str | None:
        """Return the soname of a library, its file name if it has none, or None if the file is not a library."""
        with self.lookup.open(library.host) as stream:
            soname = gpu_elf.read_soname(stream)
            if soname is not None:
                return soname
            stream.seek(0)
            return (
                posixpath.basename(library.host)
                if gpu_elf.read_elf(stream.read(gpu_elf.HEADER_BYTES)) is not None
                else None
            )

    def machine(self, library: DriverFile | None) -> str:
        """Return the architecture of ``library`` as `uname -m` names it, such as x86_64.

        Without a library, or for an unknown architecture, it is that of the running kernel.
        """
        if library is not None:
            with self.lookup.open(library.host) as stream:
                elf = gpu_elf.read_elf(stream.read(gpu_elf.HEADER_BYTES))
            if elf is not None and elf.machine in _MACHINES:
                return _MACHINES[elf.machine]
        return os.uname().machine

    def _matches(self, folders: t.Iterable[str], pattern: str) -> list[str]:
        return [path for folder in folders for path in self.lookup.glob(folder, pattern)]

    def _cache_matches(self, pattern: str) -> list[str]:
        """Return the matching libraries in ld.so.cache, and the files that their links lead to."""
        if self._cached is None:
            self._cached = [link for path in self._cache() for link in self._chain(path)]
        expression = self.lookup.pattern(pattern)
        return [path for path in self._cached if expression.match(posixpath.basename(path))]

    def _cache(self) -> list[str]:
        path = file_lookup.under(self.root, CACHE)
        if not self.lookup.is_file(path):
            return []
        with self.lookup.open(path) as stream:
            return cached_libraries(stream.read(_MAX_CACHE))

    def _chain(self, path: str) -> list[str]:
        """Return ``path`` and the targets of its links.

        Absolute targets begin at the driver's root here, and at the host's root in a search of directories.
        """
        chain: dict[str, str] = {}
        while path not in chain:
            chain[path] = file_lookup.under(self.root, path)
            target = self.lookup.link_target(chain[path])
            if target is not None:
                path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return [host for host in chain.values() if self.lookup.is_file(host)]

    def _resolved(self, paths: t.Iterable[str]) -> list[DriverFile]:
        real = dict.fromkeys(self.lookup.real(path) for path in paths)
        return [DriverFile(path, file_lookup.strip_root(self.root, path)) for path in real if path is not None]


def _check_version(version: str) -> str:
    """Return the version if it is safe in patterns and paths. Raises HostError if it is not."""
    if not _VERSION.match(version):
        raise errors.HostError(f"{version!r} is not a version of an NVIDIA driver. Reinstall the driver.")
    return version
