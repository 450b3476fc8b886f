# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the entries of ``imports`` in containerd's main file, and check the versions of imported files."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

# From 2.3.0 to the release before this one, an imported file must not have a higher version than the main file
# (cmd/containerd/server/config/config.go). Last with this rule 2.3.4 and 2.4.0-beta.0. The branch release/2.3 (commit
# 1125b053f) and main (a8ed54668) lack it, without a release up to August 2026.
HIGHER_IMPORTS_SINCE = (2, 3, 5)


def recorded_imports(record: core_records.OriginalFile | None) -> list[str]:
    """Return the entries of ``imports`` that the record lists. Other values in the record are ignored."""
    recorded = (record.keys or {}).get(containerd_config.IMPORTS) if record is not None else None
    return [entry for entry in recorded if isinstance(entry, str)] if isinstance(recorded, list) else []


class Imports:
    """The entries of ``imports`` that this collection added.

    Other tools may add entries to the same array at any time, so the record contains single entries instead of the
    whole array.
    """

    def __init__(self, context: engines_base.Context, files: toml_plan.TomlFiles, warnings: list[str]) -> None:
        self._context = context
        self._files = files
        self._warnings = warnings
        self._main = files.edit(context.path)
        self._recorded: list[str] = recorded_imports(self._main.record)

    def ensure(self, drop_in: str) -> None:
        """Add an entry that imports the drop-in to the main file, unless another entry already does."""
        if not self._current().imports_path(drop_in):
            pattern = self._pattern(drop_in)
            self._recorded.append(pattern)
            self._main.document = self._main.document.set(containerd_config.IMPORTS, [*self._entries(), pattern])

    def remove_own(self, drop_in: str | None = None) -> None:
        """Remove the entries that earlier runs added and that are no longer needed. ``drop_in`` is still needed."""
        needed = self.needed(drop_in)
        for pattern, others in needed.items() if drop_in is None else ():
            if others:
                self._warnings.append(
                    f"{self._main.path}: the import {pattern} stays, because it also imports files of other tools:"
                    f" {', '.join(others)}."
                )
        unneeded = [entry for entry in self.own_entries() if entry not in needed]
        if not unneeded:
            return
        remaining = [entry for entry in self._entries() if entry not in unneeded]
        original = self._main.original
        if remaining == (original.value(*containerd_config.IMPORTS) or []):
            self._main.document = self._main.document.restore(containerd_config.IMPORTS, original)
        else:
            self._main.document = self._main.document.set(containerd_config.IMPORTS, remaining)

    def needed(self, drop_in: str | None = None) -> dict[str, list[str]]:
        """Return the own entries that import ``drop_in``, or a remaining file that no foreign entry imports.

        The values are these remaining files.
        """
        own = self.own_entries()
        if not own:
            return {}
        foreign = [entry for entry in self._entries() if entry not in own]
        current = self._current()
        main = self._main.document.set(containerd_config.IMPORTS, foreign)
        overlay = {**self._files.planned_documents(), self._main.path: main}
        imported_without = {file.path for file in containerd_config.ContainerdFiles.of(self._context, overlay).files}
        needed = {}
        for pattern in own:
            only_here = [
                name for name in current.expand(pattern) if self._context.files.resolve(name) not in imported_without
            ]
            if only_here or (drop_in is not None and current.selects(pattern, drop_in)):
                needed[pattern] = [name for name in only_here if self._context.files.resolve(name) != drop_in]
        return needed

    def own_entries(self) -> list[str]:
        """Return the entries that this collection added and that still exist."""
        existing = self._entries()
        return [entry for entry in dict.fromkeys(self._recorded) if entry in existing]

    def with_own_entries(self, file: core_plan.PlannedFile) -> core_plan.PlannedFile:
        """Return the planned main file, recording only the entries of this collection instead of the whole array."""
        keys = {path: value for path, value in file.keys.items() if path != containerd_config.IMPORTS}
        own = self.own_entries() if file.after is not None else []
        return file._replace(keys={**keys, containerd_config.IMPORTS: own} if own else keys)

    def _current(self) -> containerd_config.ContainerdFiles:
        return containerd_config.ContainerdFiles.of(self._context, self._files.planned_documents())

    def _entries(self) -> list[str]:
        return list(self._main.document.value(*containerd_config.IMPORTS) or [])

    def _pattern(self, drop_in: str) -> str:
        """Return a glob for the drop-in's directory, or a narrower one if that would import additional files.

        Never return a plain file name: containerd does not start if an imported file is missing.
        """
        folder, name = drop_in.rsplit("/", 1)
        stem, extension = posixpath.splitext(name)
        pattern = f"{folder}/*{extension}" if extension else f"{folder}/{name}*"
        others = self._additional_matches(pattern, drop_in)
        if not others:
            return pattern
        self._warnings.append(
            f"{folder} contains files that containerd does not import ({', '.join(others)}). Only {name} is imported."
        )
        pattern = f"{folder}/{stem}*{extension}"
        # The last one is the narrowest entry that is still a pattern.
        return f"{folder}/{name[:-1]}*{name[-1]}" if self._additional_matches(pattern, drop_in) else pattern

    def _additional_matches(self, pattern: str, drop_in: str) -> list[str]:
        """Return the files besides ``drop_in`` that the pattern would import and that are not imported now."""
        imported = {drop_in, *(file.path for file in self._current().files)}
        names = self._context.files.glob(pattern)
        return [name for name in names if self._context.files.resolve(name) not in imported]


def check_versions(files: containerd_config.ContainerdFiles) -> None:
    """Raise ConfigurationError if an imported file has a higher version than this containerd accepts."""
    engine = files.engine_version or ()
    if not files.migrates or engine >= HIGHER_IMPORTS_SINCE:
        return
    versions = [(file, file.document.value("version")) for file in files.files]
    first_file, first_version = next((pair for pair in versions if pair[1]), versions[0])
    for file, version in versions:
        if first_version and (version or 0) > first_version:
            raise file.document.error(
                ("version",),
                f"version {version} is higher than version {first_version} of {first_file.path}, and containerd"
                f" {core_text.dotted(engine)} does not start with such an import",
                f"Convert the file to version {first_version}, or remove it from the imports.",
            )
