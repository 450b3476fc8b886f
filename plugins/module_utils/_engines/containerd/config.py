# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the configuration of containerd: format versions 1 to 4, imports, and how releases merge and migrate files.

Measured on containerd 1.6.20, 1.7.24, 2.0.11, 2.1.9 and 2.3.4: up to 1.7, the table of a plugin in a later file
replaces the earlier one. From 2.0 on, entries are merged, and a later list replaces an earlier one.
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options, tables

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

    KeyPath = t.Tuple[str, ...]


# The table of the CRI settings, by the format version of the file.
CRI_TABLE: dict[int, KeyPath] = {
    1: ("plugins", "cri"),
    2: tables.OLDER,
    3: tables.NEWER,
    4: tables.NEWER,
}
# The first release that reads a format version (version/version.go), 2.0.0 and 2.3.0. Last without: 1.7.34 and 2.2.7.
READ_SINCE = {3: (2, 0), 4: (2, 3)}
# containerd 2.0 to 2.2 silently ignores the CRI settings of a version 1 file. First 2.0.0, last without it 1.7.34.
VERSION_1_IGNORED_SINCE = (2, 0)
# From this release on, containerd migrates each file to version 4 before it merges them (LoadConfigWithPlugins in
# cmd/containerd/server/config), so files of different versions all have effect. First 2.3.0, last without it 2.2.7.
MIGRATES_SINCE = (2, 3)
# mergeConfig in cmd/containerd/server/config/config.go is the same in 2.0.0, 2.0.11, 2.1.0 and 2.2.7. The one of 1.7
# replaces tables. First 2.0.0, last without it 1.7.34.
MERGES_SINCE = (2, 0)
# Before these releases, a relative pattern in `imports` is relative to the working directory of the daemon, which is /
# for a unit of systemd (resolveImports in services/server/config). Last with this rule: 1.6.28 and 1.7.15.
PATTERNS_OF_FOLDER_SINCE: dict[tuple[int, ...], tuple[int, ...]] = {(1, 6): (1, 6, 29), (1, 7): (1, 7, 16)}

IMPORTS: KeyPath = ("imports",)
# These paths are relative to the CRI settings.
RUNTIMES = tables.RUNTIMES
DEFAULT: KeyPath = ("containerd", "default_runtime_name")
LEGACY_DEFAULT: KeyPath = ("containerd", "default_runtime")

# The fields of the structs that containerd decodes its files into, as far as this collection uses them: Config in
# cmd/containerd/server/config/config.go, Config and Runtime in internal/cri/config/config.go.
RUNTIME_FIELDS = key_names.fields(
    "runtime_type",
    "runtime_path",
    "runtime_engine",
    "runtime_root",
    "privileged_without_host_devices",
    "privileged_without_host_devices_all_devices_allowed",
    "base_runtime_spec",
    "pod_annotations",
    "container_annotations",
    "cni_conf_dir",
    "cni_max_conf_num",
    "snapshotter",
    "sandboxer",
    "sandbox_mode",
    "options",
)
_CRI = key_names.fields(
    "enable_cdi",
    "cdi_spec_dirs",
    containerd=key_names.fields(
        "default_runtime_name",
        "snapshotter",
        default_runtime=RUNTIME_FIELDS,
        runtimes=key_names.keys(RUNTIME_FIELDS),
    ),
)
_FILE = key_names.fields(
    "version",
    "imports",
    "disabled_plugins",
    "required_plugins",
    plugins=key_names.keys(_CRI, *(path[-1] for path in CRI_TABLE.values())),
    grpc=key_names.fields("address"),
)

# Settings whose meaning depends on the format version.
_VERSION_DEPENDENT = ("plugins", "disabled_plugins", "required_plugins")


class ContainerdFile(t.NamedTuple):
    """One file of the configuration. All links in ``path`` are resolved."""

    path: str
    document: toml_document.TomlDocument


