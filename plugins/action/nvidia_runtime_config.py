# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of nvidia_runtime_config: with ``targets``, its result has one entry for each of them.

In the role nvidia_runtime it also selects the engines and plans the work of the handlers.
"""

from __future__ import annotations

import itertools
import typing as t
import uuid

from ansible.errors import AnsibleAction, AnsibleConnectionFailure, AnsibleError

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection as engine_selection
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _engine_selection, _restart_plan
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import (
    PACKAGES_OF_ENGINE,
    BundledAction,
    Packages,
)
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._role_state import SETTINGS, RoleState, configuration_of

# Their settings are in YAML, and they run as root, so one task can contain them and other engines.
_IN_YAML = ("containerd/k3s", "containerd/rke2")
# The values that every result of an engine must have, and their types.
_VALUES: dict[str, tuple[type, ...]] = {
    "changed": (bool,),
    "restart_required": (bool,),
    "restart_action": (str,),
    "pending_action": (str, type(None)),
    "runtimes": (dict,),
    "default_runtime": (str,),
    "backup_files": (list,),
    "service": (str,),
    "cdi": (bool, type(None)),
}
# The value of ``targets`` in the task of the role.
_SELECTED = "selected"
_INFO = "gpufleet.nvidia.nvidia_container_info"


class ActionModule(BundledAction):
    """The action that also sends the packages of all engines in ``targets``."""

    def packages_of(self, action: str, args: t.Mapping[str, t.Any]) -> Packages:
        targets = _names(args.get("targets"))
        rows = [PACKAGES_OF_ENGINE.get(name.partition("/")[0], Packages()) for name in targets]
        if not rows:
            return super().packages_of(action, args)
        always, on_demand = (tuple(dict.fromkeys(itertools.chain(*names))) for names in zip(*rows))
        if len(targets) > 1 and any(name in targets for name in _IN_YAML):
            # The module cannot request a package after it has changed another engine.
            always = tuple(dict.fromkeys([*always, *on_demand]))
        return Packages(always, on_demand)

    def run_checked(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        result = super().run_checked(tmp, task_vars)
        targets = _names(self._task.args.get("targets"))
        if _SELECTED in targets:
            return result
        # A task with async that does not wait has no result yet.
        if targets and not result.get("skipped") and (not self._task.async_val or result.get("finished")):
            result["engines"] = _complete(targets, result)
        return result

    def run_module(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        if _SELECTED not in _names(self._task.args.get("targets")):
            return super().run_module(tmp, task_vars)
        variables = task_vars or {}
        state = RoleState(variables, self._templar.template(variables[SETTINGS]))
        return _RoleTask(self, state, variables).run()

    def run_once(self, module: str, args: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Run a module of the collection, and return its result. An error of Ansible is a failure of this run."""
        try:
            result = self._execute_module(module_name=module, module_args=args, task_vars=task_vars)
        except (AnsibleAction, AnsibleConnectionFailure):
            raise
        except AnsibleError as error:
            return {"failed": True, "msg": printable.line(str(error))}
        return self.clean(result)

    @property
    def arguments(self) -> dict[str, t.Any]:
        """The options of the task."""
        args: dict[str, t.Any] = self._task.args
        return args

    @property
    def play(self) -> str:
        """A text that is the same for all tasks of a play, and for no others."""
        return str(self._task.get_play()._uuid)  # noqa: SLF001 - ansible-core has no public name


