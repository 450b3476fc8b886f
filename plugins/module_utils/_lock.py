# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: one change at a time on a host, whatever plays run against it.

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    explain,
    make_directories,
    remove_empty_directories,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

LOCK_FILE = "/run/lock/gpufleet-nvidia.lock"

# Seconds.  One that changes files is done within a few; one that restarts an engine may need a few times its
# own timeout, which is 60 unless it is told otherwise.
TIMEOUT = 240.0
# The same for the lock of a package manager.
PACKAGE_MANAGER_TIMEOUT = 120
_PAUSE = 0.1


@contextlib.contextmanager
def host_lock(host: HostRoot, timeout: float | None = None) -> t.Iterator[None]:
    """Hold the host's lock; raises HostError if another process keeps it for ``timeout`` seconds.

    The file goes when the lock is given back, so that an offline tree stays clean; only where several runs contend for
    a tree without /run/lock may that folder stay, empty.
    """
    deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
    made: list[str] = []
    handle = None
    outer = ""
    while handle is None:
        # Inside the loop: the former holder may have removed the folders that it had made.
        made += make_directories(host, os.path.dirname(LOCK_FILE), 0o755)
        outer = host.outer(LOCK_FILE, last=False)
        handle = _try(outer, time.monotonic() >= deadline)
    try:
        yield
    finally:
        # Whatever became of the file, the work is done; and one that somebody has put in its place is another's lock.
        with contextlib.suppress(OSError):
            if _names(outer, handle):
                os.unlink(outer)
        os.close(handle)
        remove_empty_directories(host, made)


def _try(outer: str, last: bool) -> int | None:
    """The locked file, None if another process holds it (after a pause); with ``last`` that is an error."""
    try:
        handle = os.open(outer, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        if last:
            raise explain(LOCK_FILE, "created", error) from error
        return None
    except OSError as error:
        raise explain(LOCK_FILE, "opened", error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        if last:
            raise HostError(
                f"{LOCK_FILE} is held by another run (process {holder}). Wait for it to end, then run this again."
            ) from None
        time.sleep(_PAUSE)
        return None
    except OSError as error:
        # A file system without locks, such as some of NFS, or no memory for one.
        os.close(handle)
        raise explain(LOCK_FILE, "locked", error) from error
    if not _names(outer, handle):
        os.close(handle)
        return None
    # Only a courtesy to those who wait.
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def _names(outer: str, handle: int) -> bool:
    """Whether the locked file still has its name: the former holder removes it before it lets go."""
    try:
        return os.path.samestat(os.stat(outer), os.fstat(handle))
    except FileNotFoundError:
        return False
