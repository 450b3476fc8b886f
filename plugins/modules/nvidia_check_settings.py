# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Contains only the documentation of the action plugin of the same name.

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_check_settings
short_description: Check the variables of all roles before the first change
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Checks the names of a host's variables. A name that begins with C(nvidia_toolkit_), C(nvidia_runtime_),
    C(nvidia_cdi_), or C(nvidia_audit_) and is no variable of this collection is an error. Any other name that begins
    with C(nvidia_) is a warning if it differs from the name of a variable of this collection by one or two characters.
    Facts are not checked.
  - Validates the values of the variables of all roles with the argument specifications of the roles.
  - Also refuses, for example, different root directories of the roles, unknown engines, malformed versions, task files
    that do not exist, a configuration file together with several engines, a malformed fingerprint of a key, and
    passwords in addresses, and what a module would refuse on every host, such as an unknown setting of the toolkit or a
    toolkit in a directory without its files.
  - Refuses a tag in C(--tags) or C(--skip-tags) that differs from C(toolkit), C(cdi), or C(runtime) by one or two
    characters, because Ansible would run no task with it. Other tags may belong to other plays.
  - Refuses a variable of this collection that refers to a variable that is not defined. If a later task of this
    collection sets the other variable, the first one is not checked.
  - Reports all problems of a host at once.
  - A role in another playbook does not refuse a misspelled name. Import the playbook C(gpufleet.nvidia.check) before
    its play.
  - The playbook C(gpufleet.nvidia.check) runs it. C(gpufleet.nvidia.site), C(gpufleet.nvidia.rolling),
    C(gpufleet.nvidia.verify), and C(gpufleet.nvidia.remove) begin with that playbook.
  - The action plugin of this module runs on the controller, without a connection to the host.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes.controller
  - gpufleet.nvidia.attributes
options:
  own_variables:
    description: Names of the user's own variables, which are not checked. An empty list checks all names.
    type: list
    elements: str
    default: []
  own_tags:
    description: The user's own tags, which are not checked.
    type: list
    elements: str
    default: []
    version_added: 1.2.0
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Configure GPU hosts
  hosts: gpu
  pre_tasks:
    - name: Check the variables
      gpufleet.nvidia.nvidia_check_settings:
        own_variables: [nvidia_toolkit_owner]
  roles:
    - gpufleet.nvidia.nvidia_toolkit
    - gpufleet.nvidia.nvidia_runtime
"""

RETURN = r""" # """
