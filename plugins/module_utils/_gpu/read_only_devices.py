# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prevent NVML from creating device nodes while it is queried.

NVIDIA's libraries create missing nodes and change existing ones: directly if they run as root, and otherwise through
nvidia-modprobe, which is setuid root (modprobe-utils/nvidia-modprobe-utils.c).
"""

from __future__ import annotations

import os
import typing as t

# linux/prctl.h, linux/sched.h, linux/mount.h
_NO_NEW_PRIVILEGES = 38
_NEW_MOUNTS = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_DEVICES = b"/dev"


def hold_devices() -> str:
    """Make /dev read-only for this process and its future children; this cannot be undone.

    Returns an error message, or an empty text on success.
    """
    try:
        # Only the NVML process needs ctypes, and some builds of Python lack it.
        import ctypes  # noqa: PLC0415

        libc = ctypes.CDLL(None, use_errno=True)
        steps: list[t.Callable[[], t.Any]] = [lambda: libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)]
        if os.geteuid() == 0:
            steps += [
                lambda: libc.unshare(_NEW_MOUNTS),
                # Without this, the host would see the mounts that follow.
                lambda: libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None),
                lambda: libc.mount(_DEVICES, _DEVICES, None, ctypes.c_ulong(_BIND | _RECURSIVE), None),
                lambda: libc.mount(None, _DEVICES, None, ctypes.c_ulong(_REMOUNT | _BIND | _READ_ONLY), None),
            ]
        for step in steps:
            if step() != 0:
                return f"/dev cannot be made read-only ({os.strerror(ctypes.get_errno())})"
    except (ImportError, OSError, AttributeError):
        return "/dev cannot be made read-only (this Python lacks ctypes)"
    return ""
