# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a plan becomes files, in an order in which a crash at any moment can be healed: the record
# first, then the backup, then the file; at the end of a removal the record goes last.

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups
from ansible_collections.gpufleet.nvidia.plugins.module_utils._accounts import KEY
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import (
    CLOSED_FOLDERS,
    WATCHED_FOLDERS,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    FileRecord,
    default_backup_dir,
    digest,
    load_readable_records,
    load_record,
    record_path,
    state_dir,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    missing_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# In whose names records are kept, beside the engines and CDI, which names its own: the toolkit's own configuration,
# what its packages bring, and what they come from.
TOOLKIT, PACKAGES, REPOSITORY = "toolkit", "packages", "repository"

CONFIG_MODE = 0o644
_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600


class PlanWriter:
    """Carries plans out for the configuration in ``main_path`` (links resolved); the host's lock is held.

    ``owner`` is in whose name records are kept.  ``purge`` is for a removal that takes the backups along too.
    ``drop_in_path`` is a file that an earlier run may have written, whether or not the plan concerns it.
    """

    def __init__(
        self,
        host: HostRoot,
        owner: str,
        main_path: str,
        backup_dir: str,
        *,
        removal: bool,
        purge: bool,
        drop_in_path: str | None = None,
    ) -> None:
        self.host = host
        self.owner = owner
        self.main_path = main_path
        self.backup_dir = backup_dir
        self.removal = removal
        self.purging = removal and purge
        self.drop_in_path = drop_in_path
        self._state_dir = state_dir(host, owner)
        self._dropped: list[FileRecord] = []

    def has_work(self, files: t.Sequence[PlannedFile]) -> bool:
        """Whether anything is left to do: a file, a backup to purge, or a record that a killed removal has left."""
        return (
            any(file.changed for file in files)
            or (self.removal and any(load_record(self.host, self.owner, file.path) for file in files))
            or bool(self.obsolete_backups(files))
        )

    def obsolete_backups(self, files: t.Sequence[PlannedFile]) -> list[str]:
        """The backups that a purge removes: those of ``files``."""
        paths = [file.path for file in files] if self.purging else []
        if self.purging and self.drop_in_path is not None:
            # An earlier mode may have used it.
            paths.append(self.host.resolve(self.drop_in_path))
        found = [_backups.backups_of(self.host, self.backup_dir, path) for path in dict.fromkeys(paths)]
        return [backup for backups in found for backup in backups]

    def carry_out(self, files: t.Sequence[PlannedFile]) -> list[dict[str, str | None]]:
        """Write the files; returns which were changed and where their former content is kept."""
        # Before anything is written: afterwards the records would no longer tell which files were concerned.
        obsolete = self.obsolete_backups(files)
        backups: list[dict[str, str | None]] = []
        for file in files:
            backups += self._write(file)
        for backup in obsolete:
            _backups.remove(self.host, backup)
        self._sweep()
        return backups

    # -- one file ------------------------------------------------------------------------------------------------

    def _write(self, file: PlannedFile) -> list[dict[str, str | None]]:
        backups: list[dict[str, str | None]] = []
        record = load_record(self.host, self.owner, file.path)
        if file.changed:
            kept = self._save_record(file, record)
            try:
                backups = self._back_up(file, record)
                self._put(file, kept)
            except HostError:
                if record is None:
                    self._drop_record(kept)
                    self._sweep()
                raise
            record = kept
        elif file.purged is not None and file.keys:
            # What was a leftover is needed by ours, and is ours from now on.
            record = self._save_record(file, record)
        nothing_left = file.changed and not file.keys
        if record is not None and (self.removal or nothing_left):
            self._drop_record(record)
        return backups

    def _save_record(self, file: PlannedFile, record: FileRecord | None) -> FileRecord:
        """Record what was there, before anything else changes."""
        record = _without_leftovers(file, self._with_directories(file, record or self._new_record(file)))
        record = record.after_write(file.before, file.after, file.keys)
        if not self.removal:
            make_directories(self.host, self._state_dir, _PRIVATE_DIRECTORY)
            replace_file(self.host, self._record_path(file.path), record.to_bytes(), _PRIVATE_FILE)
        return record

    def _new_record(self, file: PlannedFile) -> FileRecord:
        example = file.path if file.before is not None else next(iter(file.like), None)
        if example is None or not self.host.exists(example):
            uid, gid, mode = os.geteuid(), os.getegid(), CONFIG_MODE
        else:
            status = os.stat(self.host.outer(example))
            uid, gid, mode = status.st_uid, status.st_gid, status.st_mode & 0o7777
        return FileRecord(self.owner, file.path, file.before, uid, gid, mode, main=self.main_path)

    def _with_directories(self, file: PlannedFile, record: FileRecord) -> FileRecord:
        """The record with all directories that this write makes, or that we made before and it uses too.

        So the last record to go takes them along, whoever it belongs to.
        """
        folders = [os.path.dirname(file.path), self._state_dir]
        if file.before is not None and not self.purging:
            folders.append(self.backup_dir)
        made = [path for folder in folders for path in missing_directories(self.host, folder)]
        used = {path for folder in folders for path in _with_parents(self.host.resolve(folder))}
        made += sorted(used & self._made_before(), key=len)
        return record._replace(created_directories=tuple(dict.fromkeys([*record.created_directories, *made])))

    def _made_before(self) -> set[str]:
        return {
            path for record in load_readable_records(self.host, self._state_dir) for path in record.created_directories
        }

    def _back_up(self, file: PlannedFile, record: FileRecord | None) -> list[dict[str, str | None]]:
        if self.purging:
            return []
        backup = None
        if file.before is not None:
            recorded = None if record is None else record.to_bytes()
            backup = _backups.save(self.host, self.backup_dir, file.path, file.before, recorded)
        return [{"path": file.path, "backup": backup, "checksum": digest(file.after)}]

    def _put(self, file: PlannedFile, record: FileRecord) -> None:
        if file.after is None:
            remove_file(self.host, file.path)
            return
        # A new directory in a home is for its owner only (XDG Base Directory Specification).
        folder_mode = _PRIVATE_DIRECTORY if self.owner.startswith(KEY) else 0o755
        make_directories(self.host, os.path.dirname(file.path), folder_mode)
        ceiling = 0o7777 if file.mode is None else file.mode
        for path in file.like:
            if path != file.path and self.host.exists(path):
                ceiling &= os.stat(self.host.outer(path)).st_mode
        # Files beside the main one are only read because of the folder that they are in.
        folder = os.path.dirname(file.path)
        beside = [] if file.path == self.main_path or folder in WATCHED_FOLDERS else [folder]
        parsed = (*CLOSED_FOLDERS, *beside)
        owner = (record.uid, record.gid)
        replace_file(self.host, file.path, file.after, record.mode, owner, parsed=parsed, ceiling=ceiling)

    # -- what is left --------------------------------------------------------------------------------------------

    def _drop_record(self, record: FileRecord) -> None:
        remove_file(self.host, self._record_path(record.path))
        remove_empty_directories(self.host, [os.path.dirname(self._state_dir), self._state_dir])
        self._dropped.append(record)

    def _sweep(self) -> None:
        """Remove the directories that the records dropped in this run say we made, where nothing is left in them."""
        made = {path for record in self._dropped for path in record.created_directories}
        remove_empty_directories(self.host, sorted(made, key=len))
        if self.purging:
            # The default is ours whatever was recorded; another directory may be the user's own.
            default = default_backup_dir(self.host, self.owner)
            remove_empty_directories(self.host, [os.path.dirname(default), default])

    def _record_path(self, path: str) -> str:
        return record_path(self.owner, path, self._state_dir)


def _with_parents(path: str) -> list[str]:
    found = []
    while path != "/":
        found.append(path)
        path = os.path.dirname(path)
    return found


def _without_leftovers(file: PlannedFile, record: FileRecord) -> FileRecord:
    """The record in which what goes for good never was: a removal must not bring it back."""
    if file.purged is None:
        return record
    original, now = file.purged.original, digest(file.before)
    undisturbed = file.before == record.original or now in record.written
    return record._replace(
        original=original,
        created=record.created or original is None,
        written=(*record.written, now) if undisturbed else record.written,
    )
