# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what must change in CRI-O's files, and in which of them.

from __future__ import annotations

import copy
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import (
    ANNOTATIONS,
    CDI_DIRS,
    DEFAULT,
    DROP_IN_NAME,
    KIND,
    PROGRAM,
    RUNTIMES,
    ConfigFile,
    CrioFiles,
    builtin_runtimes,
    config_dir,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action, ConfiguredState, EnginePlan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_program, is_nvidia_runtime
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import (
    OPENING,
    TomlFiles,
    check_options,
    give_back,
    lookup,
    merged,
    plain_copy,
    put,
    write_table,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import leaves, same

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import KeyPath, TomlEdit

DEFAULT_KIND = "oci"
MONITOR = "monitor_path"
# Where a runtime takes its settings from, if the default one is of no use.
PARENTS = ("crun", "runc")
# With these in the table CRI-O would run another program than runtime_path.
_MISLEADING = ("inherit_default_runtime", "platform_runtime_paths")
# What belongs to the program of the runtime that it stands in, and to no other.
_OWN = (PROGRAM, KIND, "runtime_config_path", *_MISLEADING)
# The root of another program's containers; without one CRI-O uses its own default (newRuntimeOCI in
# internal/oci/runtime_oci.go, 1.31 to 1.37).
_NOT_INHERITED = (*_OWN, "runtime_root")
RESERVED: dict[KeyPath, str] = {
    (PROGRAM,): "runtime_dir",
    (KIND,): "runtime_type",
    (ANNOTATIONS,): "container_annotations",
    **{(name,): "runtime_dir" for name in _MISLEADING},
}


class CrioPlanner:
    """One plan for all files of one CRI-O."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.files = TomlFiles(context, (OPENING,))
        self.main = self.files.edit(context.path)
        self.current = CrioFiles.of(context, self.files.overlay())
        self.warnings: list[str] = []
        self.drop_in: str | None = None

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest) -> EnginePlan:
        check_options(request.runtime_options, RESERVED)
        self.current.check()
        target = self._target(request)
        kept = self._kept_default()
        others = self._without_ours(target)
        if target.content is None:
            target.document = TomlDocument.from_bytes(target.path, OPENING)
        parent = self._parent(request, others)
        for name in request.runtimes():
            self._runtime(request, name, parent, target, others)
        self._default(request, kept, target, others)
        for path in self._ours(target):
            self._take_back(self.files.edit(path))
        self._note_cdi(request)
        self._mend(target)
        self._prove(request, target)
        return self._plan(target)

    def _target(self, request: RuntimeRequest) -> TomlEdit:
        """The file that ours goes into."""
        if request.config_mode == "in_place":
            return self.main
        directory = config_dir(self.context.unit)
        if not directory:
            raise GpufleetError(
                "The unit's flag --config-dir is empty, so CRI-O reads no drop-ins. Use config_mode: in_place."
            )
        self.drop_in = posixpath.normpath(request.drop_in_path or f"{directory}/{DROP_IN_NAME}")
        folder, name = posixpath.split(self.drop_in)
        if not (self.context.files.resolve(folder) + "/").startswith(self.current.directory + "/"):
            raise GpufleetError(
                f"drop_in_path {self.drop_in!r} is not below {directory}, the directory that CRI-O reads, so it would"
                f" have no effect. Leave it out, or choose a path such as {directory}/{DROP_IN_NAME}."
            )
        return self.files.edit(posixpath.join(self.context.files.resolve(folder), name))

    def _parent(self, request: RuntimeRequest, others: CrioFiles) -> dict[str, t.Any]:
        """What a runtime takes over from the low-level one that is in use; never from another NVIDIA runtime."""
        kind = request.runtime_type or DEFAULT_KIND
        tables, default, version = others.runtimes(), others.default_runtime(), self.context.version
        name = next((name for name in (*builtin_runtimes(version), *PARENTS) if name in tables), None)
        if default is not None and others.defines(default, version):
            name = name if is_nvidia_runtime(default, lookup(tables, (default, PROGRAM))) else default
        table = tables.get(name or "")
        if table is None:
            if not (others.conmon() or self._flags("--conmon") or MONITOR in request.runtime_options):
                self.warnings.append(
                    f"The default runtime {name or builtin_runtimes(version)[0]} is built into CRI-O, so"
                    f" there is no {MONITOR} to take over, and CRI-O only starts with conmon in its PATH. If it is not"
                    f" there, name it with runtime_options: {{{MONITOR}: PATH}}."
                )
            return {}
        theirs = table.get(KIND) or DEFAULT_KIND
        if theirs != kind:
            self.warnings.append(
                f"Nothing was taken over from the default runtime {name}, for its {KIND} is {theirs}, not {kind}."
                " Give what is needed with runtime_options, or set runtime_type."
            )
            return {}
        return {key: value for key, value in table.items() if key not in _NOT_INHERITED}

    def _runtime(
        self,
        request: RuntimeRequest,
        name: str,
        parent: t.Mapping[str, t.Any],
        target: TomlEdit,
        others: CrioFiles,
    ) -> None:
        """Write one runtime: what was asked for, and of the rest only what nobody else says."""
        path = (*RUNTIMES, name)
        # CRI-O will not see what stands for it in earlier files, so that moves in here.
        beneath = {key: value for key, value in others.beneath(target.path, name).items() if key not in _OWN}
        own = _table(others, target.path, path)
        program, spelled = request.runtimes()[name], target.document.value(*path, PROGRAM)
        if isinstance(spelled, str) and self.context.same_program(spelled, program):
            program = spelled
        full = merged(merged(merged(parent, beneath), own), request.runtime_options)
        annotations = list(dict.fromkeys([*(full.pop(ANNOTATIONS, None) or []), *request.container_annotations]))
        asked: dict[str, t.Any] = {PROGRAM: program, KIND: request.runtime_type or DEFAULT_KIND}
        if annotations:
            asked[ANNOTATIONS] = annotations
        full = {**asked, **{key: value for key, value in full.items() if key not in asked}}
        write_table(target, path, plain_copy(_difference(full, own)))

    def _default(self, request: RuntimeRequest, kept: str | None, target: TomlEdit, others: CrioFiles) -> None:
        name = request.default(kept)
        if name is not None and _table(others, target.path, DEFAULT[:-1]).get(DEFAULT[-1]) != name:
            target.write(DEFAULT, name)

    def _kept_default(self) -> str | None:
        """A default of ours that this run may say nothing about, in whichever file it stands."""
        for path in (self.main.path, *self.context.recorded):
            edit = self.files.edit(path)
            if edit.owns(DEFAULT):
                return str(edit.document.value(*DEFAULT))
        return None

    def _note_cdi(self, request: RuntimeRequest) -> None:
        if request.enable_cdi is False:
            self.warnings.append("CRI-O always uses CDI; it cannot be switched off. Nothing was written for it.")
        elif request.enable_cdi and self.current.value(CDI_DIRS) == []:
            file = self.current.definer(CDI_DIRS)
            self.warnings.append(
                f"{file.path if file else ''}: cdi_spec_dirs is empty, so CRI-O finds no CDI devices. Remove the entry,"
                " or name the directories."
            )

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> EnginePlan:
        return self._taken_back(unrecorded=not self.context.keep_unrecorded)

    def withdrawn(self) -> EnginePlan:
        """The plan that takes back what earlier runs wrote, and leaves all else, also NVIDIA's runtimes of others."""
        return self._taken_back(unrecorded=False)

    def _taken_back(self, unrecorded: bool) -> EnginePlan:
        directory = self.current.directory
        drop_in = self.context.files.resolve(f"{directory}/{DROP_IN_NAME}") if directory else self.main.path
        target = self.main if self.context.files.read(drop_in) is None else self.files.edit(drop_in)
        paths = [path for path in self._ours(target) if self._belongs(self.files.edit(path))]
        # With a record of one file it is known that the others were not touched.
        unknown = unrecorded and all(self.files.edit(path).record is None for path in paths)
        for path in paths:
            self._take_back(self.files.edit(path))
            if unknown:
                self._remove_unrecorded(self.files.edit(path))
        self._mend(target)
        return self._plan(target)

    def _belongs(self, edit: TomlEdit) -> bool:
        """Whether a file is not part of another configuration."""
        recorded = (self.main.path, *self.context.recorded)
        return edit.path in recorded or edit.record is None or edit.record.main == self.main.path

    def _remove_unrecorded(self, edit: TomlEdit) -> None:
        """Take out runtimes that run NVIDIA's programs, where nothing says what stood there before."""
        # Only a removal pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._owners_vendor import (  # noqa: PLC0415
            crio_drop_in,
        )

        found = crio_drop_in(edit.document) if edit is not self.main else None
        if found is not None and found.is_alone(edit.document):
            edit.removed = True
            return
        tables = edit.document.value(*RUNTIMES)
        for name, table in (tables if isinstance(tables, dict) else {}).items():
            if is_nvidia_program(lookup(table, (PROGRAM,))):
                edit.document = edit.document.delete((*RUNTIMES, name), prune=True)

    @staticmethod
    def _take_back(edit: TomlEdit) -> None:
        """Take out what earlier runs wrote and this one does not want."""
        for name in _whole_tables(edit):
            path = (*RUNTIMES, name)
            if not any(wanted[: len(path)] == path for wanted in edit.wanted):
                # With what others put into it: without its program it would only hide what stands in other files.
                edit.document = edit.document.restore(path, edit.original)
        give_back(edit)

    def _mend(self, target: TomlEdit) -> None:
        """Never leave a default that is no longer defined: CRI-O would not start."""
        mended = False
        for _attempt in self.current.files:
            after = self._view(self.files.overlay())
            default = after.default_runtime()
            version = self.context.version
            if default is None or after.defines(default, version) or not self.current.defines(default, version):
                break
            file = None if after.flagged_default is not None else after.definer(DEFAULT)
            if file is None or file.path not in self._ours(target):
                raise GpufleetError(
                    f"{file.path if file else self._unit()}: it makes {default} the default runtime, without which"
                    " CRI-O would not start any more. Name another default there, then run this again."
                )
            edit = self.files.edit(file.path)
            known = edit.original.value(*DEFAULT)
            if isinstance(known, str) and known != default and after.defines(known, version):
                edit.document = edit.document.set(DEFAULT, known)
            else:
                edit.document = edit.document.delete(DEFAULT, prune=True)
            mended = True
        if mended:
            default = self._view(self.files.overlay()).default_runtime()
            self.warnings.append(
                f"The default runtime is no longer defined: it is now {default or 'the one that is built into CRI-O'}."
            )

    # -- ours and others' ----------------------------------------------------------------------------------------

    def _ours(self, target: TomlEdit) -> list[str]:
        """The files that may hold entries of ours."""
        return list(dict.fromkeys([self.main.path, target.path, *self.context.recorded]))

    def _without_ours(self, target: TomlEdit) -> CrioFiles:
        """The configuration as it would be without us, to be looked at only."""
        overlay = {path: _foreign(self.files.edit(path), target) for path in self._ours(target)}
        return self._view(overlay)

    def _view(self, overlay: t.Mapping[str, TomlDocument | None]) -> CrioFiles:
        """The configuration with other documents in some places; nothing is read and parsed again."""
        return CrioFiles.of(self.context, {**{file.path: file.document for file in self.current.files}, **overlay})

    def _flags(self, *names: str) -> list[str]:
        return self.context.unit.flag_values(*names) if self.context.unit is not None else []

    def _unit(self) -> str:
        return self.context.unit.path if self.context.unit is not None else self.main.path

    # -- checks --------------------------------------------------------------------------------------------------

    def _prove(self, request: RuntimeRequest, target: TomlEdit) -> None:
        """Raises GpufleetError where something else takes precedence, or CRI-O would not start."""
        after = self._view(self.files.overlay())
        for name in request.runtimes():
            path = (*RUNTIMES, name)
            file = after.definer(path)
            if name in after.flagged_runtimes:
                raise GpufleetError(
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
                        f"with {key} CRI-O runs another program than {PROGRAM} of the runtime {name}",
                        "Remove it, then run this again.",
                    )
        self._prove_default(request, after)

    def _prove_default(self, request: RuntimeRequest, after: CrioFiles) -> None:
        default = after.default_runtime()
        file = None if after.flagged_default is not None else after.definer(DEFAULT)
        if request.set_as_default and default != request.runtime_name:
            if file is None:
                raise GpufleetError(
                    f"{self._unit()}: its flag --default-runtime names {default} and takes precedence over all files."
                    " Remove it there, then run this again."
                )
            raise file.document.error(
                DEFAULT,
                "this default_runtime takes precedence, for CRI-O reads it later",
                f"Remove it, or {self._advice(file)}",
            )
        if default is not None and not after.defines(default, self.context.version):
            problem = f"the default runtime {default!r} has no table [{'.'.join((*RUNTIMES, default))}]"
            advice = "CRI-O would not start. Write one, or name another default, then run this again."
            if file is None:
                raise GpufleetError(f"{self._unit()}: {problem}. {advice}")
            raise file.document.error(DEFAULT, problem, advice)

    def _advice(self, file: ConfigFile) -> str:
        if self.drop_in is None:
            return "leave out config_mode: in_place."
        folder, name = posixpath.split(file.name)
        return f"set drop_in_path to a file in {folder} whose name sorts after {name}."

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, target: TomlEdit) -> EnginePlan:
        files = self.files.planned([file.path for file in self.current.files])
        gone = {file.path: None for file in files if file.after is None}
        after = self._view({**self.files.overlay(), **gone})
        # After a reload CRI-O says that it knows the new runtimes, but cannot start pods with them (seen on 1.37).
        action = Action.RESTART if any(file.changed for file in files) else Action.NONE
        drop_in = self.drop_in if target is not self.main else None
        return EnginePlan(files, configured_state(after, self.context.version), action, tuple(self.warnings), drop_in)