class ContainerdFiles:
    """All files in the order in which containerd reads them. Later files take precedence.

    ``overlay`` maps paths to planned documents, which replace the files on the host (None: the file is removed).
    ``missing`` lists imported files that do not exist. ``merges``: containerd merges the tables of a plugin.
    ``migrates``: containerd migrates each file to version 4 before it merges them. ``merges_versions``: the version of
    ``version_file`` counts for all files.
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
        self.merges_versions = engine_version is not None and not self.migrates
        self.missing: list[str] = []
        self._cri: dict[str, t.Any] | None = None
        self.files = self._load(path)
        self.main = self.files[0].document
        self.version_file = self.files[0]
        self.version = self._version()
        self.cri_path = CRI_TABLE[self.version]

    @classmethod
    def of(
        cls, context: engines_base.Context, overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None
    ) -> ContainerdFiles:
        return cls(context.files, context.path, context.version, overlay)

    # -- reading -------------------------------------------------------------------------------------------------

    def _load(self, path: str) -> list[ContainerdFile]:
        loaded: dict[str, ContainerdFile] = {}
        pending = [path]
        while pending:
            name = pending.pop(0)
            real = self._files.resolve(name)
            if real in loaded:
                continue
            if len(loaded) + len(self.missing) > hostfs.DROP_INS:
                problem = f"{path} imports more than {hostfs.DROP_INS} files."
                raise errors.with_advice(errors.HostError, problem, "Remove unneeded imports.")
            document = self._document(real)
            if document is None and loaded:
                self.missing.append(name)
                continue
            document = document or toml_document.TomlDocument.from_bytes(real, b"")
            loaded[real] = ContainerdFile(real, document)
            for pattern in self._patterns(name, document):
                pending += self.expand(pattern)
        return list(loaded.values())

    def _version(self) -> int:
        """Return the format version in which containerd reads the files.

        Before 2.3, containerd also merges the versions: that of the last file that has one counts for all files
        (LoadConfig in 1.6.20, 1.7.24 and 2.1.4). Raises ConfigurationError for an unsupported version.
        """
        versions = [toml_plan.require(file.document, ("version",), int, "Write 2 or 3.") for file in self.files]
        # Of an unknown release, the version of the main file is used, and other files are reported.
        for file, version in list(zip(self.files, versions))[: None if self.merges_versions else 1]:
            if version and version not in CRI_TABLE:
                raise file.document.error(
                    ("version",),
                    f"unsupported configuration version {version}",
                    f"Supported: {min(CRI_TABLE)} to {max(CRI_TABLE)}. Upgrade this collection, or use one of these.",
                )
            # containerd 2.0 to 2.2 migrates a file of version 1 before it merges it.
            if version not in (None, 0, 1 if self.merges else 0, self.version_file.document.value("version")):
                self.version_file = file
        return self.version_file.document.value("version") or self._unset()

    def main_version(self) -> int:
        """Return the format version of the main file, or that which it gets if it has none."""
        return self.main.value("version") or self._unset()

    def _unset(self) -> int:
        imported = {file.document.value("version") for file in self.files} - {None}
        unversioned = [file for file in self.files if file.document.value("version") is None]
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

    def _patterns(self, path: str, document: toml_document.TomlDocument) -> list[str]:
        """Return the entries of ``imports`` of the file ``path`` as absolute paths."""
        entries = toml_plan.require(document, ("imports",), list, "Make it an array of paths.") or []
        if not all(isinstance(entry, str) for entry in entries):
            problem = "imports contains an entry that is not a string"
            raise document.error(("imports",), problem, "Write paths in quotes.")
        engine = self.engine_version or (2,)
        of_daemon = engine < PATTERNS_OF_FOLDER_SINCE.get(engine[:2], (1, 6))
        folders = ["/" if of_daemon and "*" in entry else posixpath.dirname(path) for entry in entries]
        return [posixpath.normpath(posixpath.join(folder, entry)) for folder, entry in zip(folders, entries)]

    def selects(self, pattern: str, path: str) -> bool:
        """Return whether an entry of ``imports`` selects ``path``, in which all links are resolved."""
        real = self._files.resolve(pattern)
        return _glob_matches(real, path) if "*" in pattern else real == path

    # -- effective settings --------------------------------------------------------------------------------------

    def imports_path(self, path: str) -> bool:
        """Return whether containerd would import a file at ``path``."""
        return any(
            self.selects(pattern, path) for file in self.files for pattern in self._patterns(file.path, file.document)
        )

    def cri_paths(self, document: toml_document.TomlDocument) -> list[KeyPath]:
        """Return the tables in which containerd finds CRI settings of a file, the one with precedence first."""
        version = document.value("version")
        if not self.migrates:
            both = [tables.NEWER, tables.OLDER] if self._reads_newer_name() else [self.cri_path]
            return both if self.merges_versions or version in (None, self.version) else []
        # Up to version 3, containerd reads the older and the newer table name (configMigration in
        # plugins/cri/runtime/plugin.go of 2.3.0). It reads a file without a version as version 1.
        names = (4,) if version == 4 else (3, 2) if version in (2, 3) else (3, 2, 1)
        return [CRI_TABLE[name] for name in names]

    def _reads_newer_name(self) -> bool:
        """Return whether containerd also reads the name of version 3 in files of version 2.

        If its release is unknown, a file with these names shows that it does.
        """
        if self.version != 2:
            return False
        if self.engine_version is not None:
            return self.engine_version >= tables.READS_NEWER_SINCE
        return any(file.document.has(*tables.NEWER) for file in self.files)

    def both_tables(self, document: toml_document.TomlDocument) -> tuple[t.Any, t.Any]:
        """Return the newer and the older table of CRI settings, None for a missing one.

        They are those of all files, or those of ``document`` alone if containerd migrates each file.
        """
        files = [ContainerdFile("", document)] if self.migrates else self.files
        return self._merged(files, tables.NEWER), self._merged(files, tables.OLDER)

    def check_tables(self) -> None:
        """Raise ConfigurationError if a setting has one value in the older table and another one in the newer table."""
        for file in self.files if self.migrates else self.files[:1]:
            key = tables.conflict(*self.both_tables(file.document))
            if key is not None:
                path, name = (*tables.NEWER, *key), ".".join(key)
                defining = (each for each in (file, *reversed(self.files)) if each.document.has(*path))
                raise next(defining).document.error(
                    path,
                    f"{name} has another value in the table {tables.OLDER[-1]}, and the release of containerd decides"
                    " which one has effect",
                    f"Remove {name} from one of both tables.",
                )

    def _merged(self, files: t.Iterable[ContainerdFile], path: KeyPath) -> dict[str, t.Any] | None:
        """Return the table at ``path`` after all files, with the names of the files; None if no file has it."""
        present = [
            toml_plan.require(file.document, self._path_in(file, path), dict, "Make it a table, or remove it.")
            for file in files
            if path in self.cri_paths(file.document)
        ]
        found = [table for table in present if table is not None]
        return functools.reduce(toml_plan.merged, found) if found else None

    def _path_in(self, file: ContainerdFile, path: KeyPath) -> KeyPath:
        """Return where a file has the table ``path``: containerd 2.0 to 2.2 renames those of version 1."""
        is_renamed = self.merges and not self.migrates and file.document.value("version") in (None, 1)
        return CRI_TABLE[1] if is_renamed and path == CRI_TABLE[2] and not file.document.has(*path) else path

    def _migrated(self, files: t.Sequence[ContainerdFile]) -> dict[str, t.Any] | None:
        """Return the CRI settings of files that containerd merges before it migrates them, None if there are none."""
        paths = dict.fromkeys(path for file in files for path in self.cri_paths(file.document))
        found = [table for table in (self._merged(files, path) for path in paths) if table is not None]
        if self.engine_version is not None and self.engine_version < tables.KEEPS_NEWER_SINCE:
            found = found[-1:]
        return functools.reduce(_merge_older, found) if found else None

    def cri_tables(self) -> list[tuple[ContainerdFile, dict[str, t.Any]]]:
        """Return the files whose CRI settings have effect, with these settings."""
        found = [(file, self._migrated([file])) for file in self.files]
        return [(file, table) for file, table in found if table is not None]

    def raw_cri(self) -> dict[str, t.Any]:
        """Return the effective CRI settings of all files, with the options of runtimes as the files spell them."""
        groups = [[file] for file in self.files] if self.migrates or not self.merges else [self.files]
        migrated = [table for table in map(self._migrated, groups) if table is not None]
        found: dict[str, t.Any] = functools.reduce(toml_plan.merged, migrated if self.merges else migrated[-1:], {})
        return found

    def cri(self) -> dict[str, t.Any]:
        """Return the effective CRI settings of all files, read once, without containerd's built-in defaults."""
        self._cri = self._cri or _with_names_of_options(self.raw_cri())
        return self._cri

    def check_names(self) -> None:
        """Raise ConfigurationError for a key that differs from the name of a setting in case only."""
        for file in self.files:
            key_names.check(file.document, _FILE, "containerd")
        cri = self.raw_cri()
        runtimes = toml_plan.lookup(cri, RUNTIMES)
        paths = [LEGACY_DEFAULT, *((*RUNTIMES, name) for name in (runtimes if isinstance(runtimes, dict) else ()))]
        for path in paths:
            table = (*path, *options.PROGRAM[:-1])
            found = toml_plan.lookup(cri, table)
            undefined = options.undefined_key(found)
            if undefined is not None:
                key, name = undefined
                advice = f"Remove {key}." if name in found else f"Rename it to {name}."
                self._refuse_option((*table, key), name, advice)

    def _refuse_option(self, path: KeyPath, name: str, advice: str) -> None:
        for file in reversed(self.files):
            for root in self.cri_paths(file.document):
                if file.document.has(*root, *path):
                    raise file.document.error(
                        (*root, *path),
                        f"the release of containerd decides whether it reads {path[-1]} as {name}",
                        advice,
                    )

    def mismatched_versions(self) -> list[str]:
        """Return files whose CRI settings have no effect, since they have the names of another version."""
        return [
            file.path
            for file in self.files
            if not self.migrates
            and file.document.value("version") not in (None, self.version)
            and any(file.document.has(*path) for path in CRI_TABLE.values())
            and not any(file.document.has(*self._path_in(file, path)) for path in self.cri_paths(file.document))
        ]

    def target_path(self) -> str:
        """Return the path of the file in which a change of the CRI settings has effect."""
        found = self.cri_tables()
        return found[-1][0].path if found and not self.merges else self.files[0].path

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
    both = [table[RUNTIMES[0]] for table in (older, newer) if isinstance(table.get(RUNTIMES[0]), dict)]
    return {**older, **newer, **({RUNTIMES[0]: {**both[0], **both[-1]}} if both else {})}


