# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restore package sources after a failed transaction."""

from __future__ import annotations

import json
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, atomic_write, errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Exists from before the first change until the new sources are tested or the change is undone.
MARKER = f"{core_records.STATE_DIR}/unproven-repository"


class SavedFile(t.NamedTuple):
    """The previous state of a file.

    ``content`` and ``record`` are None if they did not exist. ``ours`` says that only this collection writes the
    file.
    """

    path: str
    ours: bool
    content: bytes | None
    mode: int
    owner: tuple[int, int]
    record: bytes | None


def is_untested(host: hostfs.HostFS) -> bool:
    """Return whether a run was interrupted between changing the sources and testing them."""
    return host.lexists(MARKER)


def remove_marker(host: hostfs.HostFS) -> None:
    """Remove the marker. The changed files stay."""
    atomic_write.remove_file(host, MARKER)
    atomic_write.remove_empty_directories(host, [posixpath.dirname(core_records.STATE_DIR), core_records.STATE_DIR])


class SavedSources:
    """The saved state of the files that one run changes, and their restoration. The caller holds the host's lock.

    ``changed`` says that the run has changed files.
    """

    def __init__(self, host: hostfs.HostFS, backup_dir: str) -> None:
        self.host = host
        self.backup_dir = backup_dir
        self.changed = False
        self.saved = False
        self._saved: dict[str, SavedFile] = {}
        self._directories: list[str] = []
        self._backups: set[str] = set()

    def save(self, ours: t.Iterable[str], others: t.Iterable[str]) -> None:
        """Read and save the state of the files that are about to change. Raises HostError.

        ``ours`` are the files of this collection and ``others`` the source files that it removes.
        """
        now = [self._read_file(path, ours=True) for path in ours]
        now += [self._read_file(self.host.resolve(path), ours=False) for path in others]
        earlier, made = self._read_marker()
        self._saved = {saved.path: saved for saved in now}
        for saved in earlier:
            # A file that another program wrote in place of a removed one stays.
            if saved.ours or self.host.read(saved.path) is None:
                self._saved[saved.path] = saved
        folders = [*(posixpath.dirname(path) for path in self._saved), self.backup_dir, core_records.STATE_DIR]
        missing = [path for folder in folders for path in atomic_write.missing_directories(self.host, folder)]
        self._directories = list(dict.fromkeys([*made, *missing]))
        self._backups = set(self._all_backups())
        atomic_write.make_directories(self.host, core_records.STATE_DIR, 0o700)
        self.saved = True
        atomic_write.replace_file(self.host, MARKER, self._to_bytes(), 0o600)
        self.changed = bool(now)

    def discard(self) -> None:
        """Keep the changes."""
        if self.saved:
            remove_marker(self.host)

    def restore(self) -> None:
        """Undo the changes of this run, and of an earlier run that was interrupted. Raises HostError."""
        if not self.saved:
            return
        for saved in self._saved.values():
            self._restore(saved)
        for backup in set(self._all_backups()) - self._backups:
            apply.remove_backup(self.host, backup)
        remove_marker(self.host)
        atomic_write.remove_empty_directories(self.host, sorted(self._directories, key=len))
        self.changed = False

    def _read_file(self, path: str, *, ours: bool) -> SavedFile:
        record = self.host.read(core_records.record_path(apply.REPOSITORY, path))
        content = self.host.read(path)
        if content is None:
            return SavedFile(path, ours, None, 0, (0, 0), record)
        status = os.stat(self.host.real_path(path))
        return SavedFile(path, ours, content, status.st_mode & 0o7777, (status.st_uid, status.st_gid), record)

    def _restore(self, saved: SavedFile) -> None:
        if saved.content is None:
            atomic_write.remove_file(self.host, saved.path)
        else:
            self._write(saved, saved.content)
        where = core_records.record_path(apply.REPOSITORY, saved.path)
        if saved.record is None:
            atomic_write.remove_file(self.host, where)
        else:
            atomic_write.replace_file(self.host, where, saved.record, 0o600)

    def _write(self, saved: SavedFile, content: bytes) -> None:
        folder = posixpath.dirname(saved.path)
        atomic_write.make_directories(self.host, folder, 0o755)
        # At no moment may users read a file that they could not read before.
        mode, owner = saved.mode, saved.owner
        atomic_write.replace_file(self.host, saved.path, content, mode, owner, parsed=(folder,), ceiling=mode)
        atomic_write.set_access(self.host, saved.path, mode, owner)

    def _all_backups(self) -> list[str]:
        return [backup for path in self._saved for backup in apply.backups_of(self.host, self.backup_dir, path)]

    # -- Saved state ---------------------------------------------------------------------------------------------------

    def _to_bytes(self) -> bytes:
        files = [
            {
                **saved._asdict(),
                "content": json_data.encode_bytes(saved.content),
                "record": json_data.encode_bytes(saved.record),
            }
            for saved in self._saved.values()
        ]
        return (json.dumps({"files": files, "directories": self._directories}, indent=2) + "\n").encode("utf-8")

    def _read_marker(self) -> tuple[list[SavedFile], list[str]]:
        content = self.host.read(MARKER)
        if content is None:
            return [], []
        try:
            fields = json_data.load(content)
            return [_saved(entry) for entry in json_data.field(fields, "files", list)], [
                *json_data.strings(fields, "directories")
            ]
        except ValueError as error:
            raise errors.HostError(
                f"{MARKER} is damaged: what the sources of packages were before a run that was cut off is not known"
                " any more. Look at them, remove this file, then run this again."
            ) from error


def _saved(entry: t.Mapping[str, t.Any]) -> SavedFile:
    uid, gid = json_data.field(entry, "owner", list)
    return SavedFile(
        json_data.field(entry, "path", str),
        json_data.field(entry, "ours", bool),
        json_data.bytes_field(entry, "content"),
        json_data.number(json_data.field(entry, "mode", int), 0o7777),
        (json_data.number(uid, json_data.MAX_ID), json_data.number(gid, json_data.MAX_ID)),
        json_data.bytes_field(entry, "record"),
    )
