# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_restart
short_description: Restart or reload a container engine, verify its health, and roll back on failure
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Reloads or restarts a container engine after its files were changed, and verifies that the running daemon works with
    the new files. If it does not, the module restores the previous files, restarts or reloads the engine again, and
    verifies that the engine works with the previous files.
  - Before the restart, the engine's own validator checks its files. The module also checks two problems that the
    validator does not detect. The default runtime may be undefined, such as C(runc) in containerd 1.x without a table
    for it. The program of the default runtime may be missing. If a check fails, the module does not restart the engine,
    and it restores the previous files unless another program has changed them. The engine is restarted with the
    previous files only if a run that was killed may have started it with the new files.
  - After the restart, a health probe checks the running engine, because the unit of an engine that does not work can
    be active. Docker's API must report the runtimes and the default. containerd's CRI plugin must be loaded and report
    the runtimes. CRI-O's socket must answer and report the runtimes of O(expect). The settings that the daemon reports
    must match its files.
  - The same health probe runs before the restart. If a check fails before and after it, for example because nothing
    answers on the socket, the new files are not the cause. The files then stay, and a warning says that the health of
    the engine cannot be determined. If a check fails only after the restart, the module rolls back.
  - The module runs C(systemctl daemon-reload), which can take the GPUs from running containers, only if systemd reports
    that the unit of the engine needs it.
  - During a restart, the module keeps the previous files in a journal entry. That is a file in
    C(/var/lib/gpufleet-nvidia/state), and for rootless Docker in C(~/.local/state/gpufleet-nvidia/state). If a run is
    killed, the next run reads the entry and completes the restart, or rolls back.
  - From the first check to the last, the module holds the lock that all tasks of this collection use on a host. No
    other task of this collection can then change the files. With O(mode=none) and in check mode, the module takes no
    lock.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.target
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    support: partial
    details:
      - Check mode refuses a restart that would stop running containers. It does not check the files, and does not
        predict that an interrupted rollback is completed, because an earlier task that also runs in check mode has not
        written the files.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: The module restarts or reloads the engine in each run. With O(mode=none) it changes nothing.
