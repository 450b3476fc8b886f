# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that tell the next run about changes that no restart has confirmed yet, or about an interrupted restart.

A JournalEntry contains the previous files, because backups may be deleted before the next run needs them. AppliedFiles
contains digests of the files with which a daemon was started.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, json_data, record_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


class PreviousFile(t.NamedTuple):
    """The content and the record of a file before this collection changed it; None if they did not exist.

    ``written`` is the digest of the content that replaced it, None if that is unknown.
    """

    path: str
    content: bytes | None
    record: bytes | None
    written: str | None = None


def joined(earlier: t.Iterable[PreviousFile], later: t.Iterable[PreviousFile]) -> tuple[PreviousFile, ...]:
    """Return one entry for each file that the ``earlier`` or the ``later`` changes changed.

    The entry of an earlier change is used, because it has the oldest content. But if another program wrote the file
    between both changes, the entry of the later change is used, because this collection does not undo changes of other
    programs.
    """
    found = {previous.path: previous for previous in earlier}
    for change in later:
        previous = found.pop(change.path, change)
        is_continued = previous.written in (None, change.written, core_records.digest(change.content))
        found[change.path] = previous._replace(written=change.written) if is_continued else change
    return tuple(found.values())


# Start times that differ by fewer seconds are those of the same process. They are measured in hundredths of a second,
# but the system clock may be adjusted between two measurements.
SAME_PROCESS_SECONDS = 1.0


class JournalEntry(t.NamedTuple):
    """A journal entry of one engine: a file in the directory of the engine's records."""

    host: hostfs.HostFS
    path: str
    folder: str

    @classmethod
    def restart_in_progress(cls, host: hostfs.HostFS, engine: str) -> JournalEntry:
        folder = core_records.state_dir(host, engine)
        return cls(host, core_records.restart_journal_path(engine, folder), folder)

    @classmethod
    def pending_changes(cls, host: hostfs.HostFS, engine: str) -> JournalEntry:
        folder = core_records.state_dir(host, engine)
        return cls(host, f"{folder}/changes-{engine}.json", folder)

    def exists(self) -> bool:
        return self.host.lexists(self.path)

    def previous_files(self) -> tuple[PreviousFile, ...]:
        """Return the files as they were before the changes of this entry, none if there is no entry.

        An unreadable entry is treated as an empty one.
        """
        try:
            entries = json_data.check(json_data.load(self.host.read(self.path) or b"[]"), list)
            return tuple(_decoded(entry) for entry in entries)
        except (ValueError, errors.HostError):
            return ()

    def write(self, previous_files: t.Iterable[PreviousFile]) -> None:
        """Write the entry.

        Raises HostError if it cannot be written.
        """
        entries = [
            {
                **previous._asdict(),
                "content": json_data.encode_bytes(previous.content),
                "record": json_data.encode_bytes(previous.record),
            }
            for previous in previous_files
        ]
        record_store.write_state(self.host, self.path, (json.dumps(entries, indent=2) + "\n").encode("utf-8"))

    def remove(self) -> None:
        record_store.remove_state(self.host, self.path)


class AppliedFiles(t.NamedTuple):
    """The digests of the files with which a daemon was started that does not report all of its settings."""

    host: hostfs.HostFS
    path: str

    @classmethod
    def of(cls, host: hostfs.HostFS, engine: str) -> AppliedFiles:
        return cls(host, f"{core_records.state_dir(host, engine)}/applied-{engine}.json")

    def start_of(self, files: t.Iterable[str], *, all_files: bool = True) -> float | None:
        """Return when the recorded process started, in seconds since 1970.

        Returns None if ``files`` have changed since, or if nothing is recorded. ``all_files``: the process reads no
        other files.
        """
        try:
            entry = json_data.load(self.host.read(self.path) or b"{}")
            recorded, digests = json_data.field(entry, "files", dict), self._digests(files)
            is_current = recorded == digests if all_files else digests.items() <= recorded.items()
            return json_data.field(entry, "started", float) if is_current else None
        except (ValueError, errors.HostError):
            return None

    def are_of(self, pid: int, files: t.Iterable[str], *, all_files: bool = True) -> bool | None:
        """Return whether the process was started with ``files`` as they are now, None if that is unknown."""
        birth, applied = processes.start_time(self.host, pid), self.start_of(files, all_files=all_files)
        return None if birth is None or applied is None else abs(birth - applied) < SAME_PROCESS_SECONDS

    def write(self, started: float, files: t.Iterable[str]) -> None:
        """Write the entry.

        Raises HostError if it cannot be written.
        """
        text = json.dumps({"started": started, "files": self._digests(files)}, indent=2) + "\n"
        atomic_write.replace_file(self.host, self.path, text.encode("utf-8"), 0o600)

    def remove(self) -> None:
        atomic_write.remove_file(self.host, self.path)

    def _digests(self, files: t.Iterable[str]) -> dict[str, str]:
        return {path: core_records.digest(self.host.read(path)) for path in files}


def _decoded(entry: t.Any) -> PreviousFile:
    """Return the decoded entry.

    Raises ValueError for anything that write() does not produce.
    """
    path, written = json_data.field(entry, "path", str), entry.get("written")
    if not path.startswith("/") or not isinstance(written, (str, type(None))):
        raise ValueError("not a previous file")
    return PreviousFile(path, json_data.bytes_field(entry, "content"), json_data.bytes_field(entry, "record"), written)
