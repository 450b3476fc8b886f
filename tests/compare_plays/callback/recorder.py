# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Records what the tasks of a play do, and answers for the modules of hosts that have answers.

The environment variable COMPARE_PLAYS names a directory. HOST.answers.json there has the answers of a host by the name
of the module. A host without this file runs the modules. HOST.jsonl gets one line for each module and for each result.
"""

from __future__ import annotations

import copy
import json
import os
import typing as t
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase

FOLDER = Path(os.environ["COMPARE_PLAYS"])
# The parts of an argument list that are equal for all versions, or too long to read.
_LEFT_OUT = ("_bundled", "_original_basename")
_INSPECTION = "gpufleet.nvidia.nvidia_container_info"
# What Ansible returns for a file that does not exist.
_BUILT_IN = {"ansible.legacy.stat": {"changed": False, "stat": {"exists": False}}}


def _record(host: str, **entry: t.Any) -> None:
    with (FOLDER / f"{host}.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry, default=str, sort_keys=True) + "\n")


_execute: t.Callable[..., dict[str, t.Any]] = ActionBase._execute_module


def _answer(self: t.Any, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
    host = str((kwargs.get("task_vars") or {}).get("inventory_hostname"))
    module = str(kwargs.get("module_name") or self._task.action)
    given = kwargs.get("module_args") or self._task.args
    sent = json.loads((given.get("_bundled") or {}).get("ahead", "{}"))
    # Versions before 1.2.0 have no module that runs later tasks ahead.
    module, given = (_INSPECTION, given["inspection"]) if "inspection" in given else (module, given)
    user = (self._play_context.become_user or "") if self._play_context.become else ""
    options = {name: value for name, value in given.items() if name not in _LEFT_OUT}
    _record(host, module=module, user=user, check=bool(self._task.check_mode), options=options)
    answers = FOLDER / f"{host}.answers.json"
    if not answers.exists():
        return _execute(self, *args, **kwargs)
    known = json.loads(answers.read_text(encoding="utf-8"))
    name = module.rpartition(".")[2]
    default = _BUILT_IN.get(module, {"changed": False})
    found = copy.deepcopy(known.get(name, default))
    return {**found, "ahead": {later: known[later] for later in _clean(sent, known)}} if sent else found


def _clean(sent: t.Iterable[str], known: dict[str, t.Any]) -> t.Iterator[str]:
    """Yield the tasks that the host runs ahead: those without change, warning, error and restart, until a change."""
    for name in sent:
        answer = {"changed": False, **known.setdefault(name, {})}
        if answer["changed"]:
            return
        restarts = [engine["restart_required"] for engine in answer.get("engines", ())]
        if not any([answer.get("failed"), answer.get("warnings"), *restarts]):
            known[name] = answer
            yield name


ActionBase._execute_module = _answer  # type: ignore[method-assign]


class CallbackModule(CallbackBase):
    """Records the result of each task and of each item of a loop."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "recorder"
    CALLBACK_NEEDS_ENABLED = True

    def _result(self, kind: str, found: t.Any) -> None:
        # ansible-core 2.19 gave these attributes public names.
        task, host = (getattr(found, name, None) or getattr(found, f"_{name}") for name in ("task", "host"))
        result = dict(getattr(found, "result", None) or found._result)
        # Results of hosts that run modules have the options of the task, which are recorded above.
        result.pop("invocation", None)
        # The text of a condition is no result.
        result.pop("false_condition", None)
        _record(host.get_name(), kind=kind, task=str(task.get_name()), result=result)

    def v2_runner_on_ok(self, result: t.Any) -> None:
        """Record a task."""
        self._result("changed" if (getattr(result, "result", None) or result._result).get("changed") else "ok", result)

    def v2_runner_on_skipped(self, result: t.Any) -> None:
        """Record a task."""
        self._result("skipped", result)

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        """Record a task."""
        self._result("unreachable", result)

    def v2_runner_on_failed(self, result: t.Any, *_options: t.Any, **_more: t.Any) -> None:
        """Record a task."""
        self._result("failed", result)
