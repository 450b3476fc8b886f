# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tasks of a named user have limits, and are ended on the host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the action plugins import ansible-core")

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _user_tasks


def shell(command: str, **_options: t.Any) -> dict[str, str]:
    # sudo adds the command to the environment.
    environ = {**os.environ, "SUDO_COMMAND": f"/bin/sh -c {command}"}
    done = subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False, env=environ)
    return {"stdout": done.stdout}


def new_action(execute: t.Callable[..., t.Any] = shell) -> t.Any:
    action = MagicMock()
    action._task.environment = [{"A": "1"}]
    action._low_level_execute_command = execute
    return action


def waits() -> dict[str, t.Any]:
    time.sleep(30)
    return {}


def raises(error: BaseException) -> t.Callable[..., t.Any]:
    def run(*_args: t.Any, **_options: t.Any) -> t.Any:
        raise error

    return run


@pytest.mark.parametrize(
    ("module", "args", "more"),
    [
        ("nvidia_container_info", {"timeout": 500}, 0),
        ("nvidia_runtime_config", {}, 0),
        ("nvidia_runtime_restart", {}, 240),
        ("nvidia_runtime_restart", {"timeout": "10", "retries": 0}, 20),
        ("nvidia_runtime_restart", {"timeout": -5, "retries": "x"}, 0),
        ("nvidia_runtime_verify", {}, 60),
        ("nvidia_runtime_verify", {"timeout": 5, "pull": True}, 5),
    ],
)
def test_a_task_may_take_what_its_options_allow(module: str, args: dict[str, t.Any], more: int) -> None:
    assert _user_tasks.seconds_of(module, args) == _user_tasks.SECONDS + more


def test_a_result_is_returned_as_it_is() -> None:
    action, result = new_action(), {"changed": True}
    seen: list[t.Any] = []

    def execute() -> dict[str, t.Any]:
        seen.append(action._task.environment)
        return result

    assert _user_tasks.run(action, "alice", 5, execute) is result
    assert seen[0][0] == {"A": "1"}
    assert list(seen[0][1]) == [_user_tasks.MARK]
    assert action._task.environment == [{"A": "1"}]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_processes_of_a_task_without_end_are_ended() -> None:
    action = new_action()
    started: list[subprocess.Popen[bytes]] = []

    def execute() -> dict[str, t.Any]:
        environ = {**os.environ, **action._task.environment[-1]}
        command = "trap '' TERM; sleep 1000 & setsid sleep 1000 & sleep 1000"
        started.append(subprocess.Popen(["/bin/sh", "-c", command], env=environ))
        time.sleep(1000)
        return {}

    begin = time.monotonic()
    result = _user_tasks.run(action, "alice", 1, execute)
    assert time.monotonic() - begin < 30
    assert result["failed"] is True
    assert " alice did not end within 1 seconds. " in result["msg"]
    # Nothing is left, not even the process in a session of its own.
    assert "Its processes that were found on the host were ended." in result["msg"]
    assert started[0].wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("{mark} ended=1 left=5 7\n", "Its processes 5 7 still run on the host. End them with: kill -9 5 7"),
        ("{mark} ended=1 left=5\r\n", "Its processes 5 still run on the host. End them with: kill -9 5"),
        (
            "{mark} ended=1 left=\r\n",
            "Its processes that were found on the host were ended. List others with: ps -u alice",
        ),
        ("{mark} ended= left=\n", "None of its processes was found on the host. List those of this user"),
        (
            "{mark} ended=1 left=5; reboot\n",
            "Whether its processes still run is not known. List them with: ps -u alice",
        ),
        ("", "Whether its processes still run is not known."),
        (None, "Whether its processes still run is not known."),
    ],
)
def test_processes_that_may_still_run_are_named(answer: str | None, expected: str) -> None:
    def execute(command: str, **_options: t.Any) -> dict[str, str]:
        if answer is None:
            raise AnsibleError("no shell")
        mark = re.findall(r"gpufleet-[0-9a-f-]{36}", command)[0]
        return {"stdout": answer.replace("{mark}", mark)}

    result = _user_tasks.run(new_action(execute), "alice", 0, waits)
    assert expected in result["msg"]


def test_output_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([0, *([1 << 20] * 2), *([1 << 40] * 100)])
    monkeypatch.setattr(_user_tasks, "_peak", lambda: next(peaks))
    result = _user_tasks.run(new_action(), "alice", 20, waits)
    assert "wrote more than 256 MiB" in result["msg"]


def test_a_lost_connection_is_one_only_if_the_host_cannot_be_reached() -> None:
    lost = raises(AnsibleConnectionFailure("Shared connection closed\x1b"))
    result = _user_tasks.run(new_action(), "alice", 5, lost)
    assert (result["failed"], result["msg"].isprintable()) == (True, True)
    with pytest.raises(AnsibleConnectionFailure):
        _user_tasks.run(new_action(lost), "alice", 5, lost)


@pytest.mark.parametrize("error", [AnsibleError("x"), RecursionError("x"), MemoryError(), ValueError("\x1b")])
def test_other_errors_are_failures_of_the_user(error: Exception) -> None:
    result = _user_tasks.run(new_action(), "alice", 5, raises(error))
    assert (result["failed"], result["msg"].isprintable()) == (True, True)


def test_an_alarm_of_ansible_stays() -> None:
    fired: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _frame: fired.append(number))
    try:
        signal.alarm(1)
        # It is the shorter limit.
        result = _user_tasks.run(new_action(), "alice", 30, waits)
        assert "The task that ran as alice" in result["msg"]
        assert fired == []
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 20
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def test_the_command_finds_no_process_of_another_task() -> None:
    other = subprocess.Popen(["sleep", "1000"], env={_user_tasks.MARK: "gpufleet-other"})
    try:
        result = _user_tasks.run(new_action(), "alice", 0, waits)
        assert "None of its processes was found" in result["msg"]
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
