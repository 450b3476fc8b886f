# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The option in which the controller sends PyYAML, for modules that read CDI specifications."""

    DOCUMENTATION = r"""
options:
  shipped_yaml:
    description:
      - Internal, not for use in tasks. The controller sends its own PyYAML in this option to hosts that need it.
    type: str
"""
