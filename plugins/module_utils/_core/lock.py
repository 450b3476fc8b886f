# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Take the lock of the host, so that only one task changes it at a time, and create locked temporary directories.

A temporary directory that a killed run left is not locked, so the next run that changes the host removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    accounts,
    atomic_write,
    errors,
    hostfs,
    remove_tree,
)

# The directory is accessible to its owner only, because any user who can open the lock can hold it without limit.
LOCK_FILE = "/run/gpufleet-nvidia/lock"

# Seconds. A task that changes files holds the lock for a few seconds. A task that restarts an engine may hold it for a
# few times its own timeout, which is 60 seconds by default.
TIMEOUT = 240.0
# Seconds to wait for the lock of a package manager.
PACKAGE_MANAGER_TIMEOUT = 120
_PAUSE = 0.1
# Maximum number of characters of the holder's command in a message.
_MAX_COMMAND = 200


@contextlib.contextmanager
def host_lock(host: hostfs.HostFS, timeout: float | None = None) -> t.Iterator[None]:
    """Hold the host's lock during the context.

    Raises HostError if another process holds it for ``timeout`` seconds. At the end, the file and the directories that
    were created for it are removed, so that an offline tree is unchanged. Empty directories may stay only if several
    runs lock a new tree at the same time.
    """
    deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
    path = _path(host)
    created: list[str] = []
    locked = None
    try:
        while locked is None:
            locked = _try_lock(host, path, created, time.monotonic() >= deadline)
        with locked:
            yield
    finally:
        atomic_write.remove_empty_directories(host, created)


def _path(host: hostfs.HostFS) -> str:
    """Return LOCK_FILE, or a path in the runtime directory of a user other than root, who cannot write to /run.

    Raises HostError if that runtime directory does not exist.
    """
    user = os.geteuid()
    if user == 0 or host.root != "/":
        return LOCK_FILE
    if not host.exists(accounts.runtime_dir(user)):
        account = accounts.own_account(host)
        name = user if account is None else account.name
        raise errors.HostError(
            f"{accounts.runtime_dir(user)} does not exist, because the systemd of user {name} does not run. Run"
            f" `loginctl enable-linger {name}` as root, then run the task again."
        )
    return f"{accounts.runtime_dir(user)}/gpufleet-nvidia/lock"


def _try_lock(host: hostfs.HostFS, path: str, created: list[str], last: bool) -> contextlib.ExitStack | None:
    """Return the context that releases the lock; None if the caller must try again.

    That is so if another process holds the lock (after a pause), or has removed its file or directory meanwhile. With
    ``last``, HostError is raised if the lock is held or its directory is missing.
    """
    with contextlib.ExitStack() as opened:
        try:
            # The directory is opened on each attempt, because the previous holder may have removed it.
            folder = _open_folder(host, os.path.dirname(path), created)
            opened.callback(os.close, folder)
            handle = _open_own(path, os.O_RDWR | os.O_CREAT, folder)
            opened.callback(os.close, handle)
        except FileNotFoundError as error:
            if last:
                raise errors.os_error(path, "created", error) from error
            return None
        except OSError as error:
            raise errors.os_error(path, "opened", error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if last:
                raise errors.HostError(
                    f"{path} is held by {_holder(handle)}. Wait for it to end, then run the task again."
                ) from None
            time.sleep(_PAUSE)
            return None
        except OSError as error:
            # The file system has no locks, such as some NFS mounts, or there is no memory for one.
            raise errors.os_error(path, "locked", error) from error
        if not _is_current(folder, path, handle):
            return None
        # Waiting tasks show this process ID in their message. The lock works without it.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        opened.callback(_remove, folder, path, handle)
        return opened.pop_all()


def _open_folder(host: hostfs.HostFS, folder: str, created: list[str]) -> int:
    """Return a handle of the lock's directory, which only this user may enter; create it if it is missing."""
    resolved = host.resolve(folder, last=False)
    created += atomic_write.make_directories(host, os.path.dirname(resolved), 0o755)
    process_path = host.real_path(resolved, last=False)
    above = _open_directory(host.root, os.path.dirname(process_path))
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.basename(process_path), 0o700, dir_fd=above)
            created.append(resolved)
        handle = _open_own(folder, os.O_RDONLY | os.O_DIRECTORY, above)
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


def _open_own(path: str, flags: int, above: int) -> int:
    """Return a handle of ``path``, which lies in the directory with the handle ``above``.

    Raises HostError if it is a link, has another type, or belongs to another user.
    """
    kind, is_kind = ("directory", stat.S_ISDIR) if flags & os.O_DIRECTORY else ("regular file", stat.S_ISREG)
    try:
        handle = os.open(os.path.basename(path), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO):
            raise _unusable(path, f"is a link, or not a {kind}") from error
        raise
    status = os.fstat(handle)
    if not is_kind(status.st_mode):
        problem = f"is not a {kind}"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, but the task runs as user {os.geteuid()}"
    elif status.st_nlink > 1 and kind != "directory":
        # Writing to a hard link would also change the file under its other name.
        problem = "is a hard link"
    else:
        return handle
    os.close(handle)
    raise _unusable(path, problem)


def _unusable(path: str, problem: str) -> errors.HostError:
    return errors.HostError(f"{path} {problem}. Remove it, then run the task again.")


def _holder(handle: int) -> str:
    """Return a description of the process that holds the lock, from the lock file and /proc."""
    process = os.read(handle, 20).decode("ascii", "replace").strip()
    command = " ".join(hostfs.command_line(hostfs.HostFS(), int(process))) if process.isdecimal() else ""
    # Arguments may be long and contain line breaks.
    command = " ".join(command.split())[:_MAX_COMMAND]
    return f"process {process or 'unknown'} ({command or 'command unknown'})"


def _remove(folder: int, path: str, handle: int) -> None:
    """Remove the lock file before the lock is released, unless another run has replaced it."""
    with contextlib.suppress(OSError):
        if _is_current(folder, path, handle):
            os.unlink(os.path.basename(path), dir_fd=folder)


def _is_current(folder: int, path: str, handle: int) -> bool:
    """Return whether the path still leads to the locked file.

    The previous holder removes the file before it releases the lock.
    """
    try:
        named = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(handle))


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
