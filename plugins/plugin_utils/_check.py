# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check a host's variables in a task: those of nvidia_check_settings, and the first task of each role.

Private to this collection. ``_settings`` has the rules. This file evaluates the variables, and remembers what was
checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import typing as t
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import (
    _controller_variables,
    _role_state,
    _settings,
    _templates,
    _value_shapes,
)

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

_COLLECTION = Path(__file__).resolve().parents[2]
# Read here, since Ansible imports an action plugin once, before it forks for the hosts.
KNOWN = _settings.known_variables(_COLLECTION)
# The variables that no fact may set, and those in which later tasks find the results of earlier ones.
_NO_FACTS = _controller_variables.controller_variables(_COLLECTION, KNOWN.settings) | KNOWN.internal
# The playbook that runs without the check, and without roles.
AUDIT = "audit"
OWN_VARIABLES = "nvidia_own_variables"
# The tasks with which Ansible runs the handlers have the tag always too.
_SKIPS_ALWAYS = (
    "The tag always is skipped (--skip-tags), and with it the check of the variables, the inspection of the host, and"
    " the restarts of the engines. Do not skip this tag."
)
# This role cannot do without its first task, which has the tag always, in other plays either.
_NEEDS_ALWAYS = "nvidia_toolkit"


class Problems(t.NamedTuple):
    """Errors, with which the task fails, and warnings."""

    errors: list[str]
    warnings: list[str]


def check(action: ActionBase, variables: t.Mapping[str, t.Any], own: t.Collection[str]) -> Problems:
    """Check the names and values of all variables of a host.

    Args:
        action: The action of the task.
        variables: The variables of the host, of which only those of the roles are evaluated. Those of facts are checked
            by the roles, where they stop only this host.
        own: The user's own variables, which are not checked.
    """
    names = _names(variables)
    errors, warnings = _settings.name_problems(names, KNOWN, own)
    known = {name: value for name, value in variables.items() if name in names or name not in KNOWN.settings}
    values = _values(action, known, KNOWN.settings)
    errors += _value_problems(action, values, one_tree=True)
    if not errors:
        _remember(variables, _settings_in(variables), values.unknown)
    return Problems(errors, warnings)


def check_for_role(action: ActionBase, variables: t.Mapping[str, t.Any]) -> Problems:
    """Check the variables of the roles of this collection in a play, unless a task of this run has checked them.

    A task outside of these roles has no problems: its module checks its own options.
    """
    # No public attribute has the role of a task, the roles of a play, or their variables.
    role: t.Any = getattr(action._task, "_role", None)  # noqa: SLF001
    if role is None and variables.get(_role_state.PLAY) == AUDIT:
        return Problems(facts_problems(variables) + _values(action, variables, KNOWN.named[AUDIT]).errors, [])
    if role is None or not _is_own(role):
        return Problems([], [])
    needs_always = _role_state.PLAY in variables or _name(role) == _NEEDS_ALWAYS
    if needs_always and "always" in (variables.get("ansible_skip_tags") or ()):
        return Problems([_SKIPS_ALWAYS], [])
    errors = facts_problems(variables)
    checked, views = _checked(variables), _views(role, variables)
    unchecked = [view for view in views if checked is None or not view.lines() <= checked]
    if not unchecked:
        return Problems(errors, [])
    own = [*_own_variables(action, variables), str(variables.get(_role_state.LOOP_VAR))]
    warnings: list[str] = []
    unknown: set[str] = set()
    for view in unchecked:
        of_names = _settings.name_problems(_setting_names(view.variables), KNOWN, own)
        errors += of_names[0] + _settings.parameter_problems(view.parameters, view.role, KNOWN, own)
        # A task before a later role may set what its variables refer to.
        values = _values(action, view.variables, KNOWN.named[_name(role)])
        errors += _value_problems(action, values, one_tree=False)
        warnings += of_names[1]
        unknown |= values.unknown
    if not errors:
        _remember(variables, {line for view in unchecked for line in view.lines()}, unknown)
    return Problems(list(dict.fromkeys(errors)), list(dict.fromkeys(warnings)))


def check_names_for_audit(action: ActionBase, variables: t.Mapping[str, t.Any]) -> Problems:
    """Check the names of variables for the playbook audit, which uses few variables of the roles.

    A misspelled variable of a role is a warning, since it must not prevent the report.
    """
    errors, warnings = _settings.name_problems(_names(variables), KNOWN, _own_variables(action, variables))
    of_audit = [error for error in errors if error.startswith(_settings.AUDIT)]
    own = {name for name in KNOWN.settings if name.startswith(_settings.AUDIT)} | {_settings.HOSTS}
    of_audit += _values(action, variables, own).errors
    return Problems(of_audit, [*(error for error in errors if error not in of_audit), *warnings])


def _own_variables(action: ActionBase, variables: t.Mapping[str, t.Any]) -> list[str]:
    own: t.Any = action._templar.template(variables.get(OWN_VARIABLES) or [])  # noqa: SLF001
    return own if isinstance(own, list) else [str(own)]


class _View(t.NamedTuple):
    """The variables that a role sees, and those of them that a play gives to this role only."""

    role: str
    variables: t.Mapping[str, t.Any]
    parameters: t.Mapping[str, t.Any]

    def lines(self) -> set[str]:
        return _settings_in(self.variables, self.parameters)


