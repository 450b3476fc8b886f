# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove a directory tree of any depth.

shutil.rmtree() of Python 3.8 to 3.12 calls itself for each level, and keeps a file open for it: about 1,000 levels end
in RecursionError, or use up the open files of the process.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat


def remove_tree(path: str) -> None:
    """Remove the directory ``path`` (a path for this process) and what it contains. Links are not followed.

    Only this user may be able to write below ``path``. A directory on another file system is not removed. Raises
    OSError.
    """
    numbers = itertools.count()
    _allow_changes(path)
    while True:
        folders = _remove_files(path)
        if not folders:
            break
        for folder in folders:
            _move_folders(folder, path, numbers)
            os.rmdir(folder)
    os.rmdir(path)


def remove_tree_if_possible(path: str) -> None:
    """Remove the directory ``path`` as remove_tree(), in a cleanup that must not end the task."""
    with contextlib.suppress(OSError):
        remove_tree(path)


def _remove_files(folder: str) -> list[str]:
    """Remove the files in ``folder``, and return the paths of its directories."""
    with os.scandir(folder) as entries:
        found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for path, is_folder in found:
        if not is_folder:
            os.unlink(path)
    return [path for path, is_folder in found if is_folder]


def _move_folders(folder: str, top: str, numbers: itertools.count[int]) -> None:
    """Remove the files in ``folder``, and move its directories to ``top``, where paths are short."""
    if os.lstat(folder).st_dev != os.lstat(top).st_dev:
        raise OSError(errno.EBUSY, "it is on another file system", folder)
    _allow_changes(folder)
    for path in _remove_files(folder):
        # A directory gets another parent only if its own mode allows it.
        _allow_changes(path)
        os.rename(path, next(name for name in (f"{top}/{number}" for number in numbers) if not os.path.lexists(name)))


def _allow_changes(folder: str) -> None:
    """Let a user without privileges change ``folder``. Root can do so already."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & 0o700 != 0o700:
        os.chmod(folder, mode | 0o700)
