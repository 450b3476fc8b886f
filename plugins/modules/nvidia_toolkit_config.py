# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit_config
short_description: Configure the NVIDIA Container Toolkit
version_added: 0.1.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Changes settings in the C(config.toml) of the NVIDIA Container Toolkit, which its runtimes, its hook and
    C(nvidia-container-cli) read, and takes all of it back.
  - Names and values are checked before anything is written. Only what is named is changed, and everything else keeps
    its bytes, that is order, comments, indentation, line ends, and settings that this module does not know.
  - A setting whose default is in the file as a comment is written below that comment. When the setting is taken back,
    its line is removed.
  - The scripts of the toolkit's packages write the file anew when they are upgraded, and some versions lose settings in
    doing so. Run this module after them, and what is missing is written again.
  - What the file was before the first change is recorded below C(/var/lib/gpufleet-nvidia/state), and O(state=absent)
    restores it.
  - Nothing has to be restarted. The toolkit reads the file whenever a container starts. It does not need to be
    installed.
  - Hosts need no Python package. Where a host's Python cannot read TOML itself (before 3.11), the controller sends its
    own tomlkit along, which has to be 0.12 or newer, and 0.13 for hosts with Python 3.8.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.shipped
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Secrets are masked as in RV(settings).
  idempotent:
    support: full
  platform:
    platforms: Linux
    support: full
  safe_file_operations:
    support: full
