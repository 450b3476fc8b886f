# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A task with async waits for its job."""

from __future__ import annotations

import types
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the action plugins import ansible-core")

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _async_jobs

STARTED = {"ansible_job_id": "j1", "started": True}


@pytest.mark.parametrize(("poll", "is_awaited"), [(0.01, True), (0, False)])
def test_each_attempt_of_a_task_with_until_waits(poll: float, is_awaited: bool) -> None:
    """Ansible makes an action for each attempt, of the same task."""
    task = types.SimpleNamespace(poll=poll, async_val=1)

    def run(_module: str, options: dict[str, t.Any]) -> dict[str, t.Any]:
        return {"finished": True, "failed": True, "msg": "failed"} if options["mode"] == "status" else {}

    for _attempt in range(2):
        result = _async_jobs.result_of(MagicMock(_task=task), dict(STARTED), run)
        assert result.get("msg") == ("failed" if is_awaited else None)
        # The executor would wait too.
        assert task.poll == 0
