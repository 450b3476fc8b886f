# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_check_settings: it checks a host's variables on the controller."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._settings import (
    Known,
    known_variables,
    name_problems,
    value_problems,
)

# The same as in plugins/modules/nvidia_check_settings.py.
ARGUMENTS: dict[str, dict[str, t.Any]] = {"own_variables": {"type": "list", "elements": "str", "default": []}}
_COLLECTION = Path(__file__).resolve().parents[2]


class ActionModule(ActionBase):
    """The action that refuses misspelled variables, and values that a role would refuse only after other changes.

    Only the variables of roles are evaluated, in the same way as by the roles. Of all others only the names are read.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(argument_spec=ARGUMENTS)  # type: ignore[no-untyped-call]
        variables = task_vars or {}
        known = known_variables(_COLLECTION)
        # A host chooses the names of its facts, so they are not checked.
        names = set(variables) - set(variables.get("ansible_facts") or {})
        errors, warnings = name_problems(names, known, given["own_variables"])
        errors += self._value_problems(known, variables)
        if errors:
            return {**result, "failed": True, "msg": "\n".join(errors), "warnings": warnings}
        return {**result, "changed": False, "warnings": warnings}

    def _value_problems(self, known: Known, variables: t.Mapping[str, t.Any]) -> list[str]:
        values: dict[str, t.Any] = {}
        problems = []
        for name in known.options:
            try:
                # In a dictionary, newer releases of Ansible remove values that are omit.
                evaluated = self._templar.template({name: variables[name]} if name in variables else {})
            except AnsibleUndefinedVariable:
                # The value may refer to the result of a later task.
                continue
            except AnsibleError as error:
                problems.append(f"{name} cannot be evaluated: {error}")
                continue
            values.update({key: value for key, value in evaluated.items() if value != variables.get("omit")})
        validated = ArgumentSpecValidator(known.options).validate(values, validate_role_argument_spec=True)
        problems += [f"{message[:1].upper()}{message[1:]}" for message in validated.error_messages]
        return problems or value_problems(validated.validated_parameters, self._is_file)

    def _is_file(self, path: str) -> bool:
        """Return whether this task file exists where the role searches for it."""
        role = str(_COLLECTION / "roles/nvidia_runtime")
        return Path(self._loader.path_dwim_relative(role, "tasks", path)).is_file()
