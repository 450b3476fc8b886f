# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_restart
short_description: Let a container engine take its configuration over, with proof and a way back
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Reloads or restarts a container engine after its files were changed, proves that the running daemon works with them,
    and otherwise puts the former files back and proves that it works with those.
  - Before the engine is disturbed, its own validator judges its files, and what that passes over is looked at. An
    undefined default runtime, a default runtime whose program is missing, and a containerd 1.x without C(runc) are
    found so. Where something speaks against the files, they go back and the engine is left as it runs.
  - That a unit is active is no proof. Docker's API has to show the runtimes and the default, containerd's CRI has to be
    loaded and to list the runtimes, CRI-O's socket has to answer, and where C(crictl) is on the host a pod is
    started through each runtime of O(expect). What the daemon tells has to agree with what its files say.
  - The same health probe runs before. What fails before and afterwards, such as a socket on which nothing answers,
    cannot judge the new files. They stay then, and a warning says that the health of the engine cannot be determined.
    What passed before is required afterwards.
  - C(systemctl daemon-reload), which can cut running containers off from their GPUs, is only run where systemd says
    that this very unit needs it.
  - A run that is killed leaves a note in C(/var/lib/gpufleet-nvidia/state), in which the former files are. The next run
    finds it and ends the work, with the same way back.
  - The host's lock is held from the judgement to the proof, so nobody changes the files meanwhile.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.target
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.shipped
  - gpufleet.nvidia.shipped_yaml
attributes:
  check_mode:
    support: partial
    details: Refuses what it would refuse because of running containers. Files are not judged, for they may not be
      written yet.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: It is asked to restart or reload, and does so each time. With O(mode=none) nothing ever changes.
  platform:
    platforms: Linux
    support: full
  safe_file_operations:
    support: full
