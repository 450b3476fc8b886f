# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: audit_lines
short_description: Tell the findings of a fleet in lines, the worst first
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Turns a report of P(gpufleet.nvidia.audit_report#filter) into lines for a terminal, that is counts first, and then
    one line for each finding.
  - Characters that a terminal would obey, or that would hide others, are spelled out.
options:
  _input:
    description: The report.
    type: dict
    required: true
  limit:
    description: How many findings to tell at most. What is left out is counted.
    type: int
    default: 50
seealso:
  - plugin: gpufleet.nvidia.audit_report
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Print the ten worst findings
  ansible.builtin.debug:
    msg: "{{ report | gpufleet.nvidia.audit_lines(10) }}"
"""

RETURN = r"""
_value:
  description: The lines.
  type: list
  elements: str
  sample:
    - "2 hosts: 1 critical, 0 with warnings, 0 with notes, 1 without findings."
    - "1 finding: 1 critical, 0 warnings, 0 notes."
    - "critical  gpu-01  toolkit: It has CVE-2026-24260. -> Install 1.19.1 or newer."
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_report import is_report, lines_of


def audit_lines(report: object, limit: int = 50) -> list[str]:
    """The lines of this report."""
    if not is_report(report):
        raise AnsibleFilterError("audit_lines takes what gpufleet.nvidia.audit_report gives.")
    return lines_of(report, max(0, int(limit)))


class FilterModule:
    """What this file offers."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"audit_lines": audit_lines}
