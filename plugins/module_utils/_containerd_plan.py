# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what must change in containerd's files, and in which of them.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    CRI_TABLE,
    DEFAULT,
    PROGRAM,
    RUNTIMES,
    ContainerdFiles,
    check_order,
    check_readable,
    program_of,
    says_nothing_versioned,
    too_new,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_imports import IMPORTS, Imports
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_legacy import (
    check_legacy,
    kept_legacy,
    with_legacy,
    without_legacy,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import (
    ANNOTATIONS,
    BUILTIN_DEFAULT,
    BUILTIN_TYPE,
    CDI,
    VERSION,
    Writer,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action, ConfiguredState, EnginePlan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import CDI_AUTO, is_nvidia_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import (
    OPENING,
    TomlFiles,
    check_options,
    give_back,
    lookup,
    require,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import KeyPath, TomlEdit

DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
# containerd's RELEASES.md: the setting exists from 1.7 on, and is on by default from 2.0 on.  2.4.0-beta.0 obeys false,
# although its removal was planned for 2.4 (internal/cri/server/container_create_linux.go).
CDI_SINCE, CDI_BY_DEFAULT_SINCE = (1, 7), (2,)
MODES = ("auto", "in_place", "drop_in")
RESERVED = {("runtime_type",): "runtime_type", PROGRAM: "runtime_dir", ANNOTATIONS: "container_annotations"}

# The first words of a drop-in that holds a copy of all settings of the CRI.
SNAPSHOT = OPENING + (
    b"# This containerd replaces a plugin's settings by those of a later file. So this is a copy of all settings\n"
    b"# of the CRI, made from the other files on every run: change those and run again, not this one.\n"
)


class ContainerdPlanner:
    """One plan for all files of one containerd.

    ``reads`` and ``writes`` are how these files are read and written; those that bring a containerd of their own have
    other ways.  ``drop_in`` is where ours go if no other place is asked for.
    """

    reads: type[ContainerdFiles] = ContainerdFiles
    writes: type[Writer] = Writer
    drop_in = DROP_IN

    def __init__(self, context: Context) -> None:
        self.context = context
        self.files = TomlFiles(context, (SNAPSHOT, OPENING))
        self.main = self.files.edit(context.path)
        self.current = self.reads.of(context, self.files.overlay())
        self.warnings: list[str] = []
        self.imports = Imports(context, self.files, self.warnings)
        self.kept = {path: self._kept(path) for path in (DEFAULT, CDI)}

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest) -> EnginePlan:
        check_options(request.runtime_options, RESERVED)
        off = self.current.cri_disabled_in()
        if off is not None:
            return self._disabled(request, off)
        writer = self._writer(request)
        check_legacy(request, writer.others, self.warnings)
        self._write_version(writer)
        writer.runtimes(request)
        self._default(request, writer)
        self._cdi(request, writer)
        writer.finish(request)
        in_place = writer.mode == "in_place"
        needed = writer.target.path if not in_place and writer.target.wanted else None
        self._import(needed)
        self._mend()
        self._prove(request)
        return self._plan(None if in_place else request.drop_in_path or self.drop_in)

    def _write_version(self, writer: Writer) -> None:
        if writer.others.version > 1:
            writer.write_version(self.main)

    def _import(self, needed: str | None) -> None:
        """Have the drop-in read that is ``needed``, and none that is not."""
        self.imports.withdraw(needed)
        if needed is not None:
            self.imports.ensure(needed)

    def _writer(self, request: RuntimeRequest) -> Writer:
        """Which file ours goes into, and what the others say."""
        drop_in = self.context.files.resolve(request.drop_in_path or self.drop_in)
        mode = self._mode(request.config_mode)
        if mode != "in_place" and drop_in == self.main.path:
            raise GpufleetError(f"drop_in_path {drop_in} is the main file. Name another one, or use config_mode.")
        others = self._others(None if mode == "in_place" else drop_in)
        check_readable(others)
        target = self.files.edit(others.source() if mode == "in_place" else drop_in)
        # What is in it of ours is told apart entry by entry.
        target.document = target.before
        if mode == "snapshot" and target.record is None and target.document.has(*others.cri_path):
            raise GpufleetError(
                f"{target.path} holds settings for the CRI that are not ours, and a copy of all settings would replace"
                " them. Move the file away, name another drop_in_path, or use config_mode: in_place."
            )
        if mode != "in_place":
            _begin(target, SNAPSHOT if mode == "snapshot" else OPENING)
        self._check_types(target, others)
        return self.writes(self.context, others, target, mode)

    def _others(self, drop_in: str | None) -> ContainerdFiles:
        """All files without our entries, and without the drop-in that these go into."""
        for path in self.context.recorded:
            _withdraw(self.files.edit(path))
        _withdraw(self.main, VERSION, IMPORTS)
        hidden = {} if drop_in is None else {drop_in: None}
        others = self.reads.of(self.context, {**self.files.outcome(), **hidden})
        if too_new(others) and self.main.owns(VERSION):
            # Of an engine that was newer then.
            self.main.give_back(VERSION)
            others = self.reads.of(self.context, {**self.files.outcome(), **hidden})
        return others

    def _disabled(self, request: RuntimeRequest, path: str) -> EnginePlan:
        said = (
            f"{path}: disabled_plugins switches containerd's CRI off, as Docker's packages do. No Kubernetes runs on"
            " it, so there is nothing to configure"
        )
        if request.cri_disabled == "fail":
            raise GpufleetError(f"{said}. Remove the entry to use the CRI, or set cri_disabled to note.")
        self.warnings.append(f"{said}, and nothing was changed.")
        state = configured_state(self.current)._replace(lists_runtimes=False)
        return EnginePlan((), state, Action.NONE, tuple(self.warnings), None, self.current.version)

    def _mode(self, asked: str) -> str:
        """in_place, drop_in (minimal) or snapshot."""
        if asked not in MODES:
            raise GpufleetError(f"containerd has no config_mode: {asked}. Use one of {', '.join(MODES)}.")
        merges = self.current.merges
        if asked == "in_place" or (asked == "auto" and not merges):
            return "in_place"
        return "drop_in" if merges else "snapshot"

    def _default(self, request: RuntimeRequest, writer: Writer) -> None:
        name = request.default(self.kept[DEFAULT])
        if name is None:
            return
        if request.use_legacy_config:
            writer.legacy_default(name)
            return
        if writer.others.legacy_default() is not None:
            raise GpufleetError(
                f"{writer.others.source()}: the table default_runtime takes precedence over default_runtime_name in"
                " containerd 1.x. Move it to runtimes.NAME with default_runtime_name = NAME, then run this again."
            )
        writer.leaf(DEFAULT, name)

    def _cdi(self, request: RuntimeRequest, writer: Writer) -> None:
        version, wanted = self.context.version, request.enable_cdi
        if wanted == CDI_AUTO and version is not None:
            # `containerd config default` of 1.7 prints enable_cdi = false, so false in a file tells no decision there.
            # Later versions print true.  give_back() removes what an earlier run wrote and this one does not.
            if CDI_SINCE <= version < CDI_BY_DEFAULT_SINCE:
                writer.leaf(CDI, value=True)
            return
        if wanted is None or wanted == CDI_AUTO:
            if self.kept[CDI] is not None:
                writer.leaf(CDI, self.kept[CDI])
            return
        name = f"containerd {'.'.join(map(str, version))}" if version else "containerd"
        if version is not None and version < CDI_SINCE:
            self.warnings.append(f"{name} knows no CDI, which begins with 1.7. Nothing was written for it.")
        else:
            on = version is not None and version >= CDI_BY_DEFAULT_SINCE
            if not (wanted and on) or lookup(writer.others.cri(), CDI) is False:
                writer.leaf(CDI, wanted)

    def _kept(self, path: KeyPath) -> t.Any:
        """A setting of ours that a run says nothing about, in whichever file it stands."""
        for name in (self.main.path, *self.context.recorded):
            edit = self.files.edit(name)
            for root in CRI_TABLE.values():
                # Beside our table a name is a copy, which counts less.
                legacy = kept_legacy(edit, root) if path == DEFAULT else None
                if legacy is not None:
                    return legacy
                if edit.owns(root + path):
                    return edit.document.value(*root, *path)
        return None

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> EnginePlan:
        paths = [self.main.path, *self.context.recorded]
        resolved = self.context.files.resolve(self.drop_in)
        if resolved not in paths and self._belongs(resolved):
            paths.append(resolved)
        # With a record of one file it is known that the others were not touched.
        unknown = not self.context.keep_unrecorded and all(self.files.edit(path).record is None for path in paths)
        # The main file last: what it must go on importing depends on what is left of the others.
        for path in reversed(paths):
            edit = self.files.edit(path)
            if edit.record is not None:
                kept = (VERSION, IMPORTS) if edit is self.main and self.imports.needed() else ()
                _withdraw(edit, *kept)
            if unknown or _migrated(edit):
                self._remove_unrecorded(edit)
        self.imports.withdraw()
        self._mend()
        return self._plan(None)

    def _belongs(self, drop_in: str) -> bool:
        """Whether a drop-in is part of this configuration, and not of another one."""
        record = self.files.edit(drop_in).record
        if record is not None:
            return record.main == self.main.path
        return any(file.path == drop_in for file in self.current.files)

    def _remove_unrecorded(self, edit: TomlEdit) -> None:
        """Take out runtimes that run NVIDIA's programs, where nothing says what stood there before."""
        # Only a removal pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._owners_vendor import (  # noqa: PLC0415
            containerd_drop_in,
        )

        found = containerd_drop_in(edit.document, self.main.document) if edit is not self.main else None
        if found is not None and found.is_alone(edit.document):
            without = self.reads.of(self.context, {**self.files.overlay(), edit.path: None})
            # The rest of it is a copy, which would hide later changes of the main file.  One that is imported by its
            # name has to stay.
            edit.removed = not without.missing
            if edit.removed:
                return
        for root in dict.fromkeys(CRI_TABLE.values()):
            runtimes = edit.document.value(*root, *RUNTIMES)
            for name, entry in (runtimes if isinstance(runtimes, dict) else {}).items():
                if is_nvidia_program(program_of(entry)):
                    edit.document = edit.document.delete((*root, *RUNTIMES, name), prune=True)
            edit.document = without_legacy(edit.document, root)

    def _mend(self) -> None:
        """Never leave a default that is not defined, nor runtimes that hide the built-in one which they need."""
        after = self._after()
        root, runtimes, default = after.cri_path, after.runtimes(), after.default_runtime()
        edit = self.files.edit(after.holder(DEFAULT))
        lost = default is not None and default not in runtimes and default in self.current.runtimes()
        if lost and not _as_recorded(edit):
            holding = (place for place in after.roots(edit.document) if edit.document.has(*place, *DEFAULT))
            edit.document = self._mended_default(edit, next(holding, root), runtimes)
            default = self._after().default_runtime()
            self.warnings.append(f"The default runtime is no longer defined: it is now {default or BUILTIN_DEFAULT}.")
        edit = self.files.edit(after.source())
        entry = (*RUNTIMES, BUILTIN_DEFAULT, "runtime_type")
        typed = lookup(after.cri(), entry), lookup(self.current.cri(), entry)
        before = edit.original.value(*root, *RUNTIMES) or {}
        lost = bool(runtimes) and typed[0] is None and (default or BUILTIN_DEFAULT) == BUILTIN_DEFAULT
        ours = typed[1] is not None and (not before or BUILTIN_DEFAULT in before)
        if lost and ours and not after.merges and not _as_recorded(edit):
            edit.document = edit.document.set(root + entry, BUILTIN_TYPE)
            self.warnings.append(
                f"runtimes.{BUILTIN_DEFAULT} stays in {edit.path}: without it the other runtimes there would hide the"
                " built-in one, and the CRI would not start."
            )

    @staticmethod
    def _mended_default(edit: TomlEdit, root: KeyPath, runtimes: t.Mapping[str, t.Any]) -> TomlDocument:
        for former in CRI_TABLE.values():
            known = edit.original.value(*former, *DEFAULT)
            if isinstance(known, str) and known in runtimes:
                return edit.document.set((*root, *DEFAULT), known)
        return edit.document.delete((*root, *DEFAULT), prune=True)

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_types(self, target: TomlEdit, others: ContainerdFiles) -> None:
        document = target.document
        for checked in (document, *(file.document for file, _table in others.tables())):
            for root in others.roots(checked):
                _check_settings(checked, root)
        if target is not self.main and not target.owns(VERSION):
            version = document.value("version")
            if version not in (None, others.version) and not (others.migrates and version in CRI_TABLE):
                raise document.error(
                    ("version",),
                    f"version = {version} beside version = {others.version} in {self.main.path}: containerd would lose"
                    " the settings of one of them",
                    "Move the file away if an earlier tool left it, or give both the same version.",
                )

    def _prove(self, request: RuntimeRequest) -> None:
        """Raises GpufleetError where another file hides what is planned, or the CRI would not start."""
        after = self._after()
        check_order(after)
        runtimes = after.runtimes()
        for name, program in request.runtimes().items():
            found = program_of(runtimes.get(name))
            if not isinstance(found, str) or not self.context.same_program(found, program):
                raise GpufleetError(
                    f"{self._culprit(after, (*RUNTIMES, name))}: it takes precedence and would hide the runtime {name}."
                    " Remove its entry for this runtime, or its settings for the CRI, then run this again."
                )
        # The old table of the default goes before its name.
        if after.legacy_default() is None:
            self._prove_named_default(request, after, runtimes)
        for path in after.strangers():
            self.warnings.append(
                f"{path} has settings for the CRI in another version of the format than {self.main.path}. containerd"
                " ignores one of the two; give both the same version."
            )

    def _prove_named_default(
        self, request: RuntimeRequest, after: ContainerdFiles, runtimes: t.Mapping[str, t.Any]
    ) -> None:
        default = after.default_runtime()
        default = BUILTIN_DEFAULT if default is None else default
        if request.set_as_default and default != request.runtime_name:
            raise GpufleetError(
                f"{self._culprit(after, DEFAULT)}: it takes precedence and makes {default} the default runtime. Remove"
                " default_runtime_name there, then run this again."
            )
        if default not in runtimes and not (default == BUILTIN_DEFAULT and after.merges):
            raise GpufleetError(
                f"{self._culprit(after, DEFAULT)}: default_runtime_name is {default!r}, but there is no runtime of this"
                " name: containerd would start with its CRI dead. Define it, or name another default, then run this"
                " again."
            )

    def _culprit(self, after: ContainerdFiles, entry: KeyPath) -> str:
        tables = [file.path for file, table in after.tables() if not after.merges or lookup(table, entry) is not None]
        return tables[-1] if tables else self.main.path

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, drop_in: str | None) -> EnginePlan:
        files = tuple(
            self.imports.counted(file) if file.path == self.main.path else file
            for file in self.files.planned([file.path for file in self.current.files])
        )
        after = self._after()
        # A signal would end containerd, and nothing else makes it read its files.
        action = Action.RESTART if any(file.changed for file in files) else Action.NONE
        return EnginePlan(files, configured_state(after), action, tuple(self.warnings), drop_in, after.version)

    def _after(self) -> ContainerdFiles:
        return self.reads.of(self.context, self.files.outcome())