options:
  engine:
    description: The container engine.
    type: str
    choices: [docker, containerd, crio]
    required: true
  action:
    description:
      - V(restart) stops the engine and starts it again. Pods of containerd and CRI-O live on as long as the unit's
        C(KillMode) is V(process), containers of Docker only with its setting C(live-restore).
      - V(reload) makes it read its files while it runs. Only Docker can do so. containerd ends on the signal, and CRI-O
        tells of runtimes that no pod can use.
    type: str
    choices: [restart, reload]
    default: restart
  mode:
    description:
      - How the engine is told.
      - V(systemd) uses its unit.
      - V(signal) sends SIGHUP, for O(action=reload) alone, to the unit's main process or else to the process that
        answers on O(socket), and only if that process is the engine's program.
      - V(auto) is V(systemd) where systemd runs the engine, else V(signal) where that will do.
      - V(none) tells it nothing and only asks for the proof. The task fails where the running engine is not what its
        files and O(expect) say.
    type: str
    choices: [auto, systemd, signal, none]
    default: auto
  service:
    description:
      - The engine's systemd unit.
      - When left out, that of the engine in its O(flavor), such as V(docker.service), V(containerd.service), or
        V(k3s-agent.service).
    type: str
  socket:
    description:
      - The socket that the engine listens on, an absolute path.
      - When left out, the one that its unit or its configuration names.
    type: path
  expect:
    description: What must be live afterwards, beside what the engine's files say.
    type: dict
    default: {}
    suboptions:
      runtimes:
        description: Names of runtimes that the engine must know.
        type: list
        elements: str
        default: []
      default_runtime:
        description: The default runtime that it must have.
        type: str
      cdi:
        description: Whether it must use CDI. Docker before 28.2 does not tell where it is off, nor does containerd 1.6.
        type: bool
  rollback:
    description:
      - The way back, which is RV(gpufleet.nvidia.nvidia_runtime_config#module:backup_files) of the tasks that changed
        the files. Lists of several tasks are joined in their order; of each file the first entry counts.
      - What is taken back is kept in O(backup_dir).
      - Without it nothing can be put back.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      backup:
        description: Its copy from before the change. Without one there was no file, and it is removed.
        type: path
      checksum:
        description:
          - SHA-256 of what was written, V(absent) if the file was removed. Where the file is another one by now, others
            have edited it since. Then nothing is taken back because of a complaint about the files, but only if the
            engine does not come back with them, and what O(expect) misses because of the edit is a warning.
          - Where others wrote between two entries of one file, the way back ends at what they wrote.
        type: str
  allow_disruption:
    description:
      - Whether a restart may stop running containers, those of Docker, or of a Docker whose unit systemd restarts
        along, or those that a unit's C(KillMode) ends. Without it such a restart is refused.
      - It also allows C(systemctl daemon-reload) while containers run that got their GPUs from the legacy hook. They
        lose their GPUs, and a warning names them.
    type: bool
    default: false
  require_runtime:
    description: Whether the program of the default runtime has to be on the host.
    type: bool
    default: true
  validate:
    description:
      - Whether the engine's own validator judges the files before the engine is disturbed.
      - V(auto) does so where there is one, V(true) fails where there is none, V(false) skips it.
    type: str
    choices: ['auto', 'true', 'false']
    default: auto
  timeout:
    description:
      - Seconds for the proof of the new state, and as many for that of the old one if it has to come back.
    type: int
    default: 60
  retries:
    description: How many more times a start that failed, or a reload without effect, is tried.
    type: int
    default: 1
  backup_dir:
    description:
      - Directory for copies of files that are taken back.
      - When left out, C(/var/lib/gpufleet-nvidia/backups), and for rootless Docker
        C(~/.local/state/gpufleet-nvidia/backups).
    type: path
notes:
  - The message of a failed task says in which state the engine is, and so does the returned C(state). V(unknown) means
    that a person has to look.
seealso:
  - module: gpufleet.nvidia.nvidia_runtime_config
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Register the runtime nvidia with containerd
  gpufleet.nvidia.nvidia_runtime_config:
    engine: containerd
    set_as_default: true
  register: containerd_runtime

- name: Let containerd take it over, or have it as it was
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: containerd
    action: "{{ containerd_runtime.pending_action }}"
    expect:
      runtimes: [nvidia]
      default_runtime: nvidia
    rollback: "{{ containerd_runtime.backup_files }}"
  when: containerd_runtime.restart_required

- name: Restart Docker, whatever runs in it
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: docker
    allow_disruption: true

- name: Make a Docker that no systemd runs read its file
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: docker
    action: reload
    mode: signal

- name: Only look whether the running Docker is what its file says, and uses CDI
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: docker
    mode: none
    timeout: 5
    expect:
      cdi: true
"""

RETURN = r"""
state:
  description:
    - V(new) if the engine is proven to work with its files as they were given, V(old) if it works with its former
      configuration, V(unknown) if neither could be proven, nothing was tried, or the health probe failed before too.
  returned: when not refused at once
  type: str
  sample: new
action:
  description: What was asked for.
  returned: always, unless the parameters are refused
  type: str
  sample: restart
mode:
  description: How the engine was told, one of V(systemd), V(signal), and V(none).
  returned: when not refused at once
  type: str
  sample: systemd
service:
  description: The engine's systemd unit.
  returned: when not refused at once
  type: str
  sample: docker.service
socket:
  description: The socket on which the engine was asked.
  returned: when not refused at once
  type: str
  sample: /run/docker.sock
pid:
  description: The engine's process afterwards, null where none runs.
  returned: when not refused at once
  type: int
  sample: 4711
attempts:
  description: How many times it was told, those for the way back included.
  returned: when not refused at once
  type: int
  sample: 1
daemon_reloaded:
  description: Whether systemd had to read the unit again.
  returned: when not refused at once
  type: bool
  sample: false
rolled_back:
  description: Whether the former files were put back.
  returned: when not refused at once
  type: bool
  sample: false
rejected_files:
  description: The files that were taken back, and where what stood in them is kept.
  returned: when not refused at once
  type: list
  elements: dict
  contains:
    path:
      description: The file, symbolic links resolved.
      type: str
      sample: /etc/docker/daemon.json
    backup:
      description: A copy of what was taken back, null where that was the absence of the file or could not be kept.
      type: str
      sample: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.SHA-256.backup
  sample:
    - path: /etc/docker/daemon.json
      backup: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.SHA-256.backup
journal:
  description: The engine's last lines in the journal since the task began, secrets hidden.
  returned: when not refused at once; empty unless the engine was disturbed and failed
  type: list
  elements: str
  sample: ["failed to start daemon: the default runtime nvidia is not defined"]
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import health as restart_health
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart, rollback

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def take_over(module: AnsibleModule) -> dict[str, object]:
    """Take over, prove, go back if need be; the result as documented."""
    params = module.params
    _module.load_bundled_packages(module)
    host = _module.host_from_params(module)
    backup_dir = params["backup_dir"]
    if backup_dir is not None:
        backup_dir = host.check_path("backup_dir", backup_dir)
        apply.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
    options = restart.RestartOptions(
        engine=params["engine"],
        flavor=params["flavor"],
        user=params["user"],
        mode=params["mode"],
        action=params["action"],
        service=params["service"],
        socket=params["socket"] and host.check_path("socket", params["socket"]),
        expect=_expectation(params["expect"]),
        rollback=tuple(
            rollback.Change(entry["path"], entry["backup"], entry["checksum"]) for entry in params["rollback"]
        ),
        allow_disruption=params["allow_disruption"],
        require_runtime=params["require_runtime"],
        validate=params["validate"],
        timeout=params["timeout"],
        retries=params["retries"],
        backup_dir=backup_dir,
    )
    try:
        outcome = restart.restart(options, host, _module.command_runner(module), module.check_mode)
    except restart.RestartError as error:
        error.details = _result(params, error.outcome)
        for warning in error.outcome.warnings:
            module.warn(_module.message_of(module, warning))
        raise
    result = _result(params, outcome)
    return {**result, "warnings": outcome.warnings}


def _expectation(expect: dict[str, object]) -> restart_health.Expectation:
    """What is expected, also where Ansible fills in no defaults since the option was left out."""
    runtimes = expect.get("runtimes") or ()
    return restart_health.Expectation(tuple(runtimes), expect.get("default_runtime"), expect.get("cdi"))  # type: ignore[arg-type]


def _result(params: dict[str, object], outcome: restart.Restarted) -> dict[str, object]:
    return {
        "changed": outcome.changed,
        "state": outcome.state,
        "action": params["action"],
        "mode": outcome.mode,
        "service": outcome.service,
        "socket": outcome.socket,
        "pid": outcome.pid,
        "attempts": outcome.attempts,
        "daemon_reloaded": outcome.daemon_reloaded,
        "rolled_back": outcome.rolled_back,
        "rejected_files": list(outcome.rejected),
        "journal": list(outcome.journal),
    }


def main() -> None:
    module = _module.new_module(
        {
            "engine": {"type": "str", "choices": list(engines_registry.DAEMONS), "required": True},
            **_module.TARGET_OPTIONS,
            "action": {"type": "str", "choices": ["restart", "reload"], "default": "restart"},
            "mode": {"type": "str", "choices": ["auto", "systemd", "signal", "none"], "default": "auto"},
            "service": {"type": "str"},
            "socket": {"type": "path"},
            "expect": {
                "type": "dict",
                "default": {},
                "options": {
                    "runtimes": {"type": "list", "elements": "str", "default": []},
                    "default_runtime": {"type": "str"},
                    "cdi": {"type": "bool"},
                },
            },
            "rollback": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "backup": {"type": "path"},
                    "checksum": {"type": "str"},
                },
            },
            "allow_disruption": {"type": "bool", "default": False},
            "require_runtime": {"type": "bool", "default": True},
            "validate": {"type": "str", "choices": ["auto", "true", "false"], "default": "auto"},
            "timeout": {"type": "int", "default": 60},
            "retries": {"type": "int", "default": 1},
            "backup_dir": {"type": "path"},
            **_module.HOST_ROOT_OPTIONS,
            **_module.SHIPPED_OPTIONS,
            **_module.SHIPPED_YAML_OPTIONS,
        }
    )
    _module.run_module(module, lambda: take_over(module))


if __name__ == "__main__":
    main()
