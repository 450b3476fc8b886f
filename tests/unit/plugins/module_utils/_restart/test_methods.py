# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import methods as restart_methods
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import Expectation
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import CONTROL_GROUP, PID
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NVIDIA,
    OLD,
    Signalled,
    configure,
    ends_with,
    failure,
    restart,
)

# -- the choice of the method ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"engine": "containerd", "action": "reload"}, "containerd does not reload"),
        ({"engine": "containerd", "action": "reload", "mode": "signal"}, "containerd does not reload"),
        ({"engine": "crio", "action": "reload"}, "pods cannot use them before a restart"),
        ({"mode": "signal"}, "A signal cannot restart docker"),
        ({"service": "other.service"}, "systemd does not run it as other.service"),
        ({"service": "other", "action": "reload"}, "does not run as other.service"),
    ],
)
def test_refuses_what_the_engine_or_its_unit_does_not_support(
    systemd: FakeSystemd, options: dict[str, t.Any], reason: str
) -> None:
    systemd.loaded = "service" not in options
    with pytest.raises(NvidiaError, match=reason):
        restart(systemd, **options)
    assert not systemd.done("systemctl re")


def test_does_not_start_the_unit_of_a_daemon_that_runs_without_it(systemd: FakeSystemd) -> None:
    systemd.active, systemd.detail = "inactive", "dead"
    with pytest.raises(NvidiaError, match="cannot be restarted"):
        restart(systemd)


def test_adds_the_suffix_of_a_unit(systemd: FakeSystemd) -> None:
    assert restart(systemd, service="docker").service == "docker.service"


@pytest.mark.parametrize("shown", ["dockerd.service", "docker@x.service"])
def test_refuses_an_alias_and_an_instance_of_a_template(systemd: FakeSystemd, shown: str) -> None:
    systemd.name = shown
    with pytest.raises(NvidiaError, match=f"another name of {shown}"):
        restart(systemd)


# -- a restart by systemd --------------------------------------------------------------------------------------------


def test_resets_the_start_limit_of_the_unit_and_its_socket(systemd: FakeSystemd) -> None:
    restart(systemd)
    assert systemd.done("systemctl reset-failed -- docker.service docker.socket")


def test_reloads_a_changed_unit_before_the_restart(systemd: FakeSystemd) -> None:
    systemd.needs_reload = True
    assert restart(systemd).daemon_reloaded
    order = [command.split()[1] for command in systemd.commands if command.split()[1] in ("daemon-reload", "restart")]
    assert order == ["daemon-reload", "restart"]


def test_a_unit_that_cannot_be_reloaded_is_a_failure(systemd: FakeSystemd) -> None:
    systemd.needs_reload, systemd.refused = True, "daemon-reload"
    message, result = failure(systemd, rollback=configure(systemd))
    assert "systemctl daemon-reload" in message
    assert (result.daemon_reloaded, systemd.text) == (False, OLD)


