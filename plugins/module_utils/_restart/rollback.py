# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restore the previous files of an engine."""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, atomic_write, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import journal as engines_journal

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_CONFIG_MODE = 0o644


class Change(t.NamedTuple):
    """One file that was changed: its copy from before (None: there was no file) and the digest of what was written.

    ``checksum`` is None where it is not known.
    """

    path: str
    backup: str | None
    checksum: str | None = None


def previous_files(host: hostfs.HostFS, changes: t.Iterable[Change]) -> tuple[engines_journal.PreviousFile, ...]:
    """What each file was before the first of ``changes``.  Raises NvidiaError for one whose backup is not there."""
    found: tuple[engines_journal.PreviousFile, ...] = ()
    for change in changes:
        path = host.resolve(host.check_path("rollback.path", change.path))
        found = engines_journal.joined(found, [_former(host, path, change)])
    return found


def _former(host: hostfs.HostFS, path: str, change: Change) -> engines_journal.PreviousFile:
    if change.backup is None:
        return engines_journal.PreviousFile(path, None, None, change.checksum)
    saved = apply.load(host, host.check_path("rollback.backup", change.backup))
    if saved is None:
        raise errors.NvidiaError(
            f"rollback: there is no backup {change.backup} of {path}, so there would be no way back. Give the"
            " backup_files that nvidia_runtime_config returned for this host, or leave them out."
        )
    return engines_journal.PreviousFile(path, *saved, change.checksum)


class Rollback:
    """The way back to ``formers``.  ``rejected`` and ``created`` tell how far it has come, also after an error."""

    def __init__(
        self, host: hostfs.HostFS, engine: str, formers: t.Sequence[engines_journal.PreviousFile], backup_dir: str
    ) -> None:
        self.host = host
        self.engine = engine
        self.backup_dir = backup_dir
        # What was written last goes back first: an import before the file that it names.
        self.files = tuple(reversed(formers))
        self.rejected: list[dict[str, str | None]] = []
        self.created: list[str] = []
        self._ready: dict[str, int] = {}

    def prepare(self) -> None:
        """Lay the former files ready, so that on a disk that is full by then there is still a way back."""
        for file in self.files:
            if file.content is not None and self.host.read(file.path) != file.content:
                # Where it cannot be done, there may be room when it comes to it.
                with contextlib.suppress(errors.HostError):
                    mode, owner = self._dress(file, self._record(file.path))
                    self._ready[file.path] = atomic_write.prepare_file(self.host, file.path, file.content, mode, owner)

    def discard(self) -> None:
        """Take away what was laid ready and is not needed."""
        for ready in self._ready.values():
            os.close(ready)
        self._ready.clear()

    @property
    def possible(self) -> bool:
        """Whether going back changes anything."""
        return any(self.host.read(file.path) != file.content for file in self.files)

    def edited_since(self) -> list[str]:
        """The files that are neither as they were written nor as they were before: somebody else has changed them."""
        return [
            file.path
            for file in self.files
            if file.written is not None
            and core_records.digest(self.host.read(file.path)) not in (file.written, core_records.digest(file.content))
        ]

    def without_copy(self) -> list[str]:
        """The files that were taken back without a copy of what stood there, for which there was no room."""
        uncopied = [str(entry["path"]) for entry in self.rejected if not entry["backup"]]
        return [path for path in uncopied if path not in self.created]

    def carry_out(self) -> None:
        """Put the former files back.  Raises HostError.  The host's lock is held."""
        swept: list[str] = []
        for file in self.files:
            current = self.host.read(file.path)
            record = self._record(file.path)
            if current != file.content:
                self._replace(file, current, record)
            self._put_record(file, record)
            if file.record is None and record is not None:
                swept += record.created_directories
        atomic_write.remove_empty_directories(self.host, sorted(set(swept), key=len))

    def _replace(
        self, file: engines_journal.PreviousFile, current: bytes | None, record: core_records.OriginalFile | None
    ) -> None:
        copy = self._keep(file.path, current)
        try:
            self._put(file, record)
        except errors.HostError:
            if copy is None:
                raise
            # On a full disk the copy may have taken the room.  A host that works is worth more than what did not.
            apply.remove(self.host, copy)
            copy = None
            self._put(file, record)
        if current is None:
            self.created.append(file.path)
        self.rejected.append({"path": file.path, "backup": copy})

    def _record(self, path: str) -> core_records.OriginalFile | None:
        try:
            return core_records.load_record(self.host, self.engine, path)
        except errors.HostError:
            return None

    def _keep(self, path: str, content: bytes | None) -> str | None:
        if content is None:
            return None
        try:
            return apply.save(self.host, self.backup_dir, path, content)
        except errors.HostError:
            return None

    def _put(self, file: engines_journal.PreviousFile, record: core_records.OriginalFile | None) -> None:
        if file.content is None:
            atomic_write.remove_file(self.host, file.path)
            return
        folder = os.path.dirname(file.path)
        atomic_write.make_directories(self.host, folder, 0o755)
        ready = self._ready.pop(file.path, None)
        parsed = [*core_constants.CONFIG_DIRS, folder]
        if ready is not None and atomic_write.use_prepared_file(self.host, ready, file.path, parsed=parsed):
            return
        mode, owner = self._dress(file, record)
        atomic_write.replace_file(self.host, file.path, file.content, mode, owner, parsed=parsed)

    def _dress(
        self, file: engines_journal.PreviousFile, record: core_records.OriginalFile | None
    ) -> tuple[int, tuple[int, int] | None]:
        """Mode and owner of the file, if it is not there."""
        if file.record is not None:
            with contextlib.suppress(errors.HostError):
                record = core_records.OriginalFile.from_bytes(file.path, file.record)
        return (_CONFIG_MODE, None) if record is None else (record.mode, (record.uid, record.gid))

    def _put_record(self, file: engines_journal.PreviousFile, record: core_records.OriginalFile | None) -> None:
        folder = core_records.state_dir(self.host, self.engine)
        where = core_records.record_path(self.engine, file.path, folder)
        if file.record is not None:
            atomic_write.make_directories(self.host, folder, 0o700)
            atomic_write.replace_file(self.host, where, file.record, 0o600)
        elif record is not None and record.original == file.content:
            atomic_write.remove_file(self.host, where)
