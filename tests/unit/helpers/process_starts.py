# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write when a process was started, as the kernel shows it, into a tree."""

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

BOOT_ID = "proc/sys/kernel/random/boot_id"


def write_start(root: Path, pid: int, ticks: int, boot: str = "this-boot") -> None:
    """Write the boot ID, and the start of the process in clock ticks since the boot."""
    for path, text in ((BOOT_ID, boot), (f"proc/{pid}/stat", f"{pid} (a) S {'0 ' * 18}{ticks} 0 0")):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n", encoding="utf-8")
