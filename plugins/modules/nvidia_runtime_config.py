# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_runtime_config
short_description: Register the NVIDIA runtimes with a container engine
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Registers the runtimes of the NVIDIA Container Toolkit in the configuration of a container engine, makes one of them
    the default, and switches CDI on or off. O(state=absent) reverts these changes.
  - The module changes only the entries that the options select. Everything else in a file keeps its bytes, including
    order, comments, indentation, line ends, and other keys of the same tables. A file is replaced in one step and keeps
    its owner, mode, SELinux label, and the symbolic link that leads to it.
  - Before its first change of a file, the module records the content below C(/var/lib/gpufleet-nvidia/state), and for
    rootless Docker below C(~/.local/state/gpufleet-nvidia/state) of the user. O(state=absent) restores this content.
  - containerd and CRI-O read several files. O(config_mode) selects the file for the entries of this module. The module
    copies the options of the low-level runtime in use, such as C(SystemdCgroup) or C(monitor_path), to the runtimes
    that it registers. If these options change later, the next run copies them again.
  - Before a configuration of containerd or CRI-O is written, the engine's own program prints the configuration that
    results from it. The module fails if anything but the entries of this module would change.
  - Every flavor of an engine has its own files. C(docs/flavors.md) of this collection lists what the module writes for
    each flavor.
  - Podman has no daemon and needs no registered runtime. O(engine) describes what the module does for it.
  - The module does not restart the engine. See RV(restart_action), RV(restart_required), and
    M(gpufleet.nvidia.nvidia_runtime_restart). The engine does not need to be installed.
  - Hosts need no Python package, because the controller sends its own. Tasks for containerd, CRI-O, and Podman contain
    tomlkit, which hosts with Python before 3.11 use to read TOML. The controller needs tomlkit 0.12 or newer, and 0.12
    or 0.13 if a host has Python 3.8. If the module has to parse YAML settings of K3s or RKE2, the controller also sends
    PyYAML.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.target
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.predicted_toolkit
  - gpufleet.nvidia.bundled
attributes:
  diff_mode:
    details: The values of keys that look like secrets, and user names and passwords in URLs, are masked.
