# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_runtime_config: configure container engines."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import configure as engines_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors, parameters

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

SPEC: dict[str, dict[str, t.Any]] = {
    "engine": {"type": "str", "choices": list(flavors.ENGINES)},
    "targets": {"type": "list", "elements": "str"},
    **flavors.TARGET_OPTIONS,
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "service": {"type": "str"},
    **parameters.SPEC,
    "unrecorded": {"type": "str", "choices": ["keep", "remove"], "default": "keep"},
    "purge_backups": {"type": "bool", "default": False},
    **_module.HOST_ROOT_OPTIONS,
    **_module.PREDICTED_OPTIONS,
    **_module.BUNDLED_OPTIONS,
}


def configure(module: _module.Module) -> dict[str, object]:
    """Plan and write the configuration. Return the result as documented."""
    _module.load_bundled_packages(module)
    host = _module.host_from_params(module)
    options = _options(module.params)
    if module.params["targets"] is None:
        return _configure_engine(module, host, options)
    return _configure_targets(module, host, options)


def _options(params: dict[str, t.Any]) -> engines_configure.Options:
    request = parameters.request_of(params) if params["state"] == "present" else None
    return parameters.options_of(params, request)._replace(
        engine=params["engine"],
        flavor=params["flavor"],
        user=params["user"],
        service=params["service"],
        purge_backups=params["purge_backups"],
        keep_unrecorded=params["unrecorded"] == "keep",
    )


def _configure_engine(
    module: _module.Module, host: hostfs.HostFS, options: engines_configure.Options
) -> dict[str, t.Any]:
    result = engines_configure.ConfigureEngine(options, host, _module.command_runner(module)).execute(module.check_mode)
    return {
        "changed": result.changed,
        "diff": [
            entry
            for file in result.files
            for entry in _module.diff_of([file], _mask_of("json" if file.path.endswith(".json") else result.syntax))
        ],
        "config_path": result.config_path,
        "drop_in_path": result.drop_in_path,
        "config_version": result.config_version,
        "engine_version": result.engine_version,
        "runtimes": result.runtimes,
        "default_runtime": result.default_runtime,
        "cdi": result.cdi,
        "backup_files": result.backup_files,
        "restart_action": str(result.restart_action),
        "restart_required": bool(result.pending_action),
        "pending_action": None if result.pending_action is None else str(result.pending_action),
        "missed_toolkit": result.missed_toolkit,
        "target": result.target,
        "purged": [leftover._asdict() for leftover in result.leftovers],
        "unrecorded": result.unrecorded,
        "service": result.service,
        "socket": result.socket,
        "warnings": [*result.warnings, *_pods_to_delete(host, result)],
    }


def _pods_to_delete(host: hostfs.HostFS, result: engines_configure.ConfigureResult) -> list[str]:
    """Return a warning if the default runtime of the kubelet's engine becomes one of NVIDIA."""
    default, previous = result.default_runtime, result.previous_default
    is_new = result.changed and previous not in ("", default) and flavors.FACTS[result.target.partition("/")[0]].cri
    if not is_new or not engines_base.is_nvidia_runtime(default, result.runtimes.get(default)):
        return []
    # Only a change of the default needs these imports.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions, kubelet  # noqa: PLC0415

    try:
        found = distributions.find_kubelet(host)
        settings = kubelet.read_settings(host, found) if found is not None else None
    except core_errors.NvidiaError:
        return []
    if found is None or settings is None:
        return []
    if kubelet.target_of_endpoint(host, settings.endpoint, found.distribution.name) != result.target:
        return []
    message = (
        f"{default} becomes the default runtime of {result.target}, which a kubelet uses. The kubelet restarts a"
        " container in the sandbox of its pod, with the previous runtime. Delete the pods that need GPUs and were"
        " created before, also those of the device plugin."
    )
    return [message]


def _mask_of(syntax: str) -> t.Callable[[str], str]:
    """Return the function that hides secrets. An engine in TOML may also have files in JSON, such as hooks."""
    # An unchanged host with an engine in TOML does not need this import.
    if syntax == "json":
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document  # noqa: PLC0415

        return json_document.mask_json

    return toml_document.mask_toml


def _configure_targets(
    module: _module.Module, host: hostfs.HostFS, options: engines_configure.Options
) -> dict[str, t.Any]:
    """Configure each engine of the option ``targets``. Raises NvidiaError after the last one if any has failed."""
    engines: list[dict[str, t.Any]] = []
    diff: list[dict[str, str]] = []
    failures: list[str] = []
    # A list in one string can have spaces. A second change of one engine would hide the first one in the result.
    names = list(dict.fromkeys(name.strip() for name in module.params["targets"]))
    for name in names:
        try:
            parameters.check_for_targets(module.params, names)
            result = _configure_engine(module, host, options.for_target(name))
        except core_errors.NvidiaError as error:
            if "needed" in error.details and not any(engine["changed"] for engine in engines):
                # The controller sends the package and repeats the task.
                raise
            failures.append(f"{name}: {error}")
            result = {"changed": False, "diff": [], "warnings": [], "error": _module.message_of(str(error))}
        diff += result.pop("diff")
        for warning in result.pop("warnings"):
            _module.warn(module, warning)
        engines.append({**result, "target": name})
    results = {"changed": any(engine["changed"] for engine in engines), "diff": diff, "engines": engines}
    if failures:
        failure = core_errors.NvidiaError(" | ".join(failures))
        failure.details = results
        raise failure
    return results
