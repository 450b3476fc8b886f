# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Contains only the documentation of the action plugin of the same name.

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_warn
short_description: Print warnings of a role
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Prints messages as warnings of Ansible, each with the name of the host in front. Ansible prints the same warning
    only once, so without the name the message of a second host would be missing.
  - The action plugin of this module runs on the controller, without a connection to the host.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.attributes.controller
options:
  warnings:
    description: The messages to print.
    type: list
    elements: str
    required: true
seealso:
  - module: gpufleet.nvidia.nvidia_check_settings
"""

EXAMPLES = r"""
- name: Warn about a pending restart
  gpufleet.nvidia.nvidia_warn:
    warnings: ["docker does not use its new configuration yet. Restart it."]
"""

RETURN = r""" # """