options:
  engine:
    description:
      - The container engine to configure.
      - With V(podman) no runtime is registered. The module makes Podman read the directories that contain CDI
        specifications, and removes the OCI hook of NVIDIA's tools, which would inject the GPUs a second time.
      - Required unless O(targets) is set.
    type: str
    choices: [docker, containerd, crio, podman]
  targets:
    description:
      - The engines to configure in one task, instead of O(engine), O(flavor), O(user), and O(service). One task for all
        engines of a host is faster than one task for each of them.
      - The names are those of RV(gpufleet.nvidia.nvidia_container_info#module:engines[].target), such as V(docker),
        V(containerd/k3s), V(containerd/system/second.service), or V(docker/rootless/alice).
      - An option that the files of an engine cannot contain has its default there, instead of failing the task.
      - O(config_path) and O(engine_version) are refused if there are several targets.
      - An error does not prevent the changes of the other engines. The task fails after the last one.
    type: list
    elements: str
  state:
    description:
      - V(present) writes what the options set. Runtimes that an earlier run registered and that this task does not name
        are removed.
      - V(absent) needs only O(engine) or O(targets). If a file still has the content that this module wrote, its
        previous content is restored byte for byte, or the file is removed if there was none. If the file was changed
        since, only the entries of this module are removed and the previous default runtime is restored.
      - If nothing was recorded, V(absent) removes no runtime, see O(unrecorded).
      - Without O(config_path), V(absent) applies to every file that was recorded for the engine.
    type: str
    choices: [present, absent]
    default: present
  register:
    description:
      - Whether to register the runtimes. V(false) is for engines whose containers get GPUs through CDI alone.
      - V(false) removes what an earlier run registered, including the default runtime, and switches CDI on as with
        O(enable_cdi=auto). A file whose content only this module has changed gets its original bytes again, unless it
        needs the setting of CDI. Runtimes that other tools registered stay, and so do those that K3s and RKE2 register
        because they find their programs.
      - V(false) fails, and changes nothing, if CDI would be off in the engine, if the engine has no CDI, if the
        unknown version of Docker decides whether CDI is on, or if options describe a runtime, such as
        O(set_as_default=true).
      - It has no effect on V(podman), which never has a registered runtime.
    type: bool
    default: true
    version_added: 1.2.0
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
      - Additional runtimes with a fixed mode. V(cdi) is registered as C(nvidia-cdi), and V(legacy) as C(nvidia-legacy).
        An empty list registers none.
    type: list
    elements: str
    choices: [cdi, legacy]
    default: []
  set_as_default:
    description:
      - V(true) makes the runtime O(runtime_name) the engine's default. For K3s and RKE2, the task fails if an imported
        file, or a template of their containerd configuration that does not include the base template, sets the default.
      - V(false) restores the default runtime from before the first run of this module if the present default is a
        runtime of this module. Otherwise it changes nothing.
      - When left out, the default runtime is not changed.
    type: bool
  enable_cdi:
    description:
      - Whether the engine's own support of CDI is on. For Docker the setting is C(features.cdi), for containerd
        C(enable_cdi).
      - Some engines and versions have no such setting, because they have no CDI (containerd 1.6) or always use it
        (CRI-O). For these the module writes nothing, and it prints a warning if CDI is not in the requested state.
      - V(auto) switches CDI on where the version of the engine has it off by default, that is Docker from 25.0 on and
        before 28.2, and containerd 1.7. In other versions it writes nothing, and removes what an earlier run wrote.
      - V(auto) keeps a C(features.cdi) that is already set in C(daemon.json) or in the unit. For containerd 1.7, it
        changes C(enable_cdi = false), because C(containerd config default) of 1.7 prints this line. For containerd 2.0
        and newer, it keeps C(enable_cdi = false). If the version is not known, it changes nothing.
      - When left out, the setting is not changed.
    type: str
    choices: ['auto', 'true', 'false']
  service:
    description:
      - The engine's systemd unit, if it is not the usual one. A second containerd is a separate target, with the
        program, the socket, and the file that its unit names.
      - When left out, the usual unit of the engine and its O(flavor).
    type: str
  config_path:
    description:
      - The engine's configuration file.
      - When left out, the file that the engine's systemd unit names on its command line, else the engine's default,
        which is C(/etc/docker/daemon.json), C(/etc/containerd/config.toml), or C(/etc/crio/crio.conf).
    type: path
  config_mode:
    description:
      - For containerd and CRI-O, the file to which the module writes its entries. Docker has no drop-ins.
      - V(in_place) edits the file that takes effect, which is the main file unless an imported one replaces its
        settings.
      - V(drop_in) writes O(drop_in_path). Up to containerd 1.7 a drop-in replaces all settings of the CRI plugin
        instead of adding to them. So V(drop_in) is refused for these versions, and for an unknown version of
        containerd.
      - V(auto) is V(drop_in) for CRI-O and for containerd from 2.0 on, which merges drop-ins, and V(in_place) for older
        or unknown versions of containerd.
      - V(hook) is for CRI-O only and deprecated. No runtime is registered. The module writes an OCI hook that runs for
        every container that requests GPUs. It needs no restart, unless the directory of hooks has to be created.
    type: str
    choices: [auto, in_place, drop_in, hook]
    default: auto
  drop_in_path:
    description:
      - The drop-in of O(config_mode=drop_in), an absolute path. containerd's main file is not changed if it already
        imports this path. Otherwise one pattern is added to its C(imports).
      - When left out, C(/etc/containerd/conf.d/99-nvidia.toml) or C(/etc/crio/crio.conf.d/99-nvidia.toml).
    type: path
  runtime_type:
    description:
      - For containerd and CRI-O, the C(runtime_type) of the registered runtimes.
      - When left out, the type of the low-level runtime in use for containerd, and V(oci) for CRI-O.
    type: str
  runtime_options:
    description:
      - For containerd and CRI-O, entries for the tables of the registered runtimes. They are merged with the existing
        entries. Dictionaries are tables. An empty dictionary adds nothing.
      - The program, the type, and the annotations have their own options.
    type: dict
    default: {}
  container_annotations:
    description:
      - For containerd and CRI-O, annotations of a pod that the runtime passes to its containers, such as
        V(cdi.k8s.io/*). They are added to the inherited ones, as C(container_annotations) or C(allowed_annotations).
        CRI-O ignores a runtime whose C(allowed_annotations) contain names that it does not know.
    type: list
    elements: str
    default: []
  use_legacy_config:
    description:
      - For containerd 1.x, whether to set the default runtime with the table C(default_runtime) instead of
        C(default_runtime_name). The installer of the toolkit has the same option (C(UseLegacyConfig) in its source).
      - Deprecated. It is refused for versions of containerd without this table.
    type: bool
    default: false
  purge_legacy:
    description:
      - Whether to remove files that NVIDIA's tools wrote for this engine. These are drop-ins of containerd and CRI-O,
        also those in directories that no engine reads, and OCI hooks. The drop-in of this module can have the same
        path, and then replaces the file.
      - The module keeps a drop-in with a comment, or with a setting that would be lost or get another value, and prints
        a warning with its line. It never removes entries from a main file.
      - Copies are kept in O(backup_dir), but O(state=absent) does not restore what was removed.
      - It applies only to O(flavor=system) with the engine's usual unit. For distributions of Kubernetes, rootless
        Docker, and a second containerd, the module removes nothing and prints a warning.
    type: bool
    default: false
  unrecorded:
    description:
      - With O(state=absent), what to do with NVIDIA's runtimes that this module has not recorded, because they were
        registered by hand or by another tool.
      - V(keep) leaves these files as they are, and RV(unrecorded) lists them.
      - V(remove) removes the runtimes whose program is C(nvidia-container-runtime), C(nvidia-container-runtime.cdi), or
        C(nvidia-container-runtime.legacy), which undoes C(nvidia-ctk runtime configure). It also removes those with the
        programs C(nvidia-container-runtime.experimental) and C(nvidia-container-runtime-experimental) of the toolkit
        1.12 and 1.13.
    type: str
    choices: [keep, remove]
    default: keep
  cri_disabled:
    description:
      - What to do if containerd's CRI plugin is disabled, as in Docker's packages. V(fail) fails the task,
        V(warn) prints a warning, and V(ignore) does neither. Nothing is changed in any case.
    type: str
    choices: [fail, warn, ignore]
    default: warn
  engine_version:
    description:
      - Version of the engine, such as V(26.1.5).
      - When left out, the module uses the version that the running engine or its program reports, unless O(host_root)
        is an offline tree. For an unknown version the module writes a configuration that works with the oldest
        supported version.
    type: str
  validate:
    description:
      - Whether the engine's own validator checks the new content before it is written.
      - V(auto) does so if the engine's program can be run and has a validator. Docker has one since version 23.0. All
        versions of containerd (C(containerd config dump)) and CRI-O (C(crio config)) have one. Podman, K3s, and RKE2
        have none.
      - V(true) fails if that is not possible. V(false) does not run the validator.
    type: str
    choices: ['auto', 'true', 'false']
    default: auto
  require_runtime:
    description:
      - With O(set_as_default=true), whether to refuse a runtime whose program is not an executable file on the host.
        With V(false) that is a warning.
    type: bool
    default: false
  backup_dir:
    description:
      - Directory for copies of a file from before each change. The newest five of each file are kept, readable by the
        owner only.
      - A directory in which an engine reads every file as configuration is refused, and so is one in which another user
        could replace files.
      - When left out, C(/var/lib/gpufleet-nvidia/backups), and for rootless Docker
        C(~/.local/state/gpufleet-nvidia/backups).
    type: path
  purge_backups:
    description: With O(state=absent), remove the backups of the affected files too.
    type: bool
    default: false
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
  - module: gpufleet.nvidia.nvidia_runtime_restart
"""

EXAMPLES = r"""
- name: Register the runtime nvidia with Docker
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
  register: docker_runtime

- name: Restart Docker, and roll back if it does not become healthy
  gpufleet.nvidia.nvidia_runtime_restart:
    engine: docker
    action: "{{ docker_runtime.pending_action }}"
    expect:
      runtimes: [nvidia]
    rollback: "{{ docker_runtime.backup_files }}"
  when: docker_runtime.restart_required

- name: Make the runtime the default, and register the runtime that only uses CDI
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    extra_modes: [cdi]
    set_as_default: true
    enable_cdi: true

- name: Restore the previous default, and keep the runtime
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    set_as_default: false

- name: Let containers request CDI devices only, and remove the runtime that an earlier run registered
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    register: false

- name: Configure an image that is being built
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    host_root: /srv/images/gpu-node
    runtime_dir: /usr/local/nvidia/toolkit

- name: Register the runtime nvidia with containerd and make it the default
  gpufleet.nvidia.nvidia_runtime_config:
    engine: containerd
    set_as_default: true
    container_annotations: ["cdi.k8s.io/*"]

- name: Set an option of the runtime in containerd
  gpufleet.nvidia.nvidia_runtime_config:
    engine: containerd
    runtime_options:
      options:
        SystemdCgroup: true

- name: Write the runtime to the main file of CRI-O
  gpufleet.nvidia.nvidia_runtime_config:
    engine: crio
    config_mode: in_place

- name: Make the runtime the default of K3s
  gpufleet.nvidia.nvidia_runtime_config:
    engine: containerd
    flavor: k3s
    set_as_default: true

- name: Configure the rootless Docker of a user
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    flavor: rootless
    enable_cdi: true
  become: true
  become_user: alice

- name: Remove what a previous GPU operator left on the host
  gpufleet.nvidia.nvidia_runtime_config:
    engine: containerd
    purge_legacy: true

- name: Restore the previous configuration
  gpufleet.nvidia.nvidia_runtime_config:
    engine: docker
    state: absent
"""

RETURN = r"""
config_path:
  description: The path of the configuration file on the host, without O(host_root).
  returned: success
  type: str
  sample: /etc/docker/daemon.json
drop_in_path:
  description: The drop-in that contains the entries of this module, null if another file contains them.
  returned: success
  type: str
  sample: /etc/containerd/conf.d/99-nvidia.toml
config_version:
  description: Version of the format of containerd's main file, null for other engines.
  returned: success
  type: int
  sample: 2
engine_version:
  description: The engine's version, null if it is not known.
  returned: success
  type: str
  sample: 26.1.5
runtimes:
  description: All runtimes in the engine's files after the task, with the paths of their programs.
  returned: success
  type: dict
  sample:
    nvidia: /usr/bin/nvidia-container-runtime
default_runtime:
  description: The default runtime that the engine uses if it starts with the files as they are after the task.
  returned: success
  type: str
  sample: nvidia
backup_files:
  description:
    - The files that were changed and the copies of their previous content. Empty in check mode, and with
      O(purge_backups).
    - Pass it to O(gpufleet.nvidia.nvidia_runtime_restart#module:rollback). If the module had recorded the file before,
      a copy of its record is stored beside the copy of the file, so that a rollback restores both.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file, with symbolic links resolved.
      type: str
      sample: /etc/docker/daemon.json
    backup:
      description: The copy, null if there was no file.
      type: str
      sample: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.SHA-256.backup
    checksum:
      description: SHA-256 of the new content, V(absent) if the file was removed.
      type: str
      sample: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
  sample:
    - path: /etc/docker/daemon.json
      backup: /var/lib/gpufleet-nvidia/backups/etc~docker~daemon.json~20260821T143000.123456Z.SHA-256.backup
      checksum: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
cdi:
  description:
    - Whether CDI is on if the engine starts with the files as they are after the task.
    - Null if that is not known, and for a version without CDI.
  returned: success
  type: bool
  sample: true
restart_action:
  description:
    - The smallest action that applies this change, one of V(none), V(reload), and V(restart). It depends only on the
      change, not on whether the engine runs. For a file that the engine does not read it is V(none).
    - If RV(pending_action) is not null, use that instead. It includes earlier changes that were not applied, and
      excludes those that this task reverts.
  returned: success
  type: str
  sample: reload
restart_required:
  description:
    - Whether the running engine differs from the file. It is also true if this task did not change the file, for
      example because an earlier play ended before its handlers. V(false) if RV(pending_action) is null.
    - Some engines do not report their settings reliably. A containerd whose CRI does not answer cannot report them, and
      after a reload, CRI-O reports runtimes that no pod can use. For these engines the module compares the files with
      a record of the process and of the files that it was started with. The record is written by
      M(gpufleet.nvidia.nvidia_runtime_restart), and by this module outside check mode. It does not depend on the clock.
    - The time of a file is used only if there is no record, or if it names another process and other files. Then a file
      that seems to be newer than the process requires one restart, which writes the record.
    - The module does not detect a CRI-O that was started with other files if the files were then changed back and CRI-O
      was reloaded.
  returned: success
  type: bool
  sample: true
pending_action:
  description:
    - The smallest action that makes the running engine use the files, one of V(none), V(reload), and V(restart).
    - Null if the engine does not run, does not answer, or reads another file. Also null with O(unrecorded=keep) if this
      module has recorded nothing for the engine.
    - It is V(restart) for a Docker that was started before this collection installed the packages of the toolkit,
      because Docker searches the program for C(docker run --gpus) only when it starts. If containers would stop, it is
      what the files need, and a warning names the containers.
  returned: success
  type: str
  sample: reload
missed_toolkit:
  description:
    - Whether RV(pending_action) is V(restart) only because the toolkit was installed after the start of the engine.
  returned: success
  type: bool
  sample: false
  version_added: 1.2.0
purged:
  description: What O(purge_legacy) removed, or would remove in check mode. Warnings name similar files that stay.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file that is removed or replaced.
      type: str
      sample: /etc/containerd/config.d/99-nvidia.toml
    kind:
      description: What it was, one of V(drop-in) and V(hook).
      type: str
      sample: drop-in
    reason:
      description: Why it was removed.
      type: str
      sample: NVIDIA's tool wrote /etc/containerd/config.d/99-nvidia.toml. It registers nvidia.
  sample: []
unrecorded:
  description:
    - With O(state=absent) and O(unrecorded=keep), the files in which the module keeps NVIDIA's runtimes, because it has
      not recorded them.
  returned: success
  type: list
  elements: str
  sample: []
target:
  description: The engine, V(ENGINE) for the system's own, else V(ENGINE/FLAVOR) or V(ENGINE/FLAVOR/INSTANCE).
  returned: success
  type: str
  sample: containerd/k3s
service:
  description: The engine's systemd unit, empty if it has none.
  returned: success
  type: str
  sample: docker.service
socket:
  description:
    - The socket of the engine, from its unit, its configuration file, or its socket unit.
    - If none of them names one, the engine's default, which is C(/var/run/docker.sock) for Docker.
  returned: success
  type: str
  sample: /run/docker.sock
engines:
  description:
    - With O(targets), a dictionary for each of them, in the same order. It contains RV(target), C(changed), and the
      other values of this list, which are then not returned beside it. If the engine has failed, it contains
      only RV(target), C(changed), and the message as C(error).
  returned: if O(targets) is set
  type: list
  elements: dict
  sample:
    - target: containerd
      changed: false
      restart_required: false
"""

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import runtime_config


def main() -> None:
    module = _module.new_module(
        runtime_config.SPEC,
        required_one_of=[("engine", "targets")],
        mutually_exclusive=[("targets", name) for name in ("engine", "flavor", "user", "service")],
    )
    _module.run_module(module, lambda: runtime_config.configure(module))


if __name__ == "__main__":
    main()
