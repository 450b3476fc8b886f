# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the configuration of containerd: format versions 1 to 4, imports, and how releases merge and migrate files.

This module does not plan changes, except for the entries of ``imports``. Measured on containerd 1.6.20, 1.7.24,
2.0.11, 2.1.9 and 2.3.4: up to 1.7, the table of a plugin in a later file replaces the earlier table as a whole.
From 2.0 on, containerd merges the tables entry by entry, and a later list replaces an earlier one.
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

    KeyPath = t.Tuple[str, ...]


# The table of the CRI settings, by the format version of the file.
CRI_TABLE: dict[int, KeyPath] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
    4: ("plugins", "io.containerd.cri.v1.runtime"),
}
# The first containerd release that reads a format version (containerd's RELEASES.md).
READ_SINCE = {3: (2, 0), 4: (2, 3)}
# containerd 2.0 to 2.2 silently ignores the CRI settings of a version 1 file.
VERSION_1_IGNORED_SINCE = (2, 0)
# From this release on, containerd migrates each file to version 4 before it merges them (LoadConfigWithPlugins in
# cmd/containerd/server/config/config.go of 2.3.0), so files of different versions all have effect.
MIGRATES_SINCE = (2, 3)
# Before this release, an imported file must not have a higher version than the main file (same file of 2.3.4 and of
# 2.4.0-beta.0; commit a8ed5466 on main removes the check).
HIGHER_IMPORTS_SINCE = (2, 4)
# mergeConfig in cmd/containerd/server/config/config.go is the same in 2.0.0, 2.0.11, 2.1.0 and 2.2.7. The one of 1.7
# replaces tables.
MERGES_SINCE = (2, 0)

# The first three paths are relative to the CRI settings, PROGRAM is relative to the table of a runtime.
RUNTIMES: KeyPath = ("containerd", "runtimes")
DEFAULT: KeyPath = ("containerd", "default_runtime_name")
LEGACY_DEFAULT: KeyPath = ("containerd", "default_runtime")
PROGRAM: KeyPath = ("options", "BinaryName")

# Settings whose meaning depends on the format version.
_VERSION_DEPENDENT = ("plugins", "disabled_plugins", "required_plugins")


class ConfigFile(t.NamedTuple):
    """One file of the configuration. All links in ``path`` are resolved."""

    path: str
    document: toml_document.TomlDocument


