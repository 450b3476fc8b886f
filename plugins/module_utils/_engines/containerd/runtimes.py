# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the tables of runtimes into a containerd configuration, with the names of its format version.

This module edits documents in memory and does not choose the file; ``plan`` does.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import tables as containerd_tables

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

BUILTIN_DEFAULT = "runc"
BUILTIN_TYPE = "io.containerd.runc.v2"
VERSION: toml_plan.KeyPath = ("version",)
CDI: toml_plan.KeyPath = ("enable_cdi",)
CDI_FOLDERS: toml_plan.KeyPath = ("cdi_spec_dirs",)
ANNOTATIONS: toml_plan.KeyPath = ("container_annotations",)
# Options that only the program of one runtime uses, so no other runtime inherits them.
LEGACY_PROGRAM = "Runtime"
_PROGRAMS = (containerd_options.PROGRAM[-1], LEGACY_PROGRAM)
# containerd's name for the runtime that the table default_runtime defines. The table is deprecated since containerd 1.3
# and removed in 2.0: first without it 2.0.0, last with it 1.7.34 (DefaultRuntime in pkg/cri/config/config.go). Until
# then it has precedence over default_runtime_name.
LEGACY_NAME = "default"
LEGACY_REMOVED_SINCE, LEGACY_REMOVED_SINCE_FORMAT = (2,), 3
# The runtimes whose options are inherited if the default runtime is unsuitable (same order as in nvidia-ctk).
INHERIT_FROM = ("runc", "crun")


