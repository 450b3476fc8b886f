# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit_config
short_description: Configure the NVIDIA Container Toolkit
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Changes settings in the C(config.toml) of the NVIDIA Container Toolkit, which its runtimes, its hook, and
    C(nvidia-container-cli) read.
  - Names and values are validated before anything is written. Only the named settings are changed. Everything else
    keeps its bytes, including order, comments, indentation, line ends, and settings that this module does not know.
  - A setting whose default is in the file as a comment is written below that comment. When the setting is reset, its
    line is removed.
  - The scripts of the toolkit's packages write the file again when the packages are upgraded, and some versions lose
    settings. Run this module after an upgrade to write missing settings again.
  - The content of the file before the first change is recorded below C(/var/lib/gpufleet-nvidia/state), and
    O(state=absent) restores it.
  - Nothing has to be restarted, because the toolkit reads the file whenever a container starts. The toolkit does not
    need to be installed.
  - Hosts need no Python package. If the Python of a host cannot read TOML (before 3.11), the controller sends its own
    tomlkit. That must be 0.12 or newer, and 0.12 or 0.13 for hosts with Python 3.8.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.bundled
attributes:
  diff_mode:
    details: Secrets are masked as in RV(settings).
options:
  settings:
    description:
      - The settings and their values. Tables are nested dictionaries or names with dots.
        C(nvidia-container-runtime.log-level) and C(log-level) in a dictionary C(nvidia-container-runtime) are the same
        setting.
      - Null resets a setting to its default. If the file of the packages has a line with the default, the line gets
        that value. If the file of the packages has the setting as a comment or not at all, the line is removed.
      - If the scripts of newer packages have written the file again since, and these scripts write the setting with its
        default, the line stays with the default.
      - Values must have the type that the toolkit expects. Booleans may also be the strings V(true), V(false), V(yes),
        and V(no), because templates return strings.
      - C(nvidia-container-cli.ldconfig) must begin with V(@), unless C(features.allow-ldconfig-from-container) is true.
        Otherwise toolkits since 1.17.3 start no container.
    type: dict
    default: {}
  profile:
    description:
      - A set of settings for a purpose. O(settings) has precedence over it. When left out, none is applied.
      - V(kubernetes_hardened) gives unprivileged pods only the GPUs of the device plugin, and ignores the environment
        variables of images and pods. The device plugin must then use the strategy C(volume-mounts) or CDI.
      - V(rootless) sets C(nvidia-container-cli.no-cgroups), for engines that do not run as root and use the legacy
        mode. Containers of engines that run as root may then be unable to open their GPUs. The module warns about this,
        except in a container of LXC, Incus, or Proxmox, which cannot change device cgroups.
    type: str
    choices: [kubernetes_hardened, rootless]
  debug:
    description:
      - V(true) makes the runtime write its log to C(/var/log/nvidia-container-runtime.log) with the level V(debug), and
        C(nvidia-container-cli), which the hook runs, to C(/var/log/nvidia-container-toolkit.log).
      - V(false) resets these three settings. A value that this module wrote is restored to the previous one. A value
        that another program or a user wrote is reset only if it is the value that V(true) would write, or the level
        V(trace). A log in another file and another level stay.
      - When left out, these settings are not changed. O(settings) has precedence over this option.
    type: bool
  exclusive:
    description:
      - Whether settings that earlier runs of this module wrote, and that this task does not name, are restored to their
        previous values. V(false) leaves them as they are.
      - Settings that this module did not write are not changed. A setting that had the requested value before is one of
        them.
    type: bool
    default: false
  allow_unknown:
    description:
      - Whether to accept settings that this module does not know, for newer toolkits. They may be strings, numbers,
        booleans, lists, and dictionaries, but no dates and times. Those in C(features) are booleans. V(false) refuses
        them.
    type: bool
    default: false
  state:
    description:
      - V(present) writes the settings that the other options set.
      - V(absent) removes everything that this module wrote, and accepts none of O(settings), O(profile), and O(debug).
        If the file still has the content that this module wrote, its previous content is restored byte for byte, or
        the file is removed if there was none. If the file was changed since, the settings are restored one by one,
        except those that no longer have the value that this module wrote.
    type: str
    choices: [present, absent]
    default: present
  path:
    description:
      - The configuration file. A toolkit in a directory of its own, such as C(/usr/local/nvidia/toolkit), has it in
        C(.config/nvidia-container-runtime/config.toml) below that directory. With the default, the module warns if
        C(/usr/local/nvidia/toolkit) has such a file, because engines that run that toolkit do not read the default.
      - For a toolkit that M(gpufleet.nvidia.nvidia_toolkit_install) has installed into a directory, use
        O(gpufleet.nvidia.nvidia_toolkit_install#module:settings) instead. That module overwrites changes of its file by
        others.
    type: path
    default: /etc/nvidia-container-runtime/config.toml
  create:
    description:
      - Whether to create the file if it does not exist. It then contains only the settings of this task.
      - With V(false) a missing file is an error, unless there is nothing to write.
    type: bool
    default: true
  backup_dir:
    description:
      - Directory for copies of the file from before each change. The newest five are kept, readable by the owner only.
      - A directory in which an engine reads every file as configuration is refused, and so is one in which another user
        could replace files.
    type: path
    default: /var/lib/gpufleet-nvidia/backups
  purge_backups:
    description: With O(state=absent), remove the backups of the file too.
    type: bool
    default: false
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
  - module: gpufleet.nvidia.nvidia_runtime_config
"""

EXAMPLES = r"""
- name: Write debug logs
  gpufleet.nvidia.nvidia_toolkit_config:
    debug: true

- name: Stop writing debug logs
  gpufleet.nvidia.nvidia_toolkit_config:
    debug: false

- name: Give pods only the GPUs of the device plugin
  gpufleet.nvidia.nvidia_toolkit_config:
    profile: kubernetes_hardened

- name: Use CDI, and the low-level runtimes of CRI-O
  gpufleet.nvidia.nvidia_toolkit_config:
    settings:
      nvidia-container-runtime:
        mode: cdi
        runtimes: [/usr/libexec/crio/crun, /usr/libexec/crio/runc]

- name: Mitigate CVE-2025-23266 with a toolkit from 1.17.5 to 1.17.7
  gpufleet.nvidia.nvidia_toolkit_config:
    settings:
      features.disable-cuda-compat-lib-hook: true

- name: Reset one setting to its default
  gpufleet.nvidia.nvidia_toolkit_config:
    settings:
      nvidia-container-runtime.mode: null

- name: Configure an image, and restore the settings that earlier runs wrote and this task does not name
  gpufleet.nvidia.nvidia_toolkit_config:
    host_root: /srv/images/gpu-node
    exclusive: true
    settings:
      nvidia-container-cli:
        no-cgroups: false

- name: Restore the original file
  gpufleet.nvidia.nvidia_toolkit_config:
    state: absent
"""

RETURN = r"""
path:
  description: The configuration file, as the host sees it.
  returned: success
  type: str
  sample: /etc/nvidia-container-runtime/config.toml
settings:
  description:
    - The settings in effect after the task, by names with dots. A setting that the file does not have is returned with
      its default, or null if it has no default.
    - Settings in the file that this module does not know are included.
    - Secrets are masked. They are user names and passwords in URLs, values of keys that look like secrets, and values
      of variables in C(nvidia-container-cli.environment) whose names look like secrets.
  returned: success
  type: dict
  sample:
    accept-nvidia-visible-devices-as-volume-mounts: false
    features.disable-cuda-compat-lib-hook: false
    nvidia-container-cli.debug: null
    nvidia-container-runtime.log-level: info
    nvidia-container-runtime.runtimes: [runc, crun]
changed_keys:
  description: The settings whose values in the file were changed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [nvidia-container-runtime.log-level]
backup_files:
  description:
    - The file, if it was changed, and the copy of its previous content. Empty in check mode, where nothing changed, and
      with O(purge_backups).
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file, with symbolic links resolved.
      type: str
      sample: /etc/nvidia-container-runtime/config.toml
    backup:
      description: The copy, null if there was no file.
      type: str
      sample: >-
        /var/lib/gpufleet-nvidia/backups/etc~nvidia-container-runtime~config.toml~20260821T143000.123456Z.SHA-256.backup
    checksum:
      description: SHA-256 of the new content, V(absent) if the file was removed.
      type: str
      sample: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
  sample:
    - path: /etc/nvidia-container-runtime/config.toml
      backup: >-
        /var/lib/gpufleet-nvidia/backups/etc~nvidia-container-runtime~config.toml~20260821T143000.123456Z.SHA-256.backup
      checksum: 6a09e667f3bcc908b2fb1366ea957d3e3adec17512775099da2f590b0667322a
"""

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import configure as toolkit_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


def configure(module: AnsibleModule) -> dict[str, object]:
    """Plan and write the settings. Return the result as documented.

    Raises NvidiaError if settings are given with state=absent.
    """
    params = module.params
    _module.load_bundled_packages(module)
    given = [f"{errors.option:{name}}" for name in ("settings", "profile", "debug") if params[name] not in (None, {})]
    if params["state"] == "absent" and given:
        raise errors.NvidiaError(
            f"{errors.option:state}: absent does not support these options: {', '.join(given)}. Remove them, or set"
            f" {errors.option:state}: present."
        )
    request = toolkit_configure.SettingsRequest(
        settings=params["settings"],
        profile=params["profile"],
        debug=params["debug"],
        exclusive=params["exclusive"],
        allow_unknown=params["allow_unknown"],
        create=params["create"],
    )
    # Ansible adds the parameters to the result, so secrets in them are masked.
    params["settings"] = toolkit_settings.masked(params["settings"])
    options = toolkit_configure.ConfigOptions(
        request=request if params["state"] == "present" else None,
        path=params["path"],
        backup_dir=params["backup_dir"],
        purge_backups=params["purge_backups"],
    )
    host = _module.host_from_params(module)
    result = toolkit_configure.ConfigTask(options, host).execute(module.check_mode)
    return {
        "changed": result.changed,
        "diff": _module.diff_of(result.files, toml_document.mask_toml),
        "path": result.path,
        "settings": result.settings,
        "changed_keys": result.changed_keys,
        "backup_files": result.backup_files,
        "warnings": [*result.warnings, *(_warn_of_other_file(host, result.path) if options.request else ())],
    }


def _warn_of_other_file(host: hostfs.HostFS, path: str) -> list[str]:
    """Return a warning if a toolkit in a directory of its own, which engines may run, does not read ``path``."""
    folder = toolkit_constants.DIRECTORY
    other = toolkit_constants.config_file(host, folder)
    if path != toolkit_constants.CONFIG_FILE or other == path:
        return []
    warning = f"Engines that run the toolkit in {folder} do not read {path}, but {other}."
    return [f"{warning} Set {errors.option:path} to that file, or register the runtimes of another directory."]


def main() -> None:
    module = _module.new_module(
        {
            "settings": {"type": "dict", "default": {}},
            "profile": {"type": "str", "choices": list(toolkit_configure.PROFILES)},
            "debug": {"type": "bool"},
            "exclusive": {"type": "bool", "default": False},
            "allow_unknown": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path", "default": toolkit_constants.CONFIG_FILE},
            "create": {"type": "bool", "default": True},
            "backup_dir": {"type": "path", "default": core_records.BACKUP_DIR},
            "purge_backups": {"type": "bool", "default": False},
            **_module.HOST_ROOT_OPTIONS,
            **_module.BUNDLED_OPTIONS,
        }
    )
    _module.run_module(module, lambda: configure(module))


if __name__ == "__main__":
    main()
