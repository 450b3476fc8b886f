# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check a host's variables: those of nvidia_check_settings, those of the audit, and the facts in every task.

Private to this collection. ``_settings`` has the rules. This file evaluates the variables.
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _controller_variables, _role_state, _settings

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

_COLLECTION = Path(__file__).resolve().parents[2]
# Read here, since Ansible imports an action plugin once, before it forks for the hosts.
KNOWN = _settings.known_variables(_COLLECTION)
# The variables that no fact may set, and those in which later tasks find the results of earlier ones.
_NO_FACTS = _controller_variables.controller_variables(_COLLECTION, KNOWN.settings) | KNOWN.internal
# The playbook that runs without the check.
_AUDIT = "audit"
_OWN_VARIABLES = "nvidia_own_variables"
# The tasks with which Ansible runs the handlers have the tag always too.
_SKIPS_ALWAYS = (
    "The tag always is skipped (--skip-tags), and with it the check of the variables, the inspection of the host, and"
    " the restarts of the engines. Do not skip this tag."
)
# This role cannot do without its first task, which has the tag always, in other plays either.
_NEEDS_ALWAYS = "nvidia_toolkit"
_WORD = re.compile(r"\w+")
# They contain all other variables.
_ALL_VARIABLES = frozenset({"vars", "hostvars"})


class Problems(t.NamedTuple):
    """Errors, with which the task fails, and warnings."""

    errors: list[str]
    warnings: list[str]


def check(action: ActionBase, variables: t.Mapping[str, t.Any], own: t.Collection[str]) -> Problems:
    """Check the names and values of all variables of a host.

    Args:
        action: The action of the task.
        variables: The variables of the host, of which only those of the roles are evaluated. Those of facts are not
            checked: a host that fails here stops all hosts.
        own: The user's own variables, which are not checked.
    """
    names = _names(variables)
    errors, warnings = _settings.name_problems(names, KNOWN, own)
    known = {name: value for name, value in variables.items() if name in names or name not in KNOWN.settings}
    errors += _value_problems(action, _values(action, known, KNOWN.settings))
    return Problems(errors, warnings)


def skipped_tag(action: ActionBase, variables: t.Mapping[str, t.Any]) -> str:
    """Return an error if the tasks on which the task of a role depends are skipped, else an empty text."""
    # No public attribute has the role of a task.
    role: t.Any = getattr(action._task, "_role", None)  # noqa: SLF001
    if role is None or not _is_own(role):
        return ""
    needs_always = _role_state.PLAY in variables or _name(role) == _NEEDS_ALWAYS
    return _SKIPS_ALWAYS if needs_always and "always" in (variables.get("ansible_skip_tags") or ()) else ""


def check_names_for_audit(action: ActionBase, variables: t.Mapping[str, t.Any]) -> Problems:
    """Check the names of variables for the playbook audit, which uses few variables of the roles.

    A misspelled variable of a role is a warning, since it must not prevent the report.
    """
    errors, warnings = _settings.name_problems(_names(variables), KNOWN, _own_variables(action, variables))
    of_audit = [error for error in errors if error.startswith(_settings.AUDIT)]
    of_report = {name for name in KNOWN.of_audit if name.startswith((_settings.AUDIT, _settings.HOSTS))}
    of_audit += _values(action, variables, of_report).errors
    return Problems(of_audit, [*(error for error in errors if error not in of_audit), *warnings])


def check_values_for_audit(action: ActionBase, variables: t.Mapping[str, t.Any]) -> list[str]:
    """Return an error for each setting of the playbook audit that cannot be evaluated for a host."""
    return _values(action, variables, KNOWN.of_audit).errors if variables.get(_role_state.PLAY) == _AUDIT else []


def _own_variables(action: ActionBase, variables: t.Mapping[str, t.Any]) -> list[str]:
    own: t.Any = action._templar.template(variables.get(_OWN_VARIABLES) or [])  # noqa: SLF001
    return own if isinstance(own, list) else [str(own)]


def is_task_of(action: ActionBase, name: str) -> bool:
    """Return whether the task is one of this role of the collection."""
    return is_in_role(action._task, name)  # noqa: SLF001


def is_in_role(task: object, name: str) -> bool:
    """Return whether a task belongs to this role of the collection."""
    role: t.Any = getattr(task, "_role", None)
    return role is not None and _is_own(role) and _name(role) == name


