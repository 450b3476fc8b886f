# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write and remove records, and remove what a run left of a file without changing it.

A record is written before its file, and removed after everything that it lists. So after a crash at any moment, the
next removal finds the record and removes the rest. The caller of each function holds the host's lock.
"""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600


def new_record(host: hostfs.HostFS, engine: str, path: str, original: bytes | None) -> core_records.OriginalFile:
    """Return a record of ``path`` with its present owner and mode; for a new file, with those of this user and 0644."""
    uid, gid, mode = os.geteuid(), os.getegid(), 0o644
    if original is not None:
        status = os.stat(host.real_path(path))
        uid, gid, mode = status.st_uid, status.st_gid, status.st_mode & 0o7777
    boot = host.read_text(core_constants.BOOT_ID).strip()
    return core_records.OriginalFile(engine, path, original, uid, gid, mode, main=path, boot=boot)


def with_directories(
    host: hostfs.HostFS, record: core_records.OriginalFile, folders: t.Iterable[str] = ()
) -> core_records.OriginalFile:
    """Return the record with the directories that are created for its file, itself, and ``folders``.

    These are the missing ones, and those that exist because an earlier run created them. The removal of the last record
    then removes these directories, whichever record it is.
    """
    state_dir = core_records.state_dir(host, record.engine)
    folders = [os.path.dirname(record.path), state_dir, *folders]
    made = [path for folder in folders for path in atomic_write.missing_directories(host, folder)]
    used = {path for folder in folders for path in _with_parents(host.resolve(folder))}
    earlier = {
        path for other in core_records.load_readable_records(host, state_dir) for path in other.created_directories
    }
    made += sorted(used & earlier, key=len)
    return record._replace(created_directories=tuple(dict.fromkeys([*record.created_directories, *made])))


def save(host: hostfs.HostFS, record: core_records.OriginalFile) -> None:
    """Write the record. Raises HostError."""
    state_dir = core_records.state_dir(host, record.engine)
    write_state(host, core_records.record_path(record.engine, record.path, state_dir), record.to_bytes())


def write_state(host: hostfs.HostFS, path: str, content: bytes) -> None:
    """Write a file in the directory of the records. Raises HostError."""
    created = atomic_write.make_directories(host, os.path.dirname(path), _PRIVATE_DIRECTORY)
    try:
        atomic_write.replace_file(host, path, content, _PRIVATE_FILE)
    except errors.HostError:
        atomic_write.remove_empty_directories(host, created)
        raise


def remove_state(host: hostfs.HostFS, path: str, created: t.Iterable[str] = ()) -> None:
    """Remove a file in the directory of the records, and before it the ``created`` directories that it lists.

    The directory of the records contains the file, so this directory and those above it are removed after the file, if
    they are empty then. Raises HostError.
    """
    state_dir = os.path.dirname(path)
    after = {*_with_parents(host.resolve(state_dir)), *_with_parents(state_dir)}
    listed = sorted(set(created), key=len)
    remove_empty_directories(host, [folder for folder in listed if folder not in after])
    atomic_write.remove_file(host, path)
    remove_state_directories(host, state_dir)
    atomic_write.remove_empty_directories(host, [folder for folder in listed if folder in after])


def remove_state_directories(host: hostfs.HostFS, state_dir: str = core_records.STATE_DIR) -> None:
    """Remove temporary files beside the records, and the default directories of this collection that are empty."""
    atomic_write.remove_temporary_files(host, state_dir)
    remove_empty_directories(host, [os.path.dirname(state_dir), _backup_dir(state_dir), state_dir])


def remove_empty_directories(host: hostfs.HostFS, paths: t.Iterable[str]) -> None:
    """Remove those of ``paths`` (outermost first) that contain at most temporary files of killed runs."""
    paths = list(paths)
    for path in paths:
        with contextlib.suppress(errors.HostError):
            if all(map(atomic_write.is_temporary, host.entries(path))):
                atomic_write.remove_temporary_files(host, path)
    atomic_write.remove_empty_directories(host, paths)


def has_leftovers(host: hostfs.HostFS, state_dir: str = core_records.STATE_DIR) -> bool:
    """Return whether remove_state_directories() would remove something that an earlier run left."""
    backups = host.entries(_backup_dir(state_dir))
    empty = host.exists(_backup_dir(state_dir)) and all(map(atomic_write.is_temporary, backups))
    return empty or any(map(atomic_write.is_temporary, host.entries(state_dir)))


def _backup_dir(state_dir: str) -> str:
    return f"{os.path.dirname(state_dir)}/{os.path.basename(core_records.BACKUP_DIR)}"


def drop(host: hostfs.HostFS, record: core_records.OriginalFile) -> None:
    """Remove what killed runs left beside the file of the record, the directories created for it, and the record.

    The file itself is not changed. The caller has restored it, or has proved that it still has its former content.
    Raises HostError.
    """
    folder = os.path.dirname(record.path)
    atomic_write.remove_temporary_files(host, folder, [*core_constants.STRICT_CONFIG_DIRS, folder])
    state_dir = core_records.state_dir(host, record.engine)
    where = core_records.record_path(record.engine, record.path, state_dir)
    remove_state(host, where, record.created_directories)


def drop_unused(host: hostfs.HostFS, record: core_records.OriginalFile, former: bytes | None) -> None:
    """Drop a record that this run created, after an error, if its file still has its ``former`` content.

    Otherwise the file is already changed, and the record is needed. Errors are ignored: the next removal tries again.
    """
    with contextlib.suppress(errors.HostError):
        if host.read(record.path) == former:
            drop(host, record)


def _with_parents(path: str) -> list[str]:
    found = []
    while path != "/":
        found.append(path)
        path = os.path.dirname(path)
    return found