class _RoleTask:
    """The task of the role: select the engines, configure them, and plan what remains."""

    def __init__(self, action: ActionModule, state: RoleState, variables: dict[str, t.Any]) -> None:
        self._action, self._state, self._variables = action, state, variables

    def run(self) -> dict[str, t.Any]:
        """Return the result of the module, with the plan of the handlers as ``work``."""
        selection = self._selection()
        if isinstance(selection, dict):
            return selection
        if selection.errors:
            return {"failed": True, "changed": False, "msg": " ".join(selection.errors)}
        return self._planned(selection, self._configured(list(selection.targets)))

    def _selection(self) -> _engine_selection.Selection | dict[str, t.Any]:
        """Return the engines of the host, or a failure. Inspect what no earlier task has inspected."""
        state = self._state
        if state.inspection() is not None:
            return state.selection()
        found = self._inspected()
        return found if isinstance(found, dict) else state.selection({"engines": found})

    def _inspected(self) -> list[t.Any] | dict[str, t.Any]:
        """Return the engines of the host, or the failure of the inspection."""
        settings, require_root = self._state.settings, self._state.selects.wanted.of_root
        args = {"gather_subset": ["engines"], "require_root": require_root,
                "host_root": settings["host_root"], "host_root_live": settings["host_root_live"]}  # fmt: skip
        result = self._action.run_once(_INFO, args, self._variables)
        engines = result.get("engines")
        return result if result.get("failed") or not isinstance(engines, list) else engines

    def _configured(self, targets: list[str]) -> dict[str, t.Any]:
        """Run the module for these engines. Return the parts of its result that later tasks use."""
        result: dict[str, t.Any] = {}
        args = {**self._action.arguments, "targets": targets}
        if any(engine_selection.is_of_user(target) for target in targets):
            # Only root can write to the directory of the other backups.
            args.pop("backup_dir", None)
        if targets:
            result = self._action.run_once("gpufleet.nvidia.nvidia_runtime_config", args, self._variables)
        return {
            "changed": result.get("changed") is True,
            "engines": _complete(targets, result),
            "diff": result.get("diff") or [],
            "warnings": result.get("warnings") or [],
            "deprecations": result.get("deprecations") or [],
        }

    def _planned(self, selection: _engine_selection.Selection, result: dict[str, t.Any]) -> dict[str, t.Any]:
        earlier = self._state.earlier_entries()
        planner = _restart_plan.Planner(selection, self._state.options(), earlier)
        plan = planner.plan(result["engines"])
        for entry in plan.entries:
            entry["id"] = str(uuid.uuid4())
        new = {_restart_plan.key_of(entry) for entry in plan.entries}
        kept = [entry for entry in earlier if _restart_plan.key_of(entry) not in new]
        host = self._variables.get("inventory_hostname", "")
        warnings = [f"{host}: {text}" for text in plan.warnings]
        return {
            **result,
            "changed": result["changed"] or plan.changed,
            "runtime_name": self._state.options().runtime_name,
            "work": [*kept, *plan.entries],
            "errors": [*self._earlier_errors(), *plan.errors],
            "play": self._action.play,
            "warnings": [*result["warnings"], *warnings],
        }

    def _earlier_errors(self) -> list[str]:
        """Return the errors of an earlier run of the role in this play, with which the host has not failed yet."""
        registered = configuration_of(self._variables)
        if registered.get("play") != self._action.play:
            return []
        reported = self._variables.get("nvidia_runtime_reported_errors") or []
        return [str(error) for error in registered.get("errors") or [] if str(error) not in reported]


def _names(targets: object) -> list[str]:
    """Return the value of the option ``targets``, without duplicates."""
    if isinstance(targets, str):
        targets = targets.split(",") if targets else []
    names = targets if isinstance(targets, list) else [] if targets is None else [targets]
    return list(dict.fromkeys(str(name).strip() for name in names))


def _complete(targets: list[str], result: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """Return one result for each target, with an error for those about which the module has returned nothing.

    A host can forge an answer. It can only contain these targets. An entry with other values would make a later task of
    the role fail, and so prevent the restarts of the other engines.
    """
    returned = result.get("engines")
    entries = {
        entry["target"]: {**entry, "changed": entry.get("changed") is True}
        for entry in (returned if isinstance(returned, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("target"), str) and _is_usable(entry)
    }
    error = str(result.get("msg") or "The module has returned no result for this engine.")
    return [entries.get(name, {"target": name, "changed": False, "error": error}) for name in targets]


def _is_usable(entry: dict[str, t.Any]) -> bool:
    if "error" in entry:
        return isinstance(entry["error"], str)
    return all(name in entry and isinstance(entry[name], kinds) for name, kinds in _VALUES.items())
