# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Contains only the documentation of the action plugin of the same name.

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_audit_report
short_description: Write a report on the findings of a fleet
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Combines the results of M(gpufleet.nvidia.nvidia_container_info) on all hosts of the play into one report, the host
    with the most severe findings first, and writes it on the controller as JSON and as one HTML page. The playbook
    C(gpufleet.nvidia.audit) uses it.
  - A host that could not be reached or read is in the report as a critical finding with the reason. A value that is
    missing in a result, or has an unexpected type, is empty in the report.
  - The page needs no other file and no network. Its content security policy lets the browser load nothing and run only
    the page's own script.
  - The action plugin of this module runs on the controller. No expression of a playbook contains the results of hosts.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes.controller
  - gpufleet.nvidia.attributes
attributes:
  diff_mode:
    details: The files have the mode 0600. A diff would print their content.
  safe_file_operations:
    support: full
    details: The files have the mode 0600.
options:
  results:
    description:
      - The name under which the task with M(gpufleet.nvidia.nvidia_container_info) registers its result. It is required
        unless O(prepare_only=true).
    type: str
  directory:
    description:
      - The directory of the files on the controller. It is created, with the mode 0700, if it does not exist. A
        relative path starts at the current directory.
    type: path
    default: .
  json:
    description: The name of the JSON file in O(directory), or its path.
    type: path
    default: gpufleet-audit.json
  html:
    description: The name of the HTML page in O(directory), or its path.
    type: path
    default: gpufleet-audit.html
  generated:
    description:
      - The time of the report, as any text. When left out, the page shows the time of the controller, and the JSON file
        contains no time, so that the same findings give the same file. The time of the page alone is not a change.
    type: str
  limit:
    description: The highest number of findings in RV(lines). A last line gives the number of the others.
    type: int
    default: 50
  fail_on:
    description:
      - The task fails, after it has written the files, if there is a finding of this severity or of a more severe one.
        V(never) does not fail because of findings.
    type: str
    choices: [never, critical, warning]
    default: never
  prepare_only:
    description:
      - Creates the directories of the files and checks that the files can be written, and does nothing else. A playbook
        uses this before it inspects the hosts.
      - A misspelled variable of the playbook C(audit) is an error, one of a role is a warning.
    type: bool
    default: false
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Inspect the hosts
  hosts: gpu
  gather_facts: false
  tasks:
    - name: Check that the report can be written
      gpufleet.nvidia.nvidia_audit_report:
        directory: /srv/reports
        prepare_only: true
      delegate_to: localhost
      run_once: true
      become: false
      changed_when: false

    - name: Inspect the host
      gpufleet.nvidia.nvidia_container_info:
      register: inspected
      ignore_errors: true
      ignore_unreachable: true

- name: Report the findings
  hosts: gpu
  gather_facts: false
  tasks:
    - name: Write the report
      gpufleet.nvidia.nvidia_audit_report:
        results: inspected
        directory: /srv/reports
      delegate_to: localhost
      run_once: true
      become: false
      # Otherwise Ansible reports the first host as changed.
      changed_when: false
"""

RETURN = r"""
lines:
  description:
    - The number of hosts and findings, the number of hosts without findings that are not OK, for example because they
      have no GPU, and then one line for each finding, the most severe first.
    - A character that a terminal would interpret, or that would hide others, is escaped.
  returned: unless O(prepare_only=true)
  type: list
  elements: str
  sample:
    - "2 hosts: 1 critical, 0 with a warning at most, 0 with info only, 1 without findings."
    - "1 finding: 1 critical, 0 warnings, 0 info."
    - "critical  gpu-01  containerd: The default runtime nvidia is not defined. The CRI plugin does not start. -> Run
      gpufleet.nvidia.site to register it, or set another default runtime in the files of the engine."
counts:
  description: The number of findings of each severity.
  returned: unless O(prepare_only=true)
  type: dict
  sample: {critical: 1, warning: 0, info: 0}
json:
  description: The path of the JSON file.
  returned: success
  type: str
  sample: /srv/reports/gpufleet-audit.json
html:
  description: The path of the HTML page.
  returned: success
  type: str
  sample: /srv/reports/gpufleet-audit.html
"""
