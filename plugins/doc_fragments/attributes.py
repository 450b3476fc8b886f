# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The descriptions of the attributes, and their support in modules that only run on the controller."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Runs in C(check_mode) and reports the changes that it would make, without making them.
    support: full
  diff_mode:
    description: Returns what has changed, or would change in C(check_mode), when in diff mode.
    support: full
  idempotent:
    description: When run twice in a row outside check mode with the same arguments, the second run changes nothing.
    support: full
  platform:
    description: Target operating systems on which the module runs.
    platforms: Linux
    support: full
  safe_file_operations:
    description: Replaces each file in one step, so that a crash leaves either the old or the new content.
    support: full
"""

    CONTROLLER = r"""
options: {}
attributes:
  diff_mode:
    support: none
    details: This module changes nothing.
  platform:
    platforms: posix
    details: The module runs on the controller.
  safe_file_operations:
    support: N/A
    details: This module writes no file.
"""
