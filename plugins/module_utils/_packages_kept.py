# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: files that a package manager may take away although they are somebody's, and their return.

from __future__ import annotations

import os
import posixpath
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    explain,
    make_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# How rpm names what was changed by somebody, when the package goes.
_SAVED = ".rpmsave"


class KeptFile(t.NamedTuple):
    """A file as it was; ``target`` is that of a link, whose own content does not matter."""

    path: str
    content: bytes
    mode: int
    owner: tuple[int, int]
    target: str | None
    saved: bool


def keep(host: HostRoot, paths: t.Iterable[str]) -> list[KeptFile]:
    """What give_back() needs of those ``paths`` that are regular files or links.  Raises HostError."""
    kept = []
    for path in paths:
        outer = host.outer(path, last=False)
        try:
            status = os.lstat(outer)
            target = os.readlink(outer) if stat.S_ISLNK(status.st_mode) else None
        except FileNotFoundError:
            continue
        except OSError as error:
            raise explain(path, "read", error) from error
        content = host.read(path) if stat.S_ISREG(status.st_mode) else b""
        if content is None or not (target is not None or stat.S_ISREG(status.st_mode)):
            continue
        owner, saved = (status.st_uid, status.st_gid), host.is_there(path + _SAVED)
        kept.append(KeptFile(path, content, stat.S_IMODE(status.st_mode), owner, target, saved))
    return kept


def give_back(host: HostRoot, kept: t.Iterable[KeptFile]) -> list[str]:
    """Bring back those that went; returns their paths.  What is there, with whatever content, stays."""
    gone = [file for file in kept if not host.is_there(file.path)]
    for file in gone:
        make_directories(host, posixpath.dirname(file.path), 0o755)
        _make(host, file)
        copy = file.path + _SAVED
        if file.target is None and not file.saved and host.is_there(copy) and host.read(copy) == file.content:
            remove_file(host, copy)
    return [file.path for file in gone]


def restore(host: HostRoot, kept: t.Iterable[KeptFile]) -> None:
    """Bring back those that went, and the content of those that changed."""
    kept = list(kept)
    give_back(host, kept)
    for file in kept:
        if file.target is None and host.read(file.path) != file.content:
            replace_file(host, file.path, file.content, file.mode, file.owner)


def _make(host: HostRoot, file: KeptFile) -> None:
    if file.target is None:
        replace_file(host, file.path, file.content, file.mode, file.owner)
        return
    try:
        os.symlink(file.target, host.outer(file.path, last=False))
    except OSError as error:
        raise explain(file.path, "written", error) from error
