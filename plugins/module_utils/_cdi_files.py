# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the CDI specifications that lie on a host where engines look for them, and their data.

from __future__ import annotations

import hashlib
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_folders import SUFFIXES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_text import MOST_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    GpufleetError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import SPECIFICATION_FOLDERS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# In one folder.  A host has two or three.
MOST_FILES = 500


def specification_paths(host: HostRoot) -> list[str]:
    """The files that engines take for specifications, in the order in which they read them.

    Each is named by the usual name of its folder.  Raises HostError for a folder that cannot be read, or holds far too
    many.
    """
    paths: list[str] = []
    for folder in SPECIFICATION_FOLDERS:
        # The library walks through folders with Go's filepath.Walk, which follows no link, but opens a file by one.
        if _is_link(host, folder):
            continue
        named = [f"{folder}/{name}" for name in host.entries(folder) if name.endswith(SUFFIXES)]
        found = [path for path in named if not _is_folder(host, path)]
        if len(found) > MOST_FILES:
            raise HostError(
                f"{folder} holds {len(found)} CDI specifications; more than {MOST_FILES} are not looked at."
                " Remove those that nobody needs."
            )
        paths += found
    check_size(host, paths)
    return paths


def check_size(host: HostRoot, paths: t.Sequence[str]) -> None:
    """Raises HostError where files are too large together: the parser needs seconds for each MiB."""
    sizes = [_size(host, path) for path in paths]
    if sum(size for size in sizes if size <= MOST_BYTES) > MOST_BYTES:
        raise HostError(
            f"The CDI specifications in {' and '.join(sorted({*map(posixpath.dirname, paths)}))} have more than"
            f" {MOST_BYTES >> 20} MiB together, so none of them was read. Remove those that are not used."
        )


def read_specifications(host: HostRoot, known: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """The data of each of specification_paths(), or the GpufleetError of reading it.

    known: data by the SHA-256 (hexadecimal) of the content that it was parsed from, so that a file that has not changed
    needs no parser; what is parsed is added to it.

    Raises MissingPackageError where a file needs PyYAML and there is none, and HostError as specification_paths().
    """
    known = {} if known is None else known
    return {path: read_specification(host, path, known) for path in specification_paths(host)}


def canonical(host: HostRoot, path: str) -> str:
    """``path`` by the usual name of its folder: /var/run/cdi/x for /run/cdi/x, where these are one folder of the host.

    Any other path is given back as it is.  Raises HostError on a loop of links.
    """
    folder, name = posixpath.split(path)
    if folder not in SPECIFICATION_FOLDERS:
        real = host.resolve(folder)
        for usual in SPECIFICATION_FOLDERS:
            if not _is_link(host, usual) and host.resolve(usual) == real:
                return posixpath.join(usual, name)
    return path


def read_specification(host: HostRoot, path: str, known: dict[str, t.Any]) -> t.Any:
    """The same of one file, wherever it is."""
    try:
        content = _content(host, path)
        digest = hashlib.sha256(content).hexdigest()
        if digest not in known:
            known[digest] = _parsed(path, content)
        return known[digest]
    except MissingPackageError:
        raise
    except GpufleetError as error:
        return error


def _parsed(path: str, content: bytes) -> t.Any:
    # Where all files are known nobody need wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml import parse  # noqa: PLC0415

    return parse(path, content)


def _content(host: HostRoot, path: str) -> bytes:
    content = host.read(path, MOST_BYTES)
    if content is None:
        raise HostError(f"{path} leads nowhere. Remove it, or put back what it is a link to.")
    return content


def _size(host: HostRoot, path: str) -> int:
    try:
        return os.stat(host.outer(path)).st_size
    except (HostError, OSError):
        # Reading the file reports why.
        return 0


def _is_link(host: HostRoot, path: str) -> bool:
    return os.path.islink(host.outer(path, last=False))


def _is_folder(host: HostRoot, path: str) -> bool:
    return os.path.isdir(host.outer(path, last=False)) and not _is_link(host, path)
