# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import (
    _backups,
    _bringing_up,
    _restarting,
    _rollback,
    _taking_over,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_containerd import CONTAINERD
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._notes import Note
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._preflight import Preflight
from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Expectation, Witness
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restarting import (
    Restarted,
    RestartError,
    RestartOptions,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Change
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_configuration import RuntimeConfiguration
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_docker import (
    CONTROL_GROUP,
    PID,
    UNIT,
    docker_host,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_systemd import FILE, FakeSystemd

OLD = '{"debug": true, "live-restore": true}\n'
NVIDIA = Expectation(("nvidia",), "nvidia")
BACKUPS = "/var/lib/gpufleet-nvidia/backups"
STATE = "/var/lib/gpufleet-nvidia/state"
NOTE = f"{STATE}/restart-docker.json"


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[FakeSystemd]:
    """A host whose Docker runs with OLD."""
    monkeypatch.setattr(_bringing_up, "_PAUSE", 0.01)
    monkeypatch.setattr(_bringing_up, "_STEADY", 0.0)
    monkeypatch.setattr(_taking_over, "_HESITATION", 0.2)
    monkeypatch.setattr(_taking_over, "PATIENCE", 0.05)
    with docker_host() as docker:
        docker.write(FILE, OLD)
        found = FakeSystemd(docker)
        with docker.answers():
            yield found


def configure(systemd: FakeSystemd, **request: t.Any) -> tuple[Change, ...]:
    """Register the runtime; the changes as they are given to the restart."""
    options = Options("docker", RuntimeRequest(**{"set_as_default": True, **request}))
    outcome = RuntimeConfiguration(options, systemd.docker.host, systemd.run).execute(check_mode=False)
    return tuple(Change(str(file["path"]), file["backup"], file["checksum"]) for file in outcome.backup_files)


def restart(systemd: FakeSystemd, check_mode: bool = False, **options: t.Any) -> Restarted:
    given = {"engine": "docker", "timeout": 0.5, "backup_dir": BACKUPS, **options}
    return _restarting.restart(RestartOptions(**given), systemd.docker.host, systemd.run, check_mode)


def failure(systemd: FakeSystemd, **options: t.Any) -> tuple[str, Restarted]:
    with pytest.raises(RestartError) as caught:
        restart(systemd, **options)
    return str(caught.value), caught.value.outcome


def only(bad: str, end: str) -> t.Callable[[str], str]:
    """Starts that end badly while the file holds ``bad``."""
    return lambda text: end if bad in text else "active"


def states(systemd: FakeSystemd) -> list[str]:
    """What is left in the folder of records."""
    folder = systemd.docker.path(STATE)
    return sorted(path.name.split("-")[0] for path in folder.iterdir()) if folder.exists() else []


# -- the new state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "told"), [("restart", "restart --no-block"), ("reload", "reload --no-block")])
def test_what_is_live_afterwards_is_new(systemd: FakeSystemd, action: str, told: str) -> None:
    changes = configure(systemd)
    done = restart(systemd, action=action, expect=NVIDIA, rollback=changes)
    assert (done.state, done.changed, done.mode, done.attempts, done.pid) == ("new", True, "systemd", 1, 4711)
    assert systemd.done(f"systemctl {told} -- docker.service")
    assert not done.rejected
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
    assert restart(systemd, expect=NVIDIA, rollback=changes).state == "new"


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


def test_a_daemon_that_does_not_answer_is_not_proven(systemd: FakeSystemd) -> None:
    message, done = failure(systemd, socket="/run/other.sock", allow_disruption=True)
    assert "it does not answer on /run/other.sock" in message
    assert done.socket == "/run/other.sock"


def test_a_daemon_that_is_not_what_its_file_says_is_not_proven(systemd: FakeSystemd) -> None:
    configure(systemd)
    message, _done = failure(systemd, action="reload", mode="none")
    assert f"it runs with something else than {FILE} says" in message
    assert not systemd.done("systemctl re")


def test_mode_none_only_looks(systemd: FakeSystemd) -> None:
    done = restart(systemd, mode="none", expect=Expectation(("runc",), "runc"))
    assert (done.state, done.changed, done.attempts) == ("new", False, 0)
    assert not systemd.docker.path(STATE).exists()


# -- the old state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "auto-restart"])
def test_a_start_that_fails_brings_the_former_file_back(systemd: FakeSystemd, end: str) -> None:
    changes = configure(systemd)
    new = systemd.text
    systemd.ends = only("nvidia", end)
    systemd.journal = ["starting", "cannot do that"]
    message, done = failure(systemd, expect=NVIDIA, rollback=changes)
    assert systemd.text == OLD
    assert (done.state, done.rolled_back, done.attempts, done.pid) == ("old", True, 3, 4711)
    assert "docker did not take /etc/docker/daemon.json over" in message
    assert "The former files are back, and it works with them. Its last words: starting | cannot do that" in message
    (rejected,) = done.rejected
    assert rejected["path"] == FILE
    assert systemd.docker.path(str(rejected["backup"])).read_text() == new
    # Nothing is recorded of a file that is what it was before us.
    assert states(systemd) == []


def test_a_second_change_goes_back_to_the_first(systemd: FakeSystemd) -> None:
    configure(systemd)
    restart(systemd)
    first = systemd.text
    record = next(systemd.docker.path(STATE).glob("docker-*")).read_text()
    changes = configure(systemd, extra_modes=("cdi",))
    systemd.ends = only("nvidia-cdi", "failed")
    failure(systemd, rollback=changes)
    assert systemd.text == first
    assert next(systemd.docker.path(STATE).glob("docker-*")).read_text() == record


def test_a_removal_goes_back_to_what_was_registered_and_recorded(systemd: FakeSystemd) -> None:
    configure(systemd)
    restart(systemd)
    first = systemd.text
    record = next(systemd.docker.path(STATE).glob("docker-*")).read_text()
    outcome = RuntimeConfiguration(Options("docker", None), systemd.docker.host, systemd.run).execute(check_mode=False)
    changes = [Change(str(file["path"]), file["backup"], file["checksum"]) for file in outcome.backup_files]
    systemd.ends = lambda text: "active" if "nvidia" in text else "failed"
    failure(systemd, rollback=tuple(changes))
    assert systemd.text == first
    assert next(systemd.docker.path(STATE).glob("docker-*")).read_text() == record


def test_a_file_that_was_not_there_goes_again(systemd: FakeSystemd) -> None:
    systemd.docker.path(FILE).unlink()
    systemd.docker.path("/etc/docker").rmdir()
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    _message, done = failure(systemd, rollback=changes)
    assert done.state == "old"
    assert not systemd.docker.path("/etc/docker").exists()


def test_of_several_changes_the_first_counts(systemd: FakeSystemd) -> None:
    changes = configure(systemd) + configure(systemd, extra_modes=("cdi",))
    systemd.ends = only("nvidia", "failed")
    failure(systemd, rollback=changes)
    assert systemd.text == OLD


def test_a_daemon_that_hangs_is_killed_on_the_way_back(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "hangs")
    message, done = failure(systemd, rollback=changes)
    assert "docker.service is still activating (start)" in message
    assert done.state == "old"
    assert systemd.done("systemctl kill --kill-who=main --signal=KILL -- docker.service")


def test_a_daemon_that_is_slow_with_what_is_new_is_not_killed(systemd: FakeSystemd) -> None:
    systemd.ends = lambda _text: "hangs"
    failure(systemd)
    assert not systemd.done("systemctl kill")


def test_if_neither_state_works_that_is_said_aloud(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = lambda _text: "failed"
    message, done = failure(systemd, rollback=changes)
    assert done.state == "unknown"
    assert "COULD NOT BE PROVEN TO WORK WITH THEM EITHER: docker.service is failed (failed). This host" in message
    assert systemd.text == OLD
    # Whoever comes next is to know.
    assert states(systemd) == ["changes", "restart"]


def test_files_that_cannot_be_put_back_are_said_aloud(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")

    def full(*_arguments: t.Any, **_more: t.Any) -> None:
        raise HostError("/etc/docker/daemon.json cannot be written: No space left on device. Make room.")

    monkeypatch.setattr(_rollback, "replace_file", full)
    monkeypatch.setattr(_rollback, "use_prepared_file", lambda *_arguments: False)
    message, done = failure(systemd, rollback=changes)
    assert "THE FORMER FILES COULD NOT BE PUT BACK: /etc/docker/daemon.json cannot be written" in message
    assert done.state == "unknown"


def test_on_a_disk_that_is_full_by_then_the_way_back_lies_ready(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(systemd)
    systemd.docker.path(FILE).chmod(0o600)

    def full(*_arguments: t.Any, **_more: t.Any) -> None:
        raise HostError("No space left on device")

    def end(text: str) -> str:
        monkeypatch.setattr(_rollback, "replace_file", full)
        monkeypatch.setattr(_backups, "replace_file", full)
        return "failed" if "nvidia" in text else "active"

    systemd.ends = end
    message, done = failure(systemd, rollback=changes)
    assert (done.state, systemd.text) == ("old", OLD)
    assert f"NO COPY COULD BE KEPT of what stood in {FILE}" in message
    assert systemd.docker.path(FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in systemd.docker.path("/etc/docker").iterdir()] == ["daemon.json"]


@pytest.mark.parametrize("end", ["active", "failed"])
def test_nothing_stays_ready_afterwards(systemd: FakeSystemd, end: str) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", end)
    if end == "active":
        restart(systemd, rollback=changes)
    else:
        failure(systemd, rollback=changes)
    assert [path.name for path in systemd.docker.path("/etc/docker").iterdir()] == ["daemon.json"]


def test_a_copy_of_what_is_rejected_is_worth_less_than_a_host_that_works(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")

    def full(*_arguments: t.Any) -> str:
        raise HostError("full")

    monkeypatch.setattr(_backups, "save", full)
    _message, done = failure(systemd, rollback=changes)
    assert done.state == "old"
    assert done.rejected == ({"path": FILE, "backup": None},)


def test_what_systemd_refuses_is_told(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.refused = "restart"
    message, done = failure(systemd, rollback=changes)
    assert "systemctl restart docker.service failed: Access denied" in message
    # It runs as before.
    assert (done.state, done.attempts) == ("old", 0)
    assert systemd.text == OLD


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["level=info msg=a", "level=error msg=b", 'time=x level=debug msg="c"', "d"], ["level=error msg=b", "d"]),
        (["level=info msg=a", "level=info msg=b"], ["level=info msg=a", "level=info msg=b"]),
        (["no disk", "docker.service: Failed with result 'exit-code'.", "Stopped docker.service - x."], ["no disk"]),
        (["level=info msg=a", "Failed to start docker.service."], ["Failed to start docker.service."]),
        ([f"line {number}" for number in range(100)], [f"line {number}" for number in range(85, 100)]),
    ],
)
def test_of_the_daemon_s_words_those_count_that_tell_something(
    systemd: FakeSystemd, lines: list[str], told: list[str]
) -> None:
    systemd.ends, systemd.journal = (lambda _text: "failed"), lines
    _message, done = failure(systemd)
    assert list(done.journal) == told


def test_the_daemon_s_words_have_no_secrets_in_them(systemd: FakeSystemd) -> None:
    systemd.docker.write(FILE, '{"log-opts": {"splunk-token": "tell-nobody"}}')
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    systemd.journal = ["bad token tell-nobody of http://me:pass@x/"]
    message, done = failure(systemd, rollback=changes)
    assert "tell-nobody" not in message + str(done.journal)
    assert "me:pass" not in message + str(done.journal)
    assert "bad token" in message


# -- a reload --------------------------------------------------------------------------------------------------------


def test_a_reload_without_effect_is_tried_again_and_then_taken_back(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "deaf")
    message, done = failure(systemd, action="reload", rollback=changes, retries=2)
    assert len(systemd.done("systemctl reload")) == 4
    assert not systemd.done("systemctl restart")
    assert done.state == "old"
    assert "it runs with something else" in message


def half(systemd: FakeSystemd) -> t.Callable[[str], str]:
    """A reload that takes the runtime, but not the default."""

    def end(text: str) -> str:
        if "nvidia" in text and not systemd.done("systemctl restart"):
            systemd.docker.info["Runtimes"] = {"runc": {"path": "runc"}, "nvidia": {"path": "/usr/bin/x"}}
            return "deaf"
        return "active"

    return end


def test_what_a_reload_cannot_take_back_a_restart_does_if_it_disturbs_nobody(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = half(systemd)
    _message, done = failure(systemd, action="reload", rollback=changes)
    assert systemd.done("systemctl restart")
    assert done.state == "old"


def test_what_a_reload_cannot_take_back_stays_if_a_restart_would_stop_containers(systemd: FakeSystemd) -> None:
    systemd.docker.info["LiveRestoreEnabled"] = False
    systemd.docker.containers.append({"Names": ["/web"]})
    changes = configure(systemd)
    systemd.ends = half(systemd)
    message, done = failure(systemd, action="reload", rollback=changes)
    assert not systemd.done("systemctl restart")
    assert done.state == "unknown"
    assert "COULD NOT BE PROVEN" in message
    assert systemd.text == OLD


class Signalled(t.NamedTuple):
    """Which processes are dockerd, who answers on the socket, and who got a signal."""

    daemons: list[int]
    answering: list[int]
    got: list[int]


@pytest.fixture
def signalled(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> Signalled:
    found = Signalled([4711], [4711], [])

    def hang_up(_host: t.Any, pid: int, program: str) -> None:
        assert program == "dockerd"
        found.got.append(pid)
        systemd.run(["chroot", "", "systemctl", "reload"])

    monkeypatch.setattr(_taking_over, "is_program", lambda _host, pid, _program: pid in found.daemons)
    monkeypatch.setattr(_taking_over, "sender_of", lambda _path, _greeting: next(iter(found.answering), None))
    monkeypatch.setattr(_taking_over, "hang_up", hang_up)
    return found


def test_a_signal_goes_to_the_main_process_of_the_unit(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.answering[:] = [5]
    done = restart(systemd, action="reload", mode="signal", rollback=changes, expect=NVIDIA)
    assert (done.state, done.mode, signalled.got) == ("new", "signal", [4711])


def test_behind_a_wrapper_it_goes_to_the_one_that_answers(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.daemons[:], signalled.answering[:] = [5, 6], [6]
    assert restart(systemd, action="reload", mode="signal", rollback=changes).state == "new"
    assert signalled.got == [6]


def test_without_systemd_a_reload_is_a_signal(systemd: FakeSystemd, signalled: Signalled) -> None:
    systemd.docker.path("/run/systemd/system").rmdir()
    configure(systemd)
    assert restart(systemd, action="reload").mode == "signal"
    assert signalled.got == [4711]
    with pytest.raises(GpufleetError, match="cannot be restarted"):
        restart(systemd)
    with pytest.raises(GpufleetError, match="cannot be restarted"):
        restart(systemd, action="reload", mode="systemd")


def test_nobody_that_is_not_the_engine_gets_a_signal(systemd: FakeSystemd, signalled: Signalled) -> None:
    changes = configure(systemd)
    signalled.daemons.clear()
    message, done = failure(systemd, action="reload", mode="signal", rollback=changes)
    assert "so none gets a signal" in message
    assert not signalled.got
    assert systemd.text == OLD
    # It was never told of the other file.
    assert (done.state, done.attempts) == ("old", 0)


# -- before ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sabotage", "reason"),
    [
        (lambda systemd: systemd.docker.path("/usr/bin/nvidia-container-runtime").unlink(), "is not an executable"),
        (lambda systemd: setattr(systemd, "validates", lambda _text: "I dislike it"), "says: I dislike it"),
    ],
)
def test_what_would_not_start_is_taken_back_and_never_tried(
    systemd: FakeSystemd, sabotage: t.Callable[[FakeSystemd], None], reason: str
) -> None:
    changes = configure(systemd)
    sabotage(systemd)
    message, done = failure(systemd, rollback=changes)
    assert reason in message
    assert "docker was not disturbed" in message
    assert systemd.text == OLD
    assert (done.state, done.attempts, done.rolled_back) == ("old", 0, True)
    assert not systemd.done("systemctl restart")


def test_a_missing_program_may_be_wanted(systemd: FakeSystemd) -> None:
    configure(systemd)
    systemd.docker.path("/usr/bin/nvidia-container-runtime").unlink()
    assert restart(systemd, require_runtime=False).state == "new"


def test_the_judgement_can_be_left_out(systemd: FakeSystemd) -> None:
    systemd.validates = lambda _text: "I dislike it"
    assert restart(systemd, validate="false").state == "new"


@pytest.mark.parametrize("content", ['{"default-runtime": "nope"}', '{"debug": tru}'])
def test_an_edit_of_others_is_left_to_them(systemd: FakeSystemd, content: str) -> None:
    changes = configure(systemd)
    systemd.docker.write(FILE, content)
    message, done = failure(systemd, rollback=changes)
    assert f"{FILE} was edited by others since it was written" in message
    assert systemd.text == content
    assert (done.state, done.changed) == ("old", False)
    # Without a checksum nobody can tell.
    _message, done = failure(systemd, rollback=tuple(change._replace(checksum=None) for change in changes))
    assert systemd.text == OLD
    assert done.changed


def test_an_edit_of_others_goes_if_the_daemon_does_not_come_back_with_it(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    edited = systemd.text.replace("true", "false")
    systemd.docker.write(FILE, edited)
    systemd.ends = only("nvidia", "failed")
    _message, done = failure(systemd, rollback=changes)
    assert systemd.text == OLD
    assert systemd.docker.path(str(done.rejected[0]["backup"])).read_text() == edited


def test_what_others_have_changed_meanwhile_is_no_failure(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    configure(systemd, set_as_default=None, runtime_name="nvidia", extra_modes=("cdi",))
    systemd.docker.write(FILE, '{"live-restore": true}')
    done = restart(systemd, expect=NVIDIA, rollback=changes)
    assert done.state == "new"
    assert any("was changed by others since: it does not know the runtime nvidia" in text for text in done.warnings)


def test_without_backups_nothing_is_begun(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.docker.path(str(changes[0].backup)).unlink()
    with pytest.raises(GpufleetError, match="there would be no way back"):
        restart(systemd, rollback=changes)
    assert not systemd.done("systemctl re")


# -- disruption ------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(systemd: FakeSystemd) -> FakeSystemd:
    """Containers run, and nothing keeps them."""
    systemd.docker.info["LiveRestoreEnabled"] = False
    systemd.docker.containers += [{"Names": ["/web"]}, {"Names": ["/db", "/web/alias"]}, {"Id": "0123456789abcdef"}]
    systemd.docker.write(FILE, "{}")
    return systemd


@pytest.mark.parametrize("check_mode", [False, True])
def test_running_containers_are_not_stopped(busy: FakeSystemd, check_mode: bool) -> None:
    changes = configure(busy)
    text = busy.text
    with pytest.raises(RestartError, match=r"would stop running containers: 0123456789ab, db, web\.") as caught:
        restart(busy, check_mode, rollback=changes)
    assert (caught.value.outcome.state, caught.value.outcome.changed) == ("old", False)
    assert busy.text == text
    assert not busy.done("systemctl restart")


def test_they_are_if_that_is_allowed(busy: FakeSystemd) -> None:
    assert restart(busy, allow_disruption=True).state == "new"


def test_a_reload_disturbs_nobody(busy: FakeSystemd) -> None:
    changes = configure(busy)
    assert restart(busy, action="reload", rollback=changes, expect=NVIDIA).state == "new"


@pytest.mark.parametrize(
    ("live", "text", "kept"),
    [
        (True, '{"live-restore": true}', True),
        # The daemon that starts would stop them.
        (True, "{}", False),
        (False, '{"live-restore": true}', False),
    ],
)
def test_live_restore_has_to_be_on_before_and_after(busy: FakeSystemd, live: bool, text: str, kept: bool) -> None:
    busy.docker.info["LiveRestoreEnabled"] = live
    busy.docker.write(FILE, text)
    if kept:
        assert restart(busy).state == "new"
    else:
        assert "would stop" in failure(busy)[0]


def test_a_daemon_that_does_not_tell_is_not_restarted(systemd: FakeSystemd) -> None:
    systemd.docker.write("/usr/lib/systemd/system/docker.socket", "[Socket]\nListenStream=/run/other.sock\n")
    message, done = failure(systemd)
    assert "unknown which containers" in message
    assert done.state == "unknown"


def test_an_orderly_stop_is_waited_for(busy: FakeSystemd) -> None:
    """Containers get the time that dockerd gives them."""
    busy.ends = lambda _text: "active"
    changes = configure(busy)
    busy.stubborn = 5
    _message, done = failure(busy, allow_disruption=True, rollback=changes, expect=Expectation(("nope",)))
    assert done.state == "old"
    assert not busy.done("systemctl kill")


def test_containers_that_came_up_meanwhile_are_not_stopped_on_the_way_back(busy: FakeSystemd) -> None:
    containers = list(busy.docker.containers)
    busy.docker.containers.clear()
    changes = configure(busy)
    busy.started = lambda: busy.docker.containers.extend(containers)
    message, done = failure(busy, rollback=changes, expect=Expectation(("nope",)))
    assert "WAS NOT RESTARTED WITH THEM, for that would stop containers" in message
    assert (done.state, len(busy.done("systemctl restart"))) == ("unknown", 1)


def test_a_docker_that_is_restarted_along_has_containers_too(busy: FakeSystemd) -> None:
    """Of a unit that requires the one that is restarted."""
    preflight = Preflight(Witness(CONTAINERD, busy.docker.host), CONTAINERD.inspect(busy.docker.host), None, busy.run)
    assert preflight.disruption() == ""
    assert preflight.disruption(["nginx.service"]) == ""
    assert "A restart of docker would stop running containers" in preflight.disruption(["docker.service"])


def test_a_unit_that_ends_all_its_processes_has_containers_to_lose(systemd: FakeSystemd) -> None:
    systemd.docker.write(CONTROL_GROUP, f"{PID}\n5\n6\n")
    systemd.docker.write("/proc/5/comm", "containerd-shim-runc-v2\n")
    systemd.docker.write("/proc/6/comm", "docker-proxy\n")
    assert restart(systemd).state == "new"
    systemd.docker.write(CONTROL_GROUP, f"{PID}\n5\n6\n")
    systemd.kill_mode = "control-group"
    message, _done = failure(systemd)
    assert "would end 1 processes of containers" in message
    assert restart(systemd, allow_disruption=True).state == "new"


@pytest.mark.parametrize(
    ("flags", "kept"),
    [("--live-restore", True), ("--live-restore=true -D", True), ("--live-restore --live-restore=false", False)],
)
def test_live_restore_may_be_a_flag(busy: FakeSystemd, flags: str, kept: bool) -> None:
    busy.docker.info["LiveRestoreEnabled"] = True
    busy.docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd -H fd:// {flags}\n")
    assert (DOCKER.casualties(busy.docker.host, DOCKER.inspect(busy.docker.host)) == []) is kept


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
    with pytest.raises(GpufleetError, match=reason):
        restart(systemd, **options)
    assert not systemd.done("systemctl re")


def test_nothing_runs_in_an_offline_tree(systemd: FakeSystemd) -> None:
    host = systemd.docker.host._replace(live=False)
    with pytest.raises(GpufleetError, match="is an offline tree"):
        _restarting.restart(RestartOptions("docker"), host, systemd.run, check_mode=False)


def test_a_daemon_beside_its_unit_does_not_get_a_second_one(systemd: FakeSystemd) -> None:
    systemd.active, systemd.detail = "inactive", "dead"
    with pytest.raises(GpufleetError, match="cannot be restarted"):
        restart(systemd)


def test_a_unit_may_be_named_without_its_suffix(systemd: FakeSystemd) -> None:
    assert restart(systemd, service="docker").service == "docker.service"


@pytest.mark.parametrize("shown", ["dockerd.service", "docker@x.service"])
def test_a_unit_that_has_another_name_is_refused(systemd: FakeSystemd, shown: str) -> None:
    systemd.name = shown
    with pytest.raises(GpufleetError, match=f"another name of {shown}"):
        restart(systemd)


def test_a_unit_whose_program_is_gone_is_not_the_files_fault(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.docker.path("/usr/bin/dockerd").unlink()
    with pytest.raises(GpufleetError, match=r"starts /usr/bin/dockerd, which is not an executable file"):
        restart(systemd, rollback=changes)
    assert "nvidia" in systemd.text
    assert not systemd.done("systemctl re")


def test_a_validator_that_is_demanded_has_to_be_there(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.validates = lambda _text: "unknown flag: --validate"
    with pytest.raises(GpufleetError, match="cannot judge its configuration"):
        restart(systemd, rollback=changes, validate="true")
    assert "nvidia" in systemd.text
    assert restart(systemd, rollback=changes).state == "new"


def test_a_check_run_does_nothing(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    assert restart(systemd, check_mode=True, rollback=changes).changed
    assert not systemd.done("systemctl re")
    assert states(systemd) == ["changes", "docker"]
    assert not restart(systemd, check_mode=True, mode="none").changed


# -- a run that was killed -------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_what_a_killed_run_began_the_next_one_ends(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")

    def killed(*_arguments: t.Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(_bringing_up.BringUp, "await_proof", killed)
        with pytest.raises(Killed):
            restart(systemd, rollback=changes)
    assert "nvidia" in systemd.text
    assert states(systemd) == ["changes", "docker", "restart"]
    noted = json.loads(systemd.docker.path(NOTE).read_text())
    assert [entry["written"] for entry in noted] == [digest(systemd.text.encode())]
    # The next run has changed nothing, so it brings no way back of its own.
    _message, done = failure(systemd)
    assert systemd.text == OLD
    assert done.state == "old"
    assert states(systemd) == []


def test_what_a_play_that_ended_early_has_changed_is_taken_back_by_the_next(systemd: FakeSystemd) -> None:
    configure(systemd)
    configure(systemd, extra_modes=("cdi",))
    systemd.ends = only("nvidia", "failed")
    _message, done = failure(systemd)
    assert (done.state, systemd.text) == ("old", OLD)
    assert states(systemd) == []


def by_itself(systemd: FakeSystemd) -> None:
    """The daemon is restarted by others."""
    systemd.run(["chroot", "", "systemctl", "restart"])
    systemd.run(["chroot", "", "systemctl", "show"])


def test_what_the_daemon_works_with_is_not_taken_back(systemd: FakeSystemd) -> None:
    configure(systemd)
    by_itself(systemd)
    systemd.ends = only("nvidia", "failed")
    message, _done = failure(systemd)
    assert "nothing to go back to" in message
    assert "nvidia" in systemd.text


def test_the_way_back_begins_where_the_daemon_is(systemd: FakeSystemd) -> None:
    configure(systemd)
    by_itself(systemd)
    first = systemd.text
    configure(systemd, extra_modes=("cdi",))
    systemd.ends = only("nvidia-cdi", "failed")
    failure(systemd)
    assert systemd.text == first


def test_where_no_file_is_changed_nothing_is_noted(systemd: FakeSystemd) -> None:
    """Such as by a purge of backups."""
    configure(systemd)
    restart(systemd)
    for purge in (False, True):
        options = Options("docker", None, purge_backups=purge)
        RuntimeConfiguration(options, systemd.docker.host, systemd.run).execute(check_mode=False)
        assert states(systemd) == ([] if purge else ["changes"])
        restart(systemd)
    assert states(systemd) == []


def test_an_engine_that_does_not_run_leaves_no_note(systemd: FakeSystemd) -> None:
    systemd.docker.write(CONTROL_GROUP, "")
    configure(systemd)
    assert states(systemd) == ["docker"]


def cut_off(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, step: tuple[t.Any, str], **options: t.Any) -> None:
    """A restart that is killed when it comes to ``step``."""

    def killed(*_arguments: t.Any, **_more: t.Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*step, killed)
        with pytest.raises(Killed):
            restart(systemd, **options)


def test_a_run_that_was_killed_on_its_way_back_is_brought_to_its_end(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are the former ones again, and nobody else has edited them."""
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    cut_off(systemd, monkeypatch, (_restarting.Restart, "_prove_former"), rollback=changes)
    assert systemd.text == OLD
    assert systemd.active == "failed"
    message, done = failure(systemd, expect=NVIDIA)
    assert "killed after it had put the former files back" in message
    assert (done.state, systemd.active) == ("old", "active")
    assert states(systemd) == []


def test_backups_that_are_gone_by_now_are_not_needed(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    cut_off(systemd, monkeypatch, (_bringing_up.BringUp, "await_proof"), rollback=changes)
    systemd.docker.path(str(changes[0].backup)).unlink()
    _message, done = failure(systemd)
    assert (done.state, systemd.text) == ("old", OLD)


def test_what_others_wrote_meanwhile_is_not_undone(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    cut_off(systemd, monkeypatch, (_bringing_up.BringUp, "await_proof"), rollback=changes)
    edited = '{"debug": false, "live-restore": true, "labels": ["mine"]}'
    systemd.docker.write(FILE, edited)
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    failure(systemd, rollback=changes)
    assert systemd.text == edited


def test_an_objection_does_not_leave_a_failed_engine_behind(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    cut_off(systemd, monkeypatch, (_bringing_up.BringUp, "await_proof"), rollback=changes)
    systemd.validates = lambda text: "no" if "nvidia" in text else ""
    message, done = failure(systemd)
    assert "and it works with them" in message
    assert (done.state, systemd.text, systemd.active) == ("old", OLD, "active")


def test_a_restart_that_was_killed_when_all_was_done_stops_nobody(
    busy: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(busy)
    cut_off(busy, monkeypatch, (_restarting.Restart, "_drop_note"), rollback=changes, allow_disruption=True)
    done = restart(busy, expect=NVIDIA)
    assert (done.state, done.attempts) == ("new", 0)
    assert states(busy) == ["docker"]


def test_without_a_journal_there_is_still_a_way_back(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    run = systemd.run

    def without(argv: list[str]) -> tuple[int, str, str]:
        return (127, "", "journalctl cannot be run") if "journalctl" in argv else run(argv)

    systemd.run = without  # type: ignore[method-assign]
    _message, done = failure(systemd, rollback=changes)
    assert (done.state, done.journal) == ("old", ())


_ENTRY = '{"path": %s, "content": %s, "record": null, "written": %s}'


@pytest.mark.parametrize(
    "content",
    [
        *["", "{", "[1]", '[{"path": 5}]', "[{}]", "null"],
        *[f"[{_ENTRY % entry}]" for entry in (("5", "null", "null"), ('"x"', "null", "null"), ('"/x"', "5", "null"))],
        *[f"[{_ENTRY % entry}]" for entry in (('"/x"', '"*"', "null"), ('"/x"', "null", "5"))],
    ],
)
def test_a_damaged_note_is_no_obstacle(systemd: FakeSystemd, content: str) -> None:
    systemd.docker.write(NOTE, content)
    assert restart(systemd).state == "new"
    assert states(systemd) == []


def test_a_note_that_cannot_be_written_is_a_warning(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: t.Any) -> None:
        raise HostError("No space left on device")

    monkeypatch.setattr(Note, "write", full)
    done = restart(systemd)
    assert done.state == "new"
    assert "nobody would know" in done.warnings[0]
