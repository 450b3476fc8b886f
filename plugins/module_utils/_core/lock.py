# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Take the lock of the host, so that only one task changes it at a time, and create locked temporary directories.

A task that has made more than files can remove it also if a signal ends it (``interruptible``).

A temporary directory that a killed run left is not locked, so the next run that changes the host removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import tempfile
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    accounts,
    atomic_write,
    changes,
    errors,
    hostfs,
    remove_tree,
)

# A directory that only its owner can open: any user who can open it can hold the lock without limit. It stays, so that
# all tasks lock the same directory.
LOCK = "/run/gpufleet-nvidia.lock"

# Seconds. A task that changes files holds the lock for a few seconds. A task that restarts an engine may hold it for a
# few times its own timeout, which is 60 seconds by default.
TIMEOUT = 240.0
# Seconds to wait for the lock of a package manager.
PACKAGE_MANAGER_TIMEOUT = 120
_PAUSE = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextlib.contextmanager
def host_lock(host: hostfs.HostFS, timeout: float | None = None) -> t.Iterator[None]:
    """Hold the host's lock during the context.

    In a directory tree that is not live, the lock is on the root directory of the tree, so nothing is created in it.
    Raises HostError if another process holds the lock for ``timeout`` seconds.
    """
    changes.before_change()
    deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
    path = _path(host) if host.live else host.root
    try:
        handle = _open_lock(host, path) if host.live else os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise errors.os_error(path, "opened", error) from error
    try:
        while not _try_lock(path, handle):
            if time.monotonic() >= deadline:
                raise errors.HostError(
                    f"{path} is held by another task of this collection. `fuser -v {path}` shows its process. Wait for"
                    " it to end, then run the task again."
                )
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            # A child process may have a copy of the handle, which would keep the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


@contextlib.contextmanager
def interruptible() -> t.Iterator[None]:
    """Raise SystemExit for the signals that end a process, so that what it has made is removed."""

    def end(number: int, _frame: object) -> t.NoReturn:
        # A second signal must not interrupt the removal.
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # A signal that is set to be ignored, as nohup does, stays ignored.
    for number in [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            # getsignal() returns None for a handler that was not set from Python.
            if handler is not None:
                signal.signal(number, handler)


def _path(host: hostfs.HostFS) -> str:
    """Return LOCK, or a path in the runtime directory of a user other than root, who cannot write to /run.

    Raises HostError if that runtime directory does not exist.
    """
    user = os.geteuid()
    if user == 0 or host.root != "/":
        return LOCK
    if not host.exists(accounts.runtime_dir(user)):
        account = accounts.own_account(host)
        name = user if account is None else account.name
        raise errors.HostError(
            f"{accounts.runtime_dir(user)} does not exist, because the systemd of user {name} does not run. Run"
            f" `loginctl enable-linger {name}` as root, then run the task again."
        )
    return f"{accounts.runtime_dir(user)}/{os.path.basename(LOCK)}"


def _try_lock(path: str, handle: int) -> bool:
    """Return whether this process now holds the lock. Raises HostError for a file system without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # The file system has no locks, such as some NFS mounts, or there is no memory for one.
        raise errors.os_error(path, "locked", error) from error
    return True


def _open_lock(host: hostfs.HostFS, path: str) -> int:
    """Return a handle of the directory ``path``, which only this user may enter; create it if it is missing."""
    resolved = host.resolve(path, last=False)
    atomic_write.make_directories(host, os.path.dirname(resolved), 0o755)
    process_path = host.real_path(resolved, last=False)
    above = _open_directory(host.root, os.path.dirname(process_path))
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.basename(process_path), 0o700, dir_fd=above)
        handle = _open_own(path, above)
    finally:
        os.close(above)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
            os.fchmod(handle, 0o700)
    except OSError:
        os.close(handle)
        raise
    return handle


def _open_directory(root: str, folder: str) -> int:
    """Return a handle of ``folder``, without following a link below ``root``."""
    handle = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for name in filter(None, folder[len(root) :].split("/")):
        parent = handle
        try:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)
    return handle


def _open_own(path: str, above: int) -> int:
    """Return a handle of the directory ``path``, which lies in the directory with the handle ``above``.

    Raises HostError if it is a link or a file, or belongs to another user.
    """
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(os.path.basename(path), flags, dir_fd=above)
    except NotADirectoryError as error:
        raise _unusable(path, "is a link, or not a directory") from error
    owner = os.fstat(handle).st_uid
    if owner != os.geteuid():
        os.close(handle)
        raise _unusable(path, f"belongs to user {owner}, but the task runs as user {os.geteuid()}")
    return handle


def _unusable(path: str, problem: str) -> errors.HostError:
    return errors.HostError(f"{path} {problem}. Remove it, then run the task again.")


# -- temporary directories -------------------------------------------------------------------------------------------

# Prefixes of the names of temporary directories, which continue with a process ID: first of those into which packages
# are unpacked, then of all others.
TOOLKIT_PREFIX = "gpufleet-toolkit-"
TEMP_PREFIX = "gpufleet-scratch-"
TEMP_DIR = "/tmp"

# Seconds to wait for the host's lock before a removal.
_REMOVAL_TIMEOUT = 2.0


@contextlib.contextmanager
def temp_directory(host: hostfs.HostFS, purpose: str) -> t.Iterator[tuple[str, str]]:
    """Create a temporary directory that only its owner can enter; return its path for this process and on the host.

    Raises HostError if it cannot be created.
    """
    try:
        process_path = tempfile.mkdtemp(prefix=f"{TEMP_PREFIX}{os.getpid()}-", dir=host.real_path(TEMP_DIR))
    except OSError as error:
        raise errors.os_error(f"A directory for {purpose} in {TEMP_DIR}", "created", error) from error
    handle = os.open(process_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A run in another container does not see this process, but finds the directory locked.
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield process_path, f"{TEMP_DIR}/{os.path.basename(process_path)}"
    finally:
        os.close(handle)
        remove_tree.remove_tree_if_possible(process_path)


def remove_stale_directories(host: hostfs.HostFS, place: str | None = None, prefix: str = TEMP_PREFIX) -> None:
    """Remove the directories that killed runs have left in ``place`` (a path for this process), by default TEMP_DIR.

    If there are any, it takes the host's lock, which the caller must not hold. If another run keeps the lock, they stay
    for a later run.
    """
    place = host.real_path(TEMP_DIR) if place is None else place
    # The removal is optional, so it neither ends a run nor delays it for long.
    with contextlib.suppress(OSError, errors.HostError):
        if _stale_directories(place, prefix):
            with host_lock(host, _REMOVAL_TIMEOUT):
                for path in _stale_directories(place, prefix):
                    remove_tree.remove_tree_if_possible(path)


def _stale_directories(place: str, prefix: str) -> list[str]:
    """Return the paths of the directories in ``place`` whose process (its ID is part of the name) has ended."""
    with os.scandir(place) as entries:
        return [entry.path for entry in entries if entry.name.startswith(prefix) and _is_stale(entry, prefix)]


def _is_stale(entry: os.DirEntry[str], prefix: str) -> bool:
    pid = entry.name[len(prefix) :].partition("-")[0]
    if not pid.isdigit() or os.path.exists(f"/proc/{pid}") or not os.path.exists("/proc/self"):
        return False
    # All users can write to /tmp, so directories of other users and links are not touched.
    if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return False
    try:
        handle = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
