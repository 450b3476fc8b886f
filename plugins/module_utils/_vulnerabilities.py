# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the toolkit's known vulnerabilities, one row each.  This file is data: a new bulletin is a
# new row, and the newest floor is the version that the role wants at least.

from __future__ import annotations

import typing as t


class Vulnerability(t.NamedTuple):
    """A toolkit older than ``floor`` is open to ``name``."""

    floor: str
    name: str
    about: str


VULNERABILITIES = (
    Vulnerability("1.16.2", "CVE-2024-0132", "container escape; use of CDI is not affected"),
    Vulnerability("1.17.4", "CVE-2025-23359", "bypass of the fix for CVE-2024-0132"),
    Vulnerability("1.17.8", "CVE-2025-23266", "enable-cuda-compat hook; before 1.17.5 only in CDI mode"),
    Vulnerability("1.17.8", "CVE-2025-23267", "link following in the enable-cuda-compat hook"),
    Vulnerability("1.19.1", "CVE-2026-24260", "race between check and use"),
)
