# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of nvidia_toolkit_install, and those that do not belong to a source."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

SPEC: dict[str, dict[str, t.Any]] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "source": {
        "type": "str",
        "choices": ["repository", "files", "existing", "directory"],
        "default": "repository",
    },
    "packages": {"type": "str", "choices": ["full", "base"], "default": "full"},
    "version": {"type": "str"},
    "files": {"type": "list", "elements": "path", "default": []},
    "pending": {"type": "bool", "default": False},
    "repository_files": {
        "type": "list",
        "elements": "dict",
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str"},
            "src": {"type": "path"},
            "mode": {"type": "str", "default": "0644"},
        },
    },
    "key_fingerprint": {"type": "str", "no_log": False},
    "proxy": {"type": "str", "no_log": True},
    "hold": {"type": "bool"},
    "remove_conflicts": {"type": "bool", "default": True},
    "config_restored": {"type": "bool", "default": False},
    "running_gpu_containers": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "fail"},
    "minimum_version": {"type": "str"},
    "minimum_version_policy": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "warn"},
    "lock_timeout": {"type": "int", "default": lock.PACKAGE_MANAGER_TIMEOUT},
    "backup_dir": {"type": "path", "default": core_records.BACKUP_DIR},
    "package_cache": {"type": "path"},
    "src": {"type": "path"},
    "remote_src": {"type": "bool", "default": True},
    "dest": {"type": "path", "default": toolkit_constants.DIRECTORY},
    "components": {
        "type": "list",
        "elements": "str",
        "choices": ["runtime", "hook", "cli", "ctk", "cdi_hook"],
    },
    "driver_root": {"type": "path", "default": "/"},
    "settings": {"type": "dict"},
    "profile": {"type": "str", "choices": ["kubernetes_hardened", "rootless"]},
    "allow_unknown": {"type": "bool", "default": False},
    "debug": {"type": "bool"},
    "low_level_runtimes": {"type": "list", "elements": "str"},
    "default_runtime_executable": {"type": "str"},
    "create_device_nodes": {"type": "bool", "default": False},
    "checksum": {"type": "str", "choices": ["stat", "full"], "default": "stat"},
    **_module.HOST_ROOT_OPTIONS,
    **_module.BUNDLED_OPTIONS,
}


def refuse_unsuitable(module: _module.Module) -> None:
    """Raise NvidiaError for options that do not belong to the source."""
    of_directory = module.params["source"] == "directory"
    unsuitable = toolkit_constants.OPTIONS_OF_PACKAGES if of_directory else toolkit_constants.OPTIONS_OF_DIRECTORY
    given = [f"{errors.option:{name}}" for name in unsuitable if module.params[name] not in (None, {}, [])]
    if of_directory and module.params["packages"] == "base":
        given.append(f"{errors.option:packages}: base")
    if not of_directory and not module.params["remote_src"]:
        given.append(f"{errors.option:remote_src}: false")
    if given:
        problem = (
            f"{errors.option:source}: directory does not support"
            if of_directory
            else f"Only {errors.option:source}: directory supports"
        )
        raise errors.NvidiaError(
            f"{problem} these options: {', '.join(given)}. Remove them, or change {errors.option:source}."
        )
