# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the configuration of CRI-O: crio.conf and its drop-ins in the order in which CRI-O reads them.

crio.conf.d(5), and tried on CRI-O 1.37: every file below the directory counts, whatever its name and depth, in
lexical order. A later key wins. A later table of the same runtime replaces the earlier one as a whole.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

    KeyPath = t.Tuple[str, ...]


CONFIG_DIR = "/etc/crio/crio.conf.d"
DROP_IN_NAME = "99-nvidia.toml"

RUNTIME: KeyPath = ("crio", "runtime")
RUNTIMES: KeyPath = (*RUNTIME, "runtimes")
DEFAULT: KeyPath = (*RUNTIME, "default_runtime")
CDI_DIRS: KeyPath = (*RUNTIME, "cdi_spec_dirs")
# An old setting for all runtimes at once, which takes precedence over monitor_path.
CONMON: KeyPath = (*RUNTIME, "conmon")
# Inside the table of a runtime.
PROGRAM = "runtime_path"
KIND = "runtime_type"
ANNOTATIONS = "allowed_annotations"

# CRI-O's release notes: crun, which is built in, takes the place of runc, which was.
CRUN_SINCE = (1, 31)

_TABLE = "Make it a table, or remove it."


class ConfigFile(t.NamedTuple):
    """One file of the configuration: where CRI-O finds it, its path with all links resolved, and what it says."""

    name: str
    path: str
    document: toml_document.TomlDocument


def config_dir(unit: systemd_units.Unit | None) -> str:
    """The directory with drop-ins, empty where the unit switches it off."""
    named = unit.flag_values("--config-dir", "-d") if unit is not None else []
    return posixpath.normpath(named[-1]) if named and named[-1] else "" if named else CONFIG_DIR


def builtin_runtimes(version: tuple[int, ...] | None) -> tuple[str, ...]:
    """The runtimes that need no table, the default one first."""
    if version is None:
        return ("crun", "runc")
    return ("crun",) if version >= CRUN_SINCE else ("runc",)


