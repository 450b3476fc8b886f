# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create temporary directories on the host, and remove those that killed runs left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, lock

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Prefixes of the names of temporary directories, which continue with a process ID: first of those into which packages
# are unpacked, then of all others.
PREFIX = "gpufleet-toolkit-"
SCRATCH_PREFIX = "gpufleet-scratch-"
SCRATCH = "/tmp"

# Seconds to wait for the host's lock before a removal.
_LOCK_TIMEOUT = 2.0


@contextlib.contextmanager
def scratch_folder(host: hostfs.HostFS, purpose: str) -> t.Iterator[tuple[str, str]]:
    """Create a temporary directory that only its owner can enter; return its path for this process and on the host.

    Raises HostError if it cannot be created.
    """
    try:
        outer = tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=host.real_path(SCRATCH))
    except OSError as error:
        raise atomic_write.os_error(f"A directory for {purpose} in {SCRATCH}", "made", error) from error
    handle = os.open(outer, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # A run in another container does not see this process, but finds the directory locked.
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield outer, f"{SCRATCH}/{os.path.basename(outer)}"
    finally:
        os.close(handle)
        shutil.rmtree(outer, ignore_errors=True)


def remove_abandoned(host: hostfs.HostFS, place: str | None = None, prefix: str = SCRATCH_PREFIX) -> None:
    """Remove the directories that killed runs have left in ``place`` (a path for this process), by default SCRATCH.

    If there are any, it takes the host's lock, which the caller must not hold. If another run keeps the lock, they stay
    for a later run.
    """
    place = host.real_path(SCRATCH) if place is None else place
    # The removal is optional, so it neither ends a run nor delays it for long.
    with contextlib.suppress(OSError, errors.HostError):
        if abandoned(place, prefix):
            with lock.host_lock(host, _LOCK_TIMEOUT):
                for path in abandoned(place, prefix):
                    shutil.rmtree(path, ignore_errors=True)


def abandoned(place: str, prefix: str = PREFIX) -> list[str]:
    """Return the paths of the directories in ``place`` whose process (its ID is part of the name) has ended."""
    with os.scandir(place) as entries:
        return [entry.path for entry in entries if entry.name.startswith(prefix) and _is_abandoned(entry, prefix)]


def _is_abandoned(entry: os.DirEntry[str], prefix: str) -> bool:
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
