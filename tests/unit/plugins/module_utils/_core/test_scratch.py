# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock, scratch
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.scratch import remove_abandoned, scratch_folder


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    (tmp_path / "tmp").mkdir()
    return HostFS(str(tmp_path), live=True)


def names(host: HostFS) -> list[str]:
    return sorted(os.listdir(host.real_path("/tmp")))


def test_a_folder_for_a_moment(host: HostFS) -> None:
    with scratch_folder(host, "the test") as (outer, inner):
        assert outer == host.real_path(inner)
        assert os.stat(outer).st_mode & 0o777 == 0o700
        Path(outer, "file").touch()
        # Another run leaves it alone.
        with scratch_folder(host, "the test"):
            assert len(names(host)) == 2
    assert names(host) == []


def test_what_a_killed_run_has_left_is_removed(host: HostFS) -> None:
    child = os.fork()
    if not child:
        with scratch_folder(host, "the test") as (outer, _inner):
            Path(outer, "file").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = names(host)
    # Whoever only needs a folder, as in check mode, removes no other one.
    with scratch_folder(host, "the test"):
        assert left in names(host)
    with host_lock(host):
        waiting = os.fork()
        if not waiting:
            remove_abandoned(host)
            os._exit(0)
        time.sleep(0.3)
        assert names(host) == [left]
    os.waitpid(waiting, 0)
    assert names(host) == []


def test_a_lock_that_is_held_for_long_does_not_end_a_run(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LOCK_TIMEOUT", 0.0)
    monkeypatch.setattr(lock, "TIMEOUT", 0.0)
    folder = Path(host.real_path("/tmp"), "gpufleet-scratch-99999999-x")
    folder.mkdir()
    with host_lock(host):
        remove_abandoned(host)
    assert folder.is_dir()
    remove_abandoned(host)
    assert not folder.exists()


def test_what_is_not_from_a_killed_run_stays(host: HostFS) -> None:
    place = Path(host.real_path("/tmp"))
    # No process has a number that long.
    kept = ["gpufleet-scratch-99999997-x", "gpufleet-scratch-99999998-x", f"gpufleet-scratch-{os.getpid()}-x"]
    kept += ["gpufleet-toolkit-99999999-x", "gpufleet-scratch-x", "gpufleet-scratch-9x-x", "other"]
    for name in (*kept[1:], "gpufleet-scratch-99999999-x"):
        (place / name).mkdir()
    (place / kept[0]).symlink_to("other")
    handle = os.open(str(place / kept[1]), os.O_RDONLY)
    try:
        # As a run in another container has it, whose processes cannot be seen.
        fcntl.flock(handle, fcntl.LOCK_SH)
        remove_abandoned(host)
    finally:
        os.close(handle)
    assert names(host) == sorted(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_what_another_user_has_made_stays(host: HostFS) -> None:
    folder = Path(host.real_path("/tmp"), "gpufleet-scratch-99999999-x")
    folder.mkdir()
    os.chown(str(folder), 12345, 12345)
    remove_abandoned(host)
    assert folder.is_dir()


def test_no_folder_for_it(tmp_path: Path) -> None:
    remove_abandoned(HostFS(str(tmp_path), live=True))
    folder = scratch_folder(HostFS(str(tmp_path), live=True), "the test")
    with pytest.raises(HostError, match=r"^A directory for the test in /tmp cannot be made: "), folder:
        pass
