# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import Change
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NVIDIA,
    OLD,
    STATE,
    configure,
    failure,
    only,
    restart,
    states,
)

# -- the old state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "auto-restart"])
def test_a_start_that_fails_brings_the_former_file_back(systemd: FakeSystemd, end: str) -> None:
    changes = configure(systemd)
    new = systemd.text
    systemd.ends = only("nvidia", end)
    systemd.journal = ["starting", "cannot do that"]
    message, done = failure(systemd, expect=NVIDIA, rollback=changes)
    assert systemd.text == OLD
    assert (done.state, done.rolled_back, done.attempts, done.pid) == ("rolled_back", True, 3, 4711)
    assert "docker did not take /etc/docker/daemon.json over" in message
    assert "The former files are back, and it works with them. Its last words: starting | cannot do that" in message
    (rejected,) = done.rolled_back_files
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
    outcome = ConfigureEngine(Options("docker", None), systemd.docker.host, systemd.run).execute(check_mode=False)
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
    assert done.state == "rolled_back"
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
    assert done.state == "rolled_back"
    assert systemd.done("systemctl kill --kill-who=main --signal=KILL -- docker.service")


def test_a_daemon_that_hangs_is_not_asked_for_its_containers(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not answer, and meanwhile nothing works."""
    changes = configure(systemd)
    systemd.ends = only("nvidia", "hangs")
    asked: list[str] = []

    def containers_stopped_by_restart(*_arguments: t.Any) -> list[str]:
        asked.append(systemd.active)
        return []

    monkeypatch.setattr(type(DOCKER), "containers_stopped_by_restart", containers_stopped_by_restart)
    failure(systemd, rollback=changes)
    assert asked == ["active"]


def test_a_daemon_that_is_slow_with_what_is_new_is_not_killed(systemd: FakeSystemd) -> None:
    systemd.ends = lambda _text: "hangs"
    failure(systemd)
    assert not systemd.done("systemctl kill")


def test_if_neither_state_works_that_is_said_aloud(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = lambda _text: "failed"
    message, done = failure(systemd, rollback=changes)
    assert done.state == "unknown"
    said = "The former files are back. The health of docker cannot be determined: docker.service is failed (failed)."
    assert f"{said} Run `systemctl status docker.service` on the host and correct what it reports." in message
    assert systemd.text == OLD
    # Whoever comes next is to know.
    assert states(systemd) == ["changes", "restart"]


def test_files_that_cannot_be_put_back_are_said_aloud(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")

    def full(*_arguments: t.Any, **_more: t.Any) -> None:
        raise HostError("/etc/docker/daemon.json cannot be written: No space left on device. Make room.")

    monkeypatch.setattr(atomic_write, "replace_file", full)
    monkeypatch.setattr(atomic_write, "use_prepared_file", lambda *_arguments, **_more: False)
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
        monkeypatch.setattr(atomic_write, "replace_file", full)
        monkeypatch.setattr(atomic_write, "replace_file", full)
        return "failed" if "nvidia" in text else "active"

    systemd.ends = end
    message, done = failure(systemd, rollback=changes)
    assert (done.state, systemd.text) == ("rolled_back", OLD)
    assert f"NO COPY COULD BE KEPT of what stood in {FILE}" in message
    assert systemd.docker.path(FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in systemd.docker.path("/etc/docker").iterdir()] == ["daemon.json"]


@pytest.mark.parametrize("end", ["active", "failed"])
def test_no_daemon_sees_what_lies_ready(systemd: FakeSystemd, end: str) -> None:
    """Some read every file of a directory."""
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


def test_a_copy_of_what_is_rejected_is_worth_less_than_a_host_that_works(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")

    def full(*_arguments: t.Any) -> str:
        raise HostError("full")

    monkeypatch.setattr(apply, "save_backup", full)
    _message, done = failure(systemd, rollback=changes)
    assert done.state == "rolled_back"
    assert done.rolled_back_files == ({"path": FILE, "backup": None},)


def test_what_systemd_refuses_is_told(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.refused = "restart"
    message, done = failure(systemd, rollback=changes)
    assert "systemctl restart docker.service failed: Access denied" in message
    # It runs as before.
    assert (done.state, done.attempts) == ("rolled_back", 0)
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
