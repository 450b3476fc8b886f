# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import LOCK_FILE, host_lock

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> HostRoot:
    (tmp_path / "run/lock").mkdir(parents=True)
    return HostRoot(str(tmp_path), live=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / LOCK_FILE[1:]


def _fork(work: t.Callable[[], None]) -> int:
    """Run ``work`` in a process of its own; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _end(child: int) -> int:
    return os.waitpid(child, 0)[1]


@contextlib.contextmanager
def _held_elsewhere(host: HostRoot, seconds: float = 60) -> t.Iterator[int]:
    """Another process, whose id this gives, holds the lock for ``seconds``, then gives it back."""
    reader, writer = os.pipe()

    def hold() -> None:
        with host_lock(host):
            os.write(writer, b"held")
            time.sleep(seconds)

    child = _fork(hold)
    try:
        assert select.select([reader], [], [], 20)[0]
        assert os.read(reader, 4) == b"held"
        yield child
    finally:
        os.close(reader)
        os.close(writer)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            _end(child)


def _is_free(host: HostRoot) -> bool:
    """Whether another process gets the lock at once."""

    def take() -> None:
        with host_lock(host, 0):
            pass

    return _end(_fork(take)) == 0


def test_one_holder_at_a_time(host: HostRoot, file: Path) -> None:
    with host_lock(host, 0):
        assert file.read_text() == f"{os.getpid()}\n"
        assert file.stat().st_mode & 0o777 == 0o600
        assert not _is_free(host)
    assert _is_free(host)


def test_other_hosts_are_not_locked(host: HostRoot, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with host_lock(host, 0):
        assert _is_free(HostRoot(str(tmp_path / "other"), live=False))


def test_error_names_the_holder(host: HostRoot) -> None:
    with _held_elsewhere(host) as holder:
        started = time.monotonic()
        with pytest.raises(HostError) as caught, host_lock(host, 0.4):
            raise AssertionError
        assert 0.4 <= time.monotonic() - started < 5
    assert str(caught.value) == (
        f"{LOCK_FILE} is held by another run (process {holder}). Wait for it to end, then run this again."
    )


@pytest.mark.parametrize(("standard", "timeout"), [(0.0, None), (60.0, 0.0)])
def test_no_time_to_wait(
    monkeypatch: pytest.MonkeyPatch, host: HostRoot, standard: float, timeout: float | None
) -> None:
    with _held_elsewhere(host):
        monkeypatch.setattr(_lock, "TIMEOUT", standard)
        monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("waits"))
        with pytest.raises(HostError, match="is held by another run"), host_lock(host, timeout):
            raise AssertionError


def test_waits_until_it_is_given_back(host: HostRoot, file: Path) -> None:
    with _held_elsewhere(host, seconds=0.3), host_lock(host, 20):
        assert file.read_text() == f"{os.getpid()}\n"
    assert _is_free(host)


def test_killed_holder_leaves_no_lock(host: HostRoot, file: Path) -> None:
    with _held_elsewhere(host) as holder:
        os.kill(holder, signal.SIGKILL)
        _end(holder)
        assert file.read_text() == f"{holder}\n"
        with host_lock(host, 0):
            assert file.read_text() == f"{os.getpid()}\n"
    assert not file.exists()


def test_file_of_a_killed_holder_is_written_anew(host: HostRoot, file: Path) -> None:
    file.write_text("99999999999999\nand more")
    with host_lock(host, 0):
        assert file.read_text() == f"{os.getpid()}\n"


def test_given_back_after_an_error(host: HostRoot, file: Path) -> None:
    with pytest.raises(ZeroDivisionError), host_lock(host, 0):
        raise ZeroDivisionError
    assert not file.exists()
    assert _is_free(host)


def test_no_file_stays_open(host: HostRoot) -> None:
    before = os.listdir("/proc/self/fd")
    with _held_elsewhere(host), contextlib.suppress(HostError), host_lock(host, 0.3):
        pass
    with host_lock(host, 0):
        pass
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("existing", [[], ["run"], ["run", "run/lock"]])
def test_tree_is_left_as_it_was(tmp_path: Path, existing: list[str]) -> None:
    for folder in existing:
        (tmp_path / folder).mkdir()
    with host_lock(HostRoot(str(tmp_path), live=False), 0):
        assert (tmp_path / "run/lock").stat().st_mode & 0o777 == 0o755
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == existing


def test_links_of_the_tree_are_followed_inside_it(tmp_path: Path) -> None:
    (tmp_path / "var/lock").mkdir(parents=True)
    (tmp_path / "run").symlink_to("/var")
    with host_lock(HostRoot(str(tmp_path), live=False), 0):
        assert os.listdir(tmp_path / "var/lock") == [os.path.basename(LOCK_FILE)]


@pytest.mark.parametrize("target", ["/victim", "../../victim", "/none/at/all"])
def test_planted_link_is_not_followed(host: HostRoot, file: Path, tmp_path: Path, target: str) -> None:
    """Everybody may write to /run/lock on Debian: a link there must not lead root to truncate what it names."""
    (tmp_path / "victim").write_text("precious")
    file.symlink_to(target)

    def take() -> None:
        # Rather than wait for ever.
        signal.alarm(5)
        with pytest.raises(HostError, match=f"{LOCK_FILE} cannot be "), host_lock(host, 0):
            pass

    ended = _end(_fork(take))
    assert (tmp_path / "victim").read_text() == "precious"
    assert ended == 0


def test_file_that_was_given_back_meanwhile_is_not_the_lock(
    monkeypatch: pytest.MonkeyPatch, host: HostRoot, file: Path
) -> None:
    """Between opening and locking, the former holder removes the file and a third run makes a new one."""
    real = fcntl.flock
    calls: list[int] = []

    def late(handle: int, operation: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            file.unlink()
            file.write_text("new")
        real(handle, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late)
        with host_lock(host, 5):
            patch.undo()
            assert len(calls) == 2
            assert not _is_free(host)


def test_folders_that_go_meanwhile_are_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The former holder made /run too, and removes it while this run makes /run/lock in it."""
    (tmp_path / "run").mkdir()
    real = os.mkdir
    calls: list[str] = []

    def late(path: str, mode: int = 0o777) -> None:
        calls.append(path)
        if len(calls) == 1:
            os.rmdir(tmp_path / "run")
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", late)
    with host_lock(HostRoot(str(tmp_path), live=False), 5):
        assert (tmp_path / LOCK_FILE[1:]).exists()


@pytest.mark.parametrize("existing", [[], ["run", "run/lock"]], ids=["bare tree", "tree with /run/lock"])
def test_contention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, existing: list[str]) -> None:
    """No increment of a counter is lost, and no file is left behind."""
    monkeypatch.setattr(_lock, "_PAUSE", 0.001)
    host = HostRoot(str(tmp_path), live=False)
    for folder in existing:
        (tmp_path / folder).mkdir()
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _round in range(25):
            with host_lock(host, 30):
                number = int(counter.read_text())
                time.sleep(0.0005)
                counter.write_text(str(number + 1))

    children = [_fork(count) for _number in range(4)]
    assert [_end(child) for child in children] == [0, 0, 0, 0]
    assert counter.read_text() == "100"
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    # Which of several runs made the folders is not known to the last of them.
    assert left - {"run", "run/lock"} == {"counter"}
    assert left >= {"counter", *existing}


