# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role variables of the options of modules. Messages name both: `nvidia_toolkit_source (source)`."""

from __future__ import annotations

import re
import typing as t

# The options in the dictionary ROLE_module_options, which have no variable of their own.
MODULE_OPTIONS: t.Mapping[str, tuple[str, ...]] = {
    "nvidia_toolkit": (
        "checksum",
        "components",
        "create_device_nodes",
        "default_runtime_executable",
        "low_level_runtimes",
    ),
    "nvidia_runtime": ("container_annotations", "cri_disabled", "drop_in_path", "runtime_type", "use_legacy_config"),
    "nvidia_cdi": (
        "all_device",
        "before_engines",
        "config_search_paths",
        "csv_compat_container_root",
        "csv_files",
        "csv_ignore_patterns",
        "device_ids",
        "device_name_strategies",
        "feature_flags",
        "format",
        "ldconfig_path",
        "require_devices",
        "use_nvml",
    ),
}
# Other options whose variable is not named ROLE_OPTION. None: the role has no variable for the option, or one that
# takes other values, such as nvidia_toolkit_files_on for remote_src. A message then says "VARIABLE to VALUE (OPTION:
# VALUE)".
_ALL_ROLES: t.Mapping[str, str | None] = {
    "host_root": "nvidia_host_root",
    "host_root_live": "nvidia_host_root_live",
    "predicted_toolkit": None,
    "user": None,
}
EXCEPTIONS: t.Mapping[str, t.Mapping[str, str | None]] = {
    "nvidia_toolkit": {
        "config_restored": None,
        "exclusive": None,
        "package_cache": None,
        "path": None,
        "pending": None,
        "remote_src": None,
        "repository_files": None,
        "create": None,
        "url": "nvidia_toolkit_key_url",
    },
    "nvidia_runtime": {
        "action": None,
        "command": "nvidia_runtime_verify_command",
        "container": None,
        "try_copy": None,
        "engine": "nvidia_runtime_engines",
        "expect": None,
        "image": "nvidia_runtime_verify_image",
        "level": "nvidia_runtime_verify",
        "method": None,
        "mode": "nvidia_runtime_restart_mode",
        "pull": "nvidia_runtime_verify_pull",
        "require_runtime": None,
        "retries": "nvidia_runtime_restart_retries",
        "rollback": None,
        "runtime_dir": "nvidia_runtime_dir",
        "runtime_name": "nvidia_runtime_name",
        "runtime_options": "nvidia_runtime_options",
        "service": None,
        "socket": None,
        "targets": "nvidia_runtime_engines",
        "timeout": "nvidia_runtime_restart_timeout",
        "unrecorded": None,
    },
    "nvidia_cdi": {"cdi_hook_path": "nvidia_cdi_hook_path", "start": None},
}
# A module, and its option that the variable of this name does not set: it sets that of another module.
_WITHOUT_VARIABLE = frozenset({("nvidia_runtime_verify", "timeout"), ("nvidia_toolkit_key", "dest")})
# nvidia_container_info belongs to no role.
_OF_INSPECTION = {
    "host_root": "nvidia_host_root",
    "host_root_live": "nvidia_host_root_live",
    "toolkit_dir": "nvidia_toolkit_dest",
}
_ROLE = re.compile(r"(nvidia_(?:toolkit|runtime|cdi))_")


def module_options(role: str) -> str:
    """Return the name of the dictionary with further options of the module of a role."""
    return f"{role}_module_options"


def variable_of(module: str, option: str) -> str | None:
    """Return the variable of a role that sets ``option`` of ``module``; None if there is none.

    For an option in a dictionary, it is for example nvidia_cdi_module_options.csv_files.
    """
    name = module.rpartition(".")[2]
    if name == "nvidia_container_info":
        return _OF_INSPECTION.get(option)
    role = _ROLE.match(name)
    if role is None or (name, option) in _WITHOUT_VARIABLE:
        return None
    if option in MODULE_OPTIONS[role[1]]:
        return f"{module_options(role[1])}.{option}"
    exceptions = {**_ALL_ROLES, **EXCEPTIONS[role[1]]}
    return exceptions[option] if option in exceptions else f"{role[1]}_{option}"


def variables_of(module: str, options: t.Iterable[str]) -> dict[str, str]:
    """Return the variable of a role for each of the ``options`` of ``module`` that has one."""
    variables = {option: variable_of(module, option) for option in options}
    return {option: variable for option, variable in variables.items() if variable is not None}
