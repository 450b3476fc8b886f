# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that tell the next run about changes that no restart has confirmed yet, or about an interrupted restart.

A JournalEntry contains the previous files, because backups may be deleted before the next run needs them.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data, record_store
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
            content = json_data.load(self.host.read(self.path) or b"{}")
            return tuple(_decoded(entry) for entry in json_data.field(content, "files", list))
        except (ValueError, errors.HostError):
            return ()

    def started(self) -> processes.Moment | None:
        """Return when the process was started that ran before the changes of this entry, None if that is unknown."""
        return processes.recorded_moment(self.host, self.path)

    def write(self, previous_files: t.Iterable[PreviousFile], started: processes.Moment | None = None) -> None:
        """Write the entry, with the start of the process that runs before the changes.

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
        fields = {**(started._asdict() if started is not None else {}), "files": entries}
        record_store.write_state(self.host, self.path, (json.dumps(fields, indent=2) + "\n").encode("utf-8"))

    def remove(self) -> None:
        record_store.remove_state(self.host, self.path)


def _decoded(entry: t.Any) -> PreviousFile:
    """Return the decoded entry.

    Raises ValueError for anything that write() does not produce.
    """
    path, written = json_data.field(entry, "path", str), entry.get("written")
    if not path.startswith("/") or not isinstance(written, (str, type(None))):
        raise ValueError("not a previous file")
    return PreviousFile(path, json_data.bytes_field(entry, "content"), json_data.bytes_field(entry, "record"), written)
