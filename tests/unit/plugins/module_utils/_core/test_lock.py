# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.lock import (
    LOCK,
    host_lock,
    interruptible,
    remove_stale_directories,
    temp_directory,
)

OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    (tmp_path / "run").mkdir()
    return HostFS(str(tmp_path), live=True)


@pytest.fixture
def folder(host: HostFS) -> Path:
    """The missing directory of the lock."""
    return Path(host.real_path(LOCK))


def _fork(work: t.Callable[[], None]) -> int:
    """Run ``work`` in a child process and return its ID."""
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
def _held_elsewhere(host: HostFS, seconds: float = 60) -> t.Iterator[int]:
    """Let a child process, whose ID is the result, hold the lock for ``seconds``."""
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


def _as_other_user(root: Path, work: t.Callable[[], None]) -> int:
    """Run ``work`` as another user with the root directory ``root``; return the exit status."""
    root.chmod(0o755)

    def dropped() -> None:
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        work()

    return _end(_fork(dropped))


def _is_free(host: HostFS) -> bool:
    """Return whether another process gets the lock at once."""

    def take() -> None:
        with host_lock(host, 0):
            pass

    return _end(_fork(take)) == 0


def _refusal(host: HostFS, timeout: float = 0) -> str:
    """Return the message of the error with which host_lock() fails."""
    with pytest.raises(HostError) as caught, host_lock(host, timeout):
        raise AssertionError
    return str(caught.value)


def test_one_holder_at_a_time(host: HostFS, folder: Path) -> None:
    for _again in range(2):
        with host_lock(host, 0):
            assert folder.stat().st_mode & 0o7777 == 0o700
            assert not _is_free(host)
        assert _is_free(host)
    assert os.listdir(folder) == []


def test_nothing_is_created_in_a_tree(tmp_path: Path) -> None:
    tree = HostFS(str(tmp_path), live=False)
    before = tmp_path.stat().st_mtime_ns
    with host_lock(tree, 0):
        assert list(tmp_path.iterdir()) == []
        assert not _is_free(tree)
        assert _refusal(tree).startswith(
            f"{tmp_path} is held by another task of this collection. `fuser -v {tmp_path}`"
        )
    assert _is_free(tree)
    assert tmp_path.stat().st_mtime_ns == before


def test_waits_for_the_time_that_is_given(host: HostFS) -> None:
    with _held_elsewhere(host):
        started = time.monotonic()
        assert f"{LOCK} is held by another task" in _refusal(host, 0.4)
        assert 0.4 <= time.monotonic() - started < 5


@pytest.mark.parametrize(("standard", "timeout"), [(0.0, None), (60.0, 0.0)])
def test_timeout_of_zero_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, host: HostFS, standard: float, timeout: float | None
) -> None:
    with _held_elsewhere(host):
        monkeypatch.setattr(lock, "TIMEOUT", standard)
        monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("waits"))
        with pytest.raises(HostError, match="is held by another task"), host_lock(host, timeout):
            raise AssertionError


def test_waits_until_the_lock_is_released(host: HostFS) -> None:
    with _held_elsewhere(host, seconds=0.3), host_lock(host, 20):
        assert not _is_free(host)
    assert _is_free(host)


def test_released_after_an_error(host: HostFS) -> None:
    with pytest.raises(ZeroDivisionError), host_lock(host, 0):
        raise ZeroDivisionError
    assert _is_free(host)


def test_closes_all_files(host: HostFS) -> None:
    before = os.listdir("/proc/self/fd")
    with _held_elsewhere(host), contextlib.suppress(HostError), host_lock(host, 0.3):
        pass
    with host_lock(host, 0):
        pass
    assert os.listdir("/proc/self/fd") == before


def test_follows_links_inside_the_tree(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "run").symlink_to("/var")
    with host_lock(HostFS(str(tmp_path), live=True), 0):
        assert os.listdir(tmp_path / "var") == [os.path.basename(LOCK)]


