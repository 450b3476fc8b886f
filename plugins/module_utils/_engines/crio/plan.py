# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the changes of CRI-O's files for present and absent.

This module reads through ``config`` and writes nothing to the host. OCI hooks are planned in ``hook``.
"""

from __future__ import annotations

import copy
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config

DEFAULT_KIND = "oci"
MONITOR = "monitor_path"
# The runtimes whose settings are inherited if the default runtime is unsuitable.
PARENTS = ("crun", "runc")
# With one of these keys in the table, CRI-O runs another program than runtime_path.
_MISLEADING = ("inherit_default_runtime", "platform_runtime_paths")
# Keys that belong to the program of one runtime and apply to no other.
_OWN = (crio_config.PROGRAM, crio_config.KIND, "runtime_config_path", *_MISLEADING)
# runtime_root, the state directory of another program's containers, is not inherited either. Without the key, CRI-O
# uses its own default (newRuntimeOCI in internal/oci/runtime_oci.go, 1.31 to 1.37).
_NOT_INHERITED = (*_OWN, "runtime_root")
RESERVED: dict[toml_plan.KeyPath, str] = {
    (crio_config.PROGRAM,): "runtime_dir",
    (crio_config.KIND,): "runtime_type",
    (crio_config.ANNOTATIONS,): "container_annotations",
    **{(name,): "runtime_dir" for name in _MISLEADING},
}


class CrioPlanner:
    """One plan for all files of one CRI-O."""

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.files = toml_plan.TomlFiles(context, (toml_plan.HEADER,))
        self.main = self.files.edit(context.path)
        self.current = crio_config.CrioFiles.of(context, self.files.overlay())
        self.warnings: list[str] = []
        self.drop_in: str | None = None

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        toml_plan.check_options(request.runtime_options, RESERVED)
        self.current.check()
        target = self._target(request)
        kept = self._kept_default()
        others = self._without_ours(target)
        if target.content is None:
            target.document = toml_document.TomlDocument.from_bytes(target.path, toml_plan.HEADER)
        parent = self._parent(request, others)
        for name in request.runtimes():
            self._runtime(request, name, parent, target, others)
        self._default(request, kept, target, others)
        for path in self._ours(target):
            self._take_back(self.files.edit(path))
        self._note_cdi(request)
        self._repair_default(target)
        self._check_effective_config(request, target)
        return self._plan(target)

    def _target(self, request: engines_base.RuntimeRequest) -> toml_plan.TomlEdit:
        """Return the file that receives the entries of this collection."""
        if request.config_mode == "in_place":
            return self.main
        directory = crio_config.config_dir(self.context.unit)
        if not directory:
            raise errors.NvidiaError(
                "The unit's flag --config-dir is empty, so CRI-O reads no drop-ins. Use config_mode: in_place."
            )
        self.drop_in = posixpath.normpath(request.drop_in_path or f"{directory}/{crio_config.DROP_IN_NAME}")
        folder, name = posixpath.split(self.drop_in)
        if not (self.context.files.resolve(folder) + "/").startswith(self.current.directory + "/"):
            raise errors.NvidiaError(
                f"drop_in_path {self.drop_in!r} is not below {directory}, the directory that CRI-O reads, so it would"
                f" have no effect. Leave it out, or choose a path such as {directory}/{crio_config.DROP_IN_NAME}."
            )
        return self.files.edit(posixpath.join(self.context.files.resolve(folder), name))

    def _parent(self, request: engines_base.RuntimeRequest, others: crio_config.CrioFiles) -> dict[str, t.Any]:
        """Return the settings to inherit from the low-level runtime in use, never those of another NVIDIA runtime."""
        kind = request.runtime_type or DEFAULT_KIND
        tables, default, version = others.runtimes(), others.default_runtime(), self.context.version
        name = next((name for name in (*crio_config.builtin_runtimes(version), *PARENTS) if name in tables), None)
        if default is not None and others.defines(default, version):
            name = (
                name
                if engines_base.is_nvidia_runtime(default, toml_plan.lookup(tables, (default, crio_config.PROGRAM)))
                else default
            )
        table = tables.get(name or "")
        if table is None:
            if not (others.conmon() or self._flags("--conmon") or MONITOR in request.runtime_options):
                self.warnings.append(
                    f"The default runtime {name or crio_config.builtin_runtimes(version)[0]} is built into CRI-O, so"
                    f" there is no {MONITOR} to take over, and CRI-O only starts with conmon in its PATH. If it is not"
                    f" there, name it with runtime_options: {{{MONITOR}: PATH}}."
                )
            return {}
        theirs = table.get(crio_config.KIND) or DEFAULT_KIND
        if theirs != kind:
            self.warnings.append(
                f"Nothing was taken over from the default runtime {name}, for its {crio_config.KIND} is {theirs}, not"
                f" {kind}."
                " Give what is needed with runtime_options, or set runtime_type."
            )
            return {}
        return {key: value for key, value in table.items() if key not in _NOT_INHERITED}

    def _runtime(
        self,
        request: engines_base.RuntimeRequest,
        name: str,
        parent: t.Mapping[str, t.Any],
        target: toml_plan.TomlEdit,
        others: crio_config.CrioFiles,
    ) -> None:
        """Write one runtime: the requested entries, and of the inherited ones only those that no other tool wrote."""
        path = (*crio_config.RUNTIMES, name)
        # The new table replaces the table of earlier files, so its entries are copied into the new one.
        beneath = {key: value for key, value in others.beneath(target.path, name).items() if key not in _OWN}
        own = _table(others, target.path, path)
        program, spelled = request.runtimes()[name], target.document.value(*path, crio_config.PROGRAM)
        if isinstance(spelled, str) and self.context.same_program(spelled, program):
            program = spelled
        full = toml_plan.merged(toml_plan.merged(toml_plan.merged(parent, beneath), own), request.runtime_options)
        annotations = list(
            dict.fromkeys([*(full.pop(crio_config.ANNOTATIONS, None) or []), *request.container_annotations])
        )
        asked: dict[str, t.Any] = {crio_config.PROGRAM: program, crio_config.KIND: request.runtime_type or DEFAULT_KIND}
        if annotations:
            asked[crio_config.ANNOTATIONS] = annotations
        full = {**asked, **{key: value for key, value in full.items() if key not in asked}}
        toml_plan.write_table(target, path, toml_plan.plain_copy(_difference(full, own)))

    def _default(
        self,
        request: engines_base.RuntimeRequest,
        kept: str | None,
        target: toml_plan.TomlEdit,
        others: crio_config.CrioFiles,
    ) -> None:
        name = request.default(kept)
        if (
            name is not None
            and _table(others, target.path, crio_config.DEFAULT[:-1]).get(crio_config.DEFAULT[-1]) != name
        ):
            target.write(crio_config.DEFAULT, name)

    def _kept_default(self) -> str | None:
        """Return the default runtime that this collection wrote, from whichever file holds it, or None."""
        for path in (self.main.path, *self.context.recorded):
            edit = self.files.edit(path)
            if edit.owns(crio_config.DEFAULT):
                return str(edit.document.value(*crio_config.DEFAULT))
        return None

    def _note_cdi(self, request: engines_base.RuntimeRequest) -> None:
        if request.enable_cdi is False:
            self.warnings.append("CRI-O always uses CDI; it cannot be switched off. Nothing was written for it.")
        elif request.enable_cdi and self.current.value(crio_config.CDI_DIRS) == []:
            file = self.current.definer(crio_config.CDI_DIRS)
            self.warnings.append(
                f"{file.path if file else ''}: cdi_spec_dirs is empty, so CRI-O finds no CDI devices. Remove the entry,"
                " or name the directories."
            )

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> engines_base.EnginePlan:
        return self._taken_back(unrecorded=not self.context.keep_unrecorded)

    def withdrawn(self) -> engines_base.EnginePlan:
        """Return the plan that removes what earlier runs wrote, and keeps NVIDIA runtimes of other tools."""
        return self._taken_back(unrecorded=False)

    def _taken_back(self, unrecorded: bool) -> engines_base.EnginePlan:
        directory = self.current.directory
        drop_in = self.context.files.resolve(f"{directory}/{crio_config.DROP_IN_NAME}") if directory else self.main.path
        target = self.main if self.context.files.read(drop_in) is None else self.files.edit(drop_in)
        paths = [path for path in self._ours(target) if self._belongs(self.files.edit(path))]
        # A record of one file proves that this collection did not touch the others.
        unknown = unrecorded and all(self.files.edit(path).record is None for path in paths)
        for path in paths:
            self._take_back(self.files.edit(path))
            if unknown:
                self._remove_unrecorded(self.files.edit(path))
        self._repair_default(target)
        return self._plan(target)

    def _belongs(self, edit: toml_plan.TomlEdit) -> bool:
        """Return whether a file does not belong to another configuration."""
        recorded = (self.main.path, *self.context.recorded)
        return edit.path in recorded or edit.record is None or edit.record.main == self.main.path

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        """Remove runtimes that run NVIDIA's programs from a file whose earlier content is not recorded."""
        # Imported here because only a removal needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            nvidia_files,
        )

        found = nvidia_files.crio_drop_in(edit.document) if edit is not self.main else None
        if found is not None and found.is_alone(edit.document):
            edit.removed = True
            return
        tables = edit.document.value(*crio_config.RUNTIMES)
        for name, table in (tables if isinstance(tables, dict) else {}).items():
            if engines_base.is_nvidia_program(toml_plan.lookup(table, (crio_config.PROGRAM,))):
                edit.document = edit.document.delete((*crio_config.RUNTIMES, name), prune=True)

    @staticmethod
    def _take_back(edit: toml_plan.TomlEdit) -> None:
        """Remove what earlier runs wrote and this run does not want."""
        for name in _whole_tables(edit):
            path = (*crio_config.RUNTIMES, name)
            if not any(wanted[: len(path)] == path for wanted in edit.wanted):
                # Entries that others added are removed too: a table without its program only hides other tables.
                edit.document = edit.document.restore(path, edit.original)
        toml_plan.revert_own_entries(edit)

    def _repair_default(self, target: toml_plan.TomlEdit) -> None:
        """Repair a default runtime that is no longer defined, with which CRI-O would not start.

        Raises NvidiaError if a flag, or a file that this collection does not change, names that default.
        """
        mended = False
        for _attempt in self.current.files:
            after = self._view(self.files.overlay())
            default = after.default_runtime()
            version = self.context.version
            if default is None or after.defines(default, version) or not self.current.defines(default, version):
                break
            file = None if after.flagged_default is not None else after.definer(crio_config.DEFAULT)
            if file is None or file.path not in self._ours(target):
                raise errors.NvidiaError(
                    f"{file.path if file else self._unit()}: it makes {default} the default runtime, without which"
                    " CRI-O would not start any more. Name another default there, then run this again."
                )
            edit = self.files.edit(file.path)
            known = edit.original.value(*crio_config.DEFAULT)
            if isinstance(known, str) and known != default and after.defines(known, version):
                edit.document = edit.document.set(crio_config.DEFAULT, known)
            else:
                edit.document = edit.document.delete(crio_config.DEFAULT, prune=True)
            mended = True
        if mended:
            default = self._view(self.files.overlay()).default_runtime()
            self.warnings.append(
                f"The default runtime is no longer defined: it is now {default or 'the one that is built into CRI-O'}."
            )

    # -- entries of this collection and of others ----------------------------------------------------------------

    def _ours(self, target: toml_plan.TomlEdit) -> list[str]:
        """Return the files that may contain entries of this collection."""
        return list(dict.fromkeys([self.main.path, target.path, *self.context.recorded]))

    def _without_ours(self, target: toml_plan.TomlEdit) -> crio_config.CrioFiles:
        """Return the configuration without the entries of this collection. It is only read, never written."""
        overlay = {path: _foreign(self.files.edit(path), target) for path in self._ours(target)}
        return self._view(overlay)

    def _view(self, overlay: t.Mapping[str, toml_document.TomlDocument | None]) -> crio_config.CrioFiles:
        """Return the configuration with ``overlay`` in place of some documents, without parsing any file again."""
        return crio_config.CrioFiles.of(
            self.context, {**{file.path: file.document for file in self.current.files}, **overlay}
        )

    def _flags(self, *names: str) -> list[str]:
        return self.context.unit.flag_values(*names) if self.context.unit is not None else []

    def _unit(self) -> str:
        return self.context.unit.path if self.context.unit is not None else self.main.path

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_effective_config(self, request: engines_base.RuntimeRequest, target: toml_plan.TomlEdit) -> None:
        """Raise NvidiaError if another setting overrides a planned entry, or if CRI-O would not start."""
        after = self._view(self.files.overlay())
        for name in request.runtimes():
            path = (*crio_config.RUNTIMES, name)
            file = after.definer(path)
            if name in after.flagged_runtimes:
                raise errors.NvidiaError(
                    f"{self._unit()}: its flag --runtimes defines {name} and takes precedence over all files. Remove it"
                    " there, then run this again."
                )
            if file is not None and file.path != target.path:
                raise file.document.error(
                    path,
                    f"this table replaces that of the runtime {name} in {target.path}, which CRI-O reads earlier",
                    f"Remove it, or {self._advice(file)}",
                )
            for key in _MISLEADING:
                if target.document.value(*path, key):
                    raise target.document.error(
                        (*path, key),
                        f"with {key} CRI-O runs another program than {crio_config.PROGRAM} of the runtime {name}",
                        "Remove it, then run this again.",
                    )
        self._prove_default(request, after)

    def _prove_default(self, request: engines_base.RuntimeRequest, after: crio_config.CrioFiles) -> None:
        default = after.default_runtime()
        file = None if after.flagged_default is not None else after.definer(crio_config.DEFAULT)
        if request.set_as_default and default != request.runtime_name:
            if file is None:
                raise errors.NvidiaError(
                    f"{self._unit()}: its flag --default-runtime names {default} and takes precedence over all files."
                    " Remove it there, then run this again."
                )
            raise file.document.error(
                crio_config.DEFAULT,
                "this default_runtime takes precedence, for CRI-O reads it later",
                f"Remove it, or {self._advice(file)}",
            )
        if default is not None and not after.defines(default, self.context.version):
            problem = f"the default runtime {default!r} has no table [{'.'.join((*crio_config.RUNTIMES, default))}]"
            advice = "CRI-O would not start. Write one, or name another default, then run this again."
            if file is None:
                raise errors.NvidiaError(f"{self._unit()}: {problem}. {advice}")
            raise file.document.error(crio_config.DEFAULT, problem, advice)

    def _advice(self, file: crio_config.ConfigFile) -> str:
        if self.drop_in is None:
            return "leave out config_mode: in_place."
        folder, name = posixpath.split(file.name)
        return f"set drop_in_path to a file in {folder} whose name sorts after {name}."

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, target: toml_plan.TomlEdit) -> engines_base.EnginePlan:
        files = self.files.planned([file.path for file in self.current.files])
        gone = {file.path: None for file in files if file.after is None}
        after = self._view({**self.files.overlay(), **gone})
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
    return engines_base.ConfiguredState(
        runtimes, default, files.value(crio_config.CDI_DIRS) != [], files.flagged_runtimes
    )


