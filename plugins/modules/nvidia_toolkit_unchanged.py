# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit_unchanged
short_description: Tell what a toolkit in a directory was told before, if that is still so
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Internal, not for use in tasks. M(gpufleet.nvidia.nvidia_toolkit_install) runs it first with
    O(gpufleet.nvidia.nvidia_toolkit_install#module:source=directory), because it is much smaller.
  - If the same task found nothing to do before, and everything that it looked at is as it was then, it has its answer
    from here. Otherwise the task is carried out.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
attributes:
  check_mode:
    support: full
    details: Nothing is ever changed.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    platforms: linux
    support: full
  safe_file_operations:
    support: full
    details: Nothing is ever written.
options:
  dest:
    description: As O(gpufleet.nvidia.nvidia_toolkit_install#module:dest).
    type: path
    default: /usr/local/nvidia/toolkit
  task_digest:
    description: One word for the task's arguments, and for the code that carries it out.
    type: str
    required: true
seealso:
  - module: gpufleet.nvidia.nvidia_toolkit_install
"""

EXAMPLES = r"""
- name: Have a toolkit in a directory, which is only looked at as long as nothing has changed
  gpufleet.nvidia.nvidia_toolkit_install:
    source: directory
    src: /srv/nvidia-container-toolkit-1.19.1
"""

RETURN = r"""
unchanged:
  description:
    - Whether the task need not be carried out. Its whole answer is then returned too, with the values that
      M(gpufleet.nvidia.nvidia_toolkit_install) documents.
  returned: success
  type: bool
  sample: true
"""

from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import (
    HOST_ROOT_OPTIONS,
    finish,
    host_of,
    new_module,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import DIRECTORY
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_memory import remembered_answer


def main() -> None:
    module = new_module(
        {
            "dest": {"type": "path", "default": DIRECTORY},
            "task_digest": {"type": "str", "required": True},
            **HOST_ROOT_OPTIONS,
        }
    )

    def look() -> dict[str, object]:
        answer = remembered_answer(host_of(module), module.params["dest"], module.params["task_digest"])
        return {"changed": False, "unchanged": False} if answer is None else {**answer, "unchanged": True}

    finish(module, look)


if __name__ == "__main__":
    main()
