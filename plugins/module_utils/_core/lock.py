# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Take the lock of the host, so that only one task changes it at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, atomic_write, errors, hostfs

# The directory is for its owner only: whoever can open the lock can hold it for ever.
LOCK_FILE = "/run/gpufleet-nvidia/lock"

# Seconds.  One that changes files is done within a few; one that restarts an engine may need a few times its
# own timeout, which is 60 unless it is told otherwise.
TIMEOUT = 240.0
# The same for the lock of a package manager.
PACKAGE_MANAGER_TIMEOUT = 120
_PAUSE = 0.1
# Characters of the holder's command that are shown.
_MOST = 200


@contextlib.contextmanager
def host_lock(host: hostfs.HostFS, timeout: float | None = None) -> t.Iterator[None]:
    """Hold the host's lock; raises HostError if another process keeps it for ``timeout`` seconds.

    The file and the directories that were made for it are removed at the end, so that an offline tree stays clean. Only
    where several runs compete for a new tree may empty directories stay.
    """
    deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
    path = _path(host)
    made: list[str] = []
    locked = None
    try:
        while locked is None:
            locked = _try(host, path, made, time.monotonic() >= deadline)
        with locked:
            yield
    finally:
        atomic_write.remove_empty_directories(host, made)


def _path(host: hostfs.HostFS) -> str:
    """LOCK_FILE; an ordinary user of the host, who cannot write to /run, has a lock in the user's runtime directory.

    Raises HostError where that directory is missing.
    """
    user = os.geteuid()
    if user == 0 or host.root != "/":
        return LOCK_FILE
    if not host.exists(accounts.runtime_dir(user)):
        account = accounts.own_account(host)
        name = user if account is None else account.name
        raise errors.HostError(
            f"{accounts.runtime_dir(user)} does not exist, because the systemd of the user {name} does not run. Run"
            f" `loginctl enable-linger {name}` as root, then run this again."
        )
    return f"{accounts.runtime_dir(user)}/gpufleet-nvidia/lock"


def _try(host: hostfs.HostFS, path: str, made: list[str], last: bool) -> contextlib.ExitStack | None:
    """What releases the lock; None if another process holds it (after a pause), which is an error with ``last``."""
    with contextlib.ExitStack() as opened:
        try:
            # Every time: the former holder may have removed the directory that it had made.
            folder = _open_folder(host, os.path.dirname(path), made)
            opened.callback(os.close, folder)
            handle = _open_own(path, os.O_RDWR | os.O_CREAT, folder)
            opened.callback(os.close, handle)
        except FileNotFoundError as error:
            if last:
                raise atomic_write.os_error(path, "created", error) from error
            return None
        except OSError as error:
            raise atomic_write.os_error(path, "opened", error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if last:
                raise errors.HostError(
                    f"{path} is held by {_holder(handle)}. Wait for it to end, then run this again."
                ) from None
            time.sleep(_PAUSE)
            return None
        except OSError as error:
            # A file system without locks, such as some of NFS, or no memory for one.
            raise atomic_write.os_error(path, "locked", error) from error
        if not _names(folder, path, handle):
            return None
        # For the message to those who wait; the lock holds without it.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        opened.callback(_remove, folder, path, handle)
        return opened.pop_all()


def _open_folder(host: hostfs.HostFS, folder: str, made: list[str]) -> int:
    """The lock's directory, which only this user may enter; it is made where it is missing."""
    resolved = host.resolve(folder, last=False)
    made += atomic_write.make_directories(host, os.path.dirname(resolved), 0o755)
    outer = host.real_path(resolved, last=False)
    above = _open_directory(host.root, os.path.dirname(outer))
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.basename(outer), 0o700, dir_fd=above)
            made.append(resolved)
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
    """A handle of ``folder``, to which no link leads from ``root`` on."""
    handle = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for name in filter(None, folder[len(root) :].split("/")):
        parent = handle
        try:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)
    return handle


def _open_own(path: str, flags: int, above: int) -> int:
    """``path`` in the directory ``above``; raises HostError if it is a link, of another kind or another user's."""
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
        problem = f"belongs to the user {status.st_uid}, not to the user {os.geteuid()} that runs the task"
    elif status.st_nlink > 1 and kind != "directory":
        # Its content is replaced, also under the other name.
        problem = "is a hard link"
    else:
        return handle
    os.close(handle)
    raise _unusable(path, problem)


def _unusable(path: str, problem: str) -> errors.HostError:
    return errors.HostError(f"{path} {problem}. Remove it, then run this again.")


def _holder(handle: int) -> str:
    """Who holds the lock, as far as its file and /proc tell."""
    process = os.read(handle, 20).decode("ascii", "replace").strip()
    command = " ".join(hostfs.arguments_of(hostfs.HostFS(), int(process))) if process.isdecimal() else ""
    # Arguments may be long, and have line breaks.
    command = " ".join(command.split())[:_MOST]
    return f"process {process or 'unknown'} ({command or 'command unknown'})"


def _remove(folder: int, path: str, handle: int) -> None:
    """Remove the file before the lock is released, unless it is another run's by now."""
    with contextlib.suppress(OSError):
        if _names(folder, path, handle):
            os.unlink(os.path.basename(path), dir_fd=folder)


def _names(folder: int, path: str, handle: int) -> bool:
    """Whether the locked file still has its name: the former holder removes it before it releases the lock."""
    try:
        named = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(handle))
