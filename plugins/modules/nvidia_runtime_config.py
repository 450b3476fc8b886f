# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_config
short_description: Register the NVIDIA runtimes with a container engine
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Registers the runtimes of the NVIDIA Container Toolkit in the configuration of a container engine, makes one of them
    the default, switches CDI on or off, and takes all of it back.
  - Only the entries that the parameters name are changed. Everything else in the file keeps its bytes, that is order,
    indentation, line ends, and other keys of the same tables. The file is replaced in one step and keeps its owner,
    mode, SELinux label, and the symbolic link that leads to it.
  - What a file was before the first change is recorded below C(/var/lib/gpufleet-nvidia/state), and O(state=absent)
    restores it.
  - The engine is not restarted, see RV(restart_action) and RV(restart_required). The engine does not need to be
    installed.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: The values of keys that look like secrets, and user names and passwords in URLs, are masked.
  idempotent:
    support: full
  platform:
    platforms: Linux
    support: full
  safe_file_operations:
    support: full
options:
  engine:
    description: The container engine to configure.
    type: str
    choices: [docker]
    required: true
  state:
    description:
      - V(present) makes the file say exactly what the parameters ask. Runtimes that an earlier run registered and this
        one does not name are taken out.
      - V(absent) needs only O(engine). While the file still holds what this module wrote, its former content comes back
        byte for byte, or the file goes if there was none. Where others have changed the file since, only the entries
        that are ours are taken out and the former default runtime comes back. Where nothing was recorded, only runtimes
        whose program is C(nvidia-container-runtime), C(nvidia-container-runtime.cdi), or
        C(nvidia-container-runtime.legacy) are taken out. With O(config_path) left out, every file that was recorded for
        the engine is treated so.
    type: str
    choices: [present, absent]
    default: present
  runtime_name:
    description:
      - Name under which C(nvidia-container-runtime) is registered.
      - With V(nvidia-cdi) or V(nvidia-legacy) the main runtime keeps the name V(nvidia), the runtime of that mode is
        registered too, and O(set_as_default) applies to the latter.
    type: str
    default: nvidia
  runtime_dir:
    description: Directory of the runtime programs on the host, an absolute path.
    type: path
    default: /usr/bin
  extra_modes:
    description:
      - Registers also the runtime of a fixed mode, V(cdi) as C(nvidia-cdi) and V(legacy) as C(nvidia-legacy).
    type: list
    elements: str
    choices: [cdi, legacy]
    default: []
  set_as_default:
    description:
      - V(true) makes the runtime O(runtime_name) the engine's default.
      - V(false) restores the default that was recorded, if the present one is ours, and else leaves it.
      - When left out, the default runtime is left alone.
    type: bool
  enable_cdi:
    description:
      - Switches the engine's own support of CDI on or off. For Docker this is C(features.cdi).
      - When left out, the setting is left alone.
    type: bool
  config_path:
    description:
      - The engine's configuration file.
      - When left out, the file that the engine's systemd unit names on its command line, else the engine's default,
        which is C(/etc/docker/daemon.json) for Docker.
    type: path
  engine_version:
    description:
      - Version of the engine, such as V(26.1.5).
      - When left out, the running engine or its program is asked, unless O(host_root) is an offline tree. An unknown
        version is treated so that the result works on the oldest supported one.
    type: str
  validate:
    description:
      - Whether the engine's own validator judges the new content before it is written.
      - V(auto) does so where the program can be run and has a validator, which Docker has since version 23.0.
      - V(true) fails where it cannot, V(false) skips it.
    type: str
    choices: ['auto', 'true', 'false']
    default: auto
  require_runtime:
    description:
      - With O(set_as_default=true), refuse a runtime whose program is not an executable file on the host.
        Otherwise that is a warning.
    type: bool
    default: false
  backup_dir:
    description:
      - Directory for copies of a file from before each change. The newest five of each file are kept, readable by the
        owner only.
      - Directories whose every file an engine reads as configuration are refused.
    type: path
    default: /var/lib/gpufleet-nvidia/backups
  purge_backups:
    description: With O(state=absent), remove the backups of the files concerned too.
    type: bool
    default: false
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Register the runtime nvidia with Docker
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
  register: docker_runtime

- name: Let Docker take it over
  ansible.builtin.systemd_service:
    name: "{{ docker_runtime.service }}"
    state: "{{ {'reload': 'reloaded', 'restart': 'restarted'}[docker_runtime.restart_action] }}"
  when: docker_runtime.restart_action != 'none'

- name: Make it the default, and register the runtime that only uses CDI beside it
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    extra_modes: [cdi]
    set_as_default: true
    enable_cdi: true