def configured_state(files: ContainerdFiles) -> ConfiguredState:
    """What a containerd that starts with these files knows of runtimes."""
    runtimes = {
        name: {"path": program_of(entry), **entry}
        for name, entry in files.runtimes().items()
        if isinstance(entry, dict)
    }
    runtimes, default = with_legacy(runtimes, files)
    return ConfiguredState(runtimes, default, _cdi_of(files), lists_runtimes=files.cri_disabled_in() is None)


def _cdi_of(files: ContainerdFiles) -> bool | None:
    version = files.engine_version
    if version is None or version < CDI_SINCE:
        return None
    written = lookup(files.cri(), CDI)
    on = version >= CDI_BY_DEFAULT_SINCE
    return written if isinstance(written, bool) else on


def _withdraw(edit: TomlEdit, *kept: KeyPath) -> None:
    """Take out all of ours, but never the version under which others have written since."""
    give_back(edit, kept.__contains__)
    bare = edit.before.has(*VERSION) and not edit.document.has(*VERSION)
    if bare and not _as_recorded(edit) and not says_nothing_versioned(edit.document):
        edit.document = edit.before
        give_back(edit, {VERSION, *kept}.__contains__)


def _as_recorded(edit: TomlEdit) -> bool:
    """Whether the file is again what it was before the first change."""
    return edit.record is not None and edit.document.to_bytes() == edit.record.original