class RuntimeTableWriter:
    """A writer for the runtimes in one file.

    ``others`` is the configuration of all files without the entries of this collection. ``target`` is the file to edit.
    ``mode`` is in_place or drop_in.
    """

    def __init__(
        self,
        context: engines_base.Context,
        others: containerd_config.ContainerdFiles,
        target: toml_plan.TomlEdit,
        mode: str,
    ) -> None:
        self.context = context
        self.others = others
        self.target = target
        self.mode = mode
        # A drop-in keeps a version that another tool wrote. Where it must equal the main file's, the plan checks it.
        foreign = target.document.value(*VERSION) if mode != "in_place" and not target.owns(VERSION) else None
        self.version: int = foreign or others.version
        present = (file.document for file in others.files if file.path == target.path)
        self.foreign = next(present, None) or target.original
        self.root = self._root_of(containerd_config.RUNTIMES)

    def _root_of(self, entry: toml_plan.KeyPath) -> toml_plan.KeyPath:
        """Return the table of the target in which an entry of the CRI settings has effect."""
        if self.version != 2:
            return containerd_config.CRI_TABLE[self.version]
        newer, older = self.others.both_tables(self.foreign)
        return containerd_tables.table_of(entry, self.others.engine_version, newer, older)

    def snapshotter_warning(self) -> str:
        """Return what the first table of runtimes means for settings of the image store; empty if nothing."""
        release = self.others.engine_version
        if self.version != 2 or (release is not None and release < containerd_tables.READS_NEWER_SINCE):
            return ""
        _newer, older = self.others.both_tables(self.foreign)
        listed, table = ", ".join(containerd_tables.ignored_image_settings(older)), ".".join(containerd_tables.OLDER)
        if not listed:
            return ""
        if self.root == containerd_tables.NEWER:
            return (
                f"This containerd ignores {listed} in [{table}.containerd], because that has no table runtimes. To keep"
                f" it so, the runtimes are written to [{'.'.join(self.root)}]. If you need {listed}, use configuration"
                " version 3 and the table [plugins.'io.containerd.cri.v1.images']."
            )
        return (
            f"If this is containerd 2.0 or newer, {listed} in [{table}.containerd] has effect from now on, because"
            f" that had no table runtimes before. Set {errors.option:engine_version}, or check the snapshotter of the"
            " images."
        )

    def write_version(self, main: toml_plan.TomlEdit) -> None:
        """Write the format version into the files that need one.

        A main file without versioned settings gets the version of the other files, a drop-in that of the target.
        """
        if containerd_config.has_no_versioned_settings(main.document) or main.owns(VERSION):
            main.write(VERSION, self.others.version)
        if self.mode != "in_place":
            self.target.write(VERSION, self.version)

    def write_runtimes(self, request: engines_request.RuntimeRequest) -> None:
        present = self.others.runtimes()
        if self._hides_builtin(present):
            self._write_runtime(BUILTIN_DEFAULT, {"runtime_type": BUILTIN_TYPE}, {})
        inherited = self._inherited_entries(present)
        for name, program in request.runtimes().items():
            requested = {**containerd_options.canonical(request.runtime_options)}
            if request.runtime_type is not None:
                requested["runtime_type"] = request.runtime_type
            if request.container_annotations:
                existing = self._annotations(name, inherited)
                requested[ANNOTATIONS[0]] = list(dict.fromkeys([*existing, *request.container_annotations]))
            legacy_option = request.use_legacy_config and self.others.version == 1
            self._write_runtime(
                name,
                toml_plan.merged({"runtime_type": BUILTIN_TYPE}, inherited),
                toml_plan.merged(requested, self._program(name, program, legacy_option)),
            )

    def _program(self, name: str, program: str, legacy_option: bool) -> dict[str, t.Any]:
        """Return the entries that name the program. ``legacy_option`` adds the option that version 1 files use."""
        path = containerd_options.program_of(self._existing(name))
        same = isinstance(path, str) and self.context.same_program(path, program)
        table, option = containerd_options.PROGRAM
        keys = (option, LEGACY_PROGRAM) if legacy_option else (option,)
        return {table: dict.fromkeys(keys, path if same else program)}

    def _annotations(self, name: str, inherited: t.Mapping[str, t.Any]) -> list[str]:
        """Return the annotations that the runtime inherits or that other tools wrote.

        They are written again, because a list replaces the list of an earlier file.
        """
        path = (*self.root, *containerd_config.RUNTIMES, name, *ANNOTATIONS)
        document = self.target.original if self.target.owns(path) else self.target.document
        earlier = toml_plan.lookup(self.others.runtimes().get(name), ANNOTATIONS)
        lists = [toml_plan.lookup(inherited, ANNOTATIONS), earlier, document.value(*path)]
        return [entry for entries in lists if isinstance(entries, list) for entry in entries]

    def _hides_builtin(self, present: t.Mapping[str, t.Any]) -> bool:
        """Return whether runtimes in a file hide the built-in runc while no other usable default is defined."""
        default = self.others.default_runtime() or BUILTIN_DEFAULT
        foreign = [
            name
            for name, entry in present.items()
            if not engines_base.is_nvidia_runtime(name, containerd_options.program_of(entry))
        ]
        hidden = not foreign or (default == BUILTIN_DEFAULT and default not in present)
        # Other tools may have added options to this collection's runc entry, which is no runtime without its type.
        has_type = toml_plan.lookup(present, (BUILTIN_DEFAULT, "runtime_type")) is not None
        own = self.target.owns((*self.root, *containerd_config.RUNTIMES, BUILTIN_DEFAULT, "runtime_type"))
        return not self.others.merges and (hidden or (own and not has_type))

    def _inherited_entries(self, present: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Return the options of the low-level runtime that is in use, never those of another NVIDIA runtime."""
        candidates = [(name, present.get(name)) for name in (self.others.default_runtime() or "", *INHERIT_FROM)]
        for name, entry in [("", self.others.legacy_default()), *candidates]:
            program = containerd_options.program_of(entry)
            if not isinstance(entry, dict) or engines_base.is_nvidia_runtime(name, program):
                continue
            runtime_type = entry.get("runtime_type") or BUILTIN_TYPE
            if self.is_runc(str(runtime_type)):
                inherited = toml_plan.merged(entry, {"runtime_type": runtime_type})
                options = inherited.get("options", {})
                if isinstance(options, dict):
                    inherited["options"] = {key: options[key] for key in options if key not in _PROGRAMS}
                return toml_plan.plain_copy(inherited)
        return {}

    @staticmethod
    def is_runc(runtime_type: str) -> bool:
        """Return whether a runtime of this type accepts the options of runc."""
        return runtime_type.startswith("io.containerd.runc.")

    def _existing(self, name: str) -> dict[str, t.Any]:
        """Return the present entries of the runtime in the target, merged with those of earlier files.

        The keys are those of the files.
        """
        table = self.target.document.value(*self.root, *containerd_config.RUNTIMES, name)
        return toml_plan.merged(self._earlier_entries(name), table if isinstance(table, dict) else {})

    def _earlier_entries(self, name: str) -> dict[str, t.Any]:
        """Return the runtime's entries in the files that a drop-in is merged with."""
        path = (*containerd_config.RUNTIMES, name)
        entries = toml_plan.lookup(self.others.raw_cri(), path) if self.mode != "in_place" else None
        return entries if isinstance(entries, dict) else {}

    def _write_runtime(self, name: str, inherited: t.Mapping[str, t.Any], requested: t.Mapping[str, t.Any]) -> None:
        """Write one runtime: the requested entries, and the inherited ones that no other tool wrote."""
        path = (*self.root, *containerd_config.RUNTIMES, name)
        existing, earlier = self._existing(name), self._earlier_entries(name)
        entries: dict[str, t.Any] = {}
        for leaf, value in toml_parser.iter_leaves(toml_plan.merged(inherited, requested)):
            key = self._spelled(existing, leaf)
            foreign = toml_plan.lookup(earlier, key) is not None or self._is_foreign(path + key)
            explicit = toml_plan.lookup(requested, leaf) is not None
            if (explicit or not foreign) and toml_plan.lookup(earlier, key) != value:
                toml_plan.put(entries, key, value)
        toml_plan.write_table(self.target, path, entries)

    def _is_foreign(self, path: toml_plan.KeyPath) -> bool:
        """Return whether another tool wrote this entry of the target, even if this collection replaced its value."""
        return (self.target.original if self.target.owns(path) else self.target.document).has(*path)

    @staticmethod
    def _spelled(table: t.Any, path: toml_plan.KeyPath) -> toml_plan.KeyPath:
        """Return the path of an entry of a runtime in the spelling of ``table``, if that has the option."""
        if len(path) != 2 or path[0] != containerd_options.PROGRAM[0]:
            return path
        return (path[0], containerd_options.key_of(toml_plan.lookup(table, path[:1]), path[1]))

    def write_setting(self, path: toml_plan.KeyPath, value: t.Any) -> None:
        """Write one setting of the CRI, unless an earlier file has the same value."""
        if self.mode != "drop_in" or toml_plan.lookup(self.others.cri(), path) != value:
            self.target.write(self._root_of(path) + path, value)

    def legacy_default(self, name: str) -> None:
        """Write the table default_runtime as a copy of the table of the runtime ``name``."""
        path, runtime = (*self.root, *containerd_config.LEGACY_DEFAULT), (*self.root, *containerd_config.RUNTIMES, name)
        existing = self.target.document.value(*path)
        table: dict[str, t.Any] = {}
        for leaf, value in toml_parser.iter_leaves(self._existing(name)):
            # The document still contains entries that an earlier run wrote and this run does not want.
            if runtime + leaf in self.target.wanted or not self.target.owns(runtime + leaf):
                toml_plan.put(table, self._spelled(existing, leaf), value)
        toml_plan.write_table(self.target, path, table)

    def remove_unwanted(self, request: engines_request.RuntimeRequest) -> None:
        """Remove the entries that earlier runs wrote and this run does not want.

        Settings that the request leaves open stay.
        """
        if set(self.target.wanted) <= {VERSION} and self.mode != "in_place":
            # Other files already contain everything that the request needs.
            self.target.wanted.clear()
            self.target.document = self.target.before
        kept: set[toml_plan.KeyPath] = {containerd_config.IMPORTS}
        if request.set_as_default is None and not request.use_legacy_config:
            kept.add(self._root_of(containerd_config.DEFAULT) + containerd_config.DEFAULT)
        toml_plan.revert_own_entries(self.target, kept.__contains__ if self.target.wanted else lambda _path: False)


# -- the table default_runtime ---------------------------------------------------------------------------------------


def check_legacy(
    request: engines_request.RuntimeRequest, files: containerd_config.ContainerdFiles, warnings: list[str]
) -> None:
    """Check whether use_legacy_config is possible, and add a deprecation warning if it is.

    Raises NvidiaError if this containerd or this file version ignores the table default_runtime.
    """
    if not request.use_legacy_config:
        return
    engine, path = files.engine_version, files.files[0].path
    if (engine is not None and engine >= LEGACY_REMOVED_SINCE) or files.version >= LEGACY_REMOVED_SINCE_FORMAT:
        name = f"containerd {core_text.dotted(engine)}" if engine is not None else "containerd"
        raise errors.NvidiaError(
            f"{path}: {errors.option:use_legacy_config} requires containerd 1.x. {name} with a file in configuration"
            f" version {files.version} ignores the table default_runtime. Remove {errors.option:use_legacy_config}."
        )
    warnings.append(
        f"{path}: {errors.option:use_legacy_config} is deprecated, because containerd 2.0 ignores the table"
        f" default_runtime and the option Runtime. Remove {errors.option:use_legacy_config} to write"
        " default_runtime_name and options.BinaryName instead."
    )


def own_legacy_default(edit: toml_plan.TomlEdit, root: toml_plan.KeyPath) -> str | None:
    """Return the runtime of which this collection's table default_runtime is a copy, or None.

    ``root`` is the path of the CRI settings.
    """
    options = (*root, *containerd_config.LEGACY_DEFAULT, *containerd_options.PROGRAM[:-1])
    # containerd ignores the case of option names.
    programs = [
        path
        for path in edit.recorded()
        if path[:-1] == options and path[-1].lower() == containerd_options.PROGRAM[-1].lower() and edit.owns(path)
    ]
    if not programs:
        return None
    runtimes = edit.document.value(*root, *containerd_config.RUNTIMES)
    return _runtime_of_program(runtimes, edit.document.value(*programs[0]))


def remove_legacy_default(document: toml_document.TomlDocument, root: toml_plan.KeyPath) -> toml_document.TomlDocument:
    """Return the document without the table default_runtime, if that runs an NVIDIA program."""
    path = (*root, *containerd_config.LEGACY_DEFAULT)
    is_nvidia = engines_base.is_nvidia_program(containerd_options.program_of(document.value(*path)))
    return document.delete(path, prune=True) if is_nvidia else document


def add_legacy_default(
    runtimes: dict[str, t.Any], files: containerd_config.ContainerdFiles
) -> tuple[dict[str, t.Any], str | None]:
    """Return the runtimes and the default runtime, including the table default_runtime, which has precedence."""
    table = files.legacy_default()
    if table is None:
        return runtimes, files.default_runtime()
    program = containerd_options.program_of(table)
    named = _runtime_of_program(runtimes, program) if engines_base.is_nvidia_program(program) else None
    default = named or LEGACY_NAME
    return {**runtimes, LEGACY_NAME: {"path": program, **table}}, default


def _runtime_of_program(runtimes: t.Any, program: t.Any) -> str | None:
    entries = runtimes.items() if isinstance(runtimes, dict) else ()
    return next((name for name, entry in entries if containerd_options.program_of(entry) == program), None)
