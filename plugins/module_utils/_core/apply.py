# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write a plan to the host: record the original file, make a backup, replace the file, clean up after a removal.

The lock is in `lock.py`, the replacement of one file in `atomic_write.py`.

The order allows recovery from a crash at any moment: record, backup, file. A removal deletes the record last.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, atomic_write, errors, record_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


BACKUPS_KEPT = 5
# Suffix of the file beside a backup that holds the record of the file at the time of the backup.
RECORD_SUFFIX = ".record"
_SUFFIX = ".backup"
# Bytes of a name before the timestamp. The rest (timestamp, digest and both suffixes) has 102 bytes; NAME_MAX is 255.
_STEM_LIMIT = 153
_DIGEST = re.compile(r"\.([0-9a-f]{64})\.backup\Z")
_PRIVATE_DIRECTORY = 0o700


def make_config_directory(host: hostfs.HostFS, owner: str, folder: str) -> None:
    """Create the directory of a configuration file of ``owner``, the engine or tool in records."""
    # A new directory in a home is accessible to its owner only (XDG Base Directory Specification). Missing directories
    # above it get the usual mode.
    mode = _PRIVATE_DIRECTORY if owner.startswith(accounts.ROOTLESS_PREFIX) else 0o755
    atomic_write.make_directories(host, folder, mode)


def save_backup(host: hostfs.HostFS, directory: str, path: str, content: bytes, record: bytes | None = None) -> str:
    """Write ``content`` of ``path`` to a backup (0600) in ``directory`` (0700), and return the path of the backup.

    The record, if given, goes into a separate file beside the backup, so that restoring the backup also restores its
    record.
    """
    atomic_write.make_directories(host, directory, _PRIVATE_DIRECTORY)
    timestamp = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = f"{directory}/{_stem(path)}{timestamp}.{core_records.digest(content)}{_SUFFIX}"
    if record is not None:
        atomic_write.replace_file(host, backup + RECORD_SUFFIX, record, 0o600)
    atomic_write.replace_file(host, backup, content, 0o600)
    # The new backup is never removed, even if the clock was wrong when the others were made.
    others = [other for other in backups_of(host, directory, path) if other != backup]
    for old in others[: -(BACKUPS_KEPT - 1)]:
        remove_backup(host, old)
    return backup


def load_backup(host: hostfs.HostFS, backup: str) -> tuple[bytes, bytes | None] | None:
    """Return the content of a backup and its record; None if there is no backup.

    Raises HostError if the content does not match the SHA-256 in the name of the backup, or if the record is damaged. A
    file without a SHA-256 in its name is not checked.
    """
    content = host.read(backup)
    if content is None:
        return None
    found = _DIGEST.search(backup)
    if found is not None and found.group(1) != core_records.digest(content):
        raise errors.HostError(
            f"{backup} is damaged: its SHA-256 is not the one in its name. Nothing is restored from it. Remove it, and"
            " restore the file from another backup."
        )
    record = host.read(backup + RECORD_SUFFIX)
    if record is not None:
        # A damaged record must not be restored.
        core_records.OriginalFile.from_bytes(backup + RECORD_SUFFIX, record)
    return content, record


def remove_backup(host: hostfs.HostFS, backup: str) -> None:
    """Remove a backup and its record."""
    atomic_write.remove_file(host, backup)
    atomic_write.remove_file(host, backup + RECORD_SUFFIX)


def backups_of(host: hostfs.HostFS, directory: str, path: str) -> list[str]:
    """Return the backups of ``path``, oldest first."""
    stem = _stem(path)
    names = [name for name in host.entries(directory) if name.startswith(stem) and name.endswith(_SUFFIX)]
    # The prefix of /etc/a is the beginning of the prefix of /etc/a/b, which contains another ~.
    return [f"{directory}/{name}" for name in names if "~" not in name[len(stem) :]]


def _stem(path: str) -> str:
    """Return the common prefix of the names of a path's backups. No two paths share it.

    The prefix is the path with ``~`` for ``/``. For a long path it is ``~`` and the digest of the path; no other prefix
    begins with ``~``.
    """
    plain = os.path.normpath(path).lstrip("/")
    stem = plain.replace("%", "%25").replace("~", "%7E").replace("/", "~") + "~"
    if len(os.fsencode(stem)) <= _STEM_LIMIT:
        return stem
    return f"~{core_records.digest(os.fsencode(plain))}~"


