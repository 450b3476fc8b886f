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
    ``missing`` lists imported files that do not exist.
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
                raise errors.HostError(
                    f"{path} imports more than {hostfs.DROP_INS} files. Remove those that are not needed."
                )
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
            _check_known(self.main, versions[0])
            return int(versions[0])
        imported = set(versions) - {None}
        unversioned = [file for file, version in zip(self.files, versions) if version is None]
        if len(imported) > 1 or not all(has_no_versioned_settings(file.document) for file in unversioned):
            return 1
        return next(iter(imported & set(CRI_TABLE)), fresh_version(self.engine_version))

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
            elif path not in found and self.means(pattern, path):
                name = posixpath.join(posixpath.dirname(pattern), posixpath.basename(path))
                found[path] = name if self._files.resolve(name) == path else path
        return sorted(found.values())

    def means(self, pattern: str, path: str) -> bool:
        """Return whether an entry of ``imports`` selects ``path``, in which all links are resolved."""
        real = self._files.resolve(pattern)
        return _matches(real, path) if "*" in pattern else real == path

    # -- effective settings --------------------------------------------------------------------------------------

    def covers(self, path: str) -> bool:
        """Return whether containerd would import a file at ``path``."""
        return any(self.means(pattern, path) for file in self.files for pattern in _patterns(file.path, file.document))

    def roots(self, document: toml_document.TomlDocument) -> list[KeyPath]:
        """Return the tables in which containerd finds CRI settings of a file, the one with precedence first."""
        version = document.value("version")
        if not self.migrates:
            return [self.cri_path] if version in (None, self.version) else []
        # Up to version 3, containerd reads the older and the newer table name (configMigration in
        # plugins/cri/runtime/plugin.go of 2.3.0). It reads a file without a version as version 1.
        names = (4,) if version == 4 else (3, 2) if version in (2, 3) else (3, 2, 1)
        return [CRI_TABLE[name] for name in names]

    def tables(self) -> list[tuple[ConfigFile, dict[str, t.Any]]]:
        """Return the files whose CRI settings have effect, with these settings."""
        found = []
        for file in self.files:
            given = [
                toml_plan.require(file.document, root, dict, "Make it a table, or remove it.")
                for root in self.roots(file.document)
            ]
            tables = [table for table in given if table is not None]
            if tables:
                found.append((file, functools.reduce(_migrated, tables)))
        return found

    def mismatched_versions(self) -> list[str]:
        """Return imported files whose CRI settings have no effect, since their version differs from the main file's."""
        return [
            file.path
            for file in self.files[1:]
            if not self.roots(file.document) and any(file.document.has(*path) for path in CRI_TABLE.values())
        ]

    def cri(self) -> dict[str, t.Any]:
        """Return the effective CRI settings of all files, without containerd's built-in defaults."""
        table: dict[str, t.Any] = {}
        for _file, later in self.tables():
            table = toml_plan.merged(table, later) if self.merges else later
        return table

    def source(self) -> str:
        """Return the file in which a change of the CRI settings has effect."""
        tables = self.tables()
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

    def holder(self, entry: KeyPath) -> str:
        """Return the file that sets an entry of the CRI settings, or in which a change of it has effect."""
        with_it = [file.path for file, table in self.tables() if toml_plan.lookup(table, entry) is not None]
        return with_it[-1] if with_it and self.merges else self.source()

    def cri_disabled_in(self) -> str | None:
        """Return the file that disables the CRI, or None. containerd adds up the entries of all files."""
        old = self.engine_version is not None and self.engine_version < VERSION_1_IGNORED_SINCE
        names = {"cri"}
        if self.version > 1 or not old:
            names.add("io.containerd.grpc.v1.cri")
        if not old:
            names.add("io.containerd.cri.v1.runtime")
        for file in self.files:
            disabled = (
                toml_plan.require(file.document, ("disabled_plugins",), list, "Make it an array of strings.") or ()
            )
            if any(isinstance(entry, str) and entry in names for entry in disabled):
                return file.path
        return None