def test_waits_until_systemd_begins_the_restart(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.hesitates = 5
    assert restart(systemd, expect=NVIDIA, rollback=changes).state == "applied"
    # The failed state of an earlier start is no failure of this one.
    systemd.docker.write(CONTROL_GROUP, "")
    systemd.active, systemd.detail, systemd.hesitates = "failed", "failed", 4
    assert restart(systemd).attempts == 1


def test_repeats_a_failed_start(systemd: FakeSystemd) -> None:
    ends = iter(["auto-restart", "active"])
    systemd.ends = lambda _text: next(ends)
    assert restart(systemd, retries=1).attempts == 2


def test_stops_after_the_last_retry(systemd: FakeSystemd) -> None:
    systemd.ends = lambda _text: "failed"
    message, result = failure(systemd, retries=2)
    assert result.attempts == 3
    assert "docker.service is failed (failed)" in message
    assert (result.state, result.pid) == ("unknown", None)


def test_does_not_repeat_the_restart_of_a_daemon_that_answers(systemd: FakeSystemd) -> None:
    assert failure(systemd, expect=NVIDIA, retries=3)[1].attempts == 1


def test_repeats_the_start_of_a_daemon_that_exits_soon(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd.docker.write("/proc/4712/comm", "dockerd\n")

    def sleep(seconds: float) -> None:
        if seconds == restart_methods.STABLE_AFTER and len(systemd.done("systemctl restart")) == 1:
            systemd.docker.write(CONTROL_GROUP, "4712\n")

    monkeypatch.setattr(time, "sleep", sleep)
    result = restart(systemd, retries=1)
    assert (result.state, result.attempts, result.pid) == ("applied", 2, 4711)


def test_kills_a_daemon_that_hangs_before_it_restarts_it_with_the_previous_files(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "hangs")
    asked: list[str] = []

    def containers_stopped_by_restart(*_arguments: t.Any) -> list[str]:
        asked.append(systemd.active)
        return []

    monkeypatch.setattr(type(DOCKER), "containers_stopped_by_restart", containers_stopped_by_restart)
    message, result = failure(systemd, rollback=changes)
    assert "docker.service is still activating (start)" in message
    assert result.state == "rolled_back"
    assert systemd.done("systemctl kill --kill-who=main --signal=KILL -- docker.service")
    # A daemon that hangs does not answer, so it is not asked for its containers.
    assert asked == ["active"]


def test_does_not_kill_a_daemon_that_starts_slowly_with_new_files(systemd: FakeSystemd) -> None:
    systemd.ends = lambda _text: "hangs"
    failure(systemd)
    assert not systemd.done("systemctl kill")


def test_gives_an_active_daemon_time_to_stop(busy: FakeSystemd) -> None:
    changes = configure(busy)
    # The new daemon stops more slowly than one that hangs during its start may.
    calls = int(restart_methods.KILL_AFTER / restart_methods.PROBE_INTERVAL) + 2
    busy.started = lambda: setattr(busy, "slow_stops", calls)
    options: dict[str, t.Any] = {"rollback": changes, "expect": Expectation(("nope",)), "timeout": 30.0}
    _message, result = failure(busy, allow_disruption=True, **options)
    assert result.state == "rolled_back"
    assert not busy.done("systemctl kill")


# -- a reload by systemd ---------------------------------------------------------------------------------------------


def test_repeats_a_reload_without_effect_and_rolls_back(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "no effect")
    message, result = failure(systemd, action="reload", rollback=changes, retries=2)
    assert len(systemd.done("systemctl reload")) == 4
    assert not systemd.done("systemctl restart")
    assert result.state == "rolled_back"
    assert f"its settings differ from {FILE} (runtimes: nvidia)" in message


def test_does_not_repeat_a_reload_after_which_the_daemon_runs_with_its_files(systemd: FakeSystemd) -> None:
    """Another program has changed the file, so it does not contain what is expected."""
    changes = configure(systemd)
    systemd.docker.write(FILE, OLD)
    assert failure(systemd, action="reload", expect=NVIDIA, rollback=changes, retries=3)[1].attempts == 1


def test_a_daemon_that_ends_by_a_reload_is_a_failure(systemd: FakeSystemd) -> None:
    changes = configure(systemd)

    def stop(text: str) -> str:
        if "nvidia" not in text:
            return "active"
        systemd.active, systemd.detail = "failed", "failed"
        return "no effect"

    systemd.ends = stop
    assert "docker.service is failed (failed)" in failure(systemd, action="reload", rollback=changes, retries=0)[0]


def _live_restore_off(systemd: FakeSystemd) -> None:
    systemd.docker.info["LiveRestoreEnabled"] = False
    systemd.docker.containers.append({"Names": ["/web"]})


def _kills_shims(systemd: FakeSystemd) -> None:
    systemd.kill_mode = "control-group"
    systemd.docker.write("/proc/5/comm", "containerd-shim\n")
    systemd.docker.write(CONTROL_GROUP, f"{PID}\n5\n")


@pytest.mark.parametrize(
    ("setup", "refusal"),
    [
        (lambda _systemd: None, ""),
        (_live_restore_off, "would stop running containers: web. docker was not restarted with the previous files."),
        (_kills_shims, "because KillMode of docker.service is not process."),
    ],
)
def test_restarts_the_engine_if_a_reload_does_not_restore_it_and_stops_no_containers(
    systemd: FakeSystemd, setup: t.Callable[[FakeSystemd], t.Any], refusal: str
) -> None:
    setup(systemd)
    changes = configure(systemd)

    def end(text: str) -> str:
        # A reload applies the runtime, but not the default.
        if "nvidia" in text and not systemd.done("systemctl restart"):
            systemd.docker.info["Runtimes"] = {"runc": {"path": "runc"}, "nvidia": {"path": "/usr/bin/x"}}
            return "no effect"
        return "active"

    systemd.ends = end
    message, result = failure(systemd, action="reload", rollback=changes)
    assert (bool(systemd.done("systemctl restart")), systemd.text) == (not refusal, OLD)
    if refusal:
        assert result.state == "unknown"
        assert "docker does not work with them without a restart: its settings differ from" in message
        assert refusal in message
        # The next run does the restart.
        message, result = failure(systemd, action="reload", allow_disruption=True)
    assert (result.state, "docker works with them." in message) == ("rolled_back", True)


def test_a_rollback_does_not_kill_containers_that_were_started_meanwhile(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.started = lambda: _kills_shims(systemd)
    message, result = failure(systemd, rollback=changes, expect=Expectation(("nope",)))
    assert "would kill 1 container process, because" in message
    assert (result.state, len(systemd.done("systemctl restart"))) == ("unknown", 1)


# -- a signal --------------------------------------------------------------------------------------------------------


def test_sends_the_signal_to_the_main_process_of_the_unit(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.answering[:] = [5]
    result = restart(systemd, action="reload", mode="signal", rollback=changes, expect=NVIDIA)
    assert (result.state, result.mode, signalled.got) == ("applied", "signal", [4711])


def test_sends_the_signal_to_the_process_that_answers_behind_a_wrapper(
    systemd: FakeSystemd, signalled: Signalled
) -> None:
    changes = configure(systemd)
    signalled.daemons[:], signalled.answering[:] = [5, 6], [6]
    assert restart(systemd, action="reload", mode="signal", rollback=changes).state == "applied"
    assert signalled.got == [6]


def test_finds_the_process_of_a_daemon_without_unit_by_its_socket(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    systemd.docker.write(CONTROL_GROUP, "")
    systemd.active, systemd.detail = "inactive", "dead"
    assert restart(systemd, action="reload", mode="signal", rollback=changes).pid == 4711
    assert signalled.got == [4711]


def test_without_systemd_a_reload_is_a_signal(systemd: FakeSystemd, signalled: Signalled) -> None:
    systemd.docker.path("/run/systemd/system").rmdir()
    configure(systemd)
    assert restart(systemd, action="reload").mode == "signal"
    assert signalled.got == [4711]
    for action, mode in (("restart", "auto"), ("reload", "systemd")):
        with pytest.raises(NvidiaError, match=f"cannot be {action}ed"):
            restart(systemd, action=action, mode=mode)


def test_a_unit_without_reload_command_gets_a_signal(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    systemd.reloadable = False
    assert restart(systemd, action="reload", rollback=changes).mode == "signal"
    assert signalled.got == [4711]


def test_sends_no_signal_to_other_programs(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.daemons.clear()
    message, result = failure(systemd, action="reload", mode="signal", rollback=changes)
    assert "No dockerd process was found, so no signal was sent" in message
    assert not signalled.got
    assert systemd.text == OLD
    assert (result.state, result.attempts) == ("rolled_back", 0)
