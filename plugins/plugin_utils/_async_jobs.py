# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for a module that runs with async, and read its result.

Private to this collection. Ansible's own executor would read the result without the action of the module, so that
nothing would rebuild what the host returns (_poll_async_result() in executor/task_executor.py, 2.16.3 to 2.21.5).
"""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleConnectionFailure

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

    Result = t.Dict[str, t.Any]
    # Runs a module with these arguments, and returns its result.
    Run = t.Callable[[str, t.Dict[str, t.Any]], Result]

_MODULE = "ansible.legacy.async_status"


def result_of(action: ActionBase, started: Result, run: Run) -> Result:
    """Return the result of a job, or that of its start if the task does not wait for it (poll: 0).

    Args:
        action: The action of the task.
        started: What the start of the job has returned.
        run: Runs a module on the host.
    """
    task: t.Any = action._task  # noqa: SLF001 - no public attribute has the task
    # A task with until is run again, after this function has changed its keyword.
    seconds = vars(task).setdefault("gpufleet_poll", task.poll)
    left, job = task.async_val, started.get("ansible_job_id")
    if not seconds or started.get("failed") or not job:
        return started
    # The executor does not wait a second time.
    task.poll = 0
    folder = action.get_shell_option("async_dir", default="~/.ansible_async")
    options = {"jid": job, "_async_dir": action._remote_expand_user(folder)}  # noqa: SLF001
    while left > 0:
        time.sleep(seconds)
        left -= seconds
        try:
            result = run(_MODULE, {**options, "mode": "status"})
        except AnsibleConnectionFailure:
            # A connection may break while the job runs.
            if left <= 0:
                raise
            continue
        # A result that is being written cannot be parsed yet.
        if result.get("finished") or (result.get("failed") and "module_stdout" not in result):
            run(_MODULE, {**options, "mode": "cleanup"})
            return {**result, "ansible_job_id": job}
    return {"failed": True, "ansible_job_id": job, "msg": f"The module did not end within {task.async_val} seconds."}
