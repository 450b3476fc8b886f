# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Inspect a host, and run later tasks of the play ahead, as long as they change nothing.

The action plugin of nvidia_container_info sends the options of these tasks (plugin_utils/_ahead.py). It returns the
result of such a run as that of the task itself. A task without a result here runs as always.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes, errors, json_data, later_tasks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import container_info

if t.TYPE_CHECKING:
    _Work = t.Callable[[_module.Module], t.Mapping[str, t.Any]]
    _Result = t.Dict[str, t.Any]

SPEC: dict[str, dict[str, t.Any]] = {
    "inspection": {"type": "dict", "required": True},
    **_module.BUNDLED_OPTIONS,
}


def describe(module: _module.Module) -> dict[str, t.Any]:
    """Return the result of nvidia_container_info, and the results of later tasks by their module as ``ahead``.

    Raises NvidiaError if the inspection fails. The action plugin then runs nvidia_container_info, which reports why.
    """
    # Nothing changes meanwhile, and the tasks ask the same programs for their versions.
    module.run_command = _remembered(module.run_command)  # type: ignore[method-assign]
    inspection = _module.with_options(module, container_info.SPEC, module.params["inspection"])
    # The other parts of the report are not imported here, which keeps what is sent to the host small.
    report = container_info.describe(inspection, host_parts.describe_host)
    text = (module.params[core_constants.BUNDLED] or {}).get(later_tasks.AHEAD)
    # A host without a GPU is left as it is, or has few of these tasks.
    if text is None or "needed" in report or report["toolkit"]["gpu"]["present"] is False:
        return report
    warnings = errors.take_warnings()
    targets = container_info.targets_of(inspection, report)
    found = _results(module, json_data.load(text), report["toolkit"]["package_manager"] or "", targets)
    return {**report, later_tasks.AHEAD: found, "warnings": [*report.get("warnings", ()), *warnings]}


def _remembered(run: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    """Return a function that remembers the results of commands that succeeded, and does not run them again.

    A command that failed because another program holds a lock is repeated (packages_base.retry_while_locked).
    """
    known: dict[tuple[str, ...], t.Any] = {}

    def run_once(argv: list[str], **options: t.Any) -> t.Any:
        key = tuple(argv)
        result = known[key] if key in known else run(argv, **options)
        if not result[0]:
            known[key] = result
        return result

    return run_once


def _results(
    module: _module.Module, tasks: t.Mapping[str, t.Any], manager: str, targets: list[str]
) -> dict[str, _Result]:
    """Return the results of the tasks that change nothing, until the first one that changes something."""
    found: dict[str, _Result] = {}
    try:
        for name, (spec, work) in _works().items():
            if name not in tasks or (name == later_tasks.RUNTIME and not targets):
                continue
            result = _run(module, spec, work, later_tasks.completed(name, tasks[name], manager, targets))
            if result is not None:
                found[name] = result
    except changes.ChangeRefusedError:
        pass
    return found


def _works() -> dict[str, tuple[dict[str, dict[str, t.Any]], _Work]]:
    """Return the specifications and functions of the modules, in the order of their tasks."""
    # A host that is left as it is does not need these imports.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import (  # noqa: PLC0415
        cdi_spec,
        runtime_config,
        toolkit_options,
        toolkit_packages,
    )

    return {
        later_tasks.INSTALL: (toolkit_options.SPEC, toolkit_packages.install),
        later_tasks.CDI: (cdi_spec.SPEC, cdi_spec.describe),
        later_tasks.RUNTIME: (runtime_config.SPEC, runtime_config.configure),
    }


def _run(module: _module.Module, spec: dict[str, dict[str, t.Any]], work: _Work, options: _Result) -> _Result | None:
    """Return the result of a task that changes nothing, has no warning, and needs no restart; None for others.

    Raises ChangeRefusedError if the task would change the host.
    """
    warnings: list[str] = []
    try:
        task = _module.with_options(module, spec, options)
        task.warn = warnings.append  # type: ignore[method-assign, assignment]
        with changes.refuse_changes():
            result = {**work(task)}
    except changes.ChangeRefusedError:
        raise
    except Exception:  # noqa: BLE001 - the task itself reports the error, whatever it is
        return None
    finally:
        warnings += errors.take_warnings()
    if result["changed"]:
        raise changes.ChangeRefusedError
    if warnings or result.pop("warnings", ()) or any(row["restart_required"] for row in result.get("engines", ())):
        return None
    return result
