# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Contains only the documentation of the action plugin of the same name.

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_classes
short_description: Write RuntimeClass objects for the runtimes of a host
version_added: 1.2.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Writes one file on the controller for each NVIDIA runtime of the engine that the kubelet of the host uses, for
    C(kubectl apply). The playbook C(gpufleet.nvidia.runtime_classes) uses it.
  - The host chooses the names of its runtimes. A name becomes a file only if it begins with O(runtime_name) or with
    C(nvidia). Another NVIDIA runtime is named in a warning. A name that contains a dot, or that Kubernetes does not
    accept, gets no file.
  - A file that this module did not write is never replaced; the task fails then. Files have a header line by which the
    module recognizes them. A file without it counts as own only if it has exactly the content that version 1.1.0 wrote.
  - The action plugin of this module runs on the controller, without a connection to the host.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.attributes.controller
attributes:
  diff_mode:
    details: The files have the same content for each name.
  safe_file_operations:
    support: full
    details: A link or another special file is refused.
options:
  engines:
    description: The engines that M(gpufleet.nvidia.nvidia_container_info) returned for the host.
    type: list
    elements: dict
    required: true
  directory:
    description:
      - The directory of the files on the controller. A relative path starts at the directory in which
        C(ansible-playbook) was called.
    type: path
    default: runtime-classes
  runtime_name:
    description: The name of the runtime in this fleet, C(nvidia_runtime_name) of the role.
    type: str
    default: nvidia
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Find the runtimes of the kubelet's engine
  gpufleet.nvidia.nvidia_container_info:
    gather_subset: [engines]
  register: info

- name: Write their RuntimeClass objects
  gpufleet.nvidia.nvidia_runtime_classes:
    engines: "{{ info.engines }}"
"""

RETURN = r"""
names:
  description: The runtimes that have a file.
  returned: success
  type: list
  elements: str
  sample: [nvidia, nvidia-cdi]
"""
