# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restore the previous files of an engine. It does not restart the engine."""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    apply,
    atomic_write,
    errors,
    record_store,
    trusted_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import journal as engines_journal

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_CONFIG_MODE = 0o644


class ChangedFile(t.NamedTuple):
    """One changed file: the path of its backup and the digest of what was written.

    ``backup`` is None if the file did not exist before. ``checksum`` is None if it is unknown.
    """

    path: str
    backup: str | None
    checksum: str | None = None


def previous_files(host: hostfs.HostFS, changes: t.Iterable[ChangedFile]) -> tuple[engines_journal.PreviousFile, ...]:
    """Return the content of each file before the first of ``changes``. Raises NvidiaError for a missing backup."""
    files: tuple[engines_journal.PreviousFile, ...] = ()
    for change in changes:
        path = host.resolve(host.check_path("rollback.path", change.path))
        files = engines_journal.joined(files, [_previous_file(host, path, change)])
    return files


def _previous_file(host: hostfs.HostFS, path: str, change: ChangedFile) -> engines_journal.PreviousFile:
    if change.backup is None:
        return engines_journal.PreviousFile(path, None, None, change.checksum)
    backup = host.check_path("rollback.backup", change.backup)
    trusted_paths.require_trusted_folder(host, "rollback.backup", backup)
    saved = apply.load_backup(host, backup)
    if saved is None:
        raise errors.NvidiaError(
            f"{errors.option:rollback}: the backup {change.backup} of {path} does not exist, so {path} could not be"
            f" restored. Set {errors.option:rollback} to the backup_files that nvidia_runtime_config returned for this"
            " host, or to an empty list. With the role nvidia_runtime, run it again."
        )
    return engines_journal.PreviousFile(path, *saved, change.checksum)


class Rollback:
    """The rollback to ``previous`` files.

    ``restored`` are the files that were restored so far, also after an error. ``without_copy`` are those whose replaced
    content was not saved, because the disk had no space for it.
    """

    def __init__(
        self, host: hostfs.HostFS, engine: str, previous: t.Sequence[engines_journal.PreviousFile], backup_dir: str
    ) -> None:
        self.host = host
        self.engine = engine
        self.backup_dir = backup_dir
        # The order of writing is reversed. For example, the main file is restored before the drop-in that it imports is
        # removed.
        self.files = tuple(reversed(previous))
        self.restored: list[dict[str, str | None]] = []
        self.without_copy: list[str] = []
        self._staged: dict[str, int] = {}

    def stage(self) -> None:
        """Write the previous files to unnamed copies, so that the rollback also works if the disk fills up later."""
        for file in self.files:
            if file.content is not None and self.host.read(file.path) != file.content:
                # A copy that cannot be written now is written during the rollback, when there may be space again.
                with contextlib.suppress(errors.HostError):
                    mode, owner = self._mode_and_owner(file, self._record(file.path))
                    self._staged[file.path] = atomic_write.prepare_file(self.host, file.path, file.content, mode, owner)

    def discard(self) -> None:
        """Close the staged copies that were not used."""
        for handle in self._staged.values():
            os.close(handle)
        self._staged.clear()

    @property
    def has_changes(self) -> bool:
        """Whether the rollback would change a file."""
        return any(self.host.read(file.path) != file.content for file in self.files)

    def edited_since(self) -> list[str]:
        """Return the files that match neither the written nor the previous content: another tool has changed them."""
        return [
            file.path
            for file in self.files
            if file.written is not None
            and core_records.digest(self.host.read(file.path)) not in (file.written, core_records.digest(file.content))
        ]

    def restore(self) -> None:
        """Restore the previous files. The caller holds the host's lock. Raises HostError."""
        for file in self.files:
            current = self.host.read(file.path)
            if current != file.content:
                self._replace(file, current, self._record(file.path))
            if file.record is not None:
                folder = core_records.state_dir(self.host, self.engine)
                where = core_records.record_path(self.engine, file.path, folder)
                record_store.write_state(self.host, where, file.record)
        # A record lists directories, which are empty only when all files are restored.
        for file in self.files:
            record = self._record(file.path)
            if file.record is None and record is not None and record.original == file.content:
                record_store.drop(self.host, record)

    def _replace(
        self, file: engines_journal.PreviousFile, current: bytes | None, record: core_records.OriginalFile | None
    ) -> None:
        copy: str | None = None
        if current is not None:
            with contextlib.suppress(errors.HostError):
                copy = apply.save_backup(self.host, self.backup_dir, file.path, current)
        try:
            self._write(file, record)
        except errors.HostError:
            if copy is None or self.host.read(file.path) != current:
                raise
            # On a full disk the copy may have used the last space. Restoring the previous file is more important.
            apply.remove_backup(self.host, copy)
            copy = None
            self._write(file, record)
        self.restored.append({"path": file.path, "backup": copy})
        if current is not None and copy is None:
            self.without_copy.append(file.path)

    def _record(self, path: str) -> core_records.OriginalFile | None:
        try:
            return core_records.load_record(self.host, self.engine, path)
        except errors.HostError:
            return None

    def _write(self, file: engines_journal.PreviousFile, record: core_records.OriginalFile | None) -> None:
        if file.content is None:
            atomic_write.remove_file(self.host, file.path)
            return
        directory = os.path.dirname(file.path)
        apply.make_config_directory(self.host, self.engine, directory)
        staged = self._staged.pop(file.path, None)
        parsed = [*core_constants.CONFIG_DIRS, directory]
        if staged is not None and atomic_write.use_prepared_file(self.host, staged, file.path, config_dirs=parsed):
            return
        mode, owner = self._mode_and_owner(file, record)
        atomic_write.replace_file(self.host, file.path, file.content, mode, owner, config_dirs=parsed)

    def _mode_and_owner(
        self, file: engines_journal.PreviousFile, record: core_records.OriginalFile | None
    ) -> tuple[int, tuple[int, int] | None]:
        """Return the mode and owner for a file that does not exist."""
        if file.record is not None:
            with contextlib.suppress(errors.HostError):
                record = core_records.OriginalFile.from_bytes(file.path, file.record)
        return (_CONFIG_MODE, None) if record is None else (record.mode, (record.uid, record.gid))