class ContainerdFiles:
    """All files in the order in which containerd reads them. Later files take precedence.

    ``overlay`` maps paths to planned documents, which replace the files on the host (None: the file is removed).
    ``missing`` lists imported files that do not exist. ``merges``: containerd merges the tables of a plugin.
    ``migrates``: containerd migrates each file to version 4 before it merges them.
    """

    def __init__(
        self,
        files: engines_base.Files,
        path: str,
        engine_version: tuple[int, ...] | None,
        overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None,
    ) -> None:
        self._files = files
        self._overlay = overlay or {}
        self.engine_version = engine_version
        self.merges = engine_version is not None and engine_version >= MERGES_SINCE
        self.migrates = engine_version is not None and engine_version >= MIGRATES_SINCE
        self.missing: list[str] = []
        self.files = self._load(path)
        self.main = self.files[0].document
        self.version = self._version()
        self.cri_path = CRI_TABLE[self.version]

    @classmethod
    def of(
        cls, context: engines_base.Context, overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None
    ) -> ContainerdFiles:
        return cls(context.files, context.path, context.version, overlay)

    # -- reading -------------------------------------------------------------------------------------------------

    def _load(self, path: str) -> list[ConfigFile]:
        loaded: dict[str, ConfigFile] = {}
        pending = [path]
        while pending:
            name = pending.pop(0)
            real = self._files.resolve(name)
            if real in loaded:
                continue
            if len(loaded) + len(self.missing) > hostfs.DROP_INS:
                raise errors.HostError(f"{path} imports more than {hostfs.DROP_INS} files. Remove unneeded imports.")
            document = self._document(real)
            if document is None and loaded:
                self.missing.append(name)
                continue
            document = document or toml_document.TomlDocument.from_bytes(real, b"")
            loaded[real] = ConfigFile(real, document)
            for pattern in _patterns(name, document):
                pending += self.expand(pattern)
        return list(loaded.values())

    def _version(self) -> int:
        """Return the format version of the main file.

        Raises ConfigurationError for a version that this collection does not support.
        """
        versions = [toml_plan.require(file.document, ("version",), int, "Write 2 or 3.") for file in self.files]
        if versions[0] is not None:
            if versions[0] not in CRI_TABLE:
                raise self.main.error(
                    ("version",),
                    f"unsupported configuration version {versions[0]}",
                    f"Supported: {min(CRI_TABLE)} to {max(CRI_TABLE)}. Upgrade this collection, or use one of these.",
                )
            return int(versions[0])
        imported = set(versions) - {None}
        unversioned = [file for file, version in zip(self.files, versions) if version is None]
        if len(imported) > 1 or not all(has_no_versioned_settings(file.document) for file in unversioned):
            return 1
        return next(iter(imported & set(CRI_TABLE)), default_version(self.engine_version))

    def _document(self, path: str) -> toml_document.TomlDocument | None:
        if path in self._overlay:
            return self._overlay[path]
        content = self._files.read(path)
        return None if content is None else toml_document.TomlDocument.from_bytes(path, content)

    def expand(self, pattern: str) -> list[str]:
        """Return the files that an entry of ``imports`` selects. Only ``*`` makes the entry a pattern."""
        if "*" not in pattern:
            return [pattern]
        found = {self._files.resolve(name): name for name in self._files.glob(pattern)}
        for path, document in self._overlay.items():
            if document is None:
                found.pop(path, None)
            elif path not in found and self.selects(pattern, path):
                name = posixpath.join(posixpath.dirname(pattern), posixpath.basename(path))
                found[path] = name if self._files.resolve(name) == path else path
        return sorted(found.values())

    def selects(self, pattern: str, path: str) -> bool:
        """Return whether an entry of ``imports`` selects ``path``, in which all links are resolved."""
        real = self._files.resolve(pattern)
        return _glob_matches(real, path) if "*" in pattern else real == path

    # -- effective settings --------------------------------------------------------------------------------------

    def imports_path(self, path: str) -> bool:
        """Return whether containerd would import a file at ``path``."""
        return any(
            self.selects(pattern, path) for file in self.files for pattern in _patterns(file.path, file.document)
        )

    def cri_paths(self, document: toml_document.TomlDocument) -> list[KeyPath]:
        """Return the tables in which containerd finds CRI settings of a file, the one with precedence first."""
        version = document.value("version")
        if not self.migrates:
            return [self.cri_path] if version in (None, self.version) else []
        # Up to version 3, containerd reads the older and the newer table name (configMigration in
        # plugins/cri/runtime/plugin.go of 2.3.0). It reads a file without a version as version 1.
        names = (4,) if version == 4 else (3, 2) if version in (2, 3) else (3, 2, 1)
        return [CRI_TABLE[name] for name in names]

    def cri_tables(self) -> list[tuple[ConfigFile, dict[str, t.Any]]]:
        """Return the files whose CRI settings have effect, with these settings."""
        found = []
        for file in self.files:
            settings = [
                toml_plan.require(file.document, path, dict, "Make it a table, or remove it.")
                for path in self.cri_paths(file.document)
            ]
            tables = [table for table in settings if table is not None]
            if tables:
                found.append((file, functools.reduce(_merge_older, tables)))
        return found

    def mismatched_versions(self) -> list[str]:
        """Return imported files whose CRI settings have no effect, since their version differs from the main file's."""
        return [
            file.path
            for file in self.files[1:]
            if not self.cri_paths(file.document) and any(file.document.has(*path) for path in CRI_TABLE.values())
        ]

    def cri(self) -> dict[str, t.Any]:
        """Return the effective CRI settings of all files, without containerd's built-in defaults."""
        table: dict[str, t.Any] = {}
        for _file, later in self.cri_tables():
            table = toml_plan.merged(table, later) if self.merges else later
        return table

    def target_path(self) -> str:
        """Return the path of the file in which a change of the CRI settings has effect."""
        tables = self.cri_tables()
        return tables[-1][0].path if tables and not self.merges else self.files[0].path

    def runtimes(self) -> dict[str, t.Any]:
        found = toml_plan.lookup(self.cri(), RUNTIMES)
        return found if isinstance(found, dict) else {}

    def default_runtime(self) -> str | None:
        found = toml_plan.lookup(self.cri(), DEFAULT)
        return found if isinstance(found, str) else None

    def legacy_default(self) -> dict[str, t.Any] | None:
        """Return the table default_runtime, which in containerd 1.x has precedence over default_runtime_name.

        The printed defaults of containerd contain an empty one, for which this returns None.
        """
        found = toml_plan.lookup(self.cri(), LEGACY_DEFAULT)
        return found if not self.merges and isinstance(found, dict) and found.get("runtime_type") else None

    def defining_path(self, entry: KeyPath) -> str:
        """Return the path of the file that sets an entry of the CRI settings, or in which setting it has effect."""
        paths = [file.path for file, table in self.cri_tables() if toml_plan.lookup(table, entry) is not None]
        return paths[-1] if paths and self.merges else self.target_path()

    def cri_disabled_in(self) -> str | None:
        """Return the path of the file that disables the CRI, or None. containerd adds up the entries of all files."""
        is_1x = self.engine_version is not None and self.engine_version < VERSION_1_IGNORED_SINCE
        names = {"cri"}
        if self.version > 1 or not is_1x:
            names.add("io.containerd.grpc.v1.cri")
        if not is_1x:
            names.add("io.containerd.cri.v1.runtime")
        advice = "Make it an array of strings."
        for file in self.files:
            disabled = toml_plan.require(file.document, ("disabled_plugins",), list, advice) or ()
            if any(isinstance(entry, str) and entry in names for entry in disabled):
                return file.path
        return None


