# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The record of the files with which a daemon was started that does not report all of its settings.

It has the boot, the start of the process, and the digests of its files, so a change of the clock does not matter. The
time of a file only matters while the record says nothing about the process.
"""

from __future__ import annotations

import enum
import json
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The digest of a directory. Only its existence matters.
_DIRECTORY = "directory"


class Finding(enum.Enum):
    """What a record says about a process and its files. ``UNKNOWN``: there is no record, or both are others."""

    CURRENT = "the recorded process, with the recorded files"
    LATER = "a later process, with the recorded files"
    OUTDATED = "the recorded process, with other files"
    UNKNOWN = "unknown"


class Applied(t.NamedTuple):
    """The content of a record: when the process was started, and the digests of the files that it uses."""

    started: processes.Moment
    digests: t.Mapping[str, str]

    def compare(self, started: processes.Moment, digests: t.Mapping[str, str], *, all_files: bool) -> Finding:
        """Return what the record says about a process and its files. ``all_files``: it reads no other files."""
        # A daemon does not miss a directory that was removed.
        recorded = {path: found for path, found in self.digests.items() if path in digests or found != _DIRECTORY}
        same = recorded == digests if all_files else digests.items() <= recorded.items()
        if started == self.started:
            return Finding.CURRENT if same else Finding.OUTDATED
        return Finding.LATER if same and not self.started.is_after(started) else Finding.UNKNOWN


class AppliedFiles(t.NamedTuple):
    """The record of one engine of one host. Only this class reads and writes it."""

    host: hostfs.HostFS
    path: str

    @classmethod
    def of(cls, host: hostfs.HostFS, engine: str) -> AppliedFiles:
        return cls(host, f"{core_records.state_dir(host, engine)}/applied-{engine}.json")

    def compare(self, pid: int, files: t.Iterable[str], *, all_files: bool = True) -> Finding:
        """Return what the record says about the process and ``files`` as they are now."""
        started, recorded = processes.started(self.host, pid), self.read()
        if started is None or recorded is None:
            return Finding.UNKNOWN
        return recorded.compare(started, self._digests(files), all_files=all_files)

    def read(self) -> Applied | None:
        """Return the content; None if there is no record, or if it cannot be read."""
        try:
            entry = json_data.load(self.host.read(self.path) or b"{}")
            return Applied(processes.Moment.of(entry), json_data.field(entry, "files", dict))
        except (ValueError, errors.HostError):
            return None

    def is_of(self, pid: int | None) -> bool:
        """Return whether the process is the recorded one."""
        recorded = self.read()
        return recorded is not None and recorded.started == processes.started(self.host, pid)

    def write(self, pid: int | None, files: t.Iterable[str]) -> None:
        """Record that the process was started with ``files`` as they are now. Raises HostError."""
        # An unchanged host does not need this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import record_store  # noqa: PLC0415

        started = processes.started(self.host, pid)
        if started is None:
            return
        text = json.dumps({**started._asdict(), "files": self._digests(files)}, indent=2) + "\n"
        record_store.write_state(self.host, self.path, text.encode("utf-8"))

    def remove(self) -> None:
        """Remove the record, and the directory of the records if it is empty then. Raises HostError."""
        # An unchanged host does not need this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import record_store  # noqa: PLC0415

        if self.host.lexists(self.path):
            record_store.remove_state(self.host, self.path)

    def _digests(self, files: t.Iterable[str]) -> dict[str, str]:
        return {
            path: _DIRECTORY if os.path.isdir(self.host.real_path(path)) else core_records.digest(self.host.read(path))
            for path in files
        }
