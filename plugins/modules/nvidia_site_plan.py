# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_site_plan
short_description: Inspect a host, and find out which tasks of the playbook site have nothing to do
version_added: 1.2.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - The playbooks C(gpufleet.nvidia.site) and C(gpufleet.nvidia.rolling) run this module as their first task, in place
    of M(gpufleet.nvidia.nvidia_container_info). It is not meant for other plays, and changes without notice.
  - It returns what M(gpufleet.nvidia.nvidia_container_info) returns. It also does the work of the later tasks of the
    play, up to the first one that would change the host, and changes nothing.
  - A later task that would change nothing, with the same options, no warning, and no pending restart, then gets its
    result from here, so that it sends and starts no module. All other tasks run as always.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.bundled
attributes:
  diff_mode:
    support: none
    details: This module changes nothing.
  safe_file_operations:
    support: N/A
    details: This module writes no file.
options:
  inspection:
    description:
      - The options of M(gpufleet.nvidia.nvidia_container_info).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Inspect a host as nvidia_container_info does
  gpufleet.nvidia.nvidia_site_plan:
    inspection:
      gather_subset: [toolkit, engines]
"""

RETURN = r"""
ahead:
  description:
    - The results of later tasks that change nothing, by the name of their module.
  returned: if a playbook of this collection runs the module, and the host has a GPU
  type: dict
  sample:
    nvidia_cdi_spec:
      changed: false
"""

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import ahead


def main() -> None:
    module = _module.new_module(ahead.SPEC)
    _module.run_module(module, lambda: ahead.describe(module))


if __name__ == "__main__":
    main()
