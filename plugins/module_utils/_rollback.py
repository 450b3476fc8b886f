# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the way back from a change of files that an engine did not take well.

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    STATE_DIR,
    FileRecord,
    digest,
    load_record,
    record_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_CONFIG_MODE = 0o644


class Change(t.NamedTuple):
    """One file that was changed: its copy from before (None: there was no file) and the checksum of what was written.

    ``checksum`` is None where the file was removed, or where that is not known.
    """

    path: str
    backup: str | None
    checksum: str | None = None


class Former(t.NamedTuple):
    """A file as it was before the changes: content and record (None: there was none)."""

    path: str
    content: bytes | None
    record: bytes | None


class Rollback:
    """The way back; everything that it needs is read before anything happens."""

    def __init__(self, host: HostRoot, engine: str, changes: t.Sequence[Change], backup_dir: str) -> None:
        """Raises GpufleetError for changes whose backups are not there."""
        self.host = host
        self.engine = engine
        self.backup_dir = backup_dir
        first: dict[str, Former] = {}
        self.written: dict[str, str | None] = {}
        for change in changes:
            path = host.resolve(host.check_path("rollback.path", change.path))
            if path not in first:
                first[path] = self._former(path, change.backup)
            self.written[path] = change.checksum
        # What was written last goes back first: an import before the file that it names.
        self.files = tuple(reversed(tuple(first.values())))

    def _former(self, path: str, backup: str | None) -> Former:
        if backup is None:
            return Former(path, None, None)
        content = self.host.read(self.host.check_path("rollback.backup", backup))
        if content is None:
            raise GpufleetError(
                f"rollback: there is no backup {backup} of {path}, so there would be no way back. Give the backup_files"
                " that nvidia_runtime_config returned for this host, or leave them out."
            )
        return Former(path, content, self.host.read(backup + _backups.RECORD_SUFFIX))

    @property
    def possible(self) -> bool:
        """Whether going back changes anything."""
        return any(self.host.read(file.path) != file.content for file in self.files)

    def edited_since(self) -> list[str]:
        """The files that are not as they were written: somebody else has changed them since."""
        return [
            path
            for path, checksum in self.written.items()
            if checksum is not None and digest(self.host.read(path)) != checksum
        ]

    def carry_out(self) -> list[dict[str, str | None]]:
        """Put the former files back; returns which, and where what stood in their place is kept.  Raises HostError.

        The host's lock is held.
        """
        rejected: list[dict[str, str | None]] = []
        swept: list[str] = []
        for file in self.files:
            current = self.host.read(file.path)
            record = self._record(file.path)
            if current != file.content:
                rejected.append({"path": file.path, "backup": self._keep(file.path, current)})
                self._put(file, record)
            self._put_record(file, record)
            if file.record is None and record is not None:
                swept += record.created_directories
        remove_empty_directories(self.host, sorted(set(swept), key=len))
        return rejected

    def _record(self, path: str) -> FileRecord | None:
        try:
            return load_record(self.host, self.engine, path)
        except HostError:
            return None

    def _keep(self, path: str, content: bytes | None) -> str | None:
        if content is None:
            return None
        try:
            return _backups.save(self.host, self.backup_dir, path, content)
        except HostError:
            # On a full disk, say.  A host that works is worth more than a copy of what did not.
            return None

    def _put(self, file: Former, record: FileRecord | None) -> None:
        if file.content is None:
            remove_file(self.host, file.path)
            return
        folder = os.path.dirname(file.path)
        make_directories(self.host, folder, 0o755)
        if file.record is not None:
            with contextlib.suppress(HostError):
                record = FileRecord.from_bytes(file.path, file.record)
        mode, owner = (_CONFIG_MODE, None) if record is None else (record.mode, (record.uid, record.gid))
        replace_file(self.host, file.path, file.content, mode, owner, parsed=[*PARSED_FOLDERS, folder])

    def _put_record(self, file: Former, record: FileRecord | None) -> None:
        where = record_path(self.engine, file.path)
        if file.record is not None:
            make_directories(self.host, STATE_DIR, 0o700)
            replace_file(self.host, where, file.record, 0o600)
        elif record is not None and record.original == file.content:
            remove_file(self.host, where)
