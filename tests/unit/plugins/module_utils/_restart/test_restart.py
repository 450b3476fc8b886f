# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.applied import AppliedFiles, Finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER, Docker
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import JournalEntry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart as restart_restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import (
    Expectation,
    HealthProbe,
    ProbeResult,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import RestartOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import CONTROL_GROUP, PID
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.process_starts import write_start
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NVIDIA,
    OLD,
    STATE,
    configure,
    ends_with,
    failure,
    remove,
    restart,
    state_files,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Installation, LiveState

# -- the new files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_applies_new_files(systemd: FakeSystemd, action: str) -> None:
    changes = configure(systemd)
    result = restart(systemd, action=action, expect=NVIDIA, rollback=changes)
    assert (result.state, result.changed, result.mode) == ("applied", True, "systemd")
    assert (result.attempts, result.pid, result.rolled_back_files) == (1, PID, ())
    assert systemd.done(f"systemctl {action} --no-block -- docker.service")
    assert state_files(systemd) == ["docker"]
    assert not systemd.done("systemctl daemon-reload")


def test_fails_if_expectations_are_not_met(systemd: FakeSystemd) -> None:
    message, result = failure(systemd, expect=Expectation(("nvidia", "runc"), "nvidia", cdi=True), retries=0)
    assert "the runtime nvidia is missing, its default runtime is runc, not nvidia, CDI is off." in message
    assert "There are no previous files to restore" in message
    assert result.state == "unknown"


def test_mode_none_only_checks(systemd: FakeSystemd) -> None:
    result = restart(systemd, mode="none", expect=Expectation(("runc",), "runc"))
    assert (result.state, result.changed, result.attempts) == ("applied", False, 0)
    assert not systemd.docker.path(STATE).exists()
    configure(systemd)
    message, _result = failure(systemd, mode="none")
    assert f"its settings differ from {FILE}" in message
    assert not systemd.done("systemctl re")


def test_check_mode_changes_nothing(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    assert restart(systemd, check_mode=True, rollback=changes).changed
    assert not systemd.done("systemctl re")
    assert state_files(systemd) == ["changes", "docker"]
    assert not restart(systemd, check_mode=True, mode="none").changed


@pytest.mark.parametrize("options", [{"retries": -1}, {"timeout": 0}])
def test_refuses_numbers_out_of_range(systemd: FakeSystemd, options: dict[str, t.Any]) -> None:
    with pytest.raises(NvidiaError, match="timeout must be greater than 0, and retries must not be negative"):
        restart(systemd, **options)


def test_refuses_an_offline_tree(systemd: FakeSystemd) -> None:
    host = systemd.docker.host._replace(live=False)
    with pytest.raises(NvidiaError, match="is an offline tree"):
        restart_restart.restart(RestartOptions("docker"), host, systemd.run, check_mode=False)


def test_records_applied_files_of_a_daemon_that_does_not_report_them(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = systemd.docker.host
    restart(systemd, rollback=configure(systemd))
    assert state_files(systemd) == ["docker"]
    # The class is patched, not the instance DOCKER, which later tests share: after a patch of the instance, monkeypatch
    # would leave the method as an attribute of the instance.
    monkeypatch.setattr(type(DOCKER), "reports_full_state", False)
    monkeypatch.setattr(type(DOCKER), "applied_files", type(DOCKER).config_files)
    _started(systemd, 5)
    restart(systemd)
    assert state_files(systemd) == ["applied", "docker"]
    record = AppliedFiles.of(host, "docker")
    assert record.compare(PID, [FILE]) is Finding.CURRENT
    systemd.docker.write(FILE, systemd.text + "\n")
    assert record.compare(PID, [FILE]) is Finding.OUTDATED
    # A restart whose health is unknown still is one.
    failure(systemd, socket=OTHER, allow_disruption=True, retries=0)
    assert record.compare(PID, [FILE]) is Finding.CURRENT
    # The file with the digests is removed with the last record.
    remove(systemd)
    restart(systemd)
    assert state_files(systemd) == []
    # But a file with a wrong time must not require a restart again and again.
    live = type(DOCKER).live

    def outdated(engine: Docker, host: HostFS, installation: Installation) -> LiveState | None:
        state = live(engine, host, installation)
        return None if state is None else state._replace(outdated=True)

    monkeypatch.setattr(type(DOCKER), "live", outdated)
    restart(systemd)
    assert state_files(systemd) == ["applied"]


# -- changes by other programs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ['{"default-runtime": "nope"}', '{"debug": tru}'])
def test_does_not_replace_a_broken_file_of_another_program(systemd: FakeSystemd, content: str) -> None:
    changes = configure(systemd)
    systemd.docker.write(FILE, content)
    message, result = failure(systemd, rollback=changes)
    assert f"Another program has changed {FILE}, so no previous file was restored." in message
    assert (result.state, result.changed, systemd.text) == ("rolled_back", False, content)
    # Without a checksum, the change cannot be detected.
    _message, result = failure(systemd, rollback=tuple(change._replace(checksum=None) for change in changes))
    assert (result.changed, systemd.text) == (True, OLD)


def test_rolls_back_a_file_of_another_program_if_the_engine_does_not_start(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    edited = systemd.text.replace("true", "false")
    systemd.docker.write(FILE, edited)
    systemd.ends = ends_with("nvidia", "failed")
    _message, result = failure(systemd, rollback=changes)
    assert systemd.text == OLD
    assert systemd.docker.path(str(result.rolled_back_files[0]["backup"])).read_text() == edited


def test_warns_about_expectations_that_another_program_prevents(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.docker.write(FILE, '{"live-restore": true}')
    result = restart(systemd, expect=NVIDIA, rollback=changes)
    assert result.state == "applied"
    assert result.warnings[0].startswith(f"Another program has changed {FILE}: the runtime nvidia is missing")


# -- the health probe before the restart -----------------------------------------------------------------------------

# A socket on which the fake answers only if a test starts it.
OTHER = "/run/other.sock"
UNKNOWN = f"The health of docker cannot be determined: it does not answer on {OTHER}."


def on_other_socket(systemd: FakeSystemd, **options: t.Any) -> dict[str, t.Any]:
    """Configure, and return options for a probe that uses the wrong socket."""
    return {"socket": OTHER, "allow_disruption": True, "rollback": configure(systemd), "expect": NVIDIA, **options}


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_keeps_new_files_if_the_probe_failed_before(systemd: FakeSystemd, action: str) -> None:
    options = on_other_socket(systemd, action=action, retries=0)
    result = restart(systemd, **options)
    assert (result.state, result.attempts, result.rolled_back, result.socket) == ("unknown", 1, False, OTHER)
    assert "nvidia" in systemd.text
    (warning,) = result.warnings
    assert warning.startswith(f"{UNKNOWN} The probe failed in the same way before the {action}, so the new files stay.")
    assert "Run `systemctl status docker.service` on the host" in warning


def test_a_probe_that_failed_before_may_pass_afterwards(systemd: FakeSystemd) -> None:
    with contextlib.ExitStack() as stack:
        systemd.started = lambda: stack.enter_context(systemd.docker.answers(OTHER))
        result = restart(systemd, **on_other_socket(systemd))
    assert (result.state, result.warnings) == ("applied", ())


def test_a_check_that_passed_before_must_pass_afterwards(systemd: FakeSystemd) -> None:
    """The unit was up before. The probe fails with the previous files too, so they are applied only once."""
    options = on_other_socket(systemd, retries=0)
    systemd.ends = ends_with("nvidia", "failed")
    message, result = failure(systemd, **options)
    assert "docker.service is failed (failed). The health probe failed before the restart too: it does not" in message
    assert f"The previous files are restored. {UNKNOWN}" in message
    assert (result.state, result.attempts, result.rolled_back, systemd.text) == ("unknown", 2, True, OLD)
    # The next run can use the probe before its restart.
    assert state_files(systemd) == []
    systemd.ends = lambda _text: "active"
    assert restart(systemd, **on_other_socket(systemd)).state == "unknown"
    assert "nvidia" in systemd.text


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_a_restart_without_changes_must_pass_the_probe(systemd: FakeSystemd, action: str) -> None:
    message, result = failure(systemd, socket=OTHER, allow_disruption=True, action=action)
    assert f"The health probe failed before the {action} too: it does not answer on {OTHER}" in message
    assert "There are no previous files to restore" in message
    assert (result.state, state_files(systemd)) == ("unknown", [])


def fail_probe(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, text: str, failed: ProbeResult) -> None:
    """Make the probe after a restart return ``failed`` while the file contains ``text``."""
    check_applied = HealthProbe.check_applied

    def checked(probe: HealthProbe, *arguments: t.Any, **more: t.Any) -> ProbeResult:
        return failed if text in systemd.text else check_applied(probe, *arguments, **more)

    monkeypatch.setattr(HealthProbe, "check_applied", checked)


def test_repeats_the_probe_before_the_restart(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ProbeResult(PID, ("it does not answer",), check="answers")
    results, check_health = iter([silent, silent]), HealthProbe.check_health
    monkeypatch.setattr(HealthProbe, "check_health", lambda probe: next(results, None) or check_health(probe))
    fail_probe(systemd, monkeypatch, "nvidia", silent)
    message, result = failure(systemd, rollback=configure(systemd), retries=0)
    assert "The previous files are restored. docker works with them." in message
    assert (result.state, systemd.text) == ("rolled_back", OLD)


def test_check_mode_does_not_repeat_the_probe(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def check_health(_probe: HealthProbe) -> ProbeResult:
        calls.append(1)
        return ProbeResult(PID, ("it does not answer",), check="answers")

    monkeypatch.setattr(HealthProbe, "check_health", check_health)
    result = restart(systemd, check_mode=True, allow_disruption=True)
    assert len(calls) == 1
    assert "it does not answer. A restart cannot be checked." in result.warnings[0]


@pytest.mark.parametrize(("cause", "state"), [("no disk", "unknown"), ("no such runtime", "rolled_back")])
def test_final_failures_with_different_causes_are_different(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, cause: str, state: str
) -> None:
    before = ProbeResult(PID, ("no disk",), final=True, check="cri-loaded")
    monkeypatch.setattr(HealthProbe, "check_health", lambda _probe: before)
    fail_probe(systemd, monkeypatch, "nvidia", before._replace(problems=(cause,)))
    options: dict[str, t.Any] = {"rollback": configure(systemd), "retries": 0, "allow_disruption": True}
    if state == "unknown":
        assert restart(systemd, **options).state == state
        assert "nvidia" in systemd.text
    else:
        assert failure(systemd, **options)[1].state == state
        assert systemd.text == OLD


def _stopped(systemd: FakeSystemd) -> None:
    systemd.active, systemd.detail = "inactive", "dead"
    systemd.docker.write(CONTROL_GROUP, "")


def _started(systemd: FakeSystemd, ticks: int) -> None:
    write_start(systemd.docker.root, PID, ticks)


def _started_since(systemd: FakeSystemd) -> None:
    """The daemon was started again after the files were written, whatever their times are."""
    os.utime(str(systemd.docker.path(FILE)), (2**31, 2**31))
    _started(systemd, 7)


def _interrupted(systemd: FakeSystemd) -> None:
    """Leave the journal of an interrupted run. Without _started(), the start time of the daemon is unknown."""
    host = systemd.docker.host
    JournalEntry.restart_in_progress(host, "docker").write((), processes.started(host, PID))


def _interrupted_after_the_restart(systemd: FakeSystemd) -> None:
    """The daemon was restarted after the interrupted run, and then the files were written once more."""
    _interrupted(systemd)
    _started_since(systemd)


@pytest.mark.parametrize("change", [_stopped, _started_since, _interrupted, _interrupted_after_the_restart])
def test_compares_only_with_a_daemon_that_runs_with_the_previous_files(
    systemd: FakeSystemd, change: t.Callable[[FakeSystemd], t.Any]
) -> None:
    options = on_other_socket(systemd)
    change(systemd)
    message, result = failure(systemd, **options)
    assert f"docker does not work with {FILE}: it does not answer on {OTHER}. The previous files" in message
    assert (result.state, result.attempts, systemd.text) == ("unknown", 2, OLD)


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_a_run_that_was_interrupted_before_its_restart_allows_the_comparison(systemd: FakeSystemd, action: str) -> None:
    """An interrupted reload does not allow it, because this run cannot detect whether the daemon was reloaded."""
    _started(systemd, 5)
    options = on_other_socket(systemd, action=action)
    os.utime(str(systemd.docker.path(FILE)), (1, 1))
    _interrupted(systemd)
    if action == "restart":
        assert restart(systemd, **options).state == "unknown"
        assert "nvidia" in systemd.text
    else:
        failure(systemd, **options)
        assert systemd.text == OLD


def test_compares_if_the_file_was_removed_with_its_directory(systemd: FakeSystemd) -> None:
    systemd.docker.path(FILE).unlink()
    systemd.docker.path("/etc/docker").rmdir()
    configure(systemd)
    restart(systemd)
    _started(systemd, 5)
    changes = remove(systemd)
    assert not systemd.docker.path("/etc/docker").exists()
    assert restart(systemd, socket=OTHER, allow_disruption=True, rollback=changes).state == "unknown"
    assert not systemd.docker.path("/etc/docker").exists()


# -- the previous files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "auto-restart"])
def test_rolls_back_if_the_start_fails(systemd: FakeSystemd, end: str) -> None:
    changes = configure(systemd)
    new = systemd.text
    systemd.ends = ends_with("nvidia", end)
    systemd.journal = ["starting", "cannot do that"]
    message, result = failure(systemd, expect=NVIDIA, rollback=changes)
    assert systemd.text == OLD
    assert (result.state, result.rolled_back, result.attempts, result.pid) == ("rolled_back", True, 3, PID)
    assert "docker does not work with /etc/docker/daemon.json" in message
    assert "The previous files are restored. docker works with them. Last lines of its journal: starting |" in message
    (file,) = result.rolled_back_files
    assert file["path"] == FILE
    assert systemd.docker.path(str(file["backup"])).read_text() == new
    # No record stays for a file with its original content.
    assert state_files(systemd) == []


@pytest.mark.parametrize("action", ["change", "removal"])
def test_rolls_back_to_the_first_change_and_its_record(systemd: FakeSystemd, action: str) -> None:
    configure(systemd)
    restart(systemd)
    text = systemd.text
    record = next(systemd.docker.path(STATE).glob("docker-*")).read_text()
    if action == "change":
        changes = configure(systemd, extra_modes=("cdi",))
        systemd.ends = ends_with("nvidia-cdi", "failed")
    else:
        changes = remove(systemd)
        systemd.ends = lambda text: "active" if "nvidia" in text else "failed"
    failure(systemd, rollback=changes)
    assert systemd.text == text
    assert next(systemd.docker.path(STATE).glob("docker-*")).read_text() == record


def test_rolls_back_to_a_missing_file(systemd: FakeSystemd) -> None:
    systemd.docker.path(FILE).unlink()
    systemd.docker.path("/etc/docker").rmdir()
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    assert failure(systemd, rollback=changes)[1].state == "rolled_back"
    assert not systemd.docker.path("/etc/docker").exists()


def test_the_state_is_unknown_if_the_engine_does_not_work_with_the_previous_files(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = lambda _text: "failed"
    message, result = failure(systemd, rollback=changes)
    assert (
        "The previous files are restored. docker does not work with them either: docker.service is failed (failed)."
        " Manual intervention is needed. Run `systemctl status docker.service` on the host" in message
    )
    assert (result.state, systemd.text) == ("unknown", OLD)
    # The journal stays for the next run.
    assert state_files(systemd) == ["changes", "restart"]


def test_does_not_stop_containers_that_were_started_meanwhile(busy: FakeSystemd) -> None:
    containers = list(busy.docker.containers)
    busy.docker.containers.clear()
    changes = configure(busy)
    busy.started = lambda: busy.docker.containers.extend(containers)
    message, result = failure(busy, rollback=changes, expect=Expectation(("nope",)))
    assert (
        "stop running containers: 0123456789ab, db, web. docker was not restarted with the previous files." in message
    )
    assert (result.state, len(busy.done("systemctl restart"))) == ("unknown", 1)


def _disk_full(*_arguments: t.Any, **_more: t.Any) -> t.NoReturn:
    raise HostError("No space left on device")


def test_reports_files_that_cannot_be_restored(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    monkeypatch.setattr(atomic_write, "replace_file", _disk_full)
    monkeypatch.setattr(atomic_write, "use_prepared_file", lambda *_arguments, **_more: False)
    message, result = failure(systemd, rollback=changes)
    assert "The previous files could not be restored: No space left on device" in message
    assert result.state == "unknown"


def test_restores_staged_files_on_a_full_disk(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.docker.path(FILE).chmod(0o600)

    def end(text: str) -> str:
        monkeypatch.setattr(atomic_write, "replace_file", _disk_full)
        return "failed" if "nvidia" in text else "active"

    systemd.ends = end
    message, result = failure(systemd, rollback=changes)
    assert (result.state, systemd.text) == ("rolled_back", OLD)
    assert f"No backup of the replaced content of {FILE} could be written" in message
    assert systemd.docker.path(FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in systemd.docker.path("/etc/docker").iterdir()] == ["daemon.json"]


@pytest.mark.parametrize("end", ["active", "failed"])
def test_staged_files_have_no_name(systemd: FakeSystemd, end: str) -> None:
    """Some engines read every file of a directory."""
    changes = configure(systemd)
    names: list[str] = []

    def ends(text: str) -> str:
        names.extend(path.name for path in systemd.docker.path("/etc").rglob("*") if path.is_file())
        return end if "nvidia" in text else "active"

    systemd.ends = ends
    if end == "active":
        restart(systemd, rollback=changes)
    else:
        failure(systemd, rollback=changes)
    assert [path.name for path in systemd.docker.path("/etc/docker").iterdir()] == ["daemon.json"]
    assert set(names) == {"daemon.json"}


def test_rolls_back_without_a_copy_of_the_new_content(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    monkeypatch.setattr(apply, "save_backup", _disk_full)
    result = failure(systemd, rollback=changes)[1]
    assert result.state == "rolled_back"
    assert result.rolled_back_files == ({"path": FILE, "backup": None},)


def test_reports_a_restart_that_systemd_refuses(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.refused = "restart"
    message, result = failure(systemd, rollback=changes)
    assert "systemctl restart docker.service failed: Access denied" in message
    assert (result.state, result.attempts, systemd.text) == ("rolled_back", 0, OLD)


# -- the journal of the engine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["level=info msg=a", "level=error msg=b", 'time=x level=debug msg="c"', "d"], ["level=error msg=b", "d"]),
        (["level=info msg=a", "level=info msg=b"], ["level=info msg=a", "level=info msg=b"]),
        (["no disk", "docker.service: Failed with result 'exit-code'.", "Stopped docker.service - x."], ["no disk"]),
        (["level=info msg=a", "Failed to start docker.service."], ["Failed to start docker.service."]),
        ([f"line {number}" for number in range(100)], [f"line {number}" for number in range(85, 100)]),
    ],
)
def test_shows_the_lines_with_the_cause(systemd: FakeSystemd, lines: list[str], shown: list[str]) -> None:
    systemd.ends, systemd.journal = (lambda _text: "failed"), lines
    assert list(failure(systemd)[1].journal) == shown


def test_redacts_secrets_in_the_journal(systemd: FakeSystemd) -> None:
    systemd.docker.write(FILE, '{"log-opts": {"splunk-token": "secret-token"}}')
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    systemd.journal = ["bad token secret-token of http://me:pass@x/"]
    message, result = failure(systemd, rollback=changes)
    assert "secret-token" not in message + str(result.journal)
    assert "me:pass" not in message + str(result.journal)
    assert "bad token" in message


def test_rolls_back_without_journalctl(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    run = systemd.run

    def without_journalctl(argv: list[str]) -> tuple[int, str, str]:
        return (127, "", "journalctl cannot be run") if "journalctl" in argv else run(argv)

    systemd.run = without_journalctl  # type: ignore[method-assign]
    result = failure(systemd, rollback=changes)[1]
    assert (result.state, result.journal) == ("rolled_back", ())
