# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the changes of CRI-O's files for present and absent.

``config`` reads the files, and ``hook`` plans OCI hooks. This module writes nothing to the host.
"""

from __future__ import annotations

import copy
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import facts as crio_facts

CDI_SINCE = crio_facts.FACTS.cdi_newest[0][0]
DEFAULT_TYPE = "oci"
MONITOR = "monitor_path"
# If the default runtime is not defined, or is one of NVIDIA's, settings are copied from the first of these runtimes
# that has a table, after the built-in runtime.
INHERIT_FROM = ("crun", "runc")
# With one of these keys in the table, CRI-O runs another program than runtime_path.
_PROGRAM_OVERRIDES = ("inherit_default_runtime", "platform_runtime_paths")
# Keys that belong to the program of one runtime and apply to no other.
_PROGRAM_KEYS = (crio_config.PROGRAM, crio_config.RUNTIME_TYPE, "runtime_config_path", *_PROGRAM_OVERRIDES)
# runtime_root, the state directory of another program's containers, is not inherited either. Without the key, CRI-O
# uses its own default (newRuntimeOCI in internal/oci/runtime_oci.go, 1.31 to 1.37).
_NOT_INHERITED = (*_PROGRAM_KEYS, "runtime_root")
# Entries that runtime_options must not contain, with the option of the module that sets them.
RESERVED: dict[toml_plan.KeyPath, str] = {
    (crio_config.PROGRAM,): "runtime_dir",
    (crio_config.RUNTIME_TYPE,): "runtime_type",
    (crio_config.ANNOTATIONS,): "container_annotations",
    **{(name,): "runtime_dir" for name in _PROGRAM_OVERRIDES},
}


class CrioPlanner:
    """The planner for all configuration files of one CRI-O."""

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.files = toml_plan.TomlFiles(context)
        self.main = self.files.edit(context.path)
        self.current = crio_config.CrioFiles.of(context, self.files.overlay())
        self.warnings: list[str] = []
        self.drop_in: str | None = None

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        toml_plan.check_options(request.runtime_options, RESERVED, crio_config.RUNTIME_FIELDS)
        target = self._target(request)
        self.current.check()
        self._check_programs(request, target.path)
        own_default = self._own_default()
        others = self._foreign_settings(target)
        if target.content is None:
            target.document = toml_document.TomlDocument.from_bytes(target.path, toml_plan.HEADER)
        inherited = self._inherited_entries(request, others)
        for name in request.runtimes():
            self._write_runtime(request, name, inherited, target, others)
        default = request.default(own_default)
        written = _table(others, target.path, crio_config.DEFAULT[:-1]).get(crio_config.DEFAULT[-1])
        if default is not None and written != default:
            target.write(crio_config.DEFAULT, default)
        for path in self._own_files(target):
            self._revert_own_entries(self.files.edit(path))
        self.warn_about_cdi(request)
        self.repair_default(target)
        self._check_effective_config(request, target)
        return self._plan(target)

    def _target(self, request: engines_request.RuntimeRequest) -> toml_plan.TomlEdit:
        """Return the file that receives the entries of this collection."""
        if request.config_mode == "in_place":
            return self.main
        directory = crio_config.config_dir(self.context.unit)
        if not directory:
            raise errors.NvidiaError(
                f"{self._unit_path()}: the flag --config-dir is empty, so CRI-O reads no drop-ins. Use"
                f" {errors.option:config_mode}: in_place."
            )
        self.drop_in = posixpath.normpath(request.drop_in_path or f"{directory}/{crio_config.DROP_IN_NAME}")
        folder, name = posixpath.split(self.drop_in)
        if not (self.context.files.resolve(folder) + "/").startswith(self.current.directory + "/"):
            raise errors.NvidiaError(
                f"{errors.option:drop_in_path} {self.drop_in!r} is not below {directory}, the only directory that"
                f" CRI-O reads. Remove {errors.option:drop_in_path}, or set a path such as"
                f" {directory}/{crio_config.DROP_IN_NAME}."
            )
        return self.files.edit(posixpath.join(self.context.files.resolve(folder), name))

    def _inherited_entries(
        self, request: engines_request.RuntimeRequest, others: crio_config.CrioFiles
    ) -> dict[str, t.Any]:
        """Return the settings that NVIDIA's runtimes copy from a low-level runtime.

        This is the default runtime, unless that is undefined or one of NVIDIA's.
        """
        requested_type = request.runtime_type or DEFAULT_TYPE
        tables, default, version = others.runtimes(), others.default_runtime(), self.context.version
        candidates = (*crio_config.builtin_runtimes(version), *INHERIT_FROM)
        name = next((name for name in candidates if name in tables), candidates[0])
        if default is not None and others.defines(default, version):
            program = toml_plan.lookup(tables, (default, crio_config.PROGRAM))
            name = name if engines_base.is_nvidia_runtime(default, program) else default
        table = tables.get(name)
        if table is None:
            if not (others.conmon() or self._flags("--conmon") or MONITOR in request.runtime_options):
                self.warnings.append(
                    f"The runtime {name} is built into CRI-O and has no {MONITOR}, so CRI-O searches for conmon in its"
                    f" PATH. If conmon is elsewhere, set {errors.option:runtime_options}: {{{MONITOR}: PATH}}."
                )
            return {}
        runtime_type = table.get(crio_config.RUNTIME_TYPE) or DEFAULT_TYPE
        if runtime_type != requested_type:
            self.warnings.append(
                f"No settings were copied from the runtime {name}, because its {crio_config.RUNTIME_TYPE} is"
                f" {runtime_type}, not {requested_type}. Set the required settings with"
                f" {errors.option:runtime_options}, or set {errors.option:runtime_type}."
            )
            return {}
        return {key: value for key, value in table.items() if key not in _NOT_INHERITED}

    def _write_runtime(
        self,
        request: engines_request.RuntimeRequest,
        name: str,
        inherited: t.Mapping[str, t.Any],
        target: toml_plan.TomlEdit,
        others: crio_config.CrioFiles,
    ) -> None:
        """Write the table of one runtime.

        Entries that another tool wrote to this table are written only if their values change.
        """
        path = (*crio_config.RUNTIMES, name)
        # For CRI-O the new table replaces one in a file that it reads earlier, so the entries of that table are copied.
        overridden = others.overridden_table(target.path, name).items()
        earlier = {key: value for key, value in overridden if key not in _PROGRAM_KEYS}
        foreign = _table(others, target.path, path)
        program, existing = request.runtimes()[name], target.document.value(*path, crio_config.PROGRAM)
        if isinstance(existing, str) and self.context.same_program(existing, program):
            program = existing
        entries: dict[str, t.Any] = {}
        for layer in (inherited, earlier, foreign, request.runtime_options):
            entries = toml_plan.merged(entries, layer)
        annotations = dict.fromkeys(
            [*(entries.pop(crio_config.ANNOTATIONS, None) or []), *request.container_annotations]
        )
        requested: dict[str, t.Any] = {
            crio_config.PROGRAM: program,
            crio_config.RUNTIME_TYPE: request.runtime_type or DEFAULT_TYPE,
        }
        if annotations:
            requested[crio_config.ANNOTATIONS] = list(annotations)
        entries = {**requested, **{key: value for key, value in entries.items() if key not in requested}}
        toml_plan.write_table(target, path, toml_plan.plain_copy(_difference(entries, foreign)))

    def _own_default(self) -> str | None:
        """Return the default runtime that this collection wrote, in any file, or None."""
        for path in (self.main.path, *self.context.recorded):
            edit = self.files.edit(path)
            value = edit.document.value(*crio_config.DEFAULT)
            if isinstance(value, str) and edit.owns(crio_config.DEFAULT):
                return value
        return None

    def warn_about_cdi(self, request: engines_request.RuntimeRequest) -> None:
        if request.enable_cdi is False:
            self.warnings.append(
                f"{errors.option:enable_cdi}: false has no effect, because this module does not change cdi_spec_dirs."
            )
        elif request.enable_cdi is True and not _knows_cdi(self.context.version):
            self.warnings.append(
                f"{errors.option:enable_cdi} has no effect: CRI-O {core_text.dotted(self.context.version or ())} does"
                f" not support CDI, which requires CRI-O {core_text.dotted(CDI_SINCE)} or newer."
            )

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> engines_base.EnginePlan:
        return self._removal_plan(unrecorded=not self.context.keep_unrecorded)

    def absent_recorded(self) -> engines_base.EnginePlan:
        """Return the plan that removes what earlier runs wrote, and keeps NVIDIA runtimes of other tools."""
        return self._removal_plan(unrecorded=False)

    def _removal_plan(self, unrecorded: bool) -> engines_base.EnginePlan:
        directory = self.current.directory
        drop_in = self.context.files.resolve(f"{directory}/{crio_config.DROP_IN_NAME}") if directory else self.main.path
        target = self.main if self.context.files.read(drop_in) is None else self.files.edit(drop_in)
        paths = [path for path in self._own_files(target) if self._belongs_to_main(self.files.edit(path))]
        # If one file has a record, this collection did not change the files without a record.
        unrecorded = unrecorded and all(self.files.edit(path).record is None for path in paths)
        others = [self._of_other_main(path) for path in toml_plan.other_mains(self.files)]
        for path in paths:
            self._revert_own_entries(self.files.edit(path))
            if unrecorded:
                self._remove_unrecorded(self.files.edit(path))
        for planner in others:
            planner.repair_default(planner.main)
        self.repair_default(target)
        return self._plan(target)

    def _of_other_main(self, path: str) -> CrioPlanner:
        """Return the planner of another main file. Both plan the same files, and the unit does not name this one."""
        other = copy.copy(self)
        other.context = self.context.for_file(path)._replace(unit=None)
        other.main = self.files.edit(path)
        other.current = crio_config.CrioFiles.of(other.context, self.files.overlay())
        return other

    def _belongs_to_main(self, edit: toml_plan.TomlEdit) -> bool:
        """Return whether a file belongs to the configuration of this main file, or to no recorded configuration."""
        recorded = (self.main.path, *self.context.recorded)
        return edit.path in recorded or edit.record is None or edit.record.main == self.main.path

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        """Remove runtimes that run NVIDIA programs from a file without a record."""
        found = nvidia_files.crio_drop_in(edit.document) if edit is not self.main else None
        if found is not None and found.has_only_tool_entries(edit.document):
            edit.removed = True
            return
        tables = edit.document.value(*crio_config.RUNTIMES)
        for name, table in (tables if isinstance(tables, dict) else {}).items():
            if engines_base.is_nvidia_program(toml_plan.lookup(table, (crio_config.PROGRAM,))):
                edit.document = edit.document.delete((*crio_config.RUNTIMES, name), prune=True)

    @staticmethod
    def _revert_own_entries(edit: toml_plan.TomlEdit) -> None:
        """Remove the entries that earlier runs wrote and this run does not request."""
        for name in _own_tables(edit):
            path = (*crio_config.RUNTIMES, name)
            if not any(wanted[: len(path)] == path for wanted in edit.wanted):
                # Entries that other tools added are removed too, because a table without a program would only replace
                # the table in an earlier file.
                edit.document = edit.document.restore(path, edit.original)
        toml_plan.revert_own_entries(edit)

    def repair_default(self, target: toml_plan.TomlEdit) -> None:
        """Replace a default runtime that is no longer defined, because CRI-O would not start with it.

        A default that the plan did not write and that was not defined before stays as it is. Raises NvidiaError if a
        flag, or a file that this collection does not change, names a default that the plan would remove.
        """
        repaired = False
        # Each iteration changes one file. Then the default runtime of an earlier file may have effect.
        for _attempt in self.current.files:
            if not self._repair_file(self._with_overlay(self.files.overlay()), target):
                break
            repaired = True
        if repaired:
            default = self._with_overlay(self.files.overlay()).default_runtime()
            self.warnings.append(
                "The previous default runtime is no longer defined. The default runtime is now"
                f" {default or crio_config.builtin_runtimes(self.context.version)[0]}."
            )

    def _repair_file(self, after: crio_config.CrioFiles, target: toml_plan.TomlEdit) -> bool:
        """Repair the default runtime in the file that sets it. Return whether the file was changed."""
        version, default = self.context.version, after.default_runtime()
        if default is None or after.defines(default, version):
            return False
        file = after.default_file()
        edit = self.files.edit(file.path) if file is not None and file.path in self._own_files(target) else None
        path = file.path if file is not None else self._unit_path()
        if not (self.current.defines(default, version) or (edit is not None and _writes_default(edit))):
            if default != self.current.default_runtime():
                self.warnings.append(
                    f"{path}: the default runtime is {default}, but no file defines it, and CRI-O does not start"
                    " without it. Define the runtime, or set another default runtime there."
                )
            return False
        if edit is None:
            raise errors.NvidiaError(
                f"{path}: the default runtime is {default}. CRI-O would not start, because {default} would no longer"
                " be defined. Set another default runtime there."
            )
        previous = edit.original.value(*crio_config.DEFAULT)
        if isinstance(previous, str) and previous != default and after.defines(previous, version):
            edit.document = edit.document.set(crio_config.DEFAULT, previous)
        else:
            edit.document = edit.document.delete(crio_config.DEFAULT, prune=True)
        return True

    # -- entries of this collection and of others ----------------------------------------------------------------

    def _own_files(self, target: toml_plan.TomlEdit) -> list[str]:
        """Return the files that may contain entries of this collection."""
        return list(dict.fromkeys([self.main.path, target.path, *self.context.recorded]))

    def _foreign_settings(self, target: toml_plan.TomlEdit) -> crio_config.CrioFiles:
        """Return the configuration without the entries of this collection. It is only read, never written."""
        overlay = {path: _without_own_entries(self.files.edit(path), target) for path in self._own_files(target)}
        return self._with_overlay(overlay)

    def _with_overlay(self, overlay: t.Mapping[str, toml_document.TomlDocument | None]) -> crio_config.CrioFiles:
        """Return the configuration with ``overlay`` in place of some documents, without parsing any file again."""
        return crio_config.CrioFiles.of(
            self.context, {**{file.path: file.document for file in self.current.files}, **overlay}
        )

    def _flags(self, *names: str) -> list[str]:
        return self.context.unit.flag_values(*names) if self.context.unit is not None else []

    def _unit_path(self) -> str:
        """Return the path of the unit for messages about its flags; that of the main file if there is no unit."""
        return self.context.unit.path if self.context.unit is not None else self.main.path

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_effective_config(self, request: engines_request.RuntimeRequest, target: toml_plan.TomlEdit) -> None:
        """Raise NvidiaError if another setting overrides a planned entry, or if CRI-O would not start."""
        after = self._with_overlay(self.files.overlay())
        for name in request.runtimes():
            path = (*crio_config.RUNTIMES, name)
            file = after.defining_file(path)
            if name in after.flagged_runtimes:
                raise errors.NvidiaError(
                    f"{self._unit_path()}: the flag --runtimes, or the variable CONTAINER_RUNTIMES, defines {name} and"
                    f" overrides all files. Remove {name} from it."
                )
            if file is not None and file.path != target.path:
                raise file.document.error(
                    path,
                    f"CRI-O reads this table of the runtime {name} later, so it replaces the table in {target.path}",
                    f"Remove this table, or {self._advice(file)}",
                )
            for key in _PROGRAM_OVERRIDES:
                if target.document.value(*path, key):
                    raise target.document.error(
                        (*path, key),
                        f"with {key}, CRI-O ignores {crio_config.PROGRAM} of the runtime {name}",
                        f"Remove {key}.",
                    )
        self._check_default(request, after)

    def _check_programs(self, request: engines_request.RuntimeRequest, path: str) -> None:
        """Raise NvidiaError for a missing program with which this CRI-O would not start; ``path`` is the target."""
        version = self.context.version
        if version is None or version >= crio_config.IGNORES_MISSING_SINCE:
            return
        missing = [program for program in request.runtimes().values() if not self.context.files.glob(program)]
        if missing:
            raise errors.NvidiaError(
                f"{path} was not changed, because CRI-O {core_text.dotted(version)} does not start with a runtime"
                f" whose program is missing: {', '.join(missing)}. Install the NVIDIA Container Toolkit first, correct"
                f" {errors.option:runtime_dir}, or upgrade CRI-O to"
                f" {core_text.dotted(crio_config.IGNORES_MISSING_SINCE)} or newer."
            )

    def _check_default(self, request: engines_request.RuntimeRequest, after: crio_config.CrioFiles) -> None:
        default = after.default_runtime()
        file = after.default_file()
        if request.set_as_default and default != request.runtime_name:
            if file is None:
                raise errors.NvidiaError(
                    f"{self._unit_path()}: the flag --default-runtime={default}, or the variable"
                    " CONTAINER_DEFAULT_RUNTIME, overrides all files. Remove it."
                )
            raise file.document.error(
                crio_config.DEFAULT,
                f"CRI-O reads this default_runtime = {default or ''!r} later, so it overrides {request.runtime_name!r}",
                f"Remove this default_runtime, or {self._advice(file)}",
            )
        builtin = crio_config.builtin_runtimes(self.context.version)[-1]
        if self.current.defines(builtin, self.context.version) and not after.defines(builtin, self.context.version):
            raise errors.NvidiaError(
                f"CRI-O {core_text.dotted(self.context.version or ())} removes the runtime {builtin} as soon as a file"
                f" names another default_runtime, so the default was not set to {default}. Select {default} with a"
                f" RuntimeClass, define {builtin} in a file that CRI-O reads later, or upgrade CRI-O to"
                f" {core_text.dotted(crio_config.KEEPS_RUNC_SINCE)} or newer."
            )
        if default is not None and not after.defines(default, self.context.version):
            problem = f"the default runtime {default!r} has no table [{'.'.join((*crio_config.RUNTIMES, default))}]"
            advice = "CRI-O would not start. Add the table, or set another default runtime."
            if file is None:
                raise errors.NvidiaError(f"{self._unit_path()}: {problem}. {advice}")
            raise file.document.error(crio_config.DEFAULT, problem, advice)

    def _advice(self, file: crio_config.CrioFile) -> str:
        if self.drop_in is None:
            return f"remove {errors.option:config_mode}: in_place."
        folder, name = posixpath.split(file.name)
        return f"set {errors.option:drop_in_path} to a file in {folder} whose name sorts after {name}."

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, target: toml_plan.TomlEdit) -> engines_base.EnginePlan:
        files = self.files.planned([file.path for file in self.current.files])
        after = self._with_overlay(self.files.planned_documents())
        # After a reload, CRI-O reports the new runtimes but cannot start pods with them (seen on 1.37).
        action = engines_base.Action.RESTART if any(file.changed for file in files) else engines_base.Action.NONE
        drop_in = self.drop_in if target is not self.main else None
        return engines_base.EnginePlan(
            files, configured_state(after, self.context.version), action, tuple(self.warnings), drop_in
        )


def configured_state(files: crio_config.CrioFiles, version: tuple[int, ...] | None) -> engines_base.ConfiguredState:
    """Return runtimes, default runtime and CDI setting of a CRI-O that starts with these files."""
    runtimes = {name: {"path": table.get(crio_config.PROGRAM), **table} for name, table in files.runtimes().items()}
    default = files.default_runtime() or crio_config.builtin_runtimes(version)[0]
    folders = files.cdi_dirs()
    return engines_base.ConfiguredState(
        runtimes,
        default,
        folders != [] if _knows_cdi(version) else None,
        files.flagged_runtimes,
        cdi_folders=engines_base.folders_in(folders),
    )


def _knows_cdi(version: tuple[int, ...] | None) -> bool:
    return version is None or version >= CDI_SINCE


def _own_tables(edit: toml_plan.TomlEdit) -> list[str]:
    """Return the runtimes in the file that this collection created, even if others added entries to them."""
    names = dict.fromkeys(
        path[len(crio_config.RUNTIMES)]
        for path in edit.recorded()
        if path[: len(crio_config.RUNTIMES)] == crio_config.RUNTIMES and path != crio_config.RUNTIMES
    )
    return [
        name
        for name in names
        if edit.before.has(*crio_config.RUNTIMES, name)
        and edit.owns((*crio_config.RUNTIMES, name, crio_config.PROGRAM))
        and not edit.original.has(*crio_config.RUNTIMES, name)
    ]


def _writes_default(edit: toml_plan.TomlEdit) -> bool:
    """Return whether the plan changes the default runtime in a file that does not just get its original content."""
    before, after = (document.value(*crio_config.DEFAULT) for document in (edit.before, edit.document))
    return before != after and not toml_plan.is_original(edit)


def _without_own_entries(edit: toml_plan.TomlEdit, target: toml_plan.TomlEdit) -> toml_document.TomlDocument | None:
    """Return the document of a file with data that lacks the entries of this collection.

    Its text is unchanged, so that errors contain the right line number.
    """
    if edit.content is None:
        return None
    if edit.record is None:
        return edit.before
    data = copy.deepcopy(edit.document.data)
    if edit is not target:
        for name in _own_tables(edit):
            toml_plan.lookup(data, crio_config.RUNTIMES).pop(name)
    for path in edit.recorded():
        if edit.owns(path) and isinstance(toml_plan.lookup(data, path[:-1]), dict):
            _restore(data, path, edit.original)
    return toml_document.TomlDocument(edit.path, edit.before.text, data)


def _restore(data: dict[str, t.Any], path: toml_plan.KeyPath, original: toml_document.TomlDocument) -> None:
    if original.has(*path):
        toml_plan.lookup(data, path[:-1])[path[-1]] = original.value(*path)
        return
    toml_plan.lookup(data, path[:-1]).pop(path[-1], None)
    for depth in range(len(path) - 1, 0, -1):
        # An empty table has no effect.
        if toml_plan.lookup(data, path[:depth]) == {}:
            toml_plan.lookup(data, path[: depth - 1]).pop(path[depth - 1])


def _table(files: crio_config.CrioFiles, path: str, entry: toml_plan.KeyPath) -> dict[str, t.Any]:
    """Return the table at ``entry`` in the file ``path``, empty if there is none."""
    found = next((file.document.value(*entry) for file in files.files if file.path == path), None)
    return found if isinstance(found, dict) else {}


def _difference(table: t.Mapping[str, t.Any], base: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the entries of ``table`` that are missing in ``base`` or differ there."""
    found: dict[str, t.Any] = {}
    for path, value in toml_parser.iter_leaves(table):
        if not toml_parser.equal(toml_plan.lookup(base, path), value):
            toml_plan.put(found, path, value)
    return found
