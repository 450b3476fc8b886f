# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Let the first task of site.yml and rolling.yml also run later tasks of the play, as long as they change nothing.

Private to this collection. The first task sends the options of the later tasks (tasks_ahead), and registers their
results with a digest of everything on which they depend (kept). A later task whose final options have this digest
gets its result (result_for), and starts no module. In all other cases, it runs as always: nothing here reports, changes
or fails.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import typing as t

from ansible.errors import AnsibleError
from ansible.template import Templar

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import later_tasks
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _module_options, _role_state, _toolkit_plan

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

    Values = t.Mapping[str, t.Any]

PLAYBOOKS = ("site", "rolling")
# The modules, with the role of the task, in the order of the tasks.
_ROLES = {
    later_tasks.INSTALL: "nvidia_toolkit",
    later_tasks.CDI: "nvidia_cdi",
    later_tasks.RUNTIME: "nvidia_runtime",
}
# The registered results of the first two. A later task depends on them.
_REGISTERED = ("nvidia_toolkit_installation", "nvidia_cdi_specification")
# Only this run knows the key, so nothing else can give a task a result. Ansible imports this file before it forks.
_KEY = secrets.token_bytes(32)


def looks_ahead(action: ActionBase, variables: Values) -> bool:
    """Return whether the task is the inspection in a playbook that runs later tasks ahead."""
    return variables.get(_role_state.PLAY) in PLAYBOOKS and _check.is_task_of(action, _ROLES[later_tasks.INSTALL])


def tasks_ahead(action: ActionBase, variables: Values) -> dict[str, dict[str, t.Any]]:
    """Return what the host needs to run later tasks ahead, by module, as later_tasks.completed() reads it.

    A task is left out if it is not selected, if its options or conditions cannot be evaluated yet, or if it installs
    the toolkit into a directory.
    """
    play: t.Any = _play_of(action)
    found: dict[str, dict[str, t.Any]] = {}
    for task in _tasks_in(play.tasks):
        module = str(task.action).rpartition(".")[2]
        if module not in _ROLES or module in found or not _check.is_in_role(task, _ROLES[module]):
            continue
        known = {**variables, **task.get_vars()}
        templar: t.Any = Templar(loader=action._loader, variables=known)  # noqa: SLF001 - no public attribute has it
        try:
            if task.evaluate_tags(play.only_tags, play.skip_tags, known) and _is_expected(task, templar, known):
                args = _module_options.completed(task, templar.template(task.args), templar, known)
                found[module] = _options_of(module, args, templar, known)
        except AnsibleError:
            continue
    return {module: options for module, options in found.items() if options}


def kept(action: ActionBase, variables: Values, sent: Values, result: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the result of the inspection with the results of later tasks that may be used.

    Args:
        action: The action of the inspection.
        variables: The variables of the host.
        sent: The value of tasks_ahead().
        result: What the module has returned. The host may return anything.
    """
    found = _role_state.table(result.pop(later_tasks.AHEAD, None))
    host = _toolkit_plan.Host.of(result) if found and sent else None
    if host is None or not _toolkit_plan.is_unchanged_before_installation(_settings(action, variables), host):
        return result
    results = {}
    for module, task in sent.items():
        answer = _role_state.table(found.get(module))
        if answer:
            targets = [str(engine.get("target")) for engine in _role_state.tables(answer.get("engines"))]
            options = later_tasks.completed(module, task, host.manager, targets)
            results[module] = {"digest": _digest(action, variables, module, options), "result": answer}
    return {**result, later_tasks.AHEAD: results}


def result_for(action: ActionBase, variables: Values, module: str, options: Values) -> dict[str, t.Any] | None:
    """Return the result of a task that has run ahead with these options.

    It is None if the task has not run ahead, or if an earlier task of the play has changed the host since.
    """
    if variables.get(_role_state.PLAY) not in PLAYBOOKS:
        return None
    inspection = _role_state.table(variables.get(_toolkit_plan.INFO))
    answer = _role_state.table(_role_state.table(inspection.get(later_tasks.AHEAD)).get(module))
    if not answer or any(_has_changed(variables, name) for name in _REGISTERED[: list(_ROLES).index(module)]):
        return None
    if not hmac.compare_digest(str(answer.get("digest")), _digest(action, variables, module, options)):
        return None
    return {**_role_state.table(answer.get("result"))}


def _has_changed(variables: Values, name: str) -> bool:
    result = _role_state.table(variables.get(name))
    return bool(result.get("changed") or result.get("failed"))


def _play_of(action: ActionBase) -> t.Any:
    return action._task.get_play()  # noqa: SLF001 - no public attribute has the task


def _tasks_in(blocks: t.Iterable[t.Any]) -> t.Iterator[t.Any]:
    for entry in blocks:
        if hasattr(entry, "block"):
            yield from _tasks_in(entry.block)
        else:
            yield entry


def _is_expected(task: t.Any, templar: t.Any, known: Values) -> bool:
    """Return whether the conditions of a task are true, as far as they are known before the inspection."""
    if hasattr(task, "evaluate_conditional"):
        # Before ansible-core 2.19.
        return bool(task.evaluate_conditional(templar, known))
    return all(templar.evaluate_conditional(condition) for condition in task.when)


def _options_of(module: str, args: Values, templar: t.Any, known: Values) -> dict[str, t.Any]:
    given = {name: value for name, value in _plain(args).items() if value != known.get("omit")}
    if module != later_tasks.INSTALL:
        return {"options": given}
    settings = _toolkit_plan.Settings.of(templar.template(known[_toolkit_plan.SETTINGS]))
    return _toolkit_plan.options_ahead(settings, given)


def _settings(action: ActionBase, variables: Values) -> _toolkit_plan.Settings:
    return _toolkit_plan.Settings.of(action._templar.template(variables[_toolkit_plan.SETTINGS]))  # noqa: SLF001


def _digest(action: ActionBase, variables: Values, module: str, options: Values) -> str:
    """Return a digest that only this run can compute, of all that a result depends on, except for the host."""
    task: t.Any = action._task  # noqa: SLF001 - no public attribute has the task
    parts = [_play_of(action)._uuid, variables.get("inventory_hostname"), bool(task.check_mode), module, options]  # noqa: SLF001
    text = json.dumps(_plain(parts), sort_keys=True)
    return hmac.new(_KEY, text.encode(), hashlib.sha256).hexdigest()


def _plain(value: t.Any) -> t.Any:
    """Return a value in the types of JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