options:
  settings:
    description:
      - The settings and their values. Tables are nested dictionaries or names with dots, so that
        C(nvidia-container-runtime.log-level) and C(log-level) in a dictionary C(nvidia-container-runtime) are the same.
      - A setting that is null is made what it is when nobody has set it. Its line holds the default
        where the packages' file has it so, and is removed where that file has it as a comment or not at all.
      - Where newer packages wrote the file anew since, a line that they would have written stays, with the default.
      - Values have to be of the type that the toolkit expects. Booleans may also be the words V(true), V(false),
        V(yes), and V(no), as templates deliver them.
    type: dict
    default: {}
  profile:
    description:
      - Settings for a purpose. O(settings) win over them.
      - V(kubernetes_hardened) lets unprivileged pods get GPUs only as the device plugin gives them, and not by an
        environment variable of an image or a pod. The device plugin then has to use the strategy C(volume-mounts) or
        CDI.
      - V(rootless) sets C(nvidia-container-cli.no-cgroups), for engines that do not run as root and use the legacy
        mode. Containers of engines that do run as root may then not open their GPUs, of which a warning tells.
    type: str
    choices: [kubernetes_hardened, rootless]
  debug:
    description:
      - V(true) makes the runtime write its log to C(/var/log/nvidia-container-runtime.log) with the level V(debug), and
        C(nvidia-container-cli), which the hook calls, to C(/var/log/nvidia-container-toolkit.log).
      - V(false) makes sure that none of this is so because of an earlier V(true). What this module wrote of these three
        settings goes back to what it was. What others wrote is reset only where it is what V(true) would write, or the
        level V(trace). So a log that somebody keeps in another file stays, and so does another level.
      - When left out, these settings are left alone. O(settings) win over this switch.
    type: bool
  exclusive:
    description:
      - Settings that earlier runs of this module wrote, and that this one does not name, go back to what they were
        before.
      - Settings that others wrote are left alone, also those that already have the value that is asked for.
    type: bool
    default: false
  allow_unknown:
    description:
      - Accepts settings that this module does not know, for toolkits newer than it. They may be strings, numbers,
        booleans, lists, and dictionaries, but no dates and times. Those in C(features) are booleans.
    type: bool
    default: false
  state:
    description:
      - V(present) makes the file say what the other options ask.
      - V(absent) takes back everything that this module wrote, and takes no settings. While the file still holds what
        this module wrote, its former content comes back byte for byte, or the file goes if there was none. Where others
        have changed the file since, the settings go back one by one, but for those that are not as this module left
        them.
    type: str
    choices: [present, absent]
    default: present
  path:
    description:
      - The configuration file. A toolkit in a folder of its own, such as C(/usr/local/nvidia/toolkit), has it in
        C(.config/nvidia-container-runtime/config.toml) below that folder.
      - Of a toolkit that M(gpufleet.nvidia.nvidia_toolkit_install) has put into a directory, the settings belong into
        O(gpufleet.nvidia.nvidia_toolkit_install#module:config) instead. It writes the file anew where anybody else has
        changed it.
    type: path
    default: /etc/nvidia-container-runtime/config.toml
  create:
    description:
      - Whether a file that is not there is made, with nothing but the settings in it.
      - With V(false) that is an error, unless there is nothing to write.
    type: bool
    default: true
  backup_dir:
    description:
      - Directory for copies of the file from before each change. The newest five are kept, readable by the owner only.
      - Directories whose every file an engine reads as configuration are refused, and those in which another user could
        replace files.
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
- name: See why containers do not start on one host
  gpufleet.nvidia.nvidia_toolkit_config:
    debug: true

- name: Enough seen
  gpufleet.nvidia.nvidia_toolkit_config:
    debug: false

- name: Let pods have only the GPUs that the device plugin gives them
  gpufleet.nvidia.nvidia_toolkit_config:
    profile: kubernetes_hardened

- name: Use CDI, and wrap the low-level runtime of CRI-O wherever PATH leads
  gpufleet.nvidia.nvidia_toolkit_config:
    settings:
      nvidia-container-runtime:
        mode: cdi
        runtimes: [/usr/libexec/crio/crun, /usr/libexec/crio/runc]

- name: Close CVE-2025-23266 where an older toolkit has to stay for now
  gpufleet.nvidia.nvidia_toolkit_config:
    settings:
      features.disable-cuda-compat-lib-hook: true

- name: Have one setting as the packages have it
  gpufleet.nvidia.nvidia_toolkit_config:
    settings:
      nvidia-container-runtime.mode: null

- name: Configure an image that is being built, and be the only owner of its settings
  gpufleet.nvidia.nvidia_toolkit_config:
    host_root: /srv/images/gpu-node
    exclusive: true
    settings:
      nvidia-container-cli:
        no-cgroups: false

- name: Put everything back as it was
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
    - The settings that are in effect afterwards, by names with dots. Those that the file does not have are at their
      defaults, or null where nothing is set by default.
    - Settings that this module does not know are among them, as the file has them.
    - Secrets are masked, that is user names and passwords in URLs, values of keys that look like secrets, and of
      variables in C(nvidia-container-cli.environment) whose names look so.
  returned: success
  type: dict
  sample:
    accept-nvidia-visible-devices-as-volume-mounts: false
    features.disable-cuda-compat-lib-hook: false
    nvidia-container-cli.debug: null
    nvidia-container-runtime.log-level: info
    nvidia-container-runtime.runtimes: [runc, crun]
changed_keys:
  description: The settings whose values in the file have changed, or would in check mode.
  returned: success
  type: list
  elements: str
  sample: [nvidia-container-runtime.log-level]
backup_files:
  description: Where the former content is kept. Empty in check mode, where nothing changed, and with O(purge_backups).
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file, symbolic links resolved.
      type: str
      sample: /etc/nvidia-container-runtime/config.toml
    backup:
      description: Its copy, null if there was no file.
      type: str
      sample: >-
        /var/lib/gpufleet-nvidia/backups/etc~nvidia-container-runtime~config.toml~20260821T143000.123456Z.SHA-256.backup
    checksum:
      description: SHA-256 of what was written, V(absent) if the file was removed.
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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import configure as toolkit_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import settings as toolkit_settings

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def configure(module: AnsibleModule) -> dict[str, object]:
    """Plan and write; the result as documented."""
    params = module.params
    _module.load_bundled_packages(module)
    asked = [name for name in ("settings", "profile", "debug") if params[name] not in (None, {})]
    if params["state"] == "absent" and asked:
        raise errors.NvidiaError(
            f"state is absent, which takes everything back and goes with no {' or '.join(asked)}. Leave that out, or"
            " state; nothing was changed."
        )
    wishes = toolkit_configure.SettingsRequest(
        settings=params["settings"],
        profile=params["profile"],
        debug=params["debug"],
        exclusive=params["exclusive"],
        allow_unknown=params["allow_unknown"],
        create=params["create"],
    )
    # Ansible adds the parameters to what is returned.
    params["settings"] = toolkit_settings.shown(params["settings"])
    options = toolkit_configure.ToolkitOptions(
        wishes=wishes if params["state"] == "present" else None,
        path=params["path"],
        backup_dir=params["backup_dir"],
        purge_backups=params["purge_backups"],
    )
    host = _module.host_from_params(module)
    outcome = toolkit_configure.ToolkitConfiguration(options, host).execute(module.check_mode)
    return {
        "changed": outcome.changed,
        "diff": _module.diff_of(outcome.files, "toml"),
        "path": outcome.path,
        "settings": outcome.settings,
        "changed_keys": outcome.changed_keys,
        "backup_files": outcome.backup_files,
        "warnings": outcome.warnings,
    }


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
            **_module.SHIPPED_OPTIONS,
        }
    )
    _module.run_module(module, lambda: configure(module))


if __name__ == "__main__":
    main()
