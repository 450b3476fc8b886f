# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Save and restore files that a transaction of rpm removes or changes."""

from __future__ import annotations

import os
import posixpath
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# rpm adds this suffix to an edited file when it removes the package.
_COPY = ".rpmsave"


class SavedFile(t.NamedTuple):
    """The state of a file before a transaction.

    ``target`` is the target of a symbolic link; the content of the target is not saved. ``has_copy`` is true if a copy
    with the suffix .rpmsave existed already.
    """

    path: str
    content: bytes
    mode: int
    owner: tuple[int, int]
    target: str | None
    has_copy: bool


def snapshot_files(host: hostfs.HostFS, paths: t.Iterable[str]) -> list[SavedFile]:
    """Return the state of those ``paths`` that are regular files or links, for restore() and restore_missing().

    Raises HostError if a file cannot be read.
    """
    saved = []
    for path in paths:
        real = host.real_path(path, last=False)
        try:
            status = os.lstat(real)
            target = os.readlink(real) if stat.S_ISLNK(status.st_mode) else None
        except FileNotFoundError:
            continue
        except OSError as error:
            raise errors.os_error(path, "read", error) from error
        content = host.read(path) if stat.S_ISREG(status.st_mode) else b""
        if content is None or not (target is not None or stat.S_ISREG(status.st_mode)):
            continue
        owner, has_copy = (status.st_uid, status.st_gid), host.lexists(path + _COPY)
        saved.append(SavedFile(path, content, stat.S_IMODE(status.st_mode), owner, target, has_copy))
    return saved


def snapshot_list(host: hostfs.HostFS, path: str) -> list[SavedFile]:
    """Return the state of one file for restore(). For a link, that of its target too."""
    return snapshot_files(host, dict.fromkeys([path, host.resolve(path)]))


def restore_missing(host: hostfs.HostFS, saved: t.Iterable[SavedFile]) -> list[str]:
    """Restore the files that no longer exist, and return their paths. Existing files stay unchanged."""
    missing = [file for file in saved if not host.lexists(file.path)]
    for file in missing:
        atomic_write.make_directories(host, posixpath.dirname(file.path), 0o755)
        _write(host, file)
        copy = file.path + _COPY
        if file.target is None and not file.has_copy and host.lexists(copy) and host.read(copy) == file.content:
            atomic_write.remove_file(host, copy)
    return [file.path for file in missing]


def restore(host: hostfs.HostFS, saved: t.Iterable[SavedFile]) -> None:
    """Restore the files and links that no longer exist or have changed."""
    saved = list(saved)
    restore_missing(host, saved)
    for file in saved:
        if file.target is not None or host.read(file.path) != file.content:
            _write(host, file)


def _write(host: hostfs.HostFS, file: SavedFile) -> None:
    if file.target is None:
        atomic_write.replace_file(host, file.path, file.content, file.mode, file.owner)
        return
    real = host.real_path(file.path, last=False)
    try:
        if os.path.lexists(real):
            # A program may have replaced a link by a file.
            if os.path.islink(real) and os.readlink(real) == file.target:
                return
            os.unlink(real)
        os.symlink(file.target, real)
    except OSError as error:
        raise errors.os_error(file.path, "written", error) from error
