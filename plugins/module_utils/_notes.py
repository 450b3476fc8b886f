# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: notes for the next run, with all that a way back takes: backups may be gone by then.  One
# tells which changes no daemon has been proven to work with yet: the play may end before its handlers.  The other tells
# that a restart is under way: whoever finds it knows that a run was killed in the middle.  A third lists the contents
# with which a daemon was started that does not report its configuration.

from __future__ import annotations

import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import (
    check,
    content_field,
    content_of,
    field,
    load,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import digest, restart_note, state_dir
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Former
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


# When a process started is known to about a hundredth of a second, but the clock may be corrected.
_SAME_PROCESS = 1.0


class Note(t.NamedTuple):
    """A note about one engine, in the directory of its records."""

    host: HostRoot
    path: str
    folder: str

    @classmethod
    def of_restart(cls, host: HostRoot, engine: str) -> Note:
        folder = state_dir(host, engine)
        return cls(host, restart_note(engine, folder), folder)

    @classmethod
    def of_changes(cls, host: HostRoot, engine: str) -> Note:
        folder = state_dir(host, engine)
        return cls(host, f"{folder}/changes-{engine}.json", folder)

    def exists(self) -> bool:
        return self.host.is_there(self.path)

    def formers(self) -> tuple[Former, ...]:
        """The files as they were before what was or is to be taken over, none where there is no note.

        One that cannot be read is as good as one that names no files.
        """
        try:
            entries = check(load(self.host.read(self.path) or b"[]"), list)
            return tuple(_decoded(entry) for entry in entries)
        except (ValueError, HostError):
            return ()

    def write(self, formers: t.Iterable[Former]) -> None:
        """Raises HostError where it cannot be written."""
        entries = [
            {**former._asdict(), "content": content_field(former.content), "record": content_field(former.record)}
            for former in formers
        ]
        make_directories(self.host, self.folder, 0o700)
        # The files may hold secrets.
        replace_file(self.host, self.path, (json.dumps(entries, indent=2) + "\n").encode("utf-8"), 0o600)

    def remove(self) -> None:
        remove_file(self.host, self.path)
        remove_empty_directories(self.host, [posixpath.dirname(self.folder), self.folder])


class AppliedNote(t.NamedTuple):
    """The digests of the files that a process has read, for a daemon that does not report its configuration."""

    host: HostRoot
    path: str

    @classmethod
    def of(cls, host: HostRoot, engine: str) -> AppliedNote:
        return cls(host, f"{state_dir(host, engine)}/applied-{engine}.json")

    def matches(self, started: float, files: t.Iterable[str]) -> bool:
        """Whether the process that ``started`` then has read ``files`` with the content that they have now."""
        try:
            noted = load(self.host.read(self.path) or b"{}")
            same_process = abs(field(noted, "started", float) - started) < _SAME_PROCESS
            return same_process and field(noted, "files", dict) == self._digests(files)
        except (ValueError, HostError):
            return False

    def write(self, started: float, files: t.Iterable[str]) -> None:
        """Raises HostError where it cannot be written."""
        text = json.dumps({"started": started, "files": self._digests(files)}, indent=2) + "\n"
        replace_file(self.host, self.path, text.encode("utf-8"), 0o600)

    def remove(self) -> None:
        remove_file(self.host, self.path)

    def _digests(self, files: t.Iterable[str]) -> dict[str, str]:
        return {path: digest(self.host.read(path)) for path in files}


def _decoded(entry: t.Any) -> Former:
    """Raises ValueError for anything but what write() has written."""
    path, written = field(entry, "path", str), entry.get("written")
    if not path.startswith("/") or not isinstance(written, (str, type(None))):
        raise ValueError("this is no former file")
    return Former(path, content_of(entry, "content"), content_of(entry, "record"), written)
