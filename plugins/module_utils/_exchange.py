# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: exchanging what two names stand for in one step, which Python has no function for.

from __future__ import annotations

import ctypes
import errno
import os

# linux/fs.h and fcntl.h.
_EXCHANGE = 2
_HERE = -100
# Of renameat2(2), for C libraries without a function for it (musl before 1.2.5).
_NUMBERS = {"x86_64": 316, "aarch64": 276, "ppc64le": 357}


def exchange(one: str, other: str) -> None:
    """Let each name stand for what the other one did, without a moment in which one stands for nothing.

    Links are exchanged themselves.  Raises OSError, with ENOSYS, EINVAL, or EXDEV where kernel or file system cannot
    (renameat2(2), since Linux 3.15).
    """
    library = ctypes.CDLL(None, use_errno=True)
    names = ctypes.c_char_p(os.fsencode(one)), ctypes.c_char_p(os.fsencode(other))
    here, flags = ctypes.c_int(_HERE), ctypes.c_uint(_EXCHANGE)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(here, names[0], here, names[1], flags)
    else:
        number = _NUMBERS.get(os.uname().machine)
        if number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one)
        failed = library.syscall(ctypes.c_long(number), here, names[0], here, names[1], flags)
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)