def _whole_tables(edit: toml_plan.TomlEdit) -> list[str]:
    """Return the runtimes in the file that this collection created, even if others added entries to them."""
    names = dict.fromkeys(
        path[len(crio_config.RUNTIMES)]
        for path in edit.recorded()
        if path[: len(crio_config.RUNTIMES)] == crio_config.RUNTIMES
    )
    return [
        name
        for name in names
        if edit.owns((*crio_config.RUNTIMES, name, crio_config.PROGRAM))
        and not edit.original.has(*crio_config.RUNTIMES, name)
    ]


def _foreign(edit: toml_plan.TomlEdit, target: toml_plan.TomlEdit) -> toml_document.TomlDocument | None:
    """Return a file with the data that it would have without the entries of this collection.

    Its text is unchanged, so that errors name the right line.
    """
    if edit.content is None:
        return None
    if edit.record is None:
        return edit.before
    data = copy.deepcopy(edit.before.data)
    if edit is not target:
        for name in _whole_tables(edit):
            toml_plan.lookup(data, crio_config.RUNTIMES).pop(name)
    for path in edit.recorded():
        if edit.owns(path) and toml_plan.lookup(data, path[:-1]) is not None:
            _restore(data, path, edit.original)
    return toml_document.TomlDocument(edit.path, edit.before.text, data)


def _restore(data: dict[str, t.Any], path: toml_plan.KeyPath, original: toml_document.TomlDocument) -> None:
    if original.has(*path):
        toml_plan.lookup(data, path[:-1])[path[-1]] = original.value(*path)
        return
    toml_plan.lookup(data, path[:-1]).pop(path[-1])
    for depth in range(len(path) - 1, 0, -1):
        # An empty table has no effect.
        if toml_plan.lookup(data, path[:depth]) == {}:
            toml_plan.lookup(data, path[: depth - 1]).pop(path[depth - 1])


def _table(files: crio_config.CrioFiles, path: str, entry: toml_plan.KeyPath) -> dict[str, t.Any]:
    """Return the table at ``entry`` in the file ``path``, empty if there is none."""
    found = next((file.document.value(*entry) for file in files.files if file.path == path), None)
    return found if isinstance(found, dict) else {}


def _difference(table: t.Mapping[str, t.Any], known: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the entries of ``table`` that are missing in ``known`` or differ there."""
    found: dict[str, t.Any] = {}
    for path, value in toml_parser.iter_leaves(table):
        if not toml_parser.equal(toml_plan.lookup(known, path), value):
            toml_plan.put(found, path, value)
    return found
