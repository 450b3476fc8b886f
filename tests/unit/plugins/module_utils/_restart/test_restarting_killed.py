# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import Journal
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart as restart_restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart_loop
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
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

# -- a run that was killed -------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_what_a_killed_run_began_the_next_one_ends(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")

    def killed(*_arguments: t.Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(restart_loop.RestartLoop, "wait_until_healthy", killed)
        with pytest.raises(Killed):
            restart(systemd, rollback=changes)
    assert "nvidia" in systemd.text
    assert states(systemd) == ["changes", "docker", "restart"]
    noted = json.loads(systemd.docker.path(NOTE).read_text())
    assert [entry["written"] for entry in noted] == [digest(systemd.text.encode())]
    # The next run has changed nothing, so it brings no way back of its own.
    _message, done = failure(systemd)
    assert systemd.text == OLD
    assert done.state == "rolled_back"
    assert states(systemd) == []


def test_what_a_play_that_ended_early_has_changed_is_taken_back_by_the_next(systemd: FakeSystemd) -> None:
    configure(systemd)
    configure(systemd, extra_modes=("cdi",))
    systemd.ends = only("nvidia", "failed")
    _message, done = failure(systemd)
    assert (done.state, systemd.text) == ("rolled_back", OLD)
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
        ConfigureEngine(options, systemd.docker.host, systemd.run).execute(check_mode=False)
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
    cut_off(systemd, monkeypatch, (restart_restart.Restart, "_prove_former"), rollback=changes)
    assert systemd.text == OLD
    assert systemd.active == "failed"
    message, done = failure(systemd, expect=NVIDIA)
    assert "killed after it had put the former files back" in message
    assert (done.state, systemd.active) == ("rolled_back", "active")
    assert states(systemd) == []


def test_backups_that_are_gone_by_now_are_not_needed(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    cut_off(systemd, monkeypatch, (restart_loop.RestartLoop, "wait_until_healthy"), rollback=changes)
    systemd.docker.path(str(changes[0].backup)).unlink()
    _message, done = failure(systemd)
    assert (done.state, systemd.text) == ("rolled_back", OLD)


def test_what_others_wrote_meanwhile_is_not_undone(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = configure(systemd)
    cut_off(systemd, monkeypatch, (restart_loop.RestartLoop, "wait_until_healthy"), rollback=changes)
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
    cut_off(systemd, monkeypatch, (restart_loop.RestartLoop, "wait_until_healthy"), rollback=changes)
    systemd.validates = lambda text: "no" if "nvidia" in text else ""
    message, done = failure(systemd)
    assert "and it works with them" in message
    assert (done.state, systemd.text, systemd.active) == ("rolled_back", OLD, "active")


def test_a_restart_that_was_killed_when_all_was_done_stops_nobody(
    busy: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = configure(busy)
    cut_off(busy, monkeypatch, (restart_restart.Restart, "_drop_note"), rollback=changes, allow_disruption=True)
    done = restart(busy, expect=NVIDIA)
    assert (done.state, done.attempts) == ("applied", 0)
    assert states(busy) == ["docker"]


def test_without_a_journal_there_is_still_a_way_back(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = only("nvidia", "failed")
    run = systemd.run

    def without(argv: list[str]) -> tuple[int, str, str]:
        return (127, "", "journalctl cannot be run") if "journalctl" in argv else run(argv)

    systemd.run = without  # type: ignore[method-assign]
    _message, done = failure(systemd, rollback=changes)
    assert (done.state, done.journal) == ("rolled_back", ())


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
    assert restart(systemd).state == "applied"
    assert states(systemd) == []


def test_a_note_that_cannot_be_written_is_a_warning(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: t.Any) -> None:
        raise HostError("No space left on device")

    monkeypatch.setattr(Journal, "write", full)
    done = restart(systemd)
    assert done.state == "applied"
    assert "nobody would know" in done.warnings[0]