def _merge_older(newer: dict[str, t.Any], older: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the CRI settings that one file has under the table names of two versions, as containerd merges them.

    A runtime that both have is not merged: the newer table replaces the older one.
    """
    tables = [table[RUNTIMES[0]] for table in (older, newer) if isinstance(table.get(RUNTIMES[0]), dict)]
    return {**older, **newer, **({RUNTIMES[0]: {**tables[0], **tables[-1]}} if tables else {})}


def program_of(entry: t.Any) -> t.Any:
    """Return the program of a runtime. containerd ignores the case of option names."""
    options = toml_plan.lookup(entry, PROGRAM[:-1])
    return toml_plan.lookup(options, (existing_key(options, PROGRAM[-1]),))


def existing_key(table: t.Any, name: str) -> str:
    """Return the key of ``table`` that equals ``name`` apart from case, or ``name`` if there is none."""
    keys = list(table) if isinstance(table, dict) else []
    return name if name in keys else next((key for key in keys if key.lower() == name.lower()), name)


def default_version(engine_version: tuple[int, ...] | None) -> int:
    """Return the version for a file without one: 3 if this containerd reads it, else 2."""
    return 3 if engine_version is not None and engine_version >= READ_SINCE[3] else 2


def has_no_versioned_settings(document: toml_document.TomlDocument) -> bool:
    """Return whether a file has no version and no setting whose meaning a version would change."""
    return not document.has("version") and not any(document.value(name) for name in _VERSION_DEPENDENT)


def version_too_new(files: ContainerdFiles) -> bool:
    """Return whether this containerd does not support the format version of the main file yet."""
    return files.engine_version is not None and files.engine_version < READ_SINCE.get(files.version, ())


def check_version(files: ContainerdFiles) -> None:
    """Raise NvidiaError if this containerd does not support the format version of its main file."""
    version = files.engine_version or ()
    if version_too_new(files):
        raise files.main.error(
            ("version",),
            f"containerd {core_text.dotted(version)} does not support configuration version {files.version}",
            f"Use version = 2, or upgrade to containerd {core_text.dotted(READ_SINCE[files.version])} or newer.",
        )
    if files.version == 1 and version >= VERSION_1_IGNORED_SINCE and not files.migrates:
        raise errors.NvidiaError(
            f"{files.files[0].path}: containerd {core_text.dotted(version)} ignores the CRI settings of a file in"
            " configuration version 1. Add version = 2 as its first line and rename [plugins.cri…] to"
            ' [plugins."io.containerd.grpc.v1.cri"…].'
        )


def check_import_versions(files: ContainerdFiles) -> None:
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


def _patterns(path: str, document: toml_document.TomlDocument) -> list[str]:
    entries = toml_plan.require(document, ("imports",), list, "Make it an array of paths.") or []
    if not all(isinstance(entry, str) for entry in entries):
        raise document.error(("imports",), "imports contains an entry that is not a string", "Write paths in quotes.")
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), entry)) for entry in entries]


def _glob_matches(pattern: str, path: str) -> bool:
    """Return whether ``pattern`` matches ``path`` as in Go's filepath.Match: a wildcard does not match a slash."""
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part.replace("[^", "[!")) for part, name in zip(parts, names)
    )


