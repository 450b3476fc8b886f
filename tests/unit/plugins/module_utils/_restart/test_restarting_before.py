# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import os
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import (
    Expectation,
    HealthProbe,
    Preflight,
    ProbeResult,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import Restart, RestartError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import Change
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
    PID,
    UNIT,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NOTE,
    NVIDIA,
    OLD,
    configure,
    failure,
    only,
    restart,
    states,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils._systemd.test_gpu_containers import bundle

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
    assert (done.state, done.attempts, done.rolled_back) == ("rolled_back", 0, True)
    assert not systemd.done("systemctl restart")


def test_a_missing_program_may_be_wanted(systemd: FakeSystemd) -> None:
    configure(systemd)
    systemd.docker.path("/usr/bin/nvidia-container-runtime").unlink()
    assert restart(systemd, require_runtime=False).state == "applied"


def test_the_judgement_can_be_left_out(systemd: FakeSystemd) -> None:
    systemd.validates = lambda _text: "I dislike it"
    assert restart(systemd, validate="false").state == "applied"


@pytest.mark.parametrize("content", ['{"default-runtime": "nope"}', '{"debug": tru}'])
def test_an_edit_of_others_is_left_to_them(systemd: FakeSystemd, content: str) -> None:
    changes = configure(systemd)
    systemd.docker.write(FILE, content)
    message, done = failure(systemd, rollback=changes)
    assert f"{FILE} was edited by others since it was written" in message
    assert systemd.text == content
    assert (done.state, done.changed) == ("rolled_back", False)
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
    assert systemd.docker.path(str(done.rolled_back_files[0]["backup"])).read_text() == edited


def test_what_others_have_changed_meanwhile_is_no_failure(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    configure(systemd, set_as_default=None, runtime_name="nvidia", extra_modes=("cdi",))
    systemd.docker.write(FILE, '{"live-restore": true}')
    done = restart(systemd, expect=NVIDIA, rollback=changes)
    assert done.state == "applied"
    assert any("was changed by others since: it does not know the runtime nvidia" in text for text in done.warnings)


def test_without_backups_nothing_is_begun(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.docker.path(str(changes[0].backup)).unlink()
    with pytest.raises(NvidiaError, match="there would be no way back"):
        restart(systemd, rollback=changes)
    assert not systemd.done("systemctl re")


# -- the health probe before the restart -----------------------------------------------------------------------------

# Where the fake answers only if a test lets it.
OTHER = "/run/other.sock"
UNKNOWN = f"The health of docker cannot be determined: it does not answer on {OTHER}."


def elsewhere(systemd: FakeSystemd, **options: t.Any) -> dict[str, t.Any]:
    """The options for a probe that asks in the wrong place."""
    return {"socket": OTHER, "allow_disruption": True, "rollback": configure(systemd), "expect": NVIDIA, **options}


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_a_probe_that_failed_before_judges_nothing(systemd: FakeSystemd, action: str) -> None:
    options = elsewhere(systemd, action=action, retries=0)
    text = systemd.text
    done = restart(systemd, **options)
    assert (done.state, done.attempts, done.rolled_back, done.socket) == ("unknown", 1, False, OTHER)
    assert systemd.text == text
    (warning,) = done.warnings
    assert warning.startswith(f"{UNKNOWN} It was so before the {action}, so the new files stay.")
    assert "Run `systemctl status docker.service` on the host" in warning


def test_a_probe_that_failed_before_may_succeed_afterwards(systemd: FakeSystemd) -> None:
    with contextlib.ExitStack() as stack:
        systemd.started = lambda: stack.enter_context(systemd.docker.answers(OTHER))
        done = restart(systemd, **elsewhere(systemd))
    assert (done.state, done.warnings) == ("applied", ())


def test_what_passed_before_is_required_afterwards(systemd: FakeSystemd) -> None:
    """The unit was up; and the probe tells nothing of the former files either, so there is no restart after that."""
    options = elsewhere(systemd, retries=0)
    systemd.ends = only("nvidia", "failed")
    message, done = failure(systemd, **options)
    assert "docker.service is failed (failed). The health probe failed before the restart too: it does not" in message
    assert f"The former files are back. {UNKNOWN}" in message
    assert (done.state, done.attempts, done.rolled_back, systemd.text) == ("unknown", 2, True, OLD)
    # The next run can use the probe before its restart.
    assert states(systemd) == []
    systemd.ends = lambda _text: "active"
    assert restart(systemd, **elsewhere(systemd)).state == "unknown"
    assert "nvidia" in systemd.text


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_a_restart_without_a_change_is_judged_by_the_probe(systemd: FakeSystemd, action: str) -> None:
    message, done = failure(systemd, socket=OTHER, allow_disruption=True, action=action)
    assert f"The health probe failed before the {action} too: it does not answer on {OTHER}" in message
    assert "There is nothing to go back to" in message
    assert done.state == "unknown"
    assert states(systemd) == []


def ill_with(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, bad: str, found: ProbeResult) -> None:
    """The probe after a restart finds ``found`` while the file holds ``bad``."""
    examine = HealthProbe.examine

    def examined(probe: HealthProbe, *arguments: t.Any, **more: t.Any) -> ProbeResult:
        return found if bad in systemd.text else examine(probe, *arguments, **more)

    monkeypatch.setattr(HealthProbe, "examine", examined)


def test_one_failed_probe_before_the_change_is_repeated(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ProbeResult(PID, ("it does not answer",), check="answers")
    answers, health = iter([silent, silent]), HealthProbe.health
    monkeypatch.setattr(HealthProbe, "health", lambda probe: next(answers, None) or health(probe))
    ill_with(systemd, monkeypatch, "nvidia", silent)
    message, done = failure(systemd, rollback=configure(systemd), retries=0)
    assert "The former files are back, and it works with them" in message
    assert (done.state, systemd.text) == ("rolled_back", OLD)


def test_check_mode_does_not_repeat_the_probe(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def health(_probe: HealthProbe) -> ProbeResult:
        asked.append(1)
        return ProbeResult(PID, ("it does not answer",), check="answers")

    monkeypatch.setattr(HealthProbe, "health", health)
    restart(systemd, check_mode=True, allow_disruption=True)
    assert len(asked) == 1


@pytest.mark.parametrize(("cause", "state"), [("no disk", "unknown"), ("no such runtime", "rolled_back")])
def test_a_lasting_failure_is_the_same_one_if_its_cause_is(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, cause: str, state: str
) -> None:
    before = ProbeResult(PID, ("no disk",), settled=True, check="cri-loaded")
    monkeypatch.setattr(HealthProbe, "health", lambda _probe: before)
    ill_with(systemd, monkeypatch, "nvidia", before._replace(lacks=(cause,)))
    options: dict[str, t.Any] = {"rollback": configure(systemd), "retries": 0, "allow_disruption": True}
    if state == "unknown":
        assert restart(systemd, **options).state == state
        assert "nvidia" in systemd.text
    else:
        assert failure(systemd, **options)[1].state == state
        assert systemd.text == OLD


def test_what_an_unknown_daemon_was_started_with_is_not_noted(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(Restart, "_note_applied", lambda _restart: noted.append(1))
    restart(systemd, **elsewhere(systemd))
    assert noted == []
    restart(systemd)
    assert noted == [1]


def test_check_mode_tells_what_the_probe_lacks(systemd: FakeSystemd) -> None:
    done = restart(systemd, check_mode=True, socket=OTHER, allow_disruption=True)
    assert done.warnings[0].startswith(f"{UNKNOWN} A restart could not be judged by it.")


def _stopped(systemd: FakeSystemd) -> None:
    systemd.active, systemd.detail = "inactive", "dead"
    systemd.docker.write(CONTROL_GROUP, "")


def _started(systemd: FakeSystemd, ticks: int) -> None:
    systemd.docker.write(f"/proc/{PID}/stat", f"{PID} (dockerd) {' 0' * 19} {ticks} 0\n")


def _started_since(systemd: FakeSystemd) -> None:
    _started(systemd, int((time.clock_gettime(time.CLOCK_BOOTTIME) + 1) * os.sysconf("SC_CLK_TCK")))


def _killed(systemd: FakeSystemd) -> None:
    """When the daemon started is not known."""
    systemd.docker.write(NOTE, "[]")


def _killed_after_the_restart(systemd: FakeSystemd) -> None:
    """And the files were written once more since."""
    _started_since(systemd)
    _killed(systemd)
    later = time.time() + 100
    os.utime(str(systemd.docker.path(FILE)), (later, later))


@pytest.mark.parametrize("happens", [_stopped, _started_since, _killed, _killed_after_the_restart])
def test_another_state_than_the_previous_one_is_no_measure(
    systemd: FakeSystemd, happens: t.Callable[[FakeSystemd], t.Any]
) -> None:
    options = elsewhere(systemd)
    happens(systemd)
    message, done = failure(systemd, **options)
    assert f"docker did not take {FILE} over: it does not answer on {OTHER}. The former files" in message
    assert (done.state, done.attempts, systemd.text) == ("unknown", 2, OLD)


@pytest.mark.parametrize(("action", "state"), [("restart", "unknown"), ("reload", "")])
def test_a_run_that_was_killed_before_its_restart_leaves_the_previous_state(
    systemd: FakeSystemd, action: str, state: str
) -> None:
    """Whether a reload took place cannot be seen."""
    options = elsewhere(systemd, action=action)
    _started(systemd, 0)
    _killed(systemd)
    if state:
        assert restart(systemd, **options).state == state
        assert "nvidia" in systemd.text
    else:
        failure(systemd, **options)
        assert systemd.text == OLD


def test_a_file_may_have_been_removed_with_its_directory(systemd: FakeSystemd) -> None:
    systemd.docker.path(FILE).unlink()
    systemd.docker.path("/etc/docker").rmdir()
    configure(systemd)
    restart(systemd)
    outcome = ConfigureEngine(Options("docker", None), systemd.docker.host, systemd.run).execute(check_mode=False)
    assert not systemd.docker.path("/etc/docker").exists()
    changes = [Change(str(file["path"]), file["backup"], file["checksum"]) for file in outcome.backup_files]
    _started(systemd, 0)
    done = restart(systemd, socket=OTHER, allow_disruption=True, rollback=tuple(changes))
    assert done.state == "unknown"
    assert not systemd.docker.path("/etc/docker").exists()


# -- disruption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [False, True])
def test_running_containers_are_not_stopped(busy: FakeSystemd, check_mode: bool) -> None:
    changes = configure(busy)
    text = busy.text
    with pytest.raises(RestartError, match=r"would stop running containers: 0123456789ab, db, web\.") as caught:
        restart(busy, check_mode, rollback=changes)
    assert (caught.value.outcome.state, caught.value.outcome.changed) == ("rolled_back", False)
    assert busy.text == text
    assert not busy.done("systemctl restart")


def test_they_are_if_that_is_allowed(busy: FakeSystemd) -> None:
    assert restart(busy, allow_disruption=True).state == "applied"


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_container_with_a_gpu_from_the_hook_does_not_lose_it(systemd: FakeSystemd, check_mode: bool) -> None:
    changes = configure(systemd)
    systemd.docker.write("/run/containerd/io.containerd.runtime.v2.task/k8s.io/one/config.json", bundle())
    systemd.needs_reload = True
    with pytest.raises(RestartError, match=r"The containers containerd/k8s\.io/one would lose their GPUs") as caught:
        restart(systemd, check_mode, rollback=changes)
    assert (caught.value.outcome.state, caught.value.outcome.changed) == ("rolled_back", False)
    assert not systemd.done("systemctl daemon-reload")
    assert not systemd.done("systemctl restart")
    if not check_mode:
        # If it is allowed, the user learns of it; a unit that systemd knows needs no reload.
        done = restart(systemd, rollback=changes, allow_disruption=True)
        assert (done.state, done.daemon_reloaded) == ("applied", True)
        assert any("containerd/k8s.io/one have lost the GPUs" in text for text in done.warnings)
        done = restart(systemd)
        assert (done.state, done.daemon_reloaded, done.warnings) == ("applied", False, ())


def test_a_reload_disturbs_nobody(busy: FakeSystemd) -> None:
    changes = configure(busy)
    assert restart(busy, action="reload", rollback=changes, expect=NVIDIA).state == "applied"


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
        assert restart(busy).state == "applied"
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
    assert done.state == "rolled_back"
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
    preflight = Preflight(
        HealthProbe(CONTAINERD, busy.docker.host), CONTAINERD.inspect(busy.docker.host), None, busy.run
    )
    assert preflight.disruption_reason() == ""
    assert preflight.disruption_reason(["nginx.service"]) == ""
    assert "A restart of docker would stop running containers" in preflight.disruption_reason(["docker.service"])


def test_a_unit_that_ends_all_its_processes_has_containers_to_lose(systemd: FakeSystemd) -> None:
    systemd.docker.write(CONTROL_GROUP, f"{PID}\n5\n6\n")
    systemd.docker.write("/proc/5/comm", "containerd-shim-runc-v2\n")
    systemd.docker.write("/proc/6/comm", "docker-proxy\n")
    assert restart(systemd).state == "applied"
    systemd.docker.write(CONTROL_GROUP, f"{PID}\n5\n6\n")
    systemd.kill_mode = "control-group"
    message, _done = failure(systemd)
    assert "would end 1 processes of containers" in message
    assert restart(systemd, allow_disruption=True).state == "applied"


@pytest.mark.parametrize(
    ("flags", "kept"),
    [("--live-restore", True), ("--live-restore=true -D", True), ("--live-restore --live-restore=false", False)],
)
def test_live_restore_may_be_a_flag(busy: FakeSystemd, flags: str, kept: bool) -> None:
    busy.docker.info["LiveRestoreEnabled"] = True
    busy.docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd -H fd:// {flags}\n")
    assert (DOCKER.containers_stopped_by_restart(busy.docker.host, DOCKER.inspect(busy.docker.host)) == []) is kept