def test_folder_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    host = HostRoot(str(tmp_path), live=False)
    with pytest.raises(HostError, match="/run/lock cannot be created: Not a directory"), host_lock(host, 0):
        raise AssertionError


def test_lock_that_is_a_folder(host: HostRoot, file: Path) -> None:
    file.mkdir()
    with pytest.raises(HostError, match=f"{LOCK_FILE} cannot be opened: Is a directory"), host_lock(host, 0):
        raise AssertionError


@pytest.mark.parametrize("becomes", ["gone", "another's"])
def test_a_lock_file_that_somebody_took_away_fails_nothing(host: HostRoot, file: Path, becomes: str) -> None:
    """The work is done by then; and the file that stands there now is another run's lock."""
    with host_lock(host, 0):
        file.unlink()
        if becomes != "gone":
            file.write_text("1\n")
    assert file.exists() is (becomes != "gone")
    assert _is_free(host)


def test_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch, host: HostRoot) -> None:
    def refuse(_handle: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(HostError, match=f"{LOCK_FILE} cannot be locked: No locks available"), host_lock(host, 0):
        raise AssertionError
    assert os.listdir("/proc/self/fd") == before


def test_a_full_file_system_stops_no_lock(monkeypatch: pytest.MonkeyPatch, host: HostRoot) -> None:
    def full(_handle: int, _text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with host_lock(host, 0):
        monkeypatch.undo()
        assert not _is_free(host)
    assert _is_free(host)
