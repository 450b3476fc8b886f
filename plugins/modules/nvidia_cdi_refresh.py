# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_cdi_refresh
short_description: Keep the CDI specification of NVIDIA GPUs up to date
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - A CDI specification becomes stale. Device numbers may change at every boot, files of the driver have its version in
    their names, and C(/var/run) is empty after a boot. This module installs a systemd unit that generates the
    specification again at boot, before any container starts, and after each change of the driver.
  - The unit is C(gpufleet-nvidia-cdi.service). It creates the driver's control devices, and runs
    C(nvidia-ctk cdi generate) of the NVIDIA Container Toolkit.
  - The unit that the toolkit has since 1.18 (C(nvidia-cdi-refresh.service)) would write a second file for the same
    devices. A drop-in stops it as long as the unit of this collection exists, also after an upgrade of the toolkit,
    which enables and starts it again. A file that it has written is removed, and M(gpufleet.nvidia.nvidia_cdi_spec)
    with O(gpufleet.nvidia.nvidia_cdi_spec#module:state=absent) restores it. Its environment file has no effect then.
  - The unit may not use the network. If the specification is below C(/etc) or C(/run), the unit may write to its
    directory only.
  - A host without the toolkit gets no unit. Only M(gpufleet.nvidia.nvidia_cdi_spec) writes its specification. Run that
    module again after each boot and change of the driver.
  - systemd does not notice a change of MIG devices. After such a change, restart the unit (C(systemctl restart) with
    RV(service)), or run M(gpufleet.nvidia.nvidia_cdi_spec) again.
  - The module enables units by creating the links that C(systemctl enable) would create. It does not run that command,
    which also makes systemd reload all units. After such a reload, running containers that got their GPUs from the
    toolkit's legacy hook can no longer use them. The module makes systemd reload only if systemd has not loaded the
    current version of a unit that this module wrote, or to unload a unit that it removed, and never while such
    containers run.
  - The units and M(gpufleet.nvidia.nvidia_cdi_spec) without O(backend) generate the same specification, because both
    then run C(nvidia-ctk).
  - O(state=absent) does not remove the specification itself. M(gpufleet.nvidia.nvidia_cdi_spec) does.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.cdi_request
  - gpufleet.nvidia.predicted_toolkit
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    details:
      - Check mode cannot predict whether a run of the service changes the specification. It reports a run as a change.
options:
  state:
    description:
      - V(present) installs and enables the units.
      - V(absent) removes the units, links, and drop-in that this module wrote. The service of the toolkit then writes
        its specification again, at the next boot.
    type: str
    choices: [present, absent]
    default: present
  before_engines:
    description:
      - Whether a boot waits until the specification exists, before any service starts, for at most 140 seconds. systemd
        ends each command of the service after two minutes. With V(false), containers that start at boot may find no
        specification or a stale one.
      - This covers all services that are not part of early boot, such as engines, the kubelet, units of Quadlet, and
        the services of users.
    type: bool
    default: true
  start:
    description:
      - Whether to start the service in this run. On a running host it is started if the specification is missing and a
        driver is loaded, if its last run failed, or if its configuration has changed. The module then checks the
        specification that the service wrote, and fails if engines would skip it or if it does not fit the host.
        O(require_devices) and O(use_nvml) apply to this check.
      - With V(false) the service is not started, and a warning says if it should be.
    type: bool
    default: true
  backup_dir:
    description:
      - Directory for backups. A backup is the content of a file before this module changed it. The newest five backups
        of each file are kept.
    type: path
    default: /var/lib/gpufleet-nvidia/backups
  purge_backups:
    description: With O(state=absent), remove the backups of the files too.
    type: bool
    default: false
seealso:
  - module: gpufleet.nvidia.nvidia_cdi_spec
  - module: gpufleet.nvidia.nvidia_container_info
"""

EXAMPLES = r"""
- name: Refresh the specification at boot and after each change of the driver
  gpufleet.nvidia.nvidia_cdi_refresh:
  register: cdi_refresh

- name: Refresh a specification that Podman 4 can also load
  gpufleet.nvidia.nvidia_cdi_refresh:
    for_engines: [podman:4.9.3]

- name: Refresh the specification with the nvidia-ctk of a toolkit in a directory
  gpufleet.nvidia.nvidia_cdi_refresh:
    cdi_hook_path: /usr/local/nvidia/toolkit/nvidia-cdi-hook

- name: Omit the hook of CVE-2025-23266
  gpufleet.nvidia.nvidia_cdi_refresh:
    disabled_hooks: [enable-cuda-compat]

- name: Prepare an image that is being built
  gpufleet.nvidia.nvidia_cdi_refresh:
    host_root: /srv/images/gpu-node

- name: Generate the specification again after a change of MIG devices
  ansible.builtin.systemd_service:
    name: "{{ cdi_refresh.service }}"
    state: restarted

- name: Remove the refresh units
  gpufleet.nvidia.nvidia_cdi_refresh:
    state: absent
"""

RETURN = r"""
service:
  description: The unit that generates the specification. Null with O(state=absent), and without C(nvidia-ctk).
  returned: success
  type: str
  sample: gpufleet-nvidia-cdi.service
path_unit:
  description: The unit that starts the service after a change of the driver. Null where RV(service) is null.
  returned: success
  type: str
  sample: gpufleet-nvidia-cdi.path
enabled:
  description: Whether the service runs at boot.
  returned: success
  type: bool
  sample: true
specification:
  description: The specification that the service writes. Null where RV(service) is null.
  returned: success
  type: str
  sample: /etc/cdi/nvidia.yaml
present:
  description: Whether the file RV(specification) exists.
  returned: success
  type: bool
  sample: true
changed_files:
  description: The files that were changed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample:
    - /etc/systemd/system/gpufleet-nvidia-cdi.service
    - /etc/systemd/system/nvidia-cdi-refresh.service.d/50-gpufleet-nvidia.conf
links_created:
  description: The links that were created to enable units, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/systemd/system/basic.target.wants/gpufleet-nvidia-cdi.service]
