# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of nvidia_runtime_config that describe the wanted configuration.

nvidia_container_info has them too (``require_engines.options``), so that the inspection plans what the later task does.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request

# Ansible converts the booleans of a play to these strings, the only choices that it accepts for booleans.
_SWITCH: dict[str | None, bool] = {"true": True, "false": False}

# The argument specification. The documentation is that of nvidia_runtime_config.
SPEC: dict[str, dict[str, t.Any]] = {
    "register": {"type": "bool", "default": True},
    "runtime_name": {"type": "str", "default": "nvidia"},
    "runtime_dir": {"type": "path", "default": "/usr/bin"},
    "extra_modes": {"type": "list", "elements": "str", "choices": list(core_constants.MODE_PROGRAMS), "default": []},
    "set_as_default": {"type": "bool"},
    "enable_cdi": {"type": "str", "choices": [engines_request.CDI_AUTO, *_SWITCH]},
    "config_path": {"type": "path"},
    "config_mode": {"type": "str", "choices": ["auto", "in_place", "drop_in", "hook"], "default": "auto"},
    "drop_in_path": {"type": "path"},
    "runtime_type": {"type": "str"},
    "runtime_options": {"type": "dict", "default": {}},
    "container_annotations": {"type": "list", "elements": "str", "default": []},
    "use_legacy_config": {"type": "bool", "default": False},
    "purge_legacy": {"type": "bool", "default": False},
    "cri_disabled": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "warn"},
    "engine_version": {"type": "str"},
    "validate": {"type": "str", "choices": ["auto", "true", "false"], "default": "auto"},
    "require_runtime": {"type": "bool", "default": False},
    "backup_dir": {"type": "path"},
}
# Options with a value that differs between engines.
_OF_ONE_ENGINE = ("config_path", "engine_version")


def request_of(params: t.Mapping[str, t.Any]) -> engines_request.RuntimeRequest:
    """Return the request that the options describe."""
    return engines_request.RuntimeRequest(
        runtime_name=params["runtime_name"],
        runtime_dir=params["runtime_dir"],
        extra_modes=tuple(params["extra_modes"]),
        set_as_default=params["set_as_default"],
        enable_cdi=_SWITCH.get(params["enable_cdi"], params["enable_cdi"]),
        config_mode=params["config_mode"],
        drop_in_path=params["drop_in_path"],
        runtime_type=params["runtime_type"],
        runtime_options=params["runtime_options"],
        container_annotations=tuple(params["container_annotations"]),
        cri_disabled=params["cri_disabled"],
        use_legacy_config=params["use_legacy_config"],
        register=params["register"],
    )


def options_of(params: t.Mapping[str, t.Any], request: engines_request.RuntimeRequest | None) -> configure.Options:
    """Return the options of a task for any engine. ``request`` is None for a removal."""
    return configure.Options(
        engine="",
        request=request,
        config_path=params["config_path"],
        engine_version=params["engine_version"],
        validate=params["validate"],
        backup_dir=params["backup_dir"],
        purge_legacy=params["purge_legacy"],
        require_runtime=params["require_runtime"],
    )


def check_for_targets(params: t.Mapping[str, t.Any], targets: t.Sequence[str]) -> None:
    """Raise NvidiaError for options that describe one engine if there are several."""
    named = [f"{errors.option:{name}}" for name in _OF_ONE_ENGINE if params[name] is not None]
    if named and len(targets) > 1:
        raise errors.NvidiaError(
            f"{' and '.join(named)} can only be set for one engine, but {errors.option:targets} has"
            f" {', '.join(targets)}. Use one task for each engine."
        )
