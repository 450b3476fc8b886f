# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import AppliedFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart as restart_restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import Expectation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import RestartOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NVIDIA,
    STATE,
    configure,
    failure,
    restart,
    states,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Engine, Installation, LiveState

# -- the new state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "told"), [("restart", "restart --no-block"), ("reload", "reload --no-block")])
def test_what_is_live_afterwards_is_new(systemd: FakeSystemd, action: str, told: str) -> None:
    changes = configure(systemd)
    done = restart(systemd, action=action, expect=NVIDIA, rollback=changes)
    assert (done.state, done.changed, done.mode, done.attempts, done.pid) == ("applied", True, "systemd", 1, 4711)
    assert systemd.done(f"systemctl {told} -- docker.service")
    assert not done.rolled_back_files
    assert states(systemd) == ["docker"]
    assert not systemd.done("systemctl daemon-reload")


def test_the_limit_on_starts_is_lifted_for_the_socket_too(systemd: FakeSystemd) -> None:
    restart(systemd)
    assert systemd.done("systemctl reset-failed -- docker.service docker.socket")


def test_a_unit_that_changed_is_read_again_before_it_is_started(systemd: FakeSystemd) -> None:
    systemd.needs_reload = True
    assert restart(systemd).daemon_reloaded
    order = [command.split()[1] for command in systemd.commands if command.split()[1] in ("daemon-reload", "restart")]
    assert order == ["daemon-reload", "restart"]


def test_a_request_that_does_not_show_at_once_is_no_failure(systemd: FakeSystemd) -> None:
    systemd.docker.write(CONTROL_GROUP, "")
    systemd.active, systemd.detail, systemd.hesitates = "failed", "failed", 4
    assert restart(systemd).attempts == 1


def test_what_runs_before_the_restart_begins_is_no_proof(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.hesitates = 5
    assert restart(systemd, expect=NVIDIA, rollback=changes).state == "applied"


def test_a_start_that_fails_once_is_tried_again(systemd: FakeSystemd) -> None:
    ends = iter(["auto-restart", "active"])
    systemd.ends = lambda _text: next(ends)
    assert restart(systemd, retries=1).attempts == 2


def test_no_more_tries_than_allowed(systemd: FakeSystemd) -> None:
    systemd.ends = lambda _text: "failed"
    message, done = failure(systemd, retries=2)
    assert done.attempts == 3
    assert "docker.service is failed (failed)" in message
    assert (done.state, done.pid) == ("unknown", None)


def test_a_daemon_that_lacks_what_is_expected_is_not_proven(systemd: FakeSystemd) -> None:
    message, done = failure(systemd, expect=Expectation(("nvidia", "runc"), "nvidia", cdi=True), retries=0)
    assert "it does not know the runtime nvidia, its default runtime is runc, not nvidia, CDI is off." in message
    assert "There is nothing to go back to" in message
    assert done.state == "unknown"


def test_a_daemon_that_has_answered_is_not_restarted_once_more(systemd: FakeSystemd) -> None:
    _message, done = failure(systemd, expect=NVIDIA, retries=3)
    assert done.attempts == 1


def test_a_daemon_that_is_not_what_its_file_says_is_not_proven(systemd: FakeSystemd) -> None:
    configure(systemd)
    message, _done = failure(systemd, action="reload", mode="none")
    assert f"it runs with something else than {FILE} says" in message
    assert not systemd.done("systemctl re")


def test_mode_none_only_looks(systemd: FakeSystemd) -> None:
    done = restart(systemd, mode="none", expect=Expectation(("runc",), "runc"))
    assert (done.state, done.changed, done.attempts) == ("applied", False, 0)
    assert not systemd.docker.path(STATE).exists()


# -- what cannot be done ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retries": -1}, "retries must not be negative"),
        ({"timeout": 0}, "timeout has to be greater"),
        ({"engine": "containerd", "action": "reload"}, "containerd ends on the signal"),
        ({"engine": "containerd", "action": "reload", "mode": "signal"}, "containerd ends on the signal"),
        ({"engine": "crio", "action": "reload"}, "no pod can use them before a restart"),
        ({"mode": "signal"}, "A signal cannot restart docker"),
        ({"service": "other.service"}, "other.service is not a unit that systemd runs"),
        ({"service": "other", "action": "reload"}, "does not run as other.service"),
    ],
)
def test_refuses_before_anything_happens(systemd: FakeSystemd, options: dict[str, t.Any], reason: str) -> None:
    systemd.loaded = "service" not in options
    with pytest.raises(NvidiaError, match=reason):
        restart(systemd, **options)
    assert not systemd.done("systemctl re")