@needs_root
def test_other_users_cannot_hold_the_lock(host: HostFS, folder: Path, tmp_path: Path) -> None:
    """Every user who can open a directory can lock it."""
    folder.mkdir()
    folder.chmod(0o777)
    (tmp_path / "run").chmod(0o755)

    def disturb() -> None:
        for path in (LOCK, f"{LOCK}/other"):
            with pytest.raises(PermissionError):
                os.open(path, os.O_RDONLY)

    with host_lock(host, 0):
        assert folder.stat().st_mode & 0o7777 == 0o700
        assert _as_other_user(tmp_path, disturb) == 0


@needs_root
def test_rejects_a_lock_of_another_user(host: HostFS, folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, OTHER_USER, OTHER_USER)
    before = os.listdir("/proc/self/fd")
    assert _refusal(host) == (
        f"{LOCK} belongs to user {OTHER_USER}, but the task runs as user 0. Remove it, then run the task again."
    )
    assert os.listdir("/proc/self/fd") == before


@needs_root
def test_lock_of_an_ordinary_user_is_in_the_runtime_directory(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "run").chmod(0o755)
    runtime = tmp_path / f"run/user/{OTHER_USER}"

    def fail() -> None:
        expected = f"/run/user/{OTHER_USER} does not exist.*`loginctl enable-linger {OTHER_USER}`"
        with pytest.raises(HostError, match=expected), host_lock(HostFS(), 0):
            raise AssertionError

    def take() -> None:
        # become may keep the variable of another user.
        os.environ["XDG_RUNTIME_DIR"] = "/run/user/0"
        with host_lock(HostFS(), 0):
            assert os.listdir(f"/run/user/{OTHER_USER}") == [os.path.basename(LOCK)]

    with host_lock(host, 0):
        assert _as_other_user(tmp_path, fail) == 0
        runtime.mkdir(parents=True)
        os.chown(runtime, OTHER_USER, OTHER_USER)
        assert _as_other_user(tmp_path, take) == 0


@pytest.mark.parametrize("target", ["/other", "../other", "../../other", "/none/at/all"])
def test_rejects_a_lock_that_is_a_link(tmp_path: Path, target: str) -> None:
    tree = tmp_path / "tree"
    for other in ("other", "tree/other", "tree/run"):
        (tmp_path / other).mkdir(parents=True)
    (tree / LOCK[1:]).symlink_to(target)
    host = HostFS(str(tree), live=True)
    assert _refusal(host).startswith(f"{LOCK} is a link, ")
    assert os.listdir(tmp_path / "other") == os.listdir(tree / "other") == []


def test_rejects_a_lock_that_becomes_a_link(monkeypatch: pytest.MonkeyPatch, folder: Path, host: HostFS) -> None:
    """The owner of the tree can replace the directory at any moment."""
    real = os.mkdir

    def late(path: str, mode: int = 0o777, **named: t.Any) -> None:
        real(path, mode, **named)
        folder.rmdir()
        folder.symlink_to(folder.parent)

    monkeypatch.setattr(os, "mkdir", late)
    assert re.search(f"{LOCK} is a link, or not a directory", _refusal(host))


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo], ids=["file", "pipe"])
def test_rejects_a_lock_that_is_not_a_directory(host: HostFS, folder: Path, make: t.Callable[[Path], None]) -> None:
    make(folder)
    assert re.search(rf"{LOCK} is a link, or not a directory\. Remove it", _refusal(host))


def test_error_if_the_directory_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    host = HostFS(str(tmp_path), live=True)
    assert re.search(f"{LOCK} cannot be opened: Not a directory", _refusal(host))


def test_error_if_the_tree_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert re.search(f"{gone} cannot be opened: No such file", _refusal(HostFS(str(gone), live=False)))


