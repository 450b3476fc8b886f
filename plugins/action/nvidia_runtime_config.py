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
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._role_state import SETTINGS, RoleState, items, tables

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
# The value of ``targets`` in the task of the role. The user as whom the task runs is in _USER, empty for root.
_SELECTED = "selected"
_USER = "nvidia_runtime_user"
_INFO = "gpufleet.nvidia.nvidia_container_info"
_NOT_REPORTED = (
    "It runs, but the task that ran as this user did not report it. Ask the user, or remove the user from"
    " nvidia_runtime_users."
)
# The lists in the results of several runs of the module that are joined.
_LISTS = ("warnings", "deprecations")


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
    """The task of the role for root, or for one user: select the engines, configure them, and plan what remains."""

    def __init__(self, action: ActionModule, state: RoleState, variables: dict[str, t.Any]) -> None:
        self._action, self._state, self._variables = action, state, variables
        self._user = str(variables.get(_USER) or "")

    def run(self) -> dict[str, t.Any]:
        """Return the merged results of the module, with the plan of the handlers as ``work``."""
        selection = self._selection()
        if isinstance(selection, dict):
            return selection
        if selection.errors:
            return {"failed": True, "changed": False, "msg": " ".join(selection.errors)}
        targets = selection.targets
        if self._user:
            own = engine_selection.target_of(self._user)
            if own not in targets and self._state.runs_engine(self._user):
                return self._not_configured(_NOT_REPORTED)
            groups = [[own]] if own in targets else []
        else:
            groups = _engine_selection.groups_of_root(targets)
        result = _merged([self._configured(group) for group in groups])
        if self._user and not groups:
            result.update(self._without_engine(selection))
        return self._planned(selection, result)

    def _selection(self) -> _engine_selection.Selection | dict[str, t.Any]:
        """Return the engines of the host, or a failure. Inspect what no earlier task has inspected."""
        state = self._state
        problem = state.problems_of_users().get(self._user)
        if problem is not None:
            return self._not_configured(problem)
        if self._user in state.engines_of_users():
            return state.selection()
        if self._user:
            found = self._inspected(require_root=False)
            if isinstance(found, dict):
                return self._not_configured(str(found.get("msg")))
            return state.selection(of_users={self._user: tables(found)})
        if state.inspection() is not None:
            return state.selection()
        found = self._inspected(require_root=state.selects.wanted.of_root)
        return found if isinstance(found, dict) else state.selection({"engines": found})

    def _not_configured(self, problem: str) -> dict[str, t.Any]:
        """Return the result for a user whose engine is left as it is. The host does not fail because of a user."""
        target = engine_selection.target_of(self._user)
        engine = {"target": target, "changed": False, "error": problem}
        # What an earlier run of the role in this play has planned for the user stays.
        work = [entry for entry in self._state.earlier_entries() if self._is_of_user(entry)]
        return {"changed": False, "engines": [engine], "errors": [], "work": work, "warnings": [self._warning(problem)]}

    def _warning(self, problem: str) -> str:
        verb = "configured" if self._state.selects.state == _engine_selection.PRESENT else "removed"
        host, target = self._variables.get("inventory_hostname", ""), engine_selection.target_of(self._user)
        return f"{host}: {target} is not {verb}: {problem}"

    def _without_engine(self, selection: _engine_selection.Selection) -> dict[str, t.Any]:
        """Return the warning about a user for whom nothing is configured, and the part of the host's closing line."""
        if self._state.selects.state != _engine_selection.PRESENT:
            return {}
        own = engine_selection.target_of(self._user)
        installed = any(engine["target"] == own and engine["installed"] for engine in selection.engines)
        if installed:
            reason, advice = "nvidia_runtime_engines and nvidia_runtime_flavor do not select it", f"Add {own} to them"
        else:
            reason, advice = "this host has no rootless Docker of that user", f"Install it as {self._user}"
        warning = (
            f"{own} was not configured, because {reason}. {advice}, or remove {self._user} from nvidia_runtime_users"
            " of this host."
        )
        host = self._variables.get("inventory_hostname", "")
        return {
            "without_engine": {"target": own, "reason": "not selected" if installed else "not installed"},
            "warnings": [f"{host}: {warning}"],
        }

    def _inspected(self, *, require_root: bool) -> list[t.Any] | dict[str, t.Any]:
        """Return the engines of the host, or the failure of the inspection."""
        settings = self._state.settings
        args = {"gather_subset": ["engines"], "require_root": require_root,
                "host_root": settings["host_root"], "host_root_live": settings["host_root_live"]}  # fmt: skip
        result = self._action.run_once(_INFO, args, self._variables)
        engines = result.get("engines")
        return result if result.get("failed") or not isinstance(engines, list) else engines

    def _configured(self, group: list[str]) -> dict[str, t.Any]:
        args = {**self._action.arguments, "targets": group}
        if self._user:
            args.pop("backup_dir", None)
        result = self._action.run_once("gpufleet.nvidia.nvidia_runtime_config", args, self._variables)
        return {**result, "engines": _complete(group, result)}

    def _planned(self, selection: _engine_selection.Selection, result: dict[str, t.Any]) -> dict[str, t.Any]:
        earlier = self._state.earlier_entries()
        planner = _restart_plan.Planner(selection, self._state.options(), earlier)
        plan = planner.plan(result["engines"], is_first=not self._user)
        for entry in plan.entries:
            entry["id"] = str(uuid.uuid4())
        new = {_restart_plan.key_of(entry) for entry in plan.entries}
        mine = [entry for entry in earlier if self._is_mine(entry, selection)]
        kept = [entry for entry in mine if _restart_plan.key_of(entry) not in new]
        host = self._variables.get("inventory_hostname", "")
        warnings = [f"{host}: {text}" for text in plan.warnings]
        if self._user:
            # The host does not fail because of a user.
            warnings += [self._warning(str(engine["error"])) for engine in result["engines"] if "error" in engine]
        return {
            **result,
            "changed": result["changed"] or plan.changed,
            "runtime_name": self._state.options().runtime_name,
            "work": [*kept, *plan.entries],
            "errors": [] if self._user else [*self._earlier_errors(), *plan.errors],
            "play": self._action.play,
            "warnings": [*result["warnings"], *warnings],
        }

    def _earlier_errors(self) -> list[str]:
        """Return the errors of an earlier run of the role in this play, with which the host has not failed yet."""
        registered = items(self._variables.get("nvidia_runtime_result"))
        of_play = [result for result in registered if result.get("play") == self._action.play]
        reported = self._variables.get("nvidia_runtime_reported_errors") or []
        errors = [str(error) for result in of_play for error in result.get("errors") or []]
        return [error for error in errors if error not in reported]

    def _is_mine(self, entry: dict[str, t.Any], selection: _engine_selection.Selection) -> bool:
        """Return whether this task keeps an earlier entry: that of a user its own, that of root all others."""
        if self._user:
            return self._is_of_user(entry)
        return not (self._is_of_root_directory(entry) and entry["user"] in selection.users)

    def _is_of_user(self, entry: dict[str, t.Any]) -> bool:
        return self._is_of_root_directory(entry) and bool(entry["user"] == self._user)

    def _is_of_root_directory(self, entry: dict[str, t.Any]) -> bool:
        """Return whether an entry is about the same root directory of the host as this task."""
        return bool(entry["engine_info"]["host_root"] == self._state.settings["host_root"])


def _merged(results: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """Return one result for several runs of the module."""
    merged: dict[str, t.Any] = {"changed": any(result.get("changed") is True for result in results)}
    merged["engines"] = [engine for result in results for engine in result["engines"]]
    diffs = [result.get("diff", []) for result in results]
    merged["diff"] = [entry for diff in diffs for entry in (diff if isinstance(diff, list) else [diff])]
    for name in _LISTS:
        merged[name] = [text for result in results for text in result.get(name) or []]
    return merged


def _names(targets: object) -> list[str]:
    """Return the value of the option ``targets``, without duplicates."""
    if isinstance(targets, str):
        targets = targets.split(",") if targets else []
    names = targets if isinstance(targets, list) else [] if targets is None else [targets]
    return list(dict.fromkeys(str(name).strip() for name in names))


def _complete(targets: list[str], result: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """Return one result for each target, with an error for those about which the module has returned nothing.

    A host, or a user as whom the module runs, can forge an answer. It can only contain these targets. An entry with
    other values would make a later task of the role fail, and so prevent the restarts of the other engines.
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
