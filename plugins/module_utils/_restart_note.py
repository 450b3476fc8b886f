# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the note that a restart is under way.  Whoever finds one knows that a run was killed
# before it could prove the new state or bring the old one back, and what that takes.

from __future__ import annotations

import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Change
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


class RestartNote(t.NamedTuple):
    """The note about one engine."""

    host: HostRoot
    engine: str

    @property
    def path(self) -> str:
        return f"{STATE_DIR}/restart-{self.engine}.json"

    def exists(self) -> bool:
        return self.host.is_there(self.path)

    def changes(self) -> tuple[Change, ...]:
        """The changes that the unfinished restart was to take over, none where there is no note.

        One that cannot be read is as good as one that names no changes.
        """
        try:
            entries = json.loads((self.host.read(self.path) or b"[]").decode("utf-8"))
            return tuple(Change(entry["path"], entry["backup"], entry.get("checksum")) for entry in entries)
        except (ValueError, LookupError, TypeError, AttributeError, HostError):
            return ()

    def write(self, changes: t.Sequence[Change]) -> None:
        """Raises HostError where it cannot be written."""
        make_directories(self.host, STATE_DIR, 0o700)
        text = json.dumps([change._asdict() for change in changes], indent=2) + "\n"
        replace_file(self.host, self.path, text.encode("utf-8"), 0o600)

    def remove(self) -> None:
        remove_file(self.host, self.path)
        remove_empty_directories(self.host, [posixpath.dirname(STATE_DIR), STATE_DIR])
