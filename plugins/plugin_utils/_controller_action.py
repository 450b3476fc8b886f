# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The base class of all actions, and that of actions that work on the controller, without a connection to the host.

Private to this collection.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _results


class CollectionAction(ActionBase):
    """The base class of all actions of this collection. It refuses facts of the host before the action does anything.

    A fact must not name files of the controller, nor decide about other hosts. ``refuses_facts`` is false for an action
    that must not fail because of a fact: a host that fails in the check of the variables stops all hosts.
    """

    refuses_facts = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        problems = _check.facts_problems(task_vars or {})
        if problems and self.refuses_facts:
            raise AnsibleActionFail(" ".join(problems))
        # The options may contain these facts. Another task refuses this host.
        return {"changed": False} if problems else self.run_checked(tmp, task_vars)

    def run_checked(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Do the work of the task, and return its result."""
        raise NotImplementedError


class ControllerAction(CollectionAction):
    """An action that checks its options and then calls work().

    ``arguments`` are the options, the same as in the documentation of the module. ``rules`` are the rules for several
    options, such as ``required_if``.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    arguments: t.ClassVar[dict[str, dict[str, t.Any]]]
    rules: t.ClassVar[dict[str, t.Any]] = {}

    def run_checked(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = ActionBase.run(self, tmp, task_vars)
        _validation, given = self.validate_argument_spec(  # type: ignore[no-untyped-call]
            argument_spec=self.arguments, **self.rules
        )
        return _results.cleaned({**result, **self.work(given, task_vars or {})})

    def work(self, given: dict[str, t.Any], variables: dict[str, t.Any]) -> dict[str, t.Any]:
        """Return the result. ``given`` are the options of the task, ``variables`` the variables of the host."""
        raise NotImplementedError
