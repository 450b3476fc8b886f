# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of config.toml, from what a task asks, the text as it stands, and the record of what it was.

Settings that were taken out are recorded too, as None, which no value in TOML is.  Private to the collection.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._file_edit import FileEdit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import give_back
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import leaves, same
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import (
    BY_PATH,
    SETTINGS,
    default_of,
    dotted,
    effective,
    unsafe,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_values import kind_of, unfit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_profiles import Wishes

    KeyPath = t.Tuple[str, ...]


class ToolkitPlan(t.NamedTuple):
    """The file before and after, and what it amounts to then.

    ``settings`` are the effective ones, ``changed_keys`` those whose values in the file change, both by dotted keys.
    """

    file: PlannedFile
    settings: dict[str, t.Any]
    changed_keys: tuple[str, ...]
    warnings: tuple[str, ...]


class ConfigFile(t.NamedTuple):
    """config.toml as it stands (``content`` None: not at all), and what was recorded of it.

    ``real_ldconfig``: whether the host has an ldconfig of that name, which the default then is.
    """

    path: str
    content: bytes | None
    record: FileRecord | None
    real_ldconfig: bool = False

    def present(self, wishes: Wishes) -> ToolkitPlan:
        """The plan that makes ``wishes`` true.  Raises GpufleetError before anything is written."""
        edit = _ConfigEdit(self)
        asked = wishes.asked()
        for path in sorted(asked, key=_place):
            edit.put(path, asked[path])
        for path, loud in wishes.silenced().items():
            edit.silence(path, loud)
        if wishes.exclusive and self.content is not None:
            give_back(edit)
        plan = self._plan(edit)
        if self.content is None and plan.file.changed and not wishes.create:
            raise GpufleetError(
                f"{self.path} is not there, and create is false. Install the NVIDIA Container Toolkit, whose packages"
                " bring it, or leave create out; nothing was changed."
            )
        return plan

    def absent(self) -> ToolkitPlan:
        """The plan that takes back what earlier runs wrote."""
        edit = _ConfigEdit(self)
        if self.content is not None:
            give_back(edit)
        return self._plan(edit)

    def _plan(self, edit: _ConfigEdit) -> ToolkitPlan:
        file = edit.outcome()
        final = TomlDocument.from_bytes(self.path, file.after or b"")
        settings = effective(final.data, self.real_ldconfig)
        warnings = (*unfit(final), *unsafe(settings))
        return ToolkitPlan(file, settings, _changed(edit.before, final), warnings)


class _ConfigEdit(FileEdit[TomlDocument]):
    """The changes to config.toml: a setting that is commented out is written below its comment, which stays."""

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(TomlDocument.from_bytes, file.path, file.content, file.record)
        self._real_ldconfig = file.real_ldconfig

    def silence(self, path: KeyPath, loud: tuple[t.Any, ...]) -> None:
        """Give back what is ours at ``path``; what is one of the ``loud`` values without us is reset.

        So a log that a person keeps elsewhere, or a level of their own, stays.
        """
        ours = self.owns(path)
        theirs = self.original.value(*path) if ours else self.document.value(*path)
        if theirs in loud:
            self.put(path, None)
        elif ours:
            self.give_back(path)

    def put(self, path: KeyPath, value: t.Any) -> None:
        """Make the setting at ``path`` say ``value``; None makes it what it is when nobody has set it."""
        document = self.document
        if path in BY_PATH and isinstance(document.value(*path), dict):
            problem = f"{dotted(path)} is a table, but should be {kind_of(BY_PATH[path])}"
            raise document.error(path, problem, "Remove the table; nothing was changed.")
        self.document = self._reset(path) if value is None else document.set(path, value)
        self.wanted[path] = self.document.value(*path)

    def _reset(self, path: KeyPath) -> TomlDocument:
        document, original, setting = self.document, self.original, BY_PATH.get(path)
        if not document.has(*path):
            return document
        default = None if setting is None or setting.commented else default_of(setting, self._real_ldconfig)
        if default is None or not (original.has(*path) or self._rewritten):
            return document.delete(path).without_tables_around(path, original)
        return document.set(path, default)

    @property
    def _rewritten(self) -> bool:
        """Whether the packages have written the file anew since: then it has lines that neither we nor others wrote.

        A setting of ours that is taken back then is what they write.
        """
        others = [s for s in SETTINGS if s.default is not None and not s.commented and s.path not in self.recorded()]
        return self.record is not None and any(
            self.before.has(*s.path) and not self.original.has(*s.path) for s in others
        )

    def give_back(self, path: KeyPath) -> None:
        """Put back what stood at ``path`` before us, unless somebody changed it since."""
        if not self.owns(path):
            return
        has_original = self.original.has(*path)
        self.document = self.document.restore(path, self.original) if has_original else self._reset(path)

    def outcome(self) -> PlannedFile:
        """The file; one that was made by us goes with the last of our settings."""
        made_by_us = self.content is None or (self.record is not None and self.record.created)
        after = None if made_by_us and self.emptied else self.document.to_bytes()
        keys = self._keys(TomlDocument.from_bytes(self.path, after or b""))
        if not keys and self.record is not None and self.record.restorable(self.content):
            # All values are those of before, if perhaps in other words, and the record goes now.
            after = self.record.original
        return PlannedFile(self.path, self.content, after, keys)

    def _keys(self, final: TomlDocument) -> dict[KeyPath, t.Any]:
        """Our settings in ``final``: what somebody else had set to the wanted value already is not ours."""
        recorded = (self.record.keys or {}) if self.record is not None else {}
        written = {
            path: value
            for path, value in self.wanted.items()
            if path in recorded or not same(self.before.value(*path), value)
        }
        return {
            path: value
            for path, value in {**recorded, **written}.items()
            if same(final.value(*path), value) and not same(self.original.value(*path), value)
        }


def _place(path: KeyPath) -> tuple[int, KeyPath]:
    """Where a setting stands in the packages' file, what is not in it last."""
    return next((index for index, setting in enumerate(SETTINGS) if setting.path == path), len(SETTINGS)), path


def _changed(before: TomlDocument, after: TomlDocument) -> tuple[str, ...]:
    old, new = dict(leaves(before.data)), dict(leaves(after.data))
    paths = [path for path in {**old, **new} if path not in old or path not in new or not same(old[path], new[path])]
    return tuple(map(dotted, sorted(paths, key=_place)))
