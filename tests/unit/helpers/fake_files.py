# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a host in memory, and the records of files that plans have changed."""

from __future__ import annotations

import fnmatch
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Context, EnginePlan


class FakeFiles:
    """A replacement of `HostFiles` that keeps files in memory. apply() writes a plan as `ChangeWriter` does."""

    def __init__(self, content: t.Mapping[str, str | bytes | None] | None = None, engine: str = "docker") -> None:
        self.engine = engine
        self.content: dict[str, bytes] = {}
        self.records: dict[str, OriginalFile] = {}
        for path, text in (content or {}).items():
            self.put(path, text)

    def put(self, path: str, text: str | bytes | None) -> None:
        if text is None:
            self.content.pop(path, None)
        else:
            self.content[path] = text.encode() if isinstance(text, str) else text

    def read(self, path: str) -> bytes | None:
        return self.content.get(path)

    def record(self, path: str) -> OriginalFile | None:
        return self.records.get(path)

    def resolve(self, path: str) -> str:
        return path

    def glob(self, pattern: str) -> list[str]:
        depth = pattern.count("/")
        return sorted(path for path in self.content if path.count("/") == depth and fnmatch.fnmatchcase(path, pattern))

    def walk(self, folder: str) -> list[str]:
        # Sorted by components, as HostFS.walk does: the files of the folder a come before the file a.conf.
        inside = [path for path in self.content if path.startswith(folder + "/")]
        return sorted(inside, key=lambda path: path.split("/"))

    def context(self, path: str, version: tuple[int, ...] | None = None) -> Context:
        recorded = tuple(sorted(name for name in self.records if name != path))
        return Context(
            path, self.read(path), self.record(path), None, version, lambda one, other: one == other, self, recorded
        )

    def apply(self, plan: EnginePlan, main: str, removal: bool = False) -> EnginePlan:
        for file in plan.files:
            if file.changed:
                record = self.records.get(file.path) or OriginalFile(
                    self.engine, file.path, file.before, 0, 0, 0o644, main=main
                )
                record = record.after_write(file.before, file.after, file.keys)
                self.records[file.path] = OriginalFile.from_bytes("record", record.to_bytes())
                self.put(file.path, file.after)
            if removal or (file.changed and not file.keys):
                self.records.pop(file.path, None)
        return plan
