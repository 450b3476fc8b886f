# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Contains only the documentation of the action plugin of the same name.

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_host_summary
short_description: Report the state of a host at the end of a playbook
version_added: 1.2.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - The playbooks C(gpufleet.nvidia.site), C(gpufleet.nvidia.rolling), C(gpufleet.nvidia.remove), and
    C(gpufleet.nvidia.verify) end with it. It fails a host with the errors of its engines, after all other steps of the
    play, or it prints how far a play in batches has come. In other plays, the role
    P(gpufleet.nvidia.nvidia_runtime#role) fails a host with it.
  - The lines about a host are those of the lookup P(gpufleet.nvidia.role_state#lookup), over which the task loops.
  - It reads what the roles have registered. The action plugin of this module runs on the controller, without a
    connection to the host.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes.controller
  - gpufleet.nvidia.attributes
options:
  line:
    description: The number of the line with whose error the task fails. A line without an error does not fail.
    type: int
    default: 0
  of_batch:
    description:
      - Whether to print which hosts of the play are done, which have failed, which were not started, and the
        C(--limit) with which to continue.
    type: bool
    default: false
seealso:
  - module: gpufleet.nvidia.nvidia_check_settings
"""

EXAMPLES = r"""
- name: Report the state of the host
  gpufleet.nvidia.nvidia_host_summary:
  loop: "{{ query('gpufleet.nvidia.role_state', 'lines') }}"
"""

RETURN = r""" # """
