# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_cdi_spec: write or remove a CDI specification and its refresh units."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import undescribed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import write as cdi_spec
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Seconds for nvidia-ctk, which asks NVML.
LIMIT = 120

SPEC: dict[str, dict[str, t.Any]] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "exclusive": {"type": "bool", "default": False},
    "refresh": {"type": "str", "choices": list(cdi_options.REFRESH), "default": cdi_options.NONE},
    "before_engines": {"type": "bool", "default": True},
    "when_no_driver": {"type": "str", "choices": list(undescribed.POLICIES)},
    "backup_dir": {"type": "path", "default": core_records.BACKUP_DIR},
    "purge_backups": {"type": "bool", "default": False},
    **cdi_options.CDI_OPTIONS,
    **_module.HOST_ROOT_OPTIONS,
    **_module.PREDICTED_OPTIONS,
    **_module.BUNDLED_OPTIONS,
}


def describe(module: _module.Module) -> dict[str, object]:
    """Plan and write the units and the specification. Return the result as documented."""
    _module.load_bundled_packages(module)
    host = _module.host_from_params(module)
    options = cdi_options.options_of(module.params)
    writer = cdi_spec.SpecWriter(options, host, _module.command_runner(module), _module.pinned_runner(module, LIMIT))
    missing = _missing_driver(module, options, host)
    if module.params["refresh"] == cdi_options.NONE:
        return _result_of(writer.execute(module.check_mode) if missing is None else missing.result(options, None))
    if missing is None:
        # This may need PyYAML. The controller then runs the module again, so nothing may have changed before.
        writer.read_specifications()
    units = _refresh(module, options, host)
    if missing is not None:
        return _result_of(missing.result(options, units), units)
    try:
        return _result_of(writer.execute(module.check_mode, units), units)
    except errors.NvidiaError as error:
        # The units were changed before.
        done = {name: units[name] for name in ("backup_files", "warnings")}
        error.details = {**error.details, **done, "changed": units["changed"] and not module.check_mode}
        raise


def _missing_driver(
    module: _module.Module, options: cdi_options.CdiOptions, host: hostfs.HostFS
) -> undescribed.MissingDriver | None:
    policy = module.params["when_no_driver"]
    return (
        None if policy is None or options.state == "absent" else undescribed.missing_driver(options.mode, host, policy)
    )


def _refresh(module: _module.Module, options: cdi_options.CdiOptions, host: hostfs.HostFS) -> dict[str, t.Any]:
    """Install or remove the units, and return the result of CdiRefresh."""
    # A task without refresh does not need these imports.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (  # noqa: PLC0415
        plan as refresh_plan,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (  # noqa: PLC0415
        refresh as cdi_refresh,
    )

    refresh_options = refresh_plan.RefreshOptions(
        cdi=options,
        state=options.state,
        before_engines=module.params["before_engines"],
    )
    runners = refresh_plan.Runners(_module.command_runner(module, cdi_refresh.LIMIT), _module.pinned_runner(module))
    return cdi_refresh.CdiRefresh(refresh_options, host, runners).execute(module.check_mode)


def _result_of(specification: dict[str, t.Any], units: dict[str, t.Any] | None = None) -> dict[str, object]:
    """Return the module's result for the specification, and for the units if they were requested."""
    files = specification.pop("files")
    # Ansible adds the owner and the mode of a file to a result with the key "path", and would replace the mode.
    result = {**specification, "specification": specification["path"]}
    del result["path"]
    if units is not None:
        files = [*units.pop("files"), *files]
        result["changed"] = units.pop("changed") or result["changed"]
        for name in ("backup_files", "warnings"):
            result[name] = [*units.pop(name), *result[name]]
        result["refresh"] = units
    return {**result, "diff": _module.diff_of(files)}
