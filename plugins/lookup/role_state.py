# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lookup role_state: what the roles have found and decided about a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: role_state
author:
  - gpufleet.nvidia maintainers (@gpufleet)
version_added: 1.2.0
short_description: What the roles have found and decided about a host
description:
  - The roles and playbooks of this collection read their decisions with this plugin, so that they need no expressions
    for them. It is not meant for other plays, and changes without notice.
options:
  _terms:
    description:
      - One of V(reused), V(of_root), V(pending), V(verifications), V(errors), V(targets), V(lines),
        V(toolkit), and V(without_cuda_compat).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Print the state of the host
  ansible.builtin.debug:
    msg: "{{ query('gpufleet.nvidia.role_state', 'lines') }}"
"""

RETURN = r"""
_raw:
  description: A list, whose elements depend on the term.
  type: list
  elements: raw
"""

import typing as t

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _role_state, _toolkit_plan
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._reports import lines_of

Found = t.Callable[[t.Mapping[str, t.Any], _role_state.RoleState], t.Sequence[t.Any]]
_TERMS: dict[str, Found] = {
    "reused": lambda _variables, state: [True] if state.reuses_inspection() else [],
    "of_root": lambda _variables, state: [True] if state.selects.wanted.of_root else [],
    "targets": lambda _variables, state: _role_state.targets_with_gpus(state),
}
_WITHOUT_SETTINGS: dict[str, t.Callable[[t.Mapping[str, t.Any]], t.Sequence[t.Any]]] = {
    "pending": _role_state.pending_of,
    "verifications": _role_state.verifications_of,
    "errors": _role_state.errors_of,
    "lines": lambda variables: [line for line, _error in lines_of(variables)],
}


# The terms of the other roles, with the variable that they read.
_OF_VARIABLE: dict[str, tuple[str, t.Callable[[t.Mapping[str, t.Any], t.Any], t.Any]]] = {
    "toolkit": (_toolkit_plan.SETTINGS, _toolkit_plan.plan_of),
    "without_cuda_compat": ("nvidia_cdi_toolkit_settings", _role_state.without_cuda_compat),
}


class LookupModule(LookupBase):
    """The lookup that passes decisions of Python to tasks."""

    def run(self, terms: list[t.Any], variables: t.Mapping[str, t.Any] | None = None, **_options: t.Any) -> list[t.Any]:
        known = variables or {}
        found: list[t.Any] = []
        for term in terms:
            if term in _WITHOUT_SETTINGS:
                found += _WITHOUT_SETTINGS[term](known)
            elif term in _TERMS:
                settings = t.cast("t.Any", self._templar).template(known[_role_state.SETTINGS])
                found += _TERMS[term](known, _role_state.RoleState(known, settings))
            elif term in _OF_VARIABLE:
                name, decide = _OF_VARIABLE[term]
                found.append(decide(known, t.cast("t.Any", self._templar).template(known[name])))
            else:
                names = ", ".join([*_TERMS, *_WITHOUT_SETTINGS, *_OF_VARIABLE])
                raise AnsibleLookupError(f"{term!r} is not one of {names}.")
        return found
