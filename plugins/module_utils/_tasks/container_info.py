# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_container_info: inspect a host."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, variables
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import requirements, selection
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

# The facts of each part of the report that only the rules of the audit read. They are not returned.
INTERNAL: dict[str, tuple[str, ...]] = {
    "engines": ("unit_files", "socket", "selected"),
    "engines.live": ("version", "live_restore", "running_containers"),
    "toolkit": (
        "version_mismatches",
        "unsafe_settings",
        "conflicting_sources",
        "gpu_containers",
        "reboot_required",
    ),
    "toolkit.other_toolkits": ("programs", "config_path", "settings", "unsafe_settings", "problems"),
    "gpus": ("source", "advertised", "missing_nodes", "kernel", "fabric_manager"),
    "gpus.devices": ("vgpu",),
    "cdi": ("conflicts",),
    "cdi.files": ("missing_paths",),
    "kubernetes": (
        "root_dir",
        "config_files",
        "cri_endpoint",
        "source",
        "device_plugins",
        "plugin_pods",
        "plugin_processes",
        "plugin_logs",
        "device_list_strategies",
        "nri_plugin",
    ),
    "kubernetes.resources": ("recorded",),
}
# The reasons why a GPU or a specification cannot be used. They are returned as messages.
_REASONS = ("gpus.devices.reasons", "gpus.devices.mig_devices.reasons", "cdi.files.reasons")
_SELECTION: dict[str, dict[str, t.Any]] = {
    "names": {"type": "list", "elements": "str", "default": ["auto"]},
    "flavor": {"type": "str", "default": "auto"},
}
SPEC: dict[str, dict[str, t.Any]] = {
    "gather_subset": {
        "type": "list",
        "elements": "str",
        "choices": list(host_parts.SUBJECTS),
        "default": list(host_parts.SUBJECTS),
    },
    "toolkit_dir": {"type": "path", "default": toolkit_constants.DIRECTORY},
    "driver_root": {"type": "path"},
    "library_search_paths": {"type": "list", "elements": "path", "default": []},
    "selected_engines": {"type": "dict", "options": _SELECTION},
    "require_root": {"type": "bool", "default": False},
    "require_engines": {
        "type": "dict",
        "options": {
            **_SELECTION,
            "files": {"type": "bool", "default": True},
            "options": {"type": "dict"},
            "without_gpu": {"type": "bool", "default": True},
        },
    },
    **_module.HOST_ROOT_OPTIONS,
    **_module.BUNDLED_OPTIONS,
}


def describe(module: _module.Module, describe_host: t.Callable[..., dict[str, t.Any]]) -> dict[str, t.Any]:
    """Inspect the host. Return the result as documented. ``describe_host`` collects the parts of the report.

    Raises HostError if the task must run as root and does not, and NvidiaError if a required engine has a problem.
    """
    params = module.params
    if params["require_root"] and params["host_root"] == "/" and os.geteuid() != 0:
        raise errors.HostError(f"The task runs as user {os.geteuid()}, not as root. Run with -b (become).")
    _module.load_bundled_packages(module)
    host, run = _module.host_from_params(module), _module.command_runner(module)
    names = ("gather_subset", "toolkit_dir", "driver_root", "library_search_paths", "selected_engines")
    report = describe_host(host, run, **{name: params[name] for name in names})
    # A report that needs a package is not the last one: the action plugin sends the package, and runs the module again.
    if params["require_engines"] is not None and "needed" not in report:
        _require_engines(module, host, report)
    return {name: _returned(part, name) for name, part in report.items()}


def _returned(value: t.Any, place: str) -> t.Any:
    """Return a value of the report at ``place`` as documented: without the facts that only rules read."""
    if place in _REASONS:
        return [errors.in_full(reason) for reason in value]
    if isinstance(value, dict):
        internal = INTERNAL.get(place, ())
        return {name: _returned(part, f"{place}.{name}") for name, part in value.items() if name not in internal}
    return [_returned(part, place) for part in value] if isinstance(value, list) else value


def targets_of(module: _module.Module, report: t.Mapping[str, t.Any]) -> list[str]:
    """Return the engines that the later task configures; none if the options do not tell."""
    required, engines = module.params["require_engines"], report["engines"]
    if required is None or required["options"] is None or engines is None:
        return []
    return requirements.targets_of(_requirement(required), engines)


def _require_engines(module: _module.Module, host: hostfs.HostFS, report: t.Mapping[str, t.Any]) -> None:
    """Raise NvidiaError if later tasks cannot configure the engines."""
    required, engines, toolkit = module.params["require_engines"], report["engines"], report["toolkit"]
    if engines is None:
        raise errors.NvidiaError(
            f"{errors.option:require_engines} needs engines in {errors.option:gather_subset}. Add it."
        )
    if not required["without_gpu"] and toolkit is not None and toolkit["gpu"]["present"] is False:
        return
    # What is missing in an offline tree or in check mode may be installed later.
    requirement = _requirement(required)._replace(installed=host.live and not module.check_mode)
    problems = requirements.problems_of(requirement, engines)
    if required["options"] is not None:
        problems += _refused_plans(module, host, requirements.targets_of(requirement, engines), engines)
    if problems:
        raise errors.NvidiaError(" ".join(dict.fromkeys(problems)))


def _requirement(required: t.Mapping[str, t.Any]) -> requirements.Requirement:
    wanted = selection.wanted_of(required["names"], required["flavor"])
    return requirements.Requirement(wanted=wanted, files=required["files"])


def _refused_plans(
    module: _module.Module, host: hostfs.HostFS, targets: list[str], engines: t.Sequence[t.Mapping[str, t.Any]]
) -> list[str]:
    """Return why the later task cannot configure the engines, with the names of the variables of its role."""
    # Only an inspection with the options of the later task needs this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import parameters  # noqa: PLC0415

    given = module.params["require_engines"]["options"]
    params = _module.checked_options("require_engines.options", parameters.SPEC, given)
    with errors.role_variables(variables.variables_of("nvidia_runtime_config", parameters.SPEC)):
        return requirements.planned(params, targets, engines, host, _module.command_runner(module))
