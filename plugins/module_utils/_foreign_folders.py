# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: files in folders of other users, who could put a link where root is about to write.

from __future__ import annotations

import contextlib
import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import link_target

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


# As in the Linux kernel (path_resolution(7)).
_MAX_LINKS = 40


@contextlib.contextmanager
def held(host: HostRoot, path: str) -> t.Iterator[str]:
    """Where the file ``path`` stands for this process, be it not there yet.

    In folders of other users no link counts, and no link of theirs anywhere: who makes one would choose what root
    overwrites.  A folder that they could exchange is held open meanwhile.  Raises OSError, and HostError for a link.
    """
    outer, foreign = _resolved(host, path)
    if not foreign:
        yield outer
        return
    folder, name = os.path.split(outer)
    handle = open_folder(host.root, folder)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


def _resolved(host: HostRoot, path: str) -> tuple[str, bool]:
    """Where ``path`` leads, as HostRoot.resolve() says it, and whether through a folder of another user."""
    # Who has the whole tree has the files in it, too.
    trusted = (0, os.geteuid(), os.stat(host.root).st_uid)
    pending = [part for part in path.split("/") if part not in ("", ".")]
    done: list[str] = []
    foreign, links = False, 0
    while pending:
        part = pending.pop(0)
        if part == "..":
            del done[-1:]
            continue
        here = _glued(host, [*done, part])
        status = _status(here)
        if status is not None and stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise HostError(f"{path}: too many symbolic links. Remove the loop.")
            if foreign or status.st_uid not in trusted:
                raise HostError(
                    f"{path} is not touched: /{'/'.join([*done, part])} is a link that another user than root can set."
                    " Remove it, or name the file that it leads to."
                )
            target = link_target(here, f"/{'/'.join([*done, part])}")
            done = [] if target.startswith("/") else done
            pending = [piece for piece in target.split("/") if piece not in ("", ".")] + pending
            continue
        foreign = foreign or bool(pending and status is not None and status.st_uid not in trusted)
        done.append(part)
    return _glued(host, done), foreign


def _glued(host: HostRoot, parts: t.Sequence[str]) -> str:
    return os.path.join(host.root, *parts)


def _status(outer: str) -> os.stat_result | None:
    try:
        return os.lstat(outer)
    except (FileNotFoundError, NotADirectoryError):
        return None


def open_folder(root: str, folder: str) -> int:
    """A handle of ``folder``, to which no link leads from ``root`` on."""
    handle = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for name in filter(None, folder[len(root) :].split("/")):
        former = handle
        try:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=former)
        finally:
            os.close(former)
    return handle
