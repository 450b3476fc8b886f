# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make the files of a container from the host's shell, its loader and its C library.

The container has no other files, so every file of NVIDIA in it comes from the injection.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import elf

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


SHELL = "/bin/sh"
# The limit for all files together, in bytes. A shell and the C library need less than half of it.
LIMIT = 10 << 20
# The parts of the C library that nvidia-smi and NVML need. Not every version has all of them as files.
_C_LIBRARY = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
# The directories that loaders search, after the loader's own directory.
_LIBRARY_DIRS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# ldconfig of the toolkit's hook only updates an existing cache.
_CACHE = "/etc/ld.so.cache"


class HostProgramsError(errors.HostError):
    """The error for a host whose shell cannot be used in a container."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} Run the module nvidia_runtime_verify with an image that the engine has.")
        self.problem = problem


def archive(host: hostfs.HostFS) -> bytes:
    """Return a tar archive of the files. Raises HostProgramsError or HostError."""
    files = collect(host)
    buffer = io.BytesIO()
    folders = {folder for path in files for folder in _parents(path)}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted([*folders, *files]):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = 0o755
            member.type = tarfile.DIRTYPE if path in folders else tarfile.REGTYPE
            content = files.get(path, b"")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def collect(host: hostfs.HostFS) -> dict[str, bytes]:
    """Return the content of each file by its path in the container. Raises HostProgramsError or HostError."""
    files = {SHELL: _read(host, SHELL)}
    links = _links(files[SHELL])
    if links is None:
        raise HostProgramsError(f"{SHELL} of this host is not a 64-bit ELF program.")
    if links.loader is not None:
        files[links.loader] = _read(host, links.loader)
        _add_libraries(host, files, links.loader, links.needed)
    size = sum(len(content) for content in files.values())
    if size > LIMIT:
        raise HostProgramsError(f"{SHELL} of this host and its libraries have {size} bytes, more than {LIMIT}.")
    return {**files, _CACHE: b""}


def _add_libraries(host: hostfs.HostFS, files: dict[str, bytes], loader: str, needed: t.Iterable[str]) -> None:
    """Add the libraries that the shell needs, the ones that those need, and the rest of the C library."""
    folders = dict.fromkeys([posixpath.dirname(host.resolve(loader)), *_LIBRARY_DIRS])
    pending = [(name, SHELL) for name in needed]
    pending += [(name, "") for name in _C_LIBRARY]
    done = {posixpath.basename(loader)}
    while pending:
        name, user = pending.pop(0)
        if name in done:
            continue
        done.add(name)
        path = _find(host, name, folders, files[SHELL])
        if path is not None:
            files[path] = _read(host, path)
            links = _links(files[path])
            pending += [(further, path) for further in links.needed] if links is not None else []
        elif user:
            raise HostProgramsError(f"{user} needs {name}, which is not in {', '.join(folders)}.")


def _find(host: hostfs.HostFS, name: str, folders: t.Iterable[str], shell: bytes) -> str | None:
    """Return the path of a library for the machine of the shell. Other directories may have those of other machines."""
    wanted = elf.read_elf(shell)
    for path in (f"{folder}/{name}" for folder in folders):
        found = elf.read_elf(host.read(path) or b"") if host.exists(path) else None
        if found is not None and wanted is not None and (found.bits, found.machine) == (wanted.bits, wanted.machine):
            return path
    return None


def _links(content: bytes) -> elf.Links | None:
    return elf.read_links(io.BytesIO(content))


def _read(host: hostfs.HostFS, path: str) -> bytes:
    content = host.read(path, LIMIT)
    if content is None:
        raise HostProgramsError(f"{path} does not exist on this host.")
    return content


def _parents(path: str) -> t.Iterator[str]:
    while path.count("/") > 1:
        path = posixpath.dirname(path)
        yield path
