# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: audit_page
short_description: Show a fleet and its findings on one page
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Turns a report of P(gpufleet.nvidia.audit_report#filter) into one page in HTML, with the hosts in a table that can
    be filtered, sorted and unfolded.
  - The page needs no other file and no network, and its policy lets the browser load nothing and run nothing else. It
    can be read without its script too.
options:
  _input:
    description: The report.
    type: dict
    required: true
seealso:
  - plugin: gpufleet.nvidia.audit_report
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Write the page
  ansible.builtin.copy:
    content: "{{ report | gpufleet.nvidia.audit_page }}"
    dest: "{{ ansible_config_file | dirname }}/audit.html"
    mode: "0600"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
_value:
  description: The page.
  type: str
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_page import page_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_report import is_report


def audit_page(report: object) -> str:
    """The page of this report."""
    if not is_report(report):
        raise AnsibleFilterError("audit_page takes what gpufleet.nvidia.audit_report gives.")
    return page_of(report)


class FilterModule:
    """What this file offers."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"audit_page": audit_page}
