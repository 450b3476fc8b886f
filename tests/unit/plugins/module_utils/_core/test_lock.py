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
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.lock import (
    LOCK_FILE,
    host_lock,
    remove_stale_directories,
    temp_directory,
)

FOLDER = os.path.dirname(LOCK_FILE)
OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    (tmp_path / "run").mkdir()
    return HostFS(str(tmp_path), live=False)


@pytest.fixture
def file(host: HostFS) -> Path:
    """The missing lock file, in an existing directory."""
    path = Path(host.real_path(LOCK_FILE))
    path.parent.mkdir(0o700)
    return path


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


def test_one_holder_at_a_time(host: HostFS, file: Path) -> None:
    with host_lock(host, 0):
        assert file.read_text() == f"{os.getpid()}\n"
        assert file.stat().st_mode & 0o777 == 0o600
        assert not _is_free(host)
    assert _is_free(host)


def test_other_hosts_are_not_locked(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with host_lock(host, 0):
        assert _is_free(HostFS(str(tmp_path / "other"), live=False))


def test_timeout_error_names_the_holder(host: HostFS) -> None:
    with _held_elsewhere(host) as holder:
        started = time.monotonic()
        assert f"{LOCK_FILE} is held by process {holder} (" in _refusal(host, 0.4)
        assert 0.4 <= time.monotonic() - started < 5


def _error_with(host: HostFS, file: Path, content: str) -> str:
    """Return the error while a process that wrote ``content`` holds the lock."""
    file.write_text(content)
    with open(file, encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        return _refusal(host)


def test_timeout_error_shows_the_command_of_the_holder(host: HostFS, file: Path) -> None:
    for argv, shown in ((["cat", "-"], "cat -"), (["sh", "-c", "cat\n#" + "x" * 999], "sh -c cat #xxx")):
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(b"1")
            # The kernel shows its command once it has answered.
            holder.stdout.read(1)
            error = _error_with(host, file, f"{holder.pid}\n")
            holder.stdin.close()
        assert error.startswith(f"{LOCK_FILE} is held by process {holder.pid} ({shown}")
        assert error.endswith("). Wait for it to end, then run the task again.")
        assert len(error) < 400


@pytest.mark.parametrize(("content", "shown"), [("", "unknown"), ("x\n", "x"), ("999999999\n", "999999999")])
def test_timeout_error_for_an_unknown_holder(host: HostFS, file: Path, content: str, shown: str) -> None:
    assert _error_with(host, file, content) == (
        f"{LOCK_FILE} is held by process {shown} (command unknown). Wait for it to end, then run the task again."
    )


@pytest.mark.parametrize(("standard", "timeout"), [(0.0, None), (60.0, 0.0)])
def test_timeout_of_zero_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, host: HostFS, standard: float, timeout: float | None
) -> None:
    with _held_elsewhere(host):
        monkeypatch.setattr(lock, "TIMEOUT", standard)
        monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("waits"))
        with pytest.raises(HostError, match="is held by process"), host_lock(host, timeout):
            raise AssertionError


def test_waits_until_the_lock_is_released(host: HostFS, file: Path) -> None:
    with _held_elsewhere(host, seconds=0.3), host_lock(host, 20):
        assert file.read_text() == f"{os.getpid()}\n"
    assert _is_free(host)


def test_lock_of_a_killed_process_is_free(host: HostFS, file: Path) -> None:
    with _held_elsewhere(host) as holder:
        os.kill(holder, signal.SIGKILL)
        _end(holder)
        assert file.read_text() == f"{holder}\n"
        with host_lock(host, 0):
            assert file.read_text() == f"{os.getpid()}\n"
    assert not file.exists()


def test_overwrites_the_file_of_a_killed_process(host: HostFS, file: Path) -> None:
    file.write_text("99999999999999\nand more")
    with host_lock(host, 0):
        assert file.read_text() == f"{os.getpid()}\n"


def test_released_after_an_error(host: HostFS, file: Path) -> None:
    with pytest.raises(ZeroDivisionError), host_lock(host, 0):
        raise ZeroDivisionError
    assert not file.exists()
    assert _is_free(host)