def _views(role: t.Any, variables: t.Mapping[str, t.Any]) -> list[_View]:
    """Return what the role of the task sees, and what the roles after it see.

    With the latter, the first role changes no host that a later one refuses.
    """
    views = [_View(_name(role), variables, _parameters(role))]
    for other in role._play.roles:  # noqa: SLF001
        given = _parameters(other) if other is not role and _is_own(other) else {}
        if given:
            views.append(_View(_name(other), {**variables, **given}, given))
    return views


def _parameters(role: t.Any) -> dict[str, t.Any]:
    return {**role._role_params, **role.vars}  # noqa: SLF001


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


def _values(action: ActionBase, variables: t.Mapping[str, t.Any], required: t.Collection[str]) -> _Values:
    """Evaluate the settings of a host. One of ``required`` is an error if it refers to a variable that is not set.

    A template of a role that tolerates a missing setting would take it for a setting that is not set.
    """
    found = _Values({}, [], set())
    # The defaults of the roles are not among the variables of other plays.
    known = {**KNOWN.defaults, **variables}
    templar: t.Any = action._templar.copy_with_new_env(available_variables=known)  # noqa: SLF001
    for name in sorted(KNOWN.settings & set(variables)):
        try:
            # In a dictionary, newer releases of Ansible remove values that are omit.
            evaluated = templar.template({name: variables[name]})
        except AnsibleUndefinedVariable as error:
            missing = _templates.missing_names(variables[name], known)
            if name not in required or not missing.isdisjoint(KNOWN.internal):
                # A later task sets it, such as the inspection of the host.
                found.unknown.add(name)
            elif missing:
                problem = f"{' and '.join(sorted(missing))} {'is' if len(missing) == 1 else 'are'} not defined"
                found.errors.append(f"{name} cannot be evaluated: {problem}. Define it, or correct {name}.")
            else:
                found.errors.append(f"{name} cannot be evaluated: {error}")
        except AnsibleError as error:
            found.errors.append(f"{name} cannot be evaluated: {error}")
        else:
            # Older releases have a placeholder for omit.
            omitted = variables.get("omit")
            found.values.update({key: value for key, value in evaluated.items() if value is None or value != omitted})
    return found


def _value_problems(action: ActionBase, found: _Values, one_tree: bool) -> list[str]:
    """Check the values of the variables of all roles."""
    values = {name: value for name, value in found.values.items() if name in KNOWN.options}
    validated = ArgumentSpecValidator(KNOWN.options).validate(values, validate_role_argument_spec=True)
    problems = [*found.errors, *_value_shapes.problems(values, KNOWN.options)]
    problems += [f"{message[:1].upper()}{message[1:]}" for message in validated.error_messages]

    def is_file(path: str) -> bool:
        """Return whether this task file exists where the handlers of the role search for it."""
        role = str(_COLLECTION / "roles/nvidia_runtime")
        found = action._loader.path_dwim_relative(role, "handlers", path, is_role=True)  # noqa: SLF001
        return Path(found).is_file()

    # The validator adds each variable that is not set, with None.
    known = {name: value for name, value in validated.validated_parameters.items() if value is not None}
    problems = problems or _settings.value_problems(known, is_file, one_tree)
    return problems or [*_settings.refused_options(known, found.unknown)]


# -- what was checked --------------------------------------------------------------------------------------------------


def _setting_names(variables: t.Mapping[str, t.Any]) -> list[str]:
    """Return the names of the variables that a user has set and that may be meant for this collection."""
    return [
        name
        for name in sorted(_names(variables))
        if name.startswith(_settings.FAMILY)
        and name not in KNOWN.internal
        and not _is_result(variables[name])
        and variables[name] not in KNOWN.given.get(name, ())
    ]


def _settings_in(variables: t.Mapping[str, t.Any], parameters: t.Collection[str] = ()) -> set[str]:
    """Return one line for each variable that a user has set and each parameter of a role: a digest, and the name."""
    others = [name for name in parameters if not name.startswith(_settings.FAMILY)]
    return {f"{_digest(variables[name])} {name}" for name in (*_setting_names(variables), *others)}


def _is_result(value: t.Any) -> bool:
    """Return whether a task has registered the value. A result is no setting, whatever its name is."""
    return isinstance(value, dict) and "failed" in value and "changed" in value


def _digest(value: t.Any) -> str:
    """Return a digest of a value, which may be a secret, as it was set: templates are not evaluated."""
    text = json.dumps(value, default=repr, skipkeys=True)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _file(variables: t.Mapping[str, t.Any]) -> Path:
    """Return the file with the digests of the host's checked variables.

    Each task runs in a process of its own. Only the user of this run can write to the directory.
    """
    host = hashlib.sha256(str(variables.get("inventory_hostname")).encode("utf-8", "backslashreplace")).hexdigest()
    return Path(constants.DEFAULT_LOCAL_TMP) / f"gpufleet-checked-{host}"  # type: ignore[attr-defined]


def _checked(variables: t.Mapping[str, t.Any]) -> set[str] | None:
    """Return what earlier tasks of this run have checked for the host; None if no task has checked anything."""
    try:
        return set(_file(variables).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return None


def _remember(variables: t.Mapping[str, t.Any], lines: t.Collection[str], unknown: t.Collection[str]) -> None:
    """Note the lines of a host's checked variables, without those of the variables ``unknown``."""
    path = _file(variables)
    lines = {line for line in lines if line.partition(" ")[2] not in unknown}
    # A delegated task of another host may read the file at the same time.
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text("\n".join(sorted({*(_checked(variables) or ()), *lines})), encoding="utf-8")
    temporary.replace(path)
