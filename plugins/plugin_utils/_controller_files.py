# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write files on the controller, and check beforehand that they can be written.

Private to this collection. The files of an audit list the weaknesses of a fleet, so only the user that runs Ansible can
read them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import typing as t

if t.TYPE_CHECKING:
    import re

_MODE, _DIRECTORY_MODE = 0o600, 0o700


def prepare(path: str, check_mode: bool) -> bool:
    """Create the directory of the file, and check that the file can be written. Return whether it did not exist.

    In check mode no directory is created, and the nearest existing directory is checked. Raises OSError.
    """
    status = _refuse_other_kinds(path)
    directory = os.path.dirname(path)
    if status is not None:
        _require_replaceable(path, status.st_uid, os.stat(directory))
    is_missing = not os.path.isdir(directory)
    if check_mode:
        _require_permission(directory)
    else:
        os.makedirs(directory, _DIRECTORY_MODE, exist_ok=True)
        # Only a new file shows that the file system is writable.
        descriptor, temporary = _temporary(path)
        os.close(descriptor)
        os.unlink(temporary)
    return is_missing


def _require_replaceable(path: str, owner: int, directory: os.stat_result) -> None:
    """Raise PermissionError if ``directory`` has the sticky bit, and it and the file belong to others (rename(2))."""
    if directory.st_mode & stat.S_ISVTX and os.geteuid() not in (0, owner, directory.st_uid):
        problem = "It belongs to another user, and its directory has the sticky bit"
        raise PermissionError(errno.EPERM, problem, path)


def _require_permission(directory: str) -> None:
    """Raise OSError unless the nearest existing path is a directory that can be written."""
    while not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)


def write_private(path: str, text: str, check_mode: bool, ignored: re.Pattern[bytes] | None = None) -> bool:
    """Replace the file atomically by one with this text, unless it has the text already. Return whether it differs.

    A difference only in what ``ignored`` matches does not count. A missing directory is created. In check mode nothing
    is written. Raises OSError, also if the path is not a regular file but for example a device.
    """
    content = text.encode("utf-8", "replace")
    previous = _private_content(path)
    if previous == content:
        return False
    if not check_mode:
        os.makedirs(os.path.dirname(path), _DIRECTORY_MODE, exist_ok=True)
        _replace(path, content)
    return previous is None or ignored is None or ignored.sub(b"", previous) != ignored.sub(b"", content)


def _private_content(path: str) -> bytes | None:
    """Return the content of the file, or None unless it belongs to the user and has mode 0600."""
    status = _refuse_other_kinds(path)
    if status is None or (stat.S_IMODE(status.st_mode), status.st_uid) != (_MODE, os.geteuid()):
        return None
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return stream.read()


def _refuse_other_kinds(path: str) -> os.stat_result | None:
    """Return the status of the file, or None if there is none. Raises FileExistsError unless it is a regular file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(0, "It exists and is not a regular file", path)
    return status


def _temporary(path: str) -> tuple[int, str]:
    """Create a file of mode 0600 beside ``path``, and return its descriptor and path."""
    return tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))


def _replace(path: str, content: bytes) -> None:
    """Write the file atomically. Its directory exists. Raises OSError."""
    descriptor, temporary = _temporary(path)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), _MODE)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
