# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts after a run that was killed, and after a play that ended before its handlers."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import JournalEntry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.methods import RestartLoop
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import Restart
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import CONTROL_GROUP
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kills import Killed
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    JOURNAL,
    NVIDIA,
    OLD,
    configure,
    ends_with,
    failure,
    remove,
    restart,
    state_files,
)


def kill(systemd: FakeSystemd, step: tuple[t.Any, str] = (RestartLoop, "wait_until_healthy"), **options: t.Any) -> None:
    """Kill a restart when it calls ``step``, which is in the middle of the restart by default."""

    def killed(*_arguments: t.Any, **_more: t.Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*step, killed)
        with pytest.raises(Killed):
            restart(systemd, **options)


def restart_by_others(systemd: FakeSystemd) -> None:
    """Restart the daemon outside this collection."""
    systemd.run(["chroot", "", "systemctl", "restart"])
    systemd.run(["chroot", "", "systemctl", "show"])


# -- a killed run ----------------------------------------------------------------------------------------------------


def test_the_next_run_completes_a_killed_restart(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    kill(systemd, rollback=changes)
    assert "nvidia" in systemd.text
    assert state_files(systemd) == ["changes", "docker", "restart"]
    entries = json.loads(systemd.docker.path(JOURNAL).read_text())["files"]
    assert [entry["written"] for entry in entries] == [digest(systemd.text.encode())]
    # The next run has changed nothing, so it has no files to roll back. The backup is not needed either.
    systemd.docker.path(str(changes[0].backup)).unlink()
    _message, result = failure(systemd)
    assert (result.state, systemd.text, state_files(systemd)) == ("rolled_back", OLD, [])


def test_the_next_run_completes_a_killed_rollback(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    kill(systemd, (Restart, "_apply_previous_files"), rollback=changes)
    assert (systemd.text, systemd.active) == (OLD, "failed")
    message, result = failure(systemd, expect=NVIDIA)
    assert message.startswith("An earlier run restored the previous files and was then interrupted. docker works with")
    assert (result.state, systemd.active, state_files(systemd)) == ("rolled_back", "active", [])


@pytest.mark.parametrize("purge", [True, False])
def test_a_removal_after_a_killed_restart(systemd: FakeSystemd, purge: bool) -> None:
    """The previous files are the wanted ones. No earlier run has rolled back."""
    kill(systemd, rollback=configure(systemd))
    remove(systemd, purge_backups=purge)
    assert systemd.text == OLD
    # A second removal, after a play that ended before its handlers, has changed nothing.
    assert restart(systemd).state == "applied"
    assert state_files(systemd) == []


def test_does_not_undo_what_another_program_wrote_meanwhile(systemd: FakeSystemd) -> None:
    kill(systemd, rollback=configure(systemd))
    edited = '{"debug": false, "live-restore": true, "labels": ["mine"]}'
    systemd.docker.write(FILE, edited)
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    failure(systemd, rollback=changes)
    assert systemd.text == edited


def test_restarts_a_failed_engine_whose_new_files_are_rejected(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.ends = ends_with("nvidia", "failed")
    kill(systemd, rollback=changes)
    systemd.validates = lambda text: "no" if "nvidia" in text else ""
    message, result = failure(systemd)
    assert "docker works with them." in message
    assert (result.state, systemd.text, systemd.active) == ("rolled_back", OLD, "active")


def test_stops_no_containers_if_the_killed_run_applied_the_files(busy: FakeSystemd) -> None:
    changes = configure(busy)
    kill(busy, (Restart, "_remove_journals"), rollback=changes, allow_disruption=True)
    result = restart(busy, check_mode=True, expect=NVIDIA)
    assert (result.state, result.changed, state_files(busy)) == ("applied", False, ["changes", "docker", "restart"])
    result = restart(busy, expect=NVIDIA)
    assert (result.state, result.attempts, state_files(busy)) == ("applied", 0, ["docker"])


# -- a play that ended before its handlers ---------------------------------------------------------------------------


def test_rolls_back_the_changes_of_an_earlier_play(systemd: FakeSystemd) -> None:
    configure(systemd)
    configure(systemd, extra_modes=("cdi",))
    systemd.ends = ends_with("nvidia", "failed")
    assert failure(systemd)[1].state == "rolled_back"
    assert (systemd.text, state_files(systemd)) == (OLD, [])


def test_does_not_roll_back_files_with_which_the_daemon_already_runs(systemd: FakeSystemd) -> None:
    configure(systemd)
    restart_by_others(systemd)
    applied = systemd.text
    systemd.ends = ends_with("nvidia", "failed")
    assert "There are no previous files to restore" in failure(systemd)[0]
    assert systemd.text == applied


def test_rolls_back_to_the_files_with_which_the_daemon_runs(systemd: FakeSystemd) -> None:
    configure(systemd)
    restart_by_others(systemd)
    applied = systemd.text
    configure(systemd, extra_modes=("cdi",))
    systemd.ends = ends_with("nvidia-cdi", "failed")
    failure(systemd)
    assert systemd.text == applied


# -- the journal -----------------------------------------------------------------------------------------------------


def test_writes_no_journal_if_no_file_changes(systemd: FakeSystemd) -> None:
    configure(systemd)
    restart(systemd)
    # The second run only removes the backups.
    for purge, files in ((False, ["changes"]), (True, [])):
        remove(systemd, purge_backups=purge)
        assert state_files(systemd) == files
        restart(systemd)
    assert state_files(systemd) == []


def test_writes_no_journal_for_an_engine_that_does_not_run(systemd: FakeSystemd) -> None:
    systemd.docker.write(CONTROL_GROUP, "")
    configure(systemd)
    assert state_files(systemd) == ["docker"]


_ENTRY = '{"path": %s, "content": %s, "record": null, "written": %s}'


@pytest.mark.parametrize(
    "content",
    [
        *["", "{", "[1]", "{}", "null", '{"files": 1}'],
        *[f'{{"files": [{entry}]}}' for entry in ("1", "{}", '{"path": 5}')],
        *[
            f'{{"files": [{_ENTRY % entry}]}}'
            for entry in (
                *[("5", "null", "null"), ('"x"', "null", "null"), ('"/x"', "5", "null")],
                *[('"/x"', '"*"', "null"), ('"/x"', "null", "5")],
            )
        ],
    ],
)
def test_ignores_a_damaged_journal(systemd: FakeSystemd, content: str) -> None:
    systemd.docker.write(JOURNAL, content)
    assert restart(systemd).state == "applied"
    assert state_files(systemd) == []


@pytest.mark.parametrize(
    ("method", "warning"),
    [
        ("write", "The next run cannot complete this restart if it is interrupted: No space left on device"),
        ("remove", "The next run will treat this restart as interrupted: No space left on device"),
    ],
)
def test_warns_about_a_journal_that_cannot_be_changed(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, method: str, warning: str
) -> None:
    def disk_full(*_arguments: t.Any) -> None:
        raise HostError("No space left on device")

    monkeypatch.setattr(JournalEntry, method, disk_full)
    result = restart(systemd)
    assert (result.state, result.warnings) == ("applied", (warning,))