def test_closes_all_files(host: HostFS) -> None:
    before = os.listdir("/proc/self/fd")
    with _held_elsewhere(host), contextlib.suppress(HostError), host_lock(host, 0.3):
        pass
    with host_lock(host, 0):
        pass
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("existing", [[], ["run"], ["run", "run/gpufleet-nvidia"]])
def test_removes_what_it_created(tmp_path: Path, existing: list[str]) -> None:
    for folder in existing:
        (tmp_path / folder).mkdir()
    with host_lock(HostFS(str(tmp_path), live=False), 0):
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / FOLDER[1:]).stat().st_mode & 0o777 == 0o700
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == existing


def test_follows_links_inside_the_tree(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "run").symlink_to("/var")
    with host_lock(HostFS(str(tmp_path), live=False), 0):
        assert os.listdir(tmp_path / "var/gpufleet-nvidia") == ["lock"]


def test_other_users_cannot_hold_the_lock(host: HostFS, tmp_path: Path) -> None:
    """Every user can create and lock files in /run/lock."""
    (tmp_path / "run/lock").mkdir()
    with open(tmp_path / "run/lock/gpufleet-nvidia.lock", "w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with host_lock(host, 0):
            assert not _is_free(host)


@needs_root
def test_other_users_cannot_enter_the_directory(host: HostFS, file: Path, tmp_path: Path) -> None:
    file.parent.chmod(0o777)
    (tmp_path / "run").chmod(0o755)

    def disturb() -> None:
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
            for path in (LOCK_FILE, f"{FOLDER}/other"):
                with pytest.raises(PermissionError):
                    os.open(path, flags, 0o666)

    with host_lock(host, 0):
        assert file.parent.stat().st_mode & 0o7777 == 0o700
        assert _as_other_user(tmp_path, disturb) == 0


@needs_root
@pytest.mark.parametrize("foreign", [FOLDER, LOCK_FILE])
def test_rejects_a_lock_of_another_user(host: HostFS, file: Path, foreign: str) -> None:
    file.write_text("theirs")
    os.chown(file.parent if foreign == FOLDER else file, OTHER_USER, OTHER_USER)
    before = os.listdir("/proc/self/fd")
    assert _refusal(host) == (
        f"{foreign} belongs to user {OTHER_USER}, but the task runs as user 0. Remove it, then run the task again."
    )
    assert file.read_text() == "theirs"
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
            assert os.listdir(f"/run/user/{OTHER_USER}/gpufleet-nvidia") == ["lock"]

    with host_lock(host, 0):
        assert _as_other_user(tmp_path, fail) == 0
        runtime.mkdir(parents=True)
        os.chown(runtime, OTHER_USER, OTHER_USER)
        assert _as_other_user(tmp_path, take) == 0
    assert os.listdir(runtime) == []


@pytest.mark.parametrize("target", ["/victim", "../victim", "../../victim", "/none/at/all"])
def test_rejects_a_directory_that_is_a_link(tmp_path: Path, target: str) -> None:
    tree = tmp_path / "tree"
    for victim in ("victim", "tree/victim", "tree/run"):
        (tmp_path / victim).mkdir(parents=True)
    (tree / FOLDER[1:]).symlink_to(target)
    host = HostFS(str(tree), live=False)
    assert _refusal(host) == f"{FOLDER} is a link, or not a directory. Remove it, then run the task again."
    assert os.listdir(tmp_path / "victim") == os.listdir(tree / "victim") == []


def test_rejects_a_directory_that_becomes_a_link(monkeypatch: pytest.MonkeyPatch, host: HostFS, tmp_path: Path) -> None:
    """The owner of the tree can replace the directory at any moment."""
    (tmp_path / "victim").mkdir()
    real = os.mkdir

    def late(path: str, mode: int = 0o777, **named: t.Any) -> None:
        real(path, mode, **named)
        os.rmdir(tmp_path / FOLDER[1:])
        (tmp_path / FOLDER[1:]).symlink_to(tmp_path / "victim")

    monkeypatch.setattr(os, "mkdir", late)
    assert re.search(f"{FOLDER} is a link, or not a directory", _refusal(host))
    assert os.listdir(tmp_path / "victim") == []


@pytest.mark.parametrize("target", ["/victim", "../../victim", "/none/at/all"])
def test_rejects_a_lock_that_is_a_link(host: HostFS, file: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "victim").write_text("precious")
    file.symlink_to(target)
    assert _refusal(host) == f"{LOCK_FILE} is a link, or not a regular file. Remove it, then run the task again."
    assert (tmp_path / "victim").read_text() == "precious"


def test_rejects_a_lock_that_is_a_hard_link(host: HostFS, file: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    os.link(tmp_path / "victim", file)
    assert re.search(rf"{LOCK_FILE} is a hard link\. Remove it", _refusal(host))
    assert (tmp_path / "victim").read_text() == "precious"


def test_retries_if_the_file_was_removed_meanwhile(monkeypatch: pytest.MonkeyPatch, host: HostFS, file: Path) -> None:
    """Between opening and locking, the previous holder removes the file, and a third run creates a new one."""
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


def test_retries_if_the_directory_was_removed_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The previous holder created /run too, and removes it while this run creates a directory in it."""
    (tmp_path / "run").mkdir()
    real = os.mkdir
    calls: list[str] = []

    def late(path: str, mode: int = 0o777, **named: t.Any) -> None:
        calls.append(path)
        if len(calls) == 1:
            os.rmdir(tmp_path / "run")
        real(path, mode, **named)

    monkeypatch.setattr(os, "mkdir", late)
    with host_lock(HostFS(str(tmp_path), live=False), 5):
        assert (tmp_path / LOCK_FILE[1:]).exists()


@pytest.mark.parametrize("existing", [[], ["run", "run/gpufleet-nvidia"]], ids=["bare tree", "tree with directory"])
def test_four_processes_lose_no_update(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, existing: list[str]) -> None:
    monkeypatch.setattr(lock, "_PAUSE", 0.001)
    host = HostFS(str(tmp_path), live=False)
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
    # The last run may not know that another run created the directories.
    assert left - {"run", "run/gpufleet-nvidia"} == {"counter"}
    assert left >= {"counter", *existing}


def test_error_if_the_directory_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    host = HostFS(str(tmp_path), live=False)
    assert re.search(f"{LOCK_FILE} cannot be opened: Not a directory", _refusal(host))


def test_removes_parents_if_the_directory_cannot_be_created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.mkdir

    def full(path: str, mode: int = 0o777, **named: t.Any) -> None:
        if path == os.path.basename(FOLDER):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, mode, **named)

    monkeypatch.setattr(os, "mkdir", full)
    assert re.search("No space left", _refusal(HostFS(str(tmp_path), live=False)))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_rejects_a_lock_that_is_not_a_file(host: HostFS, file: Path, make: t.Callable[[Path], None]) -> None:
    make(file)
    assert re.search(rf"{LOCK_FILE} is .*not a regular file\. Remove it", _refusal(host))


@pytest.mark.parametrize("becomes", ["gone", "another's"])
def test_release_ignores_a_removed_or_replaced_file(host: HostFS, file: Path, becomes: str) -> None:
    """A new file at that path is the lock of another run."""
    with host_lock(host, 0):
        file.unlink()
        if becomes != "gone":
            file.write_text("1\n")
    assert file.exists() is (becomes != "gone")
    assert _is_free(host)


def test_error_on_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch, host: HostFS) -> None:
    def refuse(_handle: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert re.search(f"{LOCK_FILE} cannot be locked: No locks available", _refusal(host))
    assert os.listdir("/proc/self/fd") == before


def test_locks_on_a_full_file_system(monkeypatch: pytest.MonkeyPatch, host: HostFS) -> None:
    def full(_handle: int, _text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with host_lock(host, 0):
        monkeypatch.undo()
        assert not _is_free(host)
    assert _is_free(host)


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