def _is_own(role: t.Any) -> bool:
    return Path(role._role_path).resolve().parent == _COLLECTION / "roles"  # noqa: SLF001


def _name(role: t.Any) -> str:
    return Path(role._role_path).name  # noqa: SLF001


def _names(variables: t.Mapping[str, t.Any]) -> set[str]:
    """Return the names of variables that are no facts: a host chooses the names of its facts."""
    return set(variables) - set(variables.get("ansible_facts") or {})


def facts_problems(variables: t.Mapping[str, t.Any]) -> list[str]:
    """Refuse facts of a host that name files of the controller, or that decide about other hosts."""
    found = _controller_variables.chosen_by_facts(_NO_FACTS, variables.get("ansible_facts") or {})
    if not found:
        return []
    problem = "set by facts of this host, which must not name files of the controller, nor decide about other hosts"
    advice = (
        "Set them in the inventory or in the play, not as cacheable facts, and remove the facts of this host from the"
        " fact cache."
    )
    return [f"{', '.join(found)}: {problem}. {advice}"]


class _Values(t.NamedTuple):
    """The evaluated variables, the errors of others, and the names of those that refer to what is not known yet."""

    values: dict[str, t.Any]
    errors: list[str]
    unknown: set[str]


def _values(action: ActionBase, variables: t.Mapping[str, t.Any], names: t.Collection[str]) -> _Values:
    """Evaluate these settings of a host. One that refers to a variable that is not set is an error.

    A template of a role that tolerates a missing setting would take it for a setting that is not set.
    """
    found = _Values({}, [], set())
    # The defaults of the roles are not among the variables of other plays.
    known = {**KNOWN.defaults, **variables}
    templar: t.Any = action._templar.copy_with_new_env(available_variables=known)  # noqa: SLF001
    for name in sorted({*names} & set(variables)):
        try:
            # In a dictionary, newer releases of Ansible remove values that are omit.
            evaluated = templar.template({name: variables[name]})
        except AnsibleError as error:
            if isinstance(error, AnsibleUndefinedVariable) and _is_set_later(variables[name], known):
                found.unknown.add(name)
            else:
                advice = f"Define what it refers to, or correct {name}."
                found.errors.append(f"{name} cannot be evaluated: {str(error).rstrip('. ')}. {advice}")
        else:
            # Older releases have a placeholder for omit.
            omitted = variables.get("omit")
            found.values.update({key: value for key, value in evaluated.items() if value is None or value != omitted})
    return found


def _is_set_later(value: t.Any, variables: t.Mapping[str, t.Any]) -> bool:
    """Return whether a value refers to what a later task finds, such as the inspection of the host."""
    seen: set[str] = set()
    waiting = [value]
    while waiting:
        names = set(_WORD.findall(str(waiting.pop()))) - seen - _ALL_VARIABLES
        seen |= names
        known = (variables[name] for name in names & variables.keys())
        waiting += [found for found in known if isinstance(found, (str, list, dict))]
    return not KNOWN.internal.isdisjoint(seen - variables.keys())


def _value_problems(action: ActionBase, found: _Values) -> list[str]:
    """Check the values of the variables of all roles."""
    values = {name: value for name, value in found.values.items() if name in KNOWN.options}
    validated, refused = converted(values)
    problems = [*found.errors, *_settings.shape_problems(values, KNOWN.options), *refused]

    def is_file(path: str) -> bool:
        """Return whether this task file exists where the handlers of the role search for it."""
        role = str(_COLLECTION / "roles/nvidia_runtime")
        found = action._loader.path_dwim_relative(role, "handlers", path, is_role=True)  # noqa: SLF001
        return Path(found).is_file()

    known = {name: value for name, value in validated.items() if value is not None}
    problems = problems or _settings.value_problems(known, is_file)
    return problems or [*_settings.refused_options(known, found.unknown)]


def converted(values: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    """Return the values of variables in the types of their argument specifications, and what these refuse.

    In a dictionary ROLE_module_options, the value of each option that is not set is None.
    """
    result = ArgumentSpecValidator({name: KNOWN.options[name] for name in values}).validate(values)
    # This message has only the names of the options.
    unknown = [f"unknown option: {error.msg}" for error in result.errors if isinstance(error, UnsupportedError)]
    others = [error.msg for error in result.errors if not isinstance(error, UnsupportedError)]
    return result.validated_parameters, [f"{text[:1].upper()}{text[1:]}" for text in (*unknown, *others)]
