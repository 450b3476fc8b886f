# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_cdi_spec
short_description: Write the CDI specification of a host's GPUs
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Writes, updates, and removes the CDI specification of a host's GPUs, with which Docker, containerd, CRI-O, and
    Podman give GPUs to containers.
  - The specification is generated from the files of the driver, without NVIDIA's toolkit if O(backend) is V(native).
    The hooks in the specification need a program of the toolkit when a container starts (O(hooks)).
  - Before it writes, the module checks the specification with the rules of the CDI project's library, the paths and
    device numbers on the host, and the number of GPUs that the driver reports. It fails if containers with the
    specification could not start.
  - The file is replaced only if its meaning changes, and RV(reasons) lists the differences. The order of devices,
    nodes, groups, and keys, and the layout of the file have no meaning. Run the module again after a change of the
    driver, of MIG devices, or of the toolkit.
  - The previous content of the file is recorded below C(/var/lib/gpufleet-nvidia/state), and O(state=absent) restores
    it.
  - No engine has to be restarted, because engines read specifications when a container starts. Docker must have been
    started with CDI enabled.
  - O(when_no_driver) says what to do on a host on which no driver is loaded.
  - Hosts need no Python package. If a host has no PyYAML and needs it, the controller sends its own.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.cdi_request
  - gpufleet.nvidia.predicted_toolkit
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    details:
      - A missing program of hooks is a warning in check mode, because the toolkit may not be installed yet.
      - With O(predicted_toolkit), check mode predicts the task on a host with that toolkit. It generates the
        specification without C(nvidia-ctk), which is not installed yet. Where that is not possible or not exact, a
        warning says so.