def _migrated(newer: dict[str, t.Any], older: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the settings that a file has under the names of two versions, merged as containerd merges them.

    A runtime that both have is not merged: the newer table replaces the older one.
    """
    inner = [table.get(RUNTIMES[0]) for table in (older, newer)]
    united = [table for table in inner if isinstance(table, dict)]
    return {**older, **newer, **({RUNTIMES[0]: {**united[0], **united[-1]}} if united else {})}


def program_of(entry: t.Any) -> t.Any:
    """Return the program of a runtime. containerd ignores the case of option names."""
    options = toml_plan.lookup(entry, PROGRAM[:-1])
    return toml_plan.lookup(options, (spelling(options, PROGRAM[-1]),))


def spelling(table: t.Any, name: str) -> str:
    """Return the spelling of ``name`` in ``table``, ignoring case."""
    names = list(table) if isinstance(table, dict) else []
    return name if name in names else next((known for known in names if known.lower() == name.lower()), name)


def _check_known(document: toml_document.TomlDocument, version: int) -> None:
    if version not in CRI_TABLE:
        raise document.error(
            ("version",),
            f"version = {version} is none that this collection knows",
            f"Known are {', '.join(map(str, CRI_TABLE))}; use a newer collection, or an older format.",
        )


def fresh_version(engine_version: tuple[int, ...] | None) -> int:
    """Return the version for a file that has none: the newest that the engine is known to read, but at most 3."""
    return 3 if engine_version is not None and engine_version >= READ_SINCE[3] else 2


def has_no_versioned_settings(document: toml_document.TomlDocument) -> bool:
    """Return whether a file has no version and no setting whose meaning a version would change."""
    return not document.has("version") and not any(document.value(name) for name in _VERSION_DEPENDENT)


def too_new(files: ContainerdFiles) -> bool:
    """Return whether this containerd is too old to read the format version of the main file."""
    return files.engine_version is not None and files.engine_version < READ_SINCE.get(files.version, ())


def check_readable(files: ContainerdFiles) -> None:
    """Raise NvidiaError if containerd would ignore what is written into its main file."""
    version = files.engine_version or ()
    if too_new(files):
        raise files.main.error(
            ("version",),
            f"containerd {'.'.join(map(str, version))} does not read version = {files.version}",
            f"It needs containerd {'.'.join(map(str, READ_SINCE[files.version]))} or newer; write version = 2.",
        )
    if files.version == 1 and version >= VERSION_1_IGNORED_SINCE and not files.migrates:
        raise errors.NvidiaError(
            f"{files.files[0].path}: the file is in version 1 of the format, of which containerd"
            f" {'.'.join(map(str, version))} ignores all settings for the CRI. Write version = 2 at its top and rename"
            ' [plugins.cri…] to [plugins."io.containerd.grpc.v1.cri"…], then run this again.'
        )


def check_order(files: ContainerdFiles) -> None:
    """Raise ConfigurationError if an imported file has a higher version than this containerd accepts."""
    engine = files.engine_version or ()
    if not files.migrates or engine >= HIGHER_IMPORTS_SINCE:
        return
    versioned = [(file, file.document.value("version")) for file in files.files]
    first = next((entry for entry in versioned if entry[1]), None)
    for file, version in versioned:
        if first is not None and (version or 0) > first[1]:
            raise file.document.error(
                ("version",),
                f"version = {version} is higher than version = {first[1]} in {first[0].path}: containerd"
                f" {'.'.join(map(str, engine))} does not start with that",
                "Bring the file to that version, or move it away, then run this again.",
            )


def _patterns(path: str, document: toml_document.TomlDocument) -> list[str]:
    entries = toml_plan.require(document, ("imports",), list, "Make it an array of paths.") or []
    if not all(isinstance(entry, str) for entry in entries):
        raise document.error(("imports",), "imports holds what is no string", "Write paths in quotes.")
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), entry)) for entry in entries]


def _matches(pattern: str, path: str) -> bool:
    """Return whether ``pattern`` matches ``path`` as in Go's filepath.Match: a wildcard does not match a slash."""
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part.replace("[^", "[!")) for part, name in zip(parts, names)
    )


IMPORTS: toml_plan.KeyPath = ("imports",)


class Imports:
    """The entries of ``imports`` that this collection added.

    Other tools may add entries to the same array at any time, so the record holds single entries instead of the whole
    array.
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
        if not self._now().covers(drop_in):
            pattern = self._pattern(drop_in)
            self._recorded.append(pattern)
            self._main.document = self._main.document.set(IMPORTS, [*self._entries(), pattern])

    def remove_own(self, drop_in: str | None = None) -> None:
        """Remove the entries that earlier runs added and that are no longer needed. ``drop_in`` is still needed."""
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
        """Return the entries of this collection that import a file which stays and which no other entry imports."""
        ours = self.ours()
        if not ours:
            return []
        rest = [entry for entry in self._entries() if entry not in ours]
        now = self._now()
        overlay = {**self._files.planned_documents(), self._main.path: self._main.document.set(IMPORTS, rest)}
        without = {file.path for file in ContainerdFiles.of(self._context, overlay).files}
        needed = []
        for pattern in ours:
            lost = [name for name in now.expand(pattern) if self._context.files.resolve(name) not in without]
            others = [name for name in lost if self._context.files.resolve(name) != drop_in]
            if others and drop_in is None:
                self._warnings.append(
                    f"{self._main.path} keeps importing {pattern}: {', '.join(others)} needs it and is not ours."
                )
            if lost or (drop_in is not None and now.means(pattern, drop_in)):
                needed.append(pattern)
        return needed

    def ours(self) -> list[str]:
        """Return the entries that this collection added and that still exist."""
        here = self._entries()
        return [entry for entry in dict.fromkeys(self._recorded) if entry in here]

    def counted(self, file: core_plan.PlannedFile) -> core_plan.PlannedFile:
        """Return the planned main file, recording only the entries of this collection instead of the whole array."""
        keys = {path: value for path, value in file.keys.items() if path != IMPORTS}
        ours = self.ours() if file.after is not None else []
        return file._replace(keys={**keys, IMPORTS: ours} if ours else keys)

    def _now(self) -> ContainerdFiles:
        return ContainerdFiles.of(self._context, self._files.planned_documents())

    def _entries(self) -> list[str]:
        return list(self._main.document.value(*IMPORTS) or [])

    def _pattern(self, drop_in: str) -> str:
        """Return a glob for the drop-in's directory, or a narrower one if that would import additional files.

        Never return a plain file name: containerd does not start if an imported file is missing.
        """
        folder, name = drop_in.rsplit("/", 1)
        stem, dot, suffix = name.rpartition(".")
        ending = dot + suffix if stem else ""
        stem = stem or name
        wide, others = self._tried(f"{folder}/*{ending}" if ending else f"{folder}/{name}*", drop_in)
        if not others:
            return wide
        self._warnings.append(
            f"{folder} holds files that containerd does not read so far ({', '.join(others)}), so only ours is"
            " imported."
        )
        narrow, others = self._tried(f"{folder}/{stem}*{ending}", drop_in)
        # This is the narrowest entry that is still a pattern.
        return f"{folder}/{name[:-1]}*{name[-1]}" if others else narrow

    def _tried(self, pattern: str, drop_in: str) -> tuple[str, list[str]]:
        known = {drop_in, *(file.path for file in self._now().files)}
        names = self._context.files.glob(pattern)
        return pattern, [name for name in names if self._context.files.resolve(name) not in known]