def configured_state(files: CrioFiles, version: tuple[int, ...] | None) -> ConfiguredState:
    """What a CRI-O that starts with these files knows of runtimes."""
    runtimes = {name: {"path": table.get(PROGRAM), **table} for name, table in files.runtimes().items()}
    default = files.default_runtime() or builtin_runtimes(version)[0]
    return ConfiguredState(runtimes, default, files.value(CDI_DIRS) != [], files.flagged_runtimes)


def _whole_tables(edit: TomlEdit) -> list[str]:
    """The runtimes in the file that are there because of us, whatever others may have added to them."""
    names = dict.fromkeys(path[len(RUNTIMES)] for path in edit.recorded() if path[: len(RUNTIMES)] == RUNTIMES)
    return [name for name in names if edit.owns((*RUNTIMES, name, PROGRAM)) and not edit.original.has(*RUNTIMES, name)]


def _foreign(edit: TomlEdit, target: TomlEdit) -> TomlDocument | None:
    """A file with the data that it would have without our entries; its text stays, for the places of errors."""
    if edit.content is None:
        return None
    if edit.record is None:
        return edit.before
    data = copy.deepcopy(edit.before.data)
    if edit is not target:
        for name in _whole_tables(edit):
            lookup(data, RUNTIMES).pop(name)
    for path in edit.recorded():
        if edit.owns(path) and lookup(data, path[:-1]) is not None:
            _restore(data, path, edit.original)
    return TomlDocument(edit.path, edit.before.text, data)


def _restore(data: dict[str, t.Any], path: KeyPath, original: TomlDocument) -> None:
    if original.has(*path):
        lookup(data, path[:-1])[path[-1]] = original.value(*path)
        return
    lookup(data, path[:-1]).pop(path[-1])
    for depth in range(len(path) - 1, 0, -1):
        # A table that is left empty says nothing.
        if lookup(data, path[:depth]) == {}:
            lookup(data, path[: depth - 1]).pop(path[depth - 1])


def _table(files: CrioFiles, path: str, entry: KeyPath) -> dict[str, t.Any]:
    """The table at ``entry`` in one of the files."""
    found = next((file.document.value(*entry) for file in files.files if file.path == path), None)
    return found if isinstance(found, dict) else {}


def _difference(table: t.Mapping[str, t.Any], known: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The entries of ``table`` that ``known`` does not have, or has otherwise."""
    found: dict[str, t.Any] = {}
    for path, value in leaves(table):
        if not same(lookup(known, path), value):
            put(found, path, value)
    return found
