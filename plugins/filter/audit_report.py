# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: audit_report
short_description: Sum up what hosts tell of their GPUs, engines and toolkit
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Turns the results of M(gpufleet.nvidia.nvidia_container_info) on many hosts into one report, the worst host first.
  - Hosts that could not be reached or read are in it with the reason, as a critical finding. What is missing in a
    result, or of an unexpected kind, is left empty.
  - The same results give the same report. The playbook C(gpufleet.nvidia.audit) writes it as JSON.
options:
  _input:
    description: The registered result of each host, by the host's name.
    type: dict
    required: true
  generated:
    description: When this was, in your own words. It is not part of the report unless you tell it.
    type: str
seealso:
  - plugin: gpufleet.nvidia.audit_lines
    plugin_type: filter
  - plugin: gpufleet.nvidia.audit_page
    plugin_type: filter
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Look at the host
  gpufleet.nvidia.nvidia_container_info:
  register: seen
  ignore_errors: true
  ignore_unreachable: true

- name: Show the hosts with something critical
  ansible.builtin.debug:
    msg: "{{ report.hosts | selectattr('severity', 'eq', 'critical') | map(attribute='host') }}"
  vars:
    names: "{{ ansible_play_hosts_all }}"
    report: "{{ dict(names | zip(names | map('extract', hostvars, 'seen'))) | gpufleet.nvidia.audit_report }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The report.
  type: dict
  contains:
    schema:
      description: The version of this structure.
      type: int
      sample: 1
    generated:
      description: What O(generated) says, else null.
      type: str
      sample: null
    totals:
      description:
        - Counts over the fleet. These are C(hosts), C(unreachable), C(failed), C(hosts_by_severity) (each host once, by
          its worst finding), C(findings) by severity, C(by_finding) (a list with C(id), C(severity) and C(hosts)),
          C(gpus), C(unhealthy_gpus), C(hosts_with_open_cves), and C(cdi), the hosts by the state of their
          specifications.
      type: dict
    hosts:
      description: The hosts, the worst first.
      type: list
      elements: dict
      contains:
        host:
          description: Its name in the inventory.
          type: str
          sample: gpu-01
        state:
          description: Whether it was read, V(ok), or not, V(unreachable) or V(failed).
          type: str
          sample: ok
        reason:
          description: Why it was not, else null.
          type: str
          sample: null
        severity:
          description: That of its worst finding, V(critical), V(warning) or V(note), null if there is none.
          type: str
          sample: warning
        counts:
          description: How many findings it has of each severity.
          type: dict
          sample: {critical: 0, warning: 1, note: 0}
        driver:
          description: The version of the loaded driver, null if none is loaded or that is not known.
          type: str
          sample: 580.95.05
        gpus:
          description:
            - C(present), whether it has a GPU, C(count), C(models), how many there are of each, and C(unhealthy), how
              many of them, or of whose MIG devices, no container could use. Null is what is not known.
          type: dict
          sample: {present: true, count: 2, models: {NVIDIA A100-SXM4-40GB: 2}, unhealthy: 0}
        toolkit:
          description:
            - Whether anything of it is C(installed), its C(version), all C(versions) that its parts have, and the names
              of its C(open_cves). Null is what is not known.
          type: dict
          sample: {installed: true, version: 1.19.1, versions: [1.19.1], open_cves: []}
        engines:
          description:
            - Each with C(target), C(engine), C(flavor), C(user), C(version), C(default_runtime), whether it is
              C(installed) and C(running), and whether a restart is due or was not finished, C(restart_pending).
          type: list
          elements: dict
        cdi:
          description:
            - The C(files) with devices of NVIDIA, each with C(path), C(kind), C(cdi_version), C(driver_version) and
              C(state), and the worst C(state) of all. It is V(invalid), V(stale), V(unknown), V(fresh), or V(none) if
              there is no such file, and null if they were not looked at.
          type: dict
          sample:
            state: fresh
            files:
              - path: /etc/cdi/nvidia.yaml
                kind: nvidia.com/gpu
                state: fresh
                cdi_version: 0.5.0
                driver_version: 580.95.05
        findings:
          description: What was found, the worst first, each with C(severity), C(id), C(subject), C(text) and C(advice).
          type: list
          elements: dict
"""

import typing as t
from collections.abc import Mapping

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_report import report_of


def audit_report(results: object, generated: str | None = None) -> dict[str, t.Any]:
    """The report on all these hosts."""
    if not isinstance(results, Mapping):
        raise AnsibleFilterError("audit_report takes a dictionary with the result of each host by its name.")
    return report_of(results, generated)


class FilterModule:
    """What this file offers."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"audit_report": audit_report}
