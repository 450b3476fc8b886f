# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the main file's imports, as far as a drop-in of ours needs one.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ContainerdFiles

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import KeyPath, TomlFiles

IMPORTS: KeyPath = ("imports",)


class Imports:
    """The entries of ``imports`` that are ours.

    Others may add theirs to the same array at any time, so what is recorded are entries and not the whole array.
    """

    def __init__(self, context: Context, files: TomlFiles, warnings: list[str]) -> None:
        self._context = context
        self._files = files
        self._warnings = warnings
        self._main = files.edit(context.path)
        record = self._main.record
        self._recorded: list[str] = list((record.keys or {}).get(IMPORTS) or []) if record is not None else []

    def ensure(self, drop_in: str) -> None:
        """Have the main file import the drop-in, if it does not already."""
        if not self._now().covers(drop_in):
            pattern = self._pattern(drop_in)
            self._recorded.append(pattern)
            self._main.document = self._main.document.set(IMPORTS, [*self._entries(), pattern])

    def withdraw(self, drop_in: str | None = None) -> None:
        """Take out what earlier runs added and nobody needs; ``drop_in`` is needed."""
        needed = self.needed(drop_in)
        added = [entry for entry in self.ours() if entry not in needed]
        if not added:
            return
        left = [entry for entry in self._entries() if entry not in added]
        original = self._main.original
        if left == (original.value(*IMPORTS) or []):
            self._main.document = self._main.document.restore(IMPORTS, original)
        else:
            self._main.document = self._main.document.set(IMPORTS, left)

    def needed(self, drop_in: str | None = None) -> list[str]:
        """The entries that we added and that read files which stay, and which no other entry reads."""
        ours = self.ours()
        if not ours:
            return []
        rest = [entry for entry in self._entries() if entry not in ours]
        now = self._now()
        overlay = {**self._files.outcome(), self._main.path: self._main.document.set(IMPORTS, rest)}
        without = {file.path for file in ContainerdFiles.of(self._context, overlay).files}
        needed = []
        for pattern in ours:
            lost = [name for name in now.expand(pattern) if self._context.files.resolve(name) not in without]
            strangers = [name for name in lost if self._context.files.resolve(name) != drop_in]
            if strangers and drop_in is None:
                self._warnings.append(
                    f"{self._main.path} keeps importing {pattern}: {', '.join(strangers)} needs it and is not ours."
                )
            if lost or (drop_in is not None and now.means(pattern, drop_in)):
                needed.append(pattern)
        return needed

    def ours(self) -> list[str]:
        """The entries that we added and that are still there."""
        here = self._entries()
        return [entry for entry in dict.fromkeys(self._recorded) if entry in here]

    def counted(self, file: PlannedFile) -> PlannedFile:
        """The main file as planned, with our entries of the array instead of the whole of it."""
        keys = {path: value for path, value in file.keys.items() if path != IMPORTS}
        ours = self.ours() if file.after is not None else []
        return file._replace(keys={**keys, IMPORTS: ours} if ours else keys)

    def _now(self) -> ContainerdFiles:
        return ContainerdFiles.of(self._context, self._files.outcome())

    def _entries(self) -> list[str]:
        return list(self._main.document.value(*IMPORTS) or [])

    def _pattern(self, drop_in: str) -> str:
        """One glob for the drop-in's folder, or a narrow one if it holds files that are not imported so far.

        Never the plain name: containerd does not start if an imported file is missing.
        """
        folder, name = drop_in.rsplit("/", 1)
        stem, dot, suffix = name.rpartition(".")
        ending = dot + suffix if stem else ""
        stem = stem or name
        wide, strangers = self._tried(f"{folder}/*{ending}" if ending else f"{folder}/{name}*", drop_in)
        if not strangers:
            return wide
        self._warnings.append(
            f"{folder} holds files that containerd does not read so far ({', '.join(strangers)}), so only ours is"
            " imported."
        )
        narrow, strangers = self._tried(f"{folder}/{stem}*{ending}", drop_in)
        # The narrowest that is still a pattern.
        return f"{folder}/{name[:-1]}*{name[-1]}" if strangers else narrow

    def _tried(self, pattern: str, drop_in: str) -> tuple[str, list[str]]:
        known = {drop_in, *(file.path for file in self._now().files)}
        names = self._context.files.glob(pattern)
        return pattern, [name for name in names if self._context.files.resolve(name) not in known]