@pytest.mark.parametrize("live", [True, False])
def test_error_on_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, live: bool) -> None:
    def refuse(_handle: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", refuse)
    shown = LOCK if live else str(tmp_path)
    assert re.search(f"{shown} cannot be locked: No locks available", _refusal(HostFS(str(tmp_path), live=live)))
    assert os.listdir("/proc/self/fd") == before


# -- temporary directories -------------------------------------------------------------------------------------------


@pytest.fixture
def temp_host(tmp_path: Path) -> HostFS:
    (tmp_path / "tmp").mkdir()
    return HostFS(str(tmp_path), live=True)


def _names(host: HostFS) -> list[str]:
    return sorted(os.listdir(host.real_path("/tmp")))


def test_temp_directory_is_private_and_removed(temp_host: HostFS) -> None:
    with temp_directory(temp_host, "the test") as (process_path, inner):
        assert process_path == temp_host.real_path(inner)
        assert os.stat(process_path).st_mode & 0o777 == 0o700
        Path(process_path, "file").touch()
        # Another run does not remove it.
        with temp_directory(temp_host, "the test"):
            assert len(_names(temp_host)) == 2
    assert _names(temp_host) == []


def test_removes_the_directory_of_a_killed_run_under_the_lock(temp_host: HostFS) -> None:
    child = os.fork()
    if not child:
        with temp_directory(temp_host, "the test") as (process_path, _inner):
            Path(process_path, "file").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = _names(temp_host)
    # A run that only needs a directory, as in check mode, removes no other one.
    with temp_directory(temp_host, "the test"):
        assert left in _names(temp_host)
    with host_lock(temp_host):
        waiting = os.fork()
        if not waiting:
            remove_stale_directories(temp_host)
            os._exit(0)
        time.sleep(0.3)
        assert _names(temp_host) == [left]
    os.waitpid(waiting, 0)
    assert _names(temp_host) == []


def test_stale_directories_stay_while_the_lock_is_held(temp_host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_REMOVAL_TIMEOUT", 0.0)
    monkeypatch.setattr(lock, "TIMEOUT", 0.0)
    folder = Path(temp_host.real_path("/tmp"), "gpufleet-scratch-99999999-x")
    folder.mkdir()
    with host_lock(temp_host):
        remove_stale_directories(temp_host)
    assert folder.is_dir()
    remove_stale_directories(temp_host)
    assert not folder.exists()


def test_keeps_directories_of_running_processes_links_and_other_names(temp_host: HostFS) -> None:
    place = Path(temp_host.real_path("/tmp"))
    # No process has a number that long.
    kept = ["gpufleet-scratch-99999997-x", "gpufleet-scratch-99999998-x", f"gpufleet-scratch-{os.getpid()}-x"]
    kept += ["gpufleet-toolkit-99999999-x", "gpufleet-scratch-x", "gpufleet-scratch-9x-x", "other"]
    for name in (*kept[1:], "gpufleet-scratch-99999999-x"):
        (place / name).mkdir()
    (place / kept[0]).symlink_to("other")
    handle = os.open(str(place / kept[1]), os.O_RDONLY)
    try:
        # A run in another container, whose processes are invisible here, locks its directory.
        fcntl.flock(handle, fcntl.LOCK_SH)
        remove_stale_directories(temp_host)
    finally:
        os.close(handle)
    assert _names(temp_host) == sorted(kept)


@needs_root
def test_keeps_directories_of_another_user(temp_host: HostFS) -> None:
    folder = Path(temp_host.real_path("/tmp"), "gpufleet-scratch-99999999-x")
    folder.mkdir()
    os.chown(str(folder), 12345, 12345)
    remove_stale_directories(temp_host)
    assert folder.is_dir()


def test_temp_directory_without_tmp(tmp_path: Path) -> None:
    remove_stale_directories(HostFS(str(tmp_path), live=True))
    folder = temp_directory(HostFS(str(tmp_path), live=True), "the test")
    with pytest.raises(HostError, match=r"^A directory for the test in /tmp cannot be created: "), folder:
        pass


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_raises_an_exception_for_a_signal(number: int) -> None:
    # The tests themselves may run under nohup or in the background.
    before = signal.signal(number, signal.SIG_DFL)
    steps: list[str] = []

    def interrupted() -> None:
        with interruptible():
            try:
                os.kill(os.getpid(), number)
                time.sleep(5)
            finally:
                # A second signal does not interrupt the removal.
                os.kill(os.getpid(), number)
                time.sleep(0.01)
                steps.append("removed")

    try:
        with pytest.raises(SystemExit) as caught:
            interrupted()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert steps == ["removed"]
    assert caught.value.code == 128 + number


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
