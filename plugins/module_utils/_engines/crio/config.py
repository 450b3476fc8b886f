# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the configuration of CRI-O: crio.conf and its drop-ins in the order in which CRI-O reads them.

This file does not plan changes. The rules are those of crio.conf.d(5), tested on CRI-O 1.37. CRI-O reads every file in
crio.conf.d and its subdirectories, whatever its name, in lexical order. A later key replaces an earlier one. A later
table of the same runtime replaces the earlier table as a whole.
"""

from __future__ import annotations

import itertools
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names, toml_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

    KeyPath = t.Tuple[str, ...]


MAIN = "/etc/crio/crio.conf"
CONFIG_DIR = "/etc/crio/crio.conf.d"
DROP_IN_NAME = "99-nvidia.toml"

RUNTIME: KeyPath = ("crio", "runtime")
RUNTIMES: KeyPath = (*RUNTIME, "runtimes")
DEFAULT: KeyPath = (*RUNTIME, "default_runtime")
CDI_DIRS: KeyPath = (*RUNTIME, "cdi_spec_dirs")
# A deprecated setting for all runtimes at once, which has precedence over monitor_path.
CONMON: KeyPath = (*RUNTIME, "conmon")
# Keys of a runtime's table.
PROGRAM = "runtime_path"
RUNTIME_TYPE = "runtime_type"
ANNOTATIONS = "allowed_annotations"

# The built-in runtime is crun instead of runc (pkg/config/config_linux.go). First 1.31.0, last without it 1.30.14.
CRUN_SINCE = (1, 31)

# The fields of the structs that CRI-O decodes a file into, as far as this collection uses them (RuntimeConfig and
# RuntimeHandler in pkg/config/config.go).
RUNTIME_FIELDS = key_names.fields(
    PROGRAM,
    RUNTIME_TYPE,
    ANNOTATIONS,
    "monitor_path",
    "monitor_cgroup",
    "monitor_exec_cgroup",
    "monitor_env",
    "runtime_root",
    "runtime_config_path",
    "runtime_pull_image",
    "platform_runtime_paths",
    "privileged_without_host_devices",
    "inherit_default_runtime",
    "default_annotations",
    "container_min_memory",
    "container_create_timeout",
    "exec_cpu_affinity",
    "seccomp_profile",
    "no_sync_log",
    "stream_websockets",
)
_FIELDS = key_names.fields(
    crio=key_names.fields(
        runtime=key_names.fields(
            "default_runtime", "cdi_spec_dirs", "conmon", "hooks_dir", runtimes=key_names.keys(RUNTIME_FIELDS)
        )
    )
)

# Before this release, CRI-O does not start if the program of any runtime is missing. Later ones ignore such a runtime
# unless it is the default (ValidateRuntimes in pkg/config/config.go). First 1.21.0, last without it 1.20.9.
IGNORES_MISSING_SINCE = (1, 21)

# Before this release, a file with a default_runtime other than runc removes the runtime runc, also one that the same or
# an earlier file defines (UpdateFromDropInFile in pkg/config/config.go, since 1.19.0; measured on 1.20.9). First
# without this rule 1.25.1, last with it 1.25.0 and 1.24.6.
KEEPS_RUNC_SINCE = (1, 25, 1)
_RUNC = "runc"

_TABLE_ADVICE = "Make it a table, or remove it."


class CrioFile(t.NamedTuple):
    """One file of the configuration.

    ``name`` is the path at which CRI-O finds the file, ``path`` the same path with all links resolved.
    """

    name: str
    path: str
    document: toml_document.TomlDocument


# The flags that have an environment variable such as CONTAINER_CONFIG_DIR (EnvVars in internal/criocli/criocli.go,
# 1.20.9 to 1.36.3), as far as this collection uses them.
_FLAGS = (
    *(("--config", "-c"), ("--config-dir", "-d"), ("--listen",), ("--default-runtime",), ("--runtimes",)),
    *(("--cdi-spec-dirs",), ("--conmon",), ("--hooks-dir",)),
)


def with_variables(unit: systemd_units.Unit) -> systemd_units.Unit:
    """Return the unit with a flag for each of CRI-O's variables. A flag on the command line has precedence."""
    values = {names: unit.environment.get("CONTAINER_" + names[0][2:].upper().replace("-", "_")) for names in _FLAGS}
    set_ones = {names: value for names, value in values.items() if value is not None}
    added = [f"{names[0]}={value}" for names, value in set_ones.items() if not unit.flag_values(*names)]
    return unit._replace(arguments=(*(unit.arguments or ("crio",)), *added)) if added else unit


def _config_dir_flag(unit: systemd_units.Unit | None) -> str:
    return next(iter(unit.flag_values("--config-dir", "-d")[-1:]), CONFIG_DIR) if unit is not None else CONFIG_DIR


