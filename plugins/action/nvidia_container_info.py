# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of nvidia_container_info. In site.yml and rolling.yml, later tasks of the play run ahead with it."""

from __future__ import annotations

import json
import typing as t

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import later_tasks, printable
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _ahead, _check
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import BundledAction

_MODULE = "gpufleet.nvidia.nvidia_site_plan"


class ActionModule(BundledAction):
    """The action that also sends the options of later tasks of the play, with the module that runs them."""

    _tasks: t.Mapping[str, t.Any] = {}

    def run_module(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        variables = task_vars or {}
        errors = _check.check_values_for_audit(self, variables)
        if errors:
            raise AnsibleActionFail(printable.line(" ".join(errors)))
        if not _ahead.looks_ahead(self, variables):
            return super().run_module(tmp, task_vars)
        self._tasks = _ahead.tasks_ahead(self, variables)
        result = super().run_module(tmp, task_vars)
        return _ahead.kept(self, variables, self._tasks, result)

    def bundle(self, names: t.Iterable[str]) -> dict[str, str]:
        found = super().bundle(names)
        return {**found, later_tasks.AHEAD: json.dumps(self._tasks)} if found and self._tasks else found

    def _execute_with_packages(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        if self._tasks:
            given = {"inspection": {**self._task.args}}
            # The inherited method removes what it uses from its options.
            result = super()._execute_with_packages(*args, **kwargs, module_name=_MODULE, module_args=given)
            if not result.get("failed") and isinstance(result.get("toolkit"), dict):
                return {**result, "invocation": {"module_args": {**self._task.args}}}
            # The task itself reports an error.
            self._tasks = {}
        return super()._execute_with_packages(*args, **kwargs)