def _migrated(edit: TomlEdit) -> bool:
    """Whether somebody has brought the file to another version since, where our entries have other places."""
    roots = {path[:2] for path in edit.recorded() if path[:1] == ("plugins",)}
    return bool(roots) and not any(edit.before.has(*root) for root in roots)


def _check_settings(document: TomlDocument, root: KeyPath) -> None:
    """Raises ConfigurationError for settings of the CRI that are of another kind than containerd takes."""
    for depth in range(1, len(root) + 1):
        require(document, root[:depth], dict, "Make it a table, or remove it.")
    require(document, (*root, *CDI), bool, "Write true or false without quotes.")
    require(document, root + DEFAULT, str, "Write the name of a runtime in quotes.")
    runtimes = require(document, root + RUNTIMES, dict, "Make it a table, or remove it.")
    for name in runtimes or {}:
        require(document, (*root, *RUNTIMES, name), dict, "Make it a table, or remove it.")
        require(document, (*root, *RUNTIMES, name, *PROGRAM), str, "Write the path in quotes.")


def _begin(edit: TomlEdit, words: bytes) -> None:
    """Have a drop-in of ours begin with ``words``, which tell what it is."""
    text = edit.document.to_bytes()
    former = next((known for known in (SNAPSHOT, OPENING) if text.startswith(known)), b"")
    if (former or not text) and former != words:
        edit.fresh = words
        edit.document = TomlDocument.from_bytes(edit.path, words + text[len(former) :])