options:
  state:
    description:
      - V(present) writes the specification.
      - V(absent) removes the files that this module wrote for the kind, or only O(path) if that is set. The previous
        content of these files is restored byte for byte, and so are files that O(exclusive) removed. A file that this
        module never wrote stays.
    type: str
    choices: [present, absent]
    default: present
  exclusive:
    description:
      - V(true) removes all other specifications of the same kind from C(/etc/cdi) and C(/var/run/cdi). Copies of them
        are kept, and O(state=absent) restores them.
      - With V(false) they stay, and a warning says how they affect the devices. If O(path) has changed, this module's
        file at the previous path is removed too, if engines read both directories and it has devices of the same names.
        Any other is removed with O(state=absent) and its O(path).
    type: bool
    default: false
  backup_dir:
    description:
      - Directory for copies of files from before each change. The newest five of each file are kept, readable by the
        owner only.
      - A directory in which an engine reads every file as configuration is refused, and so is one in which another user
        could replace files.
    type: path
    default: /var/lib/gpufleet-nvidia/backups
  purge_backups:
    description: With O(state=absent), remove the backups of these files too.
    type: bool
    default: false
  refresh:
    description:
      - V(auto) also installs the units that keep the specification up to date, as M(gpufleet.nvidia.nvidia_cdi_refresh)
        with the options of this task, if C(nvidia-ctk) exists. The units come first, because their service may write
        the specification itself. With O(state=absent), the units are removed, before the specification.
      - V(none) does not change units.
    type: str
    choices: [auto, none]
    default: none
  before_engines:
    description: For O(refresh), as O(gpufleet.nvidia.nvidia_cdi_refresh#module:before_engines).
    type: bool
    default: true
  when_no_driver:
    description:
      - What to do on a host on which no driver is loaded, in a mode that needs one. V(warn) and V(ignore) only do what
        O(refresh) says, with and without a warning, and V(fail) fails before anything is changed. RV(not_described)
        says why nothing was described. An existing specification stays.
      - With a value, an offline tree is treated as with V(ignore), because it has no GPUs.
      - When left out, the task fails without a driver after the units of O(refresh) were changed, and describes an
        offline tree by its files.
    type: str
    choices: [fail, warn, ignore]
    version_added: 1.2.0
notes:
  - NVML is loaded in a separate process, so that a crash or a hang of the driver's library does not stop the task. As
    root it may create missing nodes of GPUs, as in every program that uses it.
seealso:
  - module: gpufleet.nvidia.nvidia_cdi_refresh
  - module: gpufleet.nvidia.nvidia_container_info
  - name: CDI
    description: The specification of the Container Device Interface.
    link: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

EXAMPLES = r"""
- name: Write the specification of all GPUs
  gpufleet.nvidia.nvidia_cdi_spec:

- name: Remove other specifications of the GPUs, and support hosts with Podman 4
  gpufleet.nvidia.nvidia_cdi_spec:
    exclusive: true
    for_engines: [auto, "podman:4.9.3"]

- name: Write the specification, and keep it up to date
  gpufleet.nvidia.nvidia_cdi_spec:
    refresh: auto

- name: Prepare a host whose driver may be loaded later
  gpufleet.nvidia.nvidia_cdi_spec:
    refresh: auto
    when_no_driver: ignore

- name: Write the specification again after a change of MIG devices
  gpufleet.nvidia.nvidia_cdi_spec:
    device_name_strategies: [index, uuid]
  register: cdi

- name: Show why the file was replaced
  ansible.builtin.debug:
    var: cdi.reasons

- name: Use a driver in a container and a toolkit in a directory
  gpufleet.nvidia.nvidia_cdi_spec:
    driver_root: /run/nvidia/driver
    cdi_hook_path: /usr/local/nvidia/toolkit/nvidia-cdi-hook

- name: Omit the hook of CVE-2025-23266
  gpufleet.nvidia.nvidia_cdi_spec:
    disabled_hooks: [enable-cuda-compat]

- name: Write a separate specification for GPUDirect Storage
  gpufleet.nvidia.nvidia_cdi_spec:
    mode: gds
    class: gds

- name: Remove the specification and restore the previous files
  gpufleet.nvidia.nvidia_cdi_spec:
    state: absent
"""

RETURN = r"""
specification:
  description: The path of the specification, as the host sees it. Null if RV(not_described) is not null.
  returned: success
  type: str
  sample: /etc/cdi/nvidia.yaml
kind:
  description: The kind of the devices. Containers request C(KIND=DEVICE).
  returned: success
  type: str
  sample: nvidia.com/gpu
cdi_version:
  description:
    - The oldest version of CDI that has all fields of the specification. Null with O(state=absent), and if
      RV(not_described) is not null.
  returned: success
  type: str
  sample: 0.7.0
devices:
  description:
    - The names of the devices, without the kind. Empty with O(state=absent), and if RV(not_described) is not null.
  returned: success
  type: list
  elements: str
  sample: ["0", GPU-5ba4a1cd-9f20-4f4c-a2f1-3d6cf6f5a1c0, all]
device_count:
  description:
    - The number of GPUs and MIG devices that the specification describes. A device that has several names is counted
      once. It is 1 for a specification that only has a device C(all). It is 0 with O(state=absent), and if
      RV(not_described) is not null.
  returned: success
  type: int
  sample: 1
  version_added: 1.2.0
not_described:
  description:
    - Why the task generated no specification, as a message. Null if it generated one, and with O(state=absent).
  returned: success
  type: str
  sample: >-
    No GPU can be described on this host. No NVIDIA driver is loaded, and /sys is not mounted. A refresh unit writes the
    CDI specification when the host starts with its driver.
  version_added: 1.2.0
refreshed_by:
  description: The unit that writes the same file again, null if there is none. In check mode as it would be.
  returned: success
  type: str
  sample: gpufleet-nvidia-cdi.service
  version_added: 1.2.0
format:
  description: The format of the file. Null with O(state=absent), and if RV(not_described) is not null.
  returned: success
  type: str
  sample: yaml
mode:
  description:
    - The mode that was used, never V(auto). Null with O(state=absent), and if RV(not_described) is not null.
  returned: success
  type: str
  sample: nvml
backend:
  description:
    - The generator that was used, never V(auto). Null with O(state=absent), and if RV(not_described) is not null.
  returned: success
  type: str
  sample: native
driver_version:
  description:
    - The version of the driver that the specification describes. Null if none is loaded, with O(state=absent), and if
      RV(not_described) is not null.
  returned: success
  type: str
  sample: 580.95.05
reasons:
  description: Why the file was replaced, or would be, as messages. Empty if it was up to date.
  returned: success
  type: list
  elements: str
  sample:
    - It is for driver 570.86.15, but the driver is 580.95.05.
    - It has device number 510:0 for /dev/nvidia-uvm instead of 508:0.
engines:
  description:
    - The engines that O(for_engines) selects. Empty with O(state=absent), and if RV(not_described) is not null.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The name of the engine.
      type: str
      sample: podman
    version:
      description: The version of the engine, null if it does not report one.
      type: str
      sample: 4.9.3
    newest_cdi:
      description: The newest version of CDI that the engine supports, null if that is not known or it supports none.
      type: str
      sample: 0.6.0
    directories:
      description: The directories in which the engine searches for specifications by default.
      type: list
      elements: str
      sample: [/etc/cdi, /var/run/cdi]
  sample:
    - name: podman
      version: 4.9.3
      newest_cdi: 0.6.0
      directories: [/etc/cdi, /var/run/cdi]
limits:
  description:
    - The fields that were left out, and for which engine, and the hooks that were left out, because the hook program
      of the host does not have them, as messages. A message also says if that program could not be asked. Empty with
      O(state=absent), and if RV(not_described) is not null.
  returned: success
  type: list
  elements: str
  sample: []
conflicts:
  description: Other files of the same kind, including those that were removed.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
      sample: /etc/cdi/nvidia-gpu.yaml
    effect:
      description:
        - How the file affects the devices.
        - V(collides) is a file in the same directory that defines some of the same devices. Engines find none of these.
        - V(shadows) is a file that has precedence over the specification of this module.
        - V(shadowed) is a file over which the specification of this module has precedence.
        - V(adds) is a file with devices that the specification of this module does not have.
        - V(skipped) is an invalid file that engines skip.
      type: str
      sample: collides
    devices:
      description: The devices that both files define, with their kind.
      type: list
      elements: str
      sample: [nvidia.com/gpu=0, nvidia.com/gpu=all]
    message:
      description: The effect as a message.
      type: str
      sample: >-
        /etc/cdi/nvidia-gpu.yaml also describes nvidia.com/gpu. It is in the same directory as /etc/cdi/nvidia.yaml, so
        engines find none of nvidia.com/gpu=0, nvidia.com/gpu=all.
  sample: []
removed_files:
  description: Files that were removed, or would be in check mode, with symbolic links resolved.
  returned: success
  type: list
  elements: str
  sample: []
restored_files:
  description: Files that O(state=absent) restored, or would restore in check mode.
  returned: success
  type: list
  elements: str
  sample: []
refresh:
  description:
    - The result for the units, with the keys of M(gpufleet.nvidia.nvidia_cdi_refresh) except V(changed), V(diff), and
      V(backup_files), which are in those of this module.
  returned: with O(refresh=auto)
  type: dict
  sample:
    service: gpufleet-nvidia-cdi.service
    path_unit: gpufleet-nvidia-cdi.path
    enabled: true
    specification: /etc/cdi/nvidia.yaml
    present: true
    changed_files: []
    links_created: []
    links_removed: []
    reasons: []
    started: false
backup_files:
  description:
    - The files that were changed and the copies of their previous content. Empty in check mode, where nothing changed,
      and with O(purge_backups).
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file, with symbolic links resolved.
      type: str
      sample: /etc/cdi/nvidia.yaml
    backup:
      description: The copy, null if there was no file.
      type: str
      sample: /var/lib/gpufleet-nvidia/backups/etc~cdi~nvidia.yaml~20260821T143000.123456Z.SHA-256.backup
    checksum:
      description: SHA-256 of the new content, V(absent) if the file was removed.
      type: str
      sample: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
  sample:
    - path: /etc/cdi/nvidia.yaml
      backup: null
      checksum: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
"""

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import cdi_spec


def main() -> None:
    module = _module.new_module(cdi_spec.SPEC)
    _module.run_module(module, lambda: cdi_spec.describe(module))


if __name__ == "__main__":
    main()