links_removed:
  description: The links that were removed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: []
reasons:
  description: Why the service had to run, as messages. Empty if it did not.
  returned: success
  type: list
  elements: str
  sample: [The configuration of the service has changed.]
started:
  description: Whether the service was started. Always false in check mode.
  returned: success
  type: bool
  sample: true
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
      sample: /etc/systemd/system/gpufleet-nvidia-cdi.service
    backup:
      description: The copy, null if there was no file.
      type: str
      sample: /var/lib/gpufleet-nvidia/backups/etc~systemd~system~x.service~20260821T143000.123456Z.SHA.backup
    checksum:
      description: SHA-256 of the new content, V(absent) if the file was removed.
      type: str
      sample: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
  sample:
    - path: /etc/systemd/system/nvidia-cdi-refresh.service.d/50-gpufleet-nvidia.conf
      backup: null
      checksum: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import plan as refresh_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import refresh as cdi_refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def refresh(module: AnsibleModule) -> dict[str, object]:
    """Plan and execute the refresh. Return the result as documented."""
    _module.load_bundled_packages(module)
    params = module.params
    options = refresh_plan.RefreshOptions(
        cdi=cdi_options.options_of({**params, "state": "present"}),
        state=params["state"],
        before_engines=params["before_engines"],
        start=params["start"],
    )
    host = _module.host_from_params(module)
    runners = refresh_plan.Runners(_module.command_runner(module, cdi_refresh.LIMIT), _module.pinned_runner(module))
    try:
        result = cdi_refresh.CdiRefresh(options, host, runners).execute(module.check_mode)
    except errors.MissingPackageError as error:
        # The action plugin then runs the module again and sends PyYAML with it.
        error.details = {"needed": "yaml"}
        raise
    files = result.pop("files")
    return {**result, "diff": _module.diff_of(files)}


def main() -> None:
    module = _module.new_module(
        {
            **cdi_options.CDI_OPTIONS,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "before_engines": {"type": "bool", "default": True},
            "start": {"type": "bool", "default": True},
            "backup_dir": {"type": "path", "default": "/var/lib/gpufleet-nvidia/backups"},
            "purge_backups": {"type": "bool", "default": False},
            **_module.HOST_ROOT_OPTIONS,
            **_module.PREDICTED_OPTIONS,
            **_module.BUNDLED_OPTIONS,
        }
    )
    _module.run_module(module, lambda: refresh(module))


if __name__ == "__main__":
    main()