def _with_names_of_options(cri: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the CRI settings with the names of containerd for the options of all runtimes."""
    table = cri.get(RUNTIMES[0])
    if not isinstance(table, dict):
        return cri
    found = {**table, LEGACY_DEFAULT[-1]: options.canonical(table.get(LEGACY_DEFAULT[-1]))}
    runtimes = table.get(RUNTIMES[-1])
    if isinstance(runtimes, dict):
        found[RUNTIMES[-1]] = {name: options.canonical(entry) for name, entry in runtimes.items()}
    return {**cri, RUNTIMES[0]: {name: value for name, value in found.items() if value is not None}}


def checked_files(context: engines_base.Context) -> ContainerdFiles:
    """Return the present files. Raises ConfigurationError for keys that differ from names in case only."""
    files = ContainerdFiles.of(context)
    files.check_names()
    return files


def printed_cri(document: toml_document.TomlDocument) -> dict[str, t.Any] | None:
    """Return the CRI settings that `containerd config dump` printed, None if it printed none."""
    printed = [document.value(*path) for path in (CRI_TABLE[3], CRI_TABLE[2], CRI_TABLE[1])]
    return next((table for table in printed if isinstance(table, dict)), None)


def default_version(engine_version: tuple[int, ...] | None) -> int:
    """Return the version for a file without one: 3 if this containerd reads it, else 2."""
    return 3 if engine_version is not None and engine_version >= READ_SINCE[3] else 2


def has_no_versioned_settings(document: toml_document.TomlDocument) -> bool:
    """Return whether a file has no version and no setting whose meaning a version would change."""
    return not document.has("version") and not any(document.value(name) for name in _VERSION_DEPENDENT)


def version_too_new(files: ContainerdFiles) -> bool:
    """Return whether this containerd does not support the format version of its files yet."""
    version = max(files.version, files.main_version())
    return files.engine_version is not None and files.engine_version < READ_SINCE.get(version, ())


def check_version(files: ContainerdFiles) -> None:
    """Raise NvidiaError if this containerd does not support the format version of its files."""
    version = files.engine_version or ()
    if version_too_new(files):
        number = max(files.version, files.main_version())
        raise (files.version_file.document if number == files.version else files.main).error(
            ("version",),
            f"containerd {core_text.dotted(version)} does not support configuration version {number}",
            f"Use version = 2, or upgrade to containerd {core_text.dotted(READ_SINCE[number])} or newer.",
        )
    if files.main_version() == 1 and version >= VERSION_1_IGNORED_SINCE and not files.migrates:
        raise errors.NvidiaError(
            f"{files.files[0].path}: containerd {core_text.dotted(version)} ignores the CRI settings of a file in"
            " configuration version 1. Add version = 2 as its first line and rename [plugins.cri…] to"
            ' [plugins."io.containerd.grpc.v1.cri"…].'
        )


def _glob_matches(pattern: str, path: str) -> bool:
    """Return whether ``pattern`` matches ``path`` as in Go's filepath.Match: a wildcard does not match a slash."""
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part.replace("[^", "[!")) for part, name in zip(parts, names)
    )