class ChangeWriter:
    """Writes plans for the configuration whose main file is ``main_path`` (links resolved). The caller holds the lock.

    ``owner`` is the name under which records are kept. ``purge`` makes a removal delete the backups too.
    ``drop_in_path`` is a file that an earlier run may have written, even if the plan does not contain it. ``recorded``
    are the files whose records a removal drops if they have their original content, even if the plan does not contain
    them: a run was interrupted before it wrote them. ``replaced`` are recorded files that other programs have replaced,
    so that their present content is the one to restore later.
    """

    def __init__(
        self,
        host: hostfs.HostFS,
        owner: str,
        main_path: str,
        backup_dir: str,
        *,
        removal: bool,
        purge: bool,
        drop_in_path: str | None = None,
        recorded: t.Sequence[str] = (),
        replaced: t.Container[str] = (),
    ) -> None:
        self.host = host
        self.owner = owner
        self.main_path = main_path
        self.backup_dir = backup_dir
        self.removal = removal
        self.purging = removal and purge
        self.drop_in_path = drop_in_path
        self.recorded = recorded
        self.replaced = replaced
        self._state_dir = core_records.state_dir(host, owner)

    def has_work(self, files: t.Sequence[core_plan.PlannedFile]) -> bool:
        """Return whether any work is left: a changed file, a backup to purge, or what a killed run left."""
        return any(file.changed for file in files) or (
            self.removal
            and (
                bool(self._unused_records([file.path for file in files]))
                or bool(self.obsolete_backups(files))
                or record_store.has_leftovers(self.host, self._state_dir)
            )
        )

    def _unused_records(self, paths: t.Iterable[str]) -> list[core_records.OriginalFile]:
        """Return the records of ``paths``, and those of unplanned files that have their original content."""
        planned = list(paths)
        loaded = [
            core_records.load_record(self.host, self.owner, path) for path in dict.fromkeys([*planned, *self.recorded])
        ]
        return [
            record
            for record in loaded
            if record is not None and (record.path in planned or self.host.read(record.path) == record.original)
        ]

    def obsolete_backups(self, files: t.Sequence[core_plan.PlannedFile]) -> list[str]:
        """Return the backups of ``files`` that a purge removes."""
        paths = [file.path for file in files] if self.purging else []
        if self.purging and self.drop_in_path is not None:
            paths.append(self.host.resolve(self.drop_in_path))
        found = [backups_of(self.host, self.backup_dir, path) for path in dict.fromkeys(paths)]
        return [backup for backups in found for backup in backups]

    def apply(self, files: t.Sequence[core_plan.PlannedFile]) -> list[dict[str, str | None]]:
        """Write the files, and return the changed files with the paths of their backups."""
        # Before the first write, so that nothing has changed if this raises an error.
        obsolete = self.obsolete_backups(files)
        backups: list[dict[str, str | None]] = []
        dropped = []
        for file in files:
            backups += self._write(file)
            if file.changed and not file.keys:
                dropped.append(file.path)
        for backup in obsolete:
            remove_backup(self.host, backup)
        # Records are dropped last: they list the directories of the files, and the backup directory.
        for record in self._unused_records([file.path for file in files] if self.removal else dropped):
            record_store.drop(self.host, record)
        if self.removal:
            # The default directories belong to this collection even without a record. Others may belong to the user.
            record_store.remove_state_directories(self.host, self._state_dir)
        return backups

    # -- one file ------------------------------------------------------------------------------------------------

    def _write(self, file: core_plan.PlannedFile) -> list[dict[str, str | None]]:
        backups: list[dict[str, str | None]] = []
        record = core_records.load_record(self.host, self.owner, file.path)
        if file.changed:
            saved = self._save_record(file, record)
            try:
                backups = self._back_up(file, record)
                self._put(file, saved)
            except errors.HostError:
                if record is None:
                    record_store.drop_unused(self.host, saved, file.before)
                raise
        return backups

    def _save_record(
        self, file: core_plan.PlannedFile, record: core_records.OriginalFile | None
    ) -> core_records.OriginalFile:
        """Return the record of the file's original content. Unless this is a removal, write it before the file."""
        if file.record is not None:
            record = file.record
        elif record is None:
            record = self._new_record(file)
        elif file.path in self.replaced:
            record = self._new_record(file)._replace(created_directories=record.created_directories)
        folders = [self.backup_dir] if file.before is not None and not self.purging else []
        record = record_store.with_directories(self.host, record, folders)
        record = record.after_write(file.before, file.after, file.keys)
        if not self.removal:
            record_store.save(self.host, record)
        return record

    def _new_record(self, file: core_plan.PlannedFile) -> core_records.OriginalFile:
        record = record_store.new_record(self.host, self.owner, file.path, file.before)._replace(main=self.main_path)
        example = next(iter(file.like), None)
        if file.before is None and example is not None and self.host.exists(example):
            status = os.stat(self.host.real_path(example))
            return record._replace(uid=status.st_uid, gid=status.st_gid, mode=status.st_mode & 0o7777)
        return record

    def _back_up(
        self, file: core_plan.PlannedFile, record: core_records.OriginalFile | None
    ) -> list[dict[str, str | None]]:
        """Make a backup of the file, if it exists, and return its entry in the result of apply(). A purge has none."""
        if self.purging:
            return []
        backup = None
        if file.before is not None:
            record_bytes = None if record is None else record.to_bytes()
            backup = save_backup(self.host, self.backup_dir, file.path, file.before, record_bytes)
        return [{"path": file.path, "backup": backup, "checksum": core_records.digest(file.after)}]

    def _put(self, file: core_plan.PlannedFile, record: core_records.OriginalFile) -> None:
        if file.after is None:
            atomic_write.remove_file(self.host, file.path)
            return
        folder = os.path.dirname(file.path)
        make_config_directory(self.host, self.owner, folder)
        max_mode = 0o7777 if file.mode is None else file.mode
        for path in file.like:
            if path != file.path and self.host.exists(path):
                max_mode &= os.stat(self.host.real_path(path)).st_mode
        # A daemon reads a file beside the main one only because of the directory that the file is in.
        beside = [] if file.path == self.main_path or folder in core_constants.INOTIFY_DIRS else [folder]
        config_dirs = (*core_constants.STRICT_CONFIG_DIRS, *beside)
        ids = (record.uid, record.gid)
        atomic_write.replace_file(
            self.host, file.path, file.after, record.mode, ids, config_dirs=config_dirs, max_mode=max_mode
        )