options:
  engine:
    description: The container engine.
    type: str
    choices: [docker, containerd, crio]
    required: true
  action:
    description:
      - V(restart) stops the engine and starts it again. Pods of containerd and CRI-O keep running if the unit's
        C(KillMode) is V(process), and containers of Docker only with its setting C(live-restore).
      - V(reload) makes the engine read its files while it runs. Only Docker supports it. containerd exits when it gets
        the signal for a reload (SIGHUP). After a reload, CRI-O reports runtimes that no pod can use.
    type: str
    choices: [restart, reload]
    default: restart
  mode:
    description:
      - How the engine is restarted or reloaded.
      - V(systemd) uses its unit.
      - V(signal) supports only O(action=reload). It sends SIGHUP to the unit's main process, or, if that is not the
        engine's program, to the process that answers on O(socket). It sends no signal to another program.
      - V(auto) is V(systemd) if systemd runs the engine and its unit supports O(action). Otherwise it is V(signal) for
        O(action=reload), and O(action=restart) fails.
      - V(none) neither restarts nor reloads the engine and only runs the health probe. The task fails if the running
        engine does not match its files and O(expect).
    type: str
    choices: [auto, systemd, signal, none]
    default: auto
  service:
    description:
      - The engine's systemd unit.
      - When left out, the unit of the engine in its O(flavor), such as V(docker.service), V(containerd.service), or
        V(k3s-agent.service).
    type: str
  socket:
    description:
      - The socket of the engine, an absolute path.
      - When left out, the socket that the engine's unit or its configuration sets.
    type: path
  expect:
    description:
      - What the running engine must report afterwards, in addition to what its files set. An empty dictionary adds
        nothing.
    type: dict
    default: {}
    suboptions:
      runtimes:
        description: Names of runtimes that the engine must report.
        type: list
        elements: str
        default: []
      default_runtime:
        description:
          - The default runtime that the engine must report. When left out, it must report the one that its files set.
        type: str
      cdi:
        description:
          - Whether CDI must be on. When left out, CDI only has to be as the files set it.
          - The module does not check CDI in an engine that does not report it, such as Docker before 25.0 and
            containerd 1.6.
        type: bool
  rollback:
    description:
      - The files to restore on failure. Set it to RV(gpufleet.nvidia.nvidia_runtime_config#module:backup_files) of the
        tasks that changed them. Join the lists of several tasks in the order in which the tasks ran.
      - If several entries name the same file, the first one is used. If another program wrote the file between two of
        the tasks, the entry after that change is used, so that a rollback keeps the content of that program.
      - Before the module restores a file, it copies the current content to O(backup_dir).
      - The module also restores files that M(gpufleet.nvidia.nvidia_runtime_config) changed since the last successful
        restart, even if this list is empty.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      backup:
        description:
          - The copy of the file from before the change. When left out, the file did not exist before, and a rollback
            removes it.
        type: path
      checksum:
        description:
          - SHA-256 of the content that the task wrote, V(absent) if the task removed the file.
          - If the file now has neither this content nor that of O(rollback[].backup), another program has changed it.
            If the check of the files before the restart then fails, the module restores no file. If the engine does not
            work after the restart, the module also restores this file. If the engine works but does not meet
            O(expect), the module prints a warning and does not roll back.
        type: str
  allow_disruption:
    description:
      - Whether a restart may stop running containers. A restart can stop the containers of Docker, those of a Docker
        that systemd restarts together with the engine, and those of a unit whose C(KillMode) is not C(process). With
        V(false) such a restart is refused.
      - V(true) also allows C(systemctl daemon-reload) while containers run that got their GPUs from NVIDIA's legacy
        hook. These containers lose their GPUs, and a warning names them.
    type: bool
    default: false
  require_runtime:
    description: Whether the program of the default runtime must exist on the host.
    type: bool
    default: true
  validate:
    description:
      - Whether the engine's own validator checks the files before the restart.
      - V(auto) does so if there is a validator, V(true) fails if there is none, and V(false) does not run it.
    type: str
    choices: ['auto', 'true', 'false']
    default: auto
  timeout:
    description:
      - Seconds to wait until the engine is healthy with the new files. After a rollback, the module waits again.
    type: int
    default: 60
  retries:
    description: How many times the module repeats a failed start, or a reload that had no effect.
    type: int
    default: 1
  backup_dir:
    description:
      - Directory for the copies of files that the module makes before it rolls them back.
      - When left out, C(/var/lib/gpufleet-nvidia/backups), and for rootless Docker
        C(~/.local/state/gpufleet-nvidia/backups).
    type: path
notes:
  - The message of a failed task and RV(state) describe the state of the engine. If a task fails and RV(state) is
    V(unknown), manual intervention is needed.
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

- name: Restart containerd, and roll back if it does not work
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: containerd
    action: "{{ containerd_runtime.pending_action }}"
    expect:
      runtimes: [nvidia]
      default_runtime: nvidia
    rollback: "{{ containerd_runtime.backup_files }}"
  when: containerd_runtime.restart_required

- name: Restart Docker, even if that stops containers
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: docker
    allow_disruption: true

- name: Reload a Docker that systemd does not run
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: docker
    action: reload
    mode: signal

- name: Check that the running Docker uses its file and CDI, without a restart
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
    - V(applied) if the engine works with its current files.
    - V(rolled_back) if the engine works with its previous configuration, because the files were rolled back or because
      the restart was refused.
    - V(unknown) if the engine is not healthy, in check mode, or if the health probe already failed before the restart.
  returned: success, or failure after the options were accepted
  type: str
  sample: applied
action:
  description: The requested action.
  returned: success, or failure after the options were accepted
  type: str
  sample: restart
mode:
  description: The restart method that was used, one of V(systemd), V(signal), and V(none).
  returned: success, or failure after the options were accepted
  type: str
  sample: systemd
service:
  description: The engine's systemd unit.
  returned: success, or failure after the options were accepted
  type: str
  sample: docker.service
socket:
  description: The socket that the health probe used.
  returned: success, or failure after the options were accepted
  type: str
  sample: /run/docker.sock
pid:
  description: The process ID of the engine afterwards, null if it does not run.
  returned: success, or failure after the options were accepted
  type: int
  sample: 4711
attempts:
  description: The number of restarts or reloads, including those of a rollback.
  returned: success, or failure after the options were accepted
  type: int
  sample: 1
daemon_reloaded:
  description: Whether systemd reloaded its units.
  returned: success, or failure after the options were accepted
  type: bool
  sample: false
rolled_back:
  description: Whether the module restored at least one previous file.
  returned: success, or failure after the options were accepted
  type: bool
  sample: false
rolled_back_files:
  description: The files that were rolled back, and the copies of their content from before the rollback.
  returned: success, or failure after the options were accepted
  type: list
  elements: dict
  contains:
    path:
      description: The file, with symbolic links resolved.
      type: str
      sample: /etc/docker/daemon.json
    backup:
      description:
        - The copy of the content from before the rollback. Null if there was no file, or if the copy could not be
          written.
      type: str
      sample: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.SHA-256.backup
  sample:
    - path: /etc/docker/daemon.json
      backup: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.SHA-256.backup
journal:
  description:
    - The last lines that the engine has written to the systemd journal since the task began, with secrets masked. Empty
      unless the restart or reload failed.
  returned: success, or failure after the options were accepted
  type: list
  elements: str
  sample: ["failed to start daemon: the default runtime nvidia is not defined"]
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import health as restart_health
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart, rollback

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def restart_engine(module: AnsibleModule) -> dict[str, object]:
    """Restart the engine, check its health, and roll back if needed. Return the result as documented.

    Raises RestartError if the engine is not healthy with its new files. Its ``details`` are the same result.
    """
    params = module.params
    _module.load_bundled_packages(module)
    host = _module.host_from_params(module)
    backup_dir = params["backup_dir"]
    if backup_dir is not None:
        backup_dir = host.check_path("backup_dir", backup_dir)
        trusted_paths.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
    expect = params["expect"]
    parameters = ("engine", "flavor", "user", "mode", "action", "service", "allow_disruption", "require_runtime")
    options = restart.RestartOptions(
        **{name: params[name] for name in (*parameters, "validate", "timeout", "retries")},
        socket=params["socket"] and host.check_path("socket", params["socket"]),
        # Ansible does not set the defaults of suboptions if the task omits the option.
        expect=restart_health.Expectation(
            tuple(expect.get("runtimes") or ()), expect.get("default_runtime"), expect.get("cdi")
        ),
        rollback=tuple(
            rollback.ChangedFile(entry["path"], entry["backup"], entry["checksum"]) for entry in params["rollback"]
        ),
        backup_dir=backup_dir,
    )
    try:
        result = restart.restart(options, host, _module.command_runner(module), module.check_mode)
    except restart.RestartError as error:
        error.details = _module_result(params["action"], error.result)
        for warning in error.result.warnings:
            _module.warn(module, warning)
        raise
    return {**_module_result(params["action"], result), "warnings": result.warnings}


def _module_result(action: str, result: restart.RestartResult) -> dict[str, object]:
    """Return the module's result as documented, without the warnings."""
    fields = {name: value for name, value in result._asdict().items() if name != "warnings"}
    lists = {"rolled_back_files": list(result.rolled_back_files), "journal": list(result.journal)}
    return {**fields, "action": action, **lists}


def main() -> None:
    module = _module.new_module(
        {
            "engine": {"type": "str", "choices": list(flavors.DAEMONS), "required": True},
            **flavors.TARGET_OPTIONS,
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
            **_module.BUNDLED_OPTIONS,
        }
    )
    _module.run_module(module, lambda: restart_engine(module))


if __name__ == "__main__":
    main()
