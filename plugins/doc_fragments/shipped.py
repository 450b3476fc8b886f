# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options in which the controller sends along what a host may lack."""

    DOCUMENTATION = r"""
options:
  shipped_tomlkit:
    description:
      - Internal, not for use in tasks. The controller packs its own tomlkit into it for hosts that need one.
    type: str
"""
