# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The internal option in which the controller sends what a host may lack."""

    DOCUMENTATION = r"""
options:
  _bundled:
    description:
      - Internal. Do not set it in a task. The action plugin sets it to send Python packages of the controller to hosts
        that lack them. For M(gpufleet.nvidia.nvidia_toolkit_install), it also describes the toolkit on the controller.
    type: dict
"""