def test_nothing_runs_in_an_offline_tree(systemd: FakeSystemd) -> None:
    host = systemd.docker.host._replace(live=False)
    with pytest.raises(NvidiaError, match="is an offline tree"):
        restart_restart.restart(RestartOptions("docker"), host, systemd.run, check_mode=False)


def test_a_daemon_beside_its_unit_does_not_get_a_second_one(systemd: FakeSystemd) -> None:
    systemd.active, systemd.detail = "inactive", "dead"
    with pytest.raises(NvidiaError, match="cannot be restarted"):
        restart(systemd)


def test_a_unit_may_be_named_without_its_suffix(systemd: FakeSystemd) -> None:
    assert restart(systemd, service="docker").service == "docker.service"


@pytest.mark.parametrize("shown", ["dockerd.service", "docker@x.service"])
def test_a_unit_that_has_another_name_is_refused(systemd: FakeSystemd, shown: str) -> None:
    systemd.name = shown
    with pytest.raises(NvidiaError, match=f"another name of {shown}"):
        restart(systemd)


def test_a_unit_whose_program_is_gone_is_not_the_files_fault(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.docker.path("/usr/bin/dockerd").unlink()
    with pytest.raises(NvidiaError, match=r"starts /usr/bin/dockerd, which is not an executable file"):
        restart(systemd, rollback=changes)
    assert "nvidia" in systemd.text
    assert not systemd.done("systemctl re")


def test_a_validator_that_is_demanded_has_to_be_there(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.validates = lambda _text: "unknown flag: --validate"
    with pytest.raises(NvidiaError, match="has no validator"):
        restart(systemd, rollback=changes, validate="true")
    assert "nvidia" in systemd.text
    assert restart(systemd, rollback=changes).state == "applied"


def test_a_check_run_does_nothing(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    assert restart(systemd, check_mode=True, rollback=changes).changed
    assert not systemd.done("systemctl re")
    assert states(systemd) == ["changes", "docker"]
    assert not restart(systemd, check_mode=True, mode="none").changed


def test_what_a_daemon_was_started_with_is_noted_if_it_does_not_report_it(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, host = Target("docker").load(), systemd.docker.host
    live = engine.live

    def silent(_engine: Engine, host: HostFS, installation: Installation) -> LiveState | None:
        found = live(host, installation)
        return None if found is None else found._replace(runtimes_unknown=True)

    changes = configure(systemd)
    restart(systemd, rollback=changes)
    assert states(systemd) == ["docker"]
    # monkeypatch would restore an attribute of the class to the instance, which later tests share.
    monkeypatch.setattr(type(engine), "live", silent)
    monkeypatch.setattr(processes, "start_time", lambda _host, _pid: 5.0)
    restart(systemd)
    assert states(systemd) == ["applied", "docker"]
    note = AppliedFiles.of(host, "docker")
    assert note.start_of([FILE]) == 5.0
    systemd.docker.write(FILE, systemd.text + "\n")
    assert note.start_of([FILE]) is None
    # It goes with the last record.
    options = Options("docker", None)
    ConfigureEngine(options, host, systemd.run).execute(check_mode=False)
    restart(systemd)
    assert states(systemd) == []