- name: Give the default back, keep the runtime
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    set_as_default: false

- name: Configure an image that is being built
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    host_root: /srv/images/gpu-node
    runtime_dir: /usr/local/nvidia/toolkit

- name: Put everything back as it was
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    state: absent
"""

RETURN = r"""
config_path:
  description: The configuration file, as the host sees it.
  returned: success
  type: str
  sample: /etc/docker/daemon.json
engine_version:
  description: The engine's version, null where it is unknown.
  returned: success
  type: str
  sample: 26.1.5
runtimes:
  description: All runtimes that the file registers afterwards, with the paths of their programs.
  returned: success
  type: dict
  sample:
    nvidia: /usr/bin/nvidia-container-runtime
default_runtime:
  description: The default runtime of an engine that starts with the file as it is afterwards.
  returned: success
  type: str
  sample: nvidia
backup_files:
  description: The files that were changed and where their former content is kept. Empty in check mode.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file, symbolic links resolved.
      type: str
      sample: /etc/docker/daemon.json
    backup:
      description: Its copy, null if there was no file.
      type: str
      sample: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.backup
  sample:
    - path: /etc/docker/daemon.json
      backup: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.backup
restart_action:
  description:
    - The least that makes this change effective, one of V(none), V(reload), and V(restart). It follows from the change
      alone, whether or not the engine runs.
  returned: success
  type: str
  sample: reload
restart_required:
  description:
    - Whether the running engine differs from the file, also when this task did not change the file, for example since
      an earlier play ended before its handlers. V(false) where no engine runs or can be asked.
  returned: success
  type: bool
  sample: true
pending_action:
  description:
    - The least that brings the running engine to what the file says, one of V(none), V(reload), and V(restart).
      It is V(none) where RV(restart_required) is V(false).
  returned: success
  type: str
  sample: reload
service:
  description: The engine's systemd unit.
  returned: success
  type: str
  sample: docker.service
socket:
  description: The socket that the engine listens on.
  returned: success
  type: str
  sample: /run/docker.sock
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.nvidia.plugins.module_utils._backups import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import ENGINES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import (
    HOST_ROOT_OPTIONS,
    diff_of,
    finish,
    host_of,
    label_new_files,
    run_in,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_configuration import (
    Options,
    RuntimeConfiguration,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import MODE_PROGRAMS, RuntimeRequest


def configure(module: AnsibleModule) -> dict[str, object]:
    """Plan and write; the result as documented."""
    params = module.params
    request = RuntimeRequest(
        runtime_name=params["runtime_name"],
        runtime_dir=params["runtime_dir"],
        extra_modes=tuple(params["extra_modes"]),
        set_as_default=params["set_as_default"],
        enable_cdi=params["enable_cdi"],
    )
    options = Options(
        engine=params["engine"],
        request=request if params["state"] == "present" else None,
        config_path=params["config_path"],
        engine_version=params["engine_version"],
        validate=params["validate"],
        backup_dir=params["backup_dir"],
        purge_backups=params["purge_backups"],
        require_runtime=params["require_runtime"],
    )
    host = host_of(module)
    outcome = RuntimeConfiguration(options, host, run_in(module)).execute(module.check_mode)
    label_new_files(module, host, outcome.files)
    return {
        "changed": outcome.changed,
        "diff": diff_of(outcome.files),
        "config_path": outcome.config_path,
        "engine_version": outcome.engine_version,
        "runtimes": outcome.runtimes,
        "default_runtime": outcome.default_runtime,
        "backup_files": outcome.backup_files,
        "restart_action": str(outcome.restart_action),
        "restart_required": outcome.pending_action is not Action.NONE,
        "pending_action": str(outcome.pending_action),
        "service": outcome.service,
        "socket": outcome.socket,
        "warnings": outcome.warnings,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": list(ENGINES), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "runtime_name": {"type": "str", "default": "nvidia"},
            "runtime_dir": {"type": "path", "default": "/usr/bin"},
            "extra_modes": {"type": "list", "elements": "str", "choices": list(MODE_PROGRAMS), "default": []},
            "set_as_default": {"type": "bool"},
            "enable_cdi": {"type": "bool"},
            "config_path": {"type": "path"},
            "engine_version": {"type": "str"},
            "validate": {"type": "str", "choices": ["auto", "true", "false"], "default": "auto"},
            "require_runtime": {"type": "bool", "default": False},
            "backup_dir": {"type": "path", "default": BACKUP_DIR},
            "purge_backups": {"type": "bool", "default": False},
            **HOST_ROOT_OPTIONS,
        },
        supports_check_mode=True,
    )
    finish(module, lambda: configure(module))


if __name__ == "__main__":
    main()