def config_dir(unit: systemd_units.Unit | None) -> str:
    """Return the directory of the drop-ins; an empty string if a flag of the unit disables drop-ins."""
    value = _config_dir_flag(unit)
    return value and posixpath.normpath(value)


def builtin_runtimes(version: tuple[int, ...] | None) -> tuple[str, ...]:
    """Return the runtimes that CRI-O defines without a table, the default one first. Both if the version is unknown."""
    if version is None:
        return ("crun", "runc")
    return ("crun",) if version >= CRUN_SINCE else ("runc",)


class CrioFiles:
    """All files in the order in which CRI-O reads them, the main file first.

    - ``directory``: the directory of the drop-ins, with all links resolved.
    - ``overlay``: maps paths to planned documents, which replace the files on the host (None: the file is removed).
    - ``missing``: dangling links, with which CRI-O does not start.
    - ``flagged_default``, ``flagged_runtimes``, ``flagged_cdi``: what flags of the unit set.
    - ``version``: that of CRI-O, None if it is unknown.
    - ``linked``: the directory of the drop-ins if it is a link, with which CRI-O does not start.
    """

    def __init__(
        self,
        files: engines_base.Files,
        path: str,
        directory: str,
        overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None,
    ) -> None:
        self._reader = files
        self._overlay = overlay or {}
        self.directory = directory
        self.missing: list[str] = []
        self.flagged_default: str | None = None
        self.flagged_runtimes: tuple[str, ...] = ()
        self.flagged_cdi: list[str] | None = None
        self.linked = ""
        self.version: tuple[int, ...] | None = None
        self.files = self._load(path)

    @classmethod
    def of(
        cls, context: engines_base.Context, overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None
    ) -> CrioFiles:
        directory = config_dir(context.unit)
        found = cls(context.files, context.path, directory and context.files.resolve(directory), overlay)
        found.version = context.version
        # filepath.Walk does not follow the link, unless the path ends with a slash.
        folder, name = posixpath.split(directory)
        if directory and not _config_dir_flag(context.unit).endswith("/"):
            is_link = found.directory != posixpath.join(context.files.resolve(folder), name)
            found.linked = directory if is_link else ""
        if context.unit is not None:
            # Flags have precedence over all files, as for all settings of CRI-O.
            found.flagged_default = next(iter(context.unit.flag_values("--default-runtime")[-1:]), None)
            values = context.unit.flag_values("--runtimes")
            found.flagged_runtimes = tuple(
                entry.strip().partition(":")[0] for value in values for entry in value.split(",")
            )
            folders = context.unit.flag_values("--cdi-spec-dirs")
            found.flagged_cdi = [name for value in folders for name in value.split(",") if name] if folders else None
        return found

    # -- reading -------------------------------------------------------------------------------------------------

    def _load(self, path: str) -> list[CrioFile]:
        main = self._document(path) or toml_document.TomlDocument.from_bytes(path, b"")
        loaded = [CrioFile(path, path, main)]
        for name, real in self._drop_ins():
            document = self._document(real)
            if document is not None:
                loaded.append(CrioFile(name, real, document))
            elif real not in self._overlay:
                self.missing.append(name)
        return loaded

    def _drop_ins(self) -> list[tuple[str, str]]:
        if not self.directory:
            return []
        names = {name: self._reader.resolve(name) for name in self._reader.walk(self.directory)}
        existing = set(names.values())
        planned = [path for path, document in self._overlay.items() if document is not None and path not in existing]
        names.update((path, path) for path in planned if path.startswith(self.directory + "/"))
        # A directory walk sorts the names in each directory, so the directory a comes before the file a.conf.
        return sorted(names.items(), key=lambda item: item[0].split("/"))

    def _document(self, path: str) -> toml_document.TomlDocument | None:
        if path in self._overlay:
            return self._overlay[path]
        content = self._reader.read(path)
        return None if content is None else toml_document.TomlDocument.from_bytes(path, content)

    def check_names(self) -> None:
        """Raise ConfigurationError for a key that differs from the name of a setting in case only."""
        for file in self.files:
            key_names.check(file.document, _FIELDS, "CRI-O")

    def check(self) -> None:
        """Raise ConfigurationError if a setting that this collection needs has a type that CRI-O does not accept.

        Raises NvidiaError for a dangling link, with which CRI-O does not start.
        """
        self.check_names()
        if self.linked:
            raise errors.NvidiaError(
                f"{self.linked} is a link to {self.directory}, and CRI-O would not start, because it does not follow"
                f" this link. Replace the link by a directory, or set --config-dir={self.directory} in the unit."
            )
        if self.missing:
            raise errors.NvidiaError(
                f"{', '.join(self.missing)} is a dangling link, and CRI-O would not start. Remove it, or create its"
                " target."
            )
        for file in self.files:
            toml_plan.require(file.document, RUNTIME, dict, _TABLE_ADVICE)
            toml_plan.require(file.document, DEFAULT, str, "Write the name of a runtime in quotes.")
            for name in toml_plan.require(file.document, RUNTIMES, dict, _TABLE_ADVICE) or {}:
                table = (*RUNTIMES, name)
                toml_plan.require(file.document, table, dict, _TABLE_ADVICE)
                toml_plan.require(file.document, (*table, PROGRAM), str, "Write the path in quotes.")
                toml_plan.require(file.document, (*table, RUNTIME_TYPE), str, "Write oci, vm, or pod in quotes.")
                check_strings(file.document, (*table, ANNOTATIONS))
                toml_plan.require(
                    file.document, (*table, "inherit_default_runtime"), bool, "Write true or false without quotes."
                )

    # -- effective settings --------------------------------------------------------------------------------------

    def defining_file(self, path: KeyPath) -> CrioFile | None:
        """Return the file whose value of ``path`` has effect."""
        return next((file for file in reversed(self.files) if file.document.has(*path)), None)

    def value(self, path: KeyPath) -> t.Any:
        """Return the effective value of a setting. Not for tables, which CRI-O merges."""
        file = self.defining_file(path)
        return None if file is None else file.document.value(*path)

    def runtimes(self) -> dict[str, dict[str, t.Any]]:
        """Return the effective tables of all runtimes, without those that are built into CRI-O."""
        found: dict[str, dict[str, t.Any]] = {}
        for file in self.files:
            tables = file.document.value(*RUNTIMES)
            if isinstance(tables, dict):
                found.update((name, table) for name, table in tables.items() if isinstance(table, dict))
            if self._drops_runc(file):
                found.pop(_RUNC, None)
        return found

    def _drops_runc(self, file: CrioFile) -> bool:
        is_old = self.version is not None and self.version < KEEPS_RUNC_SINCE
        return is_old and file.document.has(*DEFAULT) and file.document.value(*DEFAULT) != _RUNC

    def matches_report(self, reported: t.Mapping[str, t.Any]) -> bool:
        """Return whether ``reported``, the configuration of a running CRI-O, equals these files.

        The comparison covers runtimes, default runtime and CDI directories. It skips values that a file omits or leaves
        empty, because CRI-O fills them in.
        """
        tables, runtimes = toml_plan.lookup(reported, RUNTIMES), self.runtimes()
        settings = {
            (*RUNTIMES, name, key): value for name in runtimes for key, value in runtimes[name].items() if value
        }
        settings.update({DEFAULT: self.default_runtime(), CDI_DIRS: self.cdi_dirs()})
        known = {*runtimes, *self.flagged_runtimes, *builtin_runtimes(None)}
        same_names = isinstance(tables, dict) and set(runtimes) <= set(tables) <= known
        return same_names and all(value in (None, toml_plan.lookup(reported, path)) for path, value in settings.items())

    def overridden_table(self, path: str, name: str) -> dict[str, t.Any]:
        """Return the table of the runtime ``name`` that a table in the file ``path`` replaces."""
        earlier = itertools.takewhile(lambda file: file.path != path, self.files)
        tables = [file.document.value(*RUNTIMES, name) for file in earlier]
        return next((table for table in reversed(tables) if isinstance(table, dict)), {})

    def default_runtime(self) -> str | None:
        """Return the default runtime that a flag or a file names, or None if CRI-O's own default applies."""
        found = self.value(DEFAULT) if self.flagged_default is None else self.flagged_default
        return found if isinstance(found, str) and found else None

    def defines(self, name: str, version: tuple[int, ...] | None) -> bool:
        """Return whether CRI-O defines a runtime of this name."""
        if name in self.runtimes() or name in self.flagged_runtimes:
            return True
        # Without a default, CRI-O adds its own runtime again.
        dropped = name == _RUNC and self.default_runtime() is not None and any(map(self._drops_runc, self.files))
        return name in builtin_runtimes(version) and not dropped

    def default_file(self) -> CrioFile | None:
        """Return the file whose default runtime has effect, or None if a flag has precedence or no file sets it."""
        return self.defining_file(DEFAULT) if self.flagged_default is None else None

    def cdi_dirs(self) -> t.Any:
        """Return the directories of CDI specifications that a flag or a file names, None if CRI-O's own apply."""
        return self.value(CDI_DIRS) if self.flagged_cdi is None else self.flagged_cdi

    def conmon(self) -> str | None:
        """Return the path of the program conmon that a file sets for all runtimes, or None."""
        found = self.value(CONMON)
        return found if isinstance(found, str) and found else None


def check_strings(document: toml_document.TomlDocument, path: KeyPath) -> None:
    """Raise ConfigurationError if there is a value at ``path`` that is not an array of strings."""
    advice = "Make it an array of strings."
    if not all(isinstance(entry, str) for entry in toml_plan.require(document, path, list, advice) or ()):
        raise document.error(path, f"{'.'.join(path)} contains an entry that is not a string", advice)