class CrioFiles:
    """All files in the order in which CRI-O reads them, the main file first.

    ``directory`` is free of links.  ``overlay`` are documents that stand for files as they will be (None: gone).
    ``missing`` are links that lead nowhere, with which CRI-O does not start.
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
        self.files = self._load(path)

    @classmethod
    def of(
        cls, context: engines_base.Context, overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None
    ) -> CrioFiles:
        directory = config_dir(context.unit)
        found = cls(context.files, context.path, directory and context.files.resolve(directory), overlay)
        if context.unit is not None:
            # As for all of CRI-O's settings, a flag takes precedence over all files.
            found.flagged_default = next(iter(context.unit.flag_values("--default-runtime")[-1:]), None)
            flagged = context.unit.flag_values("--runtimes")
            found.flagged_runtimes = tuple(entry.partition(":")[0] for words in flagged for entry in words.split(","))
        return found

    # -- reading -------------------------------------------------------------------------------------------------

    def _load(self, path: str) -> list[ConfigFile]:
        main = self._document(path) or toml_document.TomlDocument.from_bytes(path, b"")
        loaded = [ConfigFile(path, path, main)]
        for name, real in self._drop_ins():
            document = self._document(real)
            if document is not None:
                loaded.append(ConfigFile(name, real, document))
            elif real not in self._overlay:
                self.missing.append(name)
        return loaded

    def _drop_ins(self) -> list[tuple[str, str]]:
        if not self.directory:
            return []
        names = {name: self._reader.resolve(name) for name in self._reader.walk(self.directory)}
        known = set(names.values())
        planned = [path for path, document in self._overlay.items() if document is not None and path not in known]
        names.update((path, path) for path in planned if path.startswith(self.directory + "/"))
        # A walk sorts the names in each folder: the folder a comes before the file a.conf.
        return sorted(names.items(), key=lambda item: item[0].split("/"))

    def _document(self, path: str) -> toml_document.TomlDocument | None:
        if path in self._overlay:
            return self._overlay[path]
        content = self._reader.read(path)
        return None if content is None else toml_document.TomlDocument.from_bytes(path, content)

    def check(self) -> None:
        """Raises ConfigurationError where a setting that matters here is of a kind that CRI-O does not read."""
        for file in self.files:
            toml_plan.require(file.document, RUNTIME, dict, _TABLE)
            toml_plan.require(file.document, DEFAULT, str, "Write the name of a runtime in quotes.")
            for name in toml_plan.require(file.document, RUNTIMES, dict, _TABLE) or {}:
                table = (*RUNTIMES, name)
                toml_plan.require(file.document, table, dict, _TABLE)
                toml_plan.require(file.document, (*table, PROGRAM), str, "Write the path in quotes.")
                toml_plan.require(file.document, (*table, KIND), str, "Write oci, vm, or pod in quotes.")
                _check_strings(file.document, (*table, ANNOTATIONS))
                toml_plan.require(
                    file.document, (*table, "inherit_default_runtime"), bool, "Write true or false without quotes."
                )

    # -- what it says --------------------------------------------------------------------------------------------

    def definer(self, path: KeyPath) -> ConfigFile | None:
        """The file whose word on ``path`` counts."""
        return next((file for file in reversed(self.files) if file.document.has(*path)), None)

    def value(self, path: KeyPath) -> t.Any:
        """A setting that takes effect; of no use for tables, which add up."""
        file = self.definer(path)
        return None if file is None else file.document.value(*path)

    def runtimes(self) -> dict[str, dict[str, t.Any]]:
        """The tables of all runtimes that take effect; what is built into CRI-O is not among them."""
        found: dict[str, dict[str, t.Any]] = {}
        for file in self.files:
            tables = file.document.value(*RUNTIMES)
            if isinstance(tables, dict):
                found.update((name, table) for name, table in tables.items() if isinstance(table, dict))
        return found

    def equal_in(self, reported: t.Mapping[str, t.Any]) -> bool:
        """Whether a CRI-O that reports this configuration has the runtimes, default and CDI directories of the files.

        CRI-O fills in what a file leaves out or empty.
        """
        tables, own = toml_plan.lookup(reported, RUNTIMES), self.runtimes()
        settings = {(*RUNTIMES, name, key): value for name in own for key, value in own[name].items() if value}
        settings.update({DEFAULT: self.default_runtime(), CDI_DIRS: self.value(CDI_DIRS)})
        known = isinstance(tables, dict) and set(own) <= set(tables) <= {*own, *builtin_runtimes(None)}
        return known and all(value in (None, toml_plan.lookup(reported, path)) for path, value in settings.items())

    def beneath(self, path: str, name: str) -> dict[str, t.Any]:
        """The table of a runtime that one in the file ``path`` replaces."""
        places = [number for number, file in enumerate(self.files) if file.path == path]
        earlier = self.files[: places[0]] if places else self.files
        tables = [file.document.value(*RUNTIMES, name) for file in earlier]
        return next((table for table in reversed(tables) if isinstance(table, dict)), {})

    def default_runtime(self) -> str | None:
        """The default that flags or files name, None where CRI-O's own applies."""
        found = self.value(DEFAULT) if self.flagged_default is None else self.flagged_default
        return found if isinstance(found, str) and found else None

    def defines(self, name: str, version: tuple[int, ...] | None) -> bool:
        """Whether CRI-O would know a runtime of this name."""
        return name in self.runtimes() or name in self.flagged_runtimes or name in builtin_runtimes(version)

    def conmon(self) -> str | None:
        found = self.value(CONMON)
        return found if isinstance(found, str) and found else None


def _check_strings(document: toml_document.TomlDocument, path: KeyPath) -> None:
    advice = "Make it an array of strings."
    if not all(isinstance(entry, str) for entry in toml_plan.require(document, path, list, advice) or ()):
        raise document.error(path, f"{'.'.join(path)} holds what is no string", advice)
