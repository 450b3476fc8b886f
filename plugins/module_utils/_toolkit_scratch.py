# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the folders into which packages are unpacked, and those that killed runs have left.

from __future__ import annotations

import os

# What they are called, before the number of their process.
PREFIX = "gpufleet-toolkit-"


def abandoned(place: str) -> list[str]:
    """The paths of what runs have left in ``place`` that were killed while they unpacked."""
    with os.scandir(place) as entries:
        return [entry.path for entry in entries if entry.name.startswith(PREFIX) and _is_abandoned(entry)]


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    pid = entry.name[len(PREFIX) :].partition("-")[0]
    if not pid.isdigit() or os.path.exists(f"/proc/{pid}") or not os.path.exists("/proc/self"):
        return False
    # In a place where all may write, others' are left alone, and so are links.
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