IMPORTS: toml_plan.KeyPath = ("imports",)


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
        record = self._main.record
        self._recorded: list[str] = list((record.keys or {}).get(IMPORTS) or []) if record is not None else []

    def ensure(self, drop_in: str) -> None:
        """Add an entry that imports the drop-in to the main file, unless another entry already does."""
        if not self._current().imports_path(drop_in):
            pattern = self._pattern(drop_in)
            self._recorded.append(pattern)
            self._main.document = self._main.document.set(IMPORTS, [*self._entries(), pattern])

    def remove_own(self, drop_in: str | None = None) -> None:
        """Remove the entries that earlier runs added and that are no longer needed. ``drop_in`` is still needed."""
        needed = self.needed(drop_in)
        unneeded = [entry for entry in self.own_entries() if entry not in needed]
        if not unneeded:
            return
        remaining = [entry for entry in self._entries() if entry not in unneeded]
        original = self._main.original
        if remaining == (original.value(*IMPORTS) or []):
            self._main.document = self._main.document.restore(IMPORTS, original)
        else:
            self._main.document = self._main.document.set(IMPORTS, remaining)

    def needed(self, drop_in: str | None = None) -> list[str]:
        """Return the own entries that import ``drop_in``, or a remaining file that no foreign entry imports."""
        own = self.own_entries()
        if not own:
            return []
        foreign = [entry for entry in self._entries() if entry not in own]
        current = self._current()
        overlay = {**self._files.planned_documents(), self._main.path: self._main.document.set(IMPORTS, foreign)}
        imported_without = {file.path for file in ContainerdFiles.of(self._context, overlay).files}
        needed = []
        for pattern in own:
            only_here = [
                name for name in current.expand(pattern) if self._context.files.resolve(name) not in imported_without
            ]
            others = [name for name in only_here if self._context.files.resolve(name) != drop_in]
            if others and drop_in is None:
                self._warnings.append(
                    f"{self._main.path}: the import {pattern} stays, because it also imports files of other tools:"
                    f" {', '.join(others)}."
                )
            if only_here or (drop_in is not None and current.selects(pattern, drop_in)):
                needed.append(pattern)
        return needed

    def own_entries(self) -> list[str]:
        """Return the entries that this collection added and that still exist."""
        existing = self._entries()
        return [entry for entry in dict.fromkeys(self._recorded) if entry in existing]

    def with_own_entries(self, file: core_plan.PlannedFile) -> core_plan.PlannedFile:
        """Return the planned main file, recording only the entries of this collection instead of the whole array."""
        keys = {path: value for path, value in file.keys.items() if path != IMPORTS}
        own = self.own_entries() if file.after is not None else []
        return file._replace(keys={**keys, IMPORTS: own} if own else keys)

    def _current(self) -> ContainerdFiles:
        return ContainerdFiles.of(self._context, self._files.planned_documents())

    def _entries(self) -> list[str]:
        return list(self._main.document.value(*IMPORTS) or [])

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
