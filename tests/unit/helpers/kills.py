# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End a run in the middle, as SIGKILL does."""

from __future__ import annotations


class Killed(BaseException):
    """Ends a run. No code catches it."""
