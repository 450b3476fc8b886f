# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: writes the files of an audit on the controller.  They list the weaknesses of a fleet, so
# only the user that runs Ansible can read them.

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

_MODE = 0o600


def write_private(path: str, text: str, check_mode: bool) -> bool:
    """Replace the file by one with this text, in one step, unless it has the text already.  Returns whether it differs.

    In check mode nothing is written.  Raises OSError, for anything but a regular file too: that may be a device.
    """
    content = text.encode("utf-8", "replace")
    if _has(path, content):
        return False
    if not check_mode:
        _replace(path, content)
    return True


def _has(path: str, content: bytes) -> bool:
    """Whether there is such a file that belongs to the user and that only the user can read."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(0, "It exists and is not a regular file", path)
    if (stat.S_IMODE(status.st_mode), status.st_uid, status.st_size) != (_MODE, os.geteuid(), len(content)):
        return False
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return stream.read() == content


def _replace(path: str, content: bytes) -> None:
    # mkstemp makes a file of the mode 0600.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
