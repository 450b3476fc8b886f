# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the changes of containerd's files for present and absent.

This module reads through ``config`` and writes nothing to the host. The table default_runtime is deprecated since
containerd 1.3 and removed in 2.0 (RELEASES.md). Until then it has precedence over default_runtime_name (pkg/cri/config
of 1.7).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes

# containerd's name for the runtime that the table default_runtime defines.
LEGACY_NAME = "default"
GONE_SINCE, GONE_SINCE_FILE = (2,), 3


def check_legacy(
    request: engines_base.RuntimeRequest, files: containerd_config.ContainerdFiles, warnings: list[str]
) -> None:
    """Check whether use_legacy_config is possible, and add a deprecation warning if it is.

    Raises NvidiaError if this containerd or this file version ignores the table default_runtime.
    """
    if not request.use_legacy_config:
        return
    engine = files.engine_version
    path = files.files[0].path
    if (engine is not None and engine >= GONE_SINCE) or files.version >= GONE_SINCE_FILE:
        name = f"containerd {'.'.join(map(str, engine))}" if engine is not None else "containerd"
        raise errors.NvidiaError(
            f"{path}: use_legacy_config is for containerd 1.x. {name} with a file in version {files.version} ignores"
            " the table default_runtime. Leave use_legacy_config out."
        )
    warnings.append(
        f"{path}: use_legacy_config is deprecated, like the table default_runtime and the option Runtime that it"
        " writes; containerd 2.0 ignores them. Without it the same is written as default_runtime_name and"
        " options.BinaryName."
    )


def kept_legacy(edit: toml_plan.TomlEdit, root: toml_plan.KeyPath) -> str | None:
    """Return the runtime of which this collection's table default_runtime is a copy, or None.

    ``root`` is the path of the CRI settings.
    """
    options = (*root, *containerd_config.LEGACY_DEFAULT, *containerd_config.PROGRAM[:-1])
    # containerd ignores the case of option names.
    programs = (
        path
        for path in edit.recorded()
        if path[:-1] == options and path[-1].lower() == containerd_config.PROGRAM[-1].lower()
    )
    path = next(filter(edit.owns, programs), None)
    return (
        None
        if path is None
        else _named(edit.document.value(*root, *containerd_config.RUNTIMES), edit.document.value(*path))
    )


def without_legacy(document: toml_document.TomlDocument, root: toml_plan.KeyPath) -> toml_document.TomlDocument:
    """Return the document without the table default_runtime, if that runs one of NVIDIA's programs."""
    path = (*root, *containerd_config.LEGACY_DEFAULT)
    return (
        document.delete(path, prune=True)
        if engines_base.is_nvidia_program(containerd_config.program_of(document.value(*path)))
        else document
    )


def with_legacy(
    runtimes: dict[str, t.Any], files: containerd_config.ContainerdFiles
) -> tuple[dict[str, t.Any], str | None]:
    """Return the runtimes and the default runtime, including the table default_runtime if it runs an NVIDIA program."""
    table = files.legacy_default()
    program = containerd_config.program_of(table)
    if table is None or not engines_base.is_nvidia_program(program):
        return runtimes, files.default_runtime()
    return {**runtimes, LEGACY_NAME: {"path": program, **table}}, _named(runtimes, program) or LEGACY_NAME


def _named(runtimes: t.Any, program: t.Any) -> str | None:
    entries = runtimes.items() if isinstance(runtimes, dict) else ()
    return next((name for name, entry in entries if containerd_config.program_of(entry) == program), None)


DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
# containerd's RELEASES.md: the setting exists from 1.7 on and is on by default from 2.0 on. 2.4.0-beta.0 still obeys
# false, although its removal was planned for 2.4 (internal/cri/server/container_create_linux.go).
CDI_SINCE, CDI_BY_DEFAULT_SINCE = (1, 7), (2,)
MODES = ("auto", "in_place", "drop_in")
RESERVED = {
    ("runtime_type",): "runtime_type",
    containerd_config.PROGRAM: "runtime_dir",
    containerd_runtimes.ANNOTATIONS: "container_annotations",
}

# The first lines of a drop-in that contains a copy of all CRI settings.
SNAPSHOT = toml_plan.HEADER + (
    b"# This containerd replaces a plugin's settings by those of a later file. So this is a copy of all settings\n"
    b"# of the CRI, made from the other files on every run: change those and run again, not this one.\n"
)


class ContainerdPlanner:
    """One plan for all files of one containerd.

    ``reads`` and ``writes`` are the classes that read and write the files. Flavors with a containerd of their own
    replace them. ``drop_in`` is the default path of the drop-in.
    """

    reads: type[containerd_config.ContainerdFiles] = containerd_config.ContainerdFiles
    writes: type[containerd_runtimes.RuntimeTableWriter] = containerd_runtimes.RuntimeTableWriter
    drop_in = DROP_IN

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.files = toml_plan.TomlFiles(context, (SNAPSHOT, toml_plan.HEADER))
        self.main = self.files.edit(context.path)
        self.current = self.reads.of(context, self.files.overlay())
        self.warnings: list[str] = []
        self.imports = containerd_config.Imports(context, self.files, self.warnings)
        self.kept = {path: self._kept(path) for path in (containerd_config.DEFAULT, containerd_runtimes.CDI)}

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        toml_plan.check_options(request.runtime_options, RESERVED)
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
        self._repair_default()
        self._check_effective_config(request)
        return self._plan(None if in_place else request.drop_in_path or self.drop_in)

    def _write_version(self, writer: containerd_runtimes.RuntimeTableWriter) -> None:
        if writer.others.version > 1:
            writer.write_version(self.main)

    def _import(self, needed: str | None) -> None:
        """Import the drop-in ``needed``, and remove the imports of this collection that are no longer needed."""
        self.imports.remove_own(needed)
        if needed is not None:
            self.imports.ensure(needed)

    def _writer(self, request: engines_base.RuntimeRequest) -> containerd_runtimes.RuntimeTableWriter:
        """Return the writer for the file that receives the entries of this collection."""
        drop_in = self.context.files.resolve(request.drop_in_path or self.drop_in)
        mode = self._mode(request.config_mode)
        if mode != "in_place" and drop_in == self.main.path:
            raise errors.NvidiaError(f"drop_in_path {drop_in} is the main file. Name another one, or use config_mode.")
        others = self._others(None if mode == "in_place" else drop_in)
        containerd_config.check_readable(others)
        target = self.files.edit(others.source() if mode == "in_place" else drop_in)
        # The writer identifies the entries of this collection in it one by one.
        target.document = target.before
        if mode == "snapshot" and target.record is None and target.document.has(*others.cri_path):
            raise errors.NvidiaError(
                f"{target.path} holds settings for the CRI that are not ours, and a copy of all settings would replace"
                " them. Move the file away, name another drop_in_path, or use config_mode: in_place."
            )
        if mode != "in_place":
            _begin(target, SNAPSHOT if mode == "snapshot" else toml_plan.HEADER)
        self._check_types(target, others)
        return self.writes(self.context, others, target, mode)

    def _others(self, drop_in: str | None) -> containerd_config.ContainerdFiles:
        """Return all files without the entries of this collection, and without ``drop_in``."""
        for path in self.context.recorded:
            _withdraw(self.files.edit(path))
        _withdraw(self.main, containerd_runtimes.VERSION, containerd_config.IMPORTS)
        hidden = {} if drop_in is None else {drop_in: None}
        others = self.reads.of(self.context, {**self.files.planned_documents(), **hidden})
        if containerd_config.too_new(others) and self.main.owns(containerd_runtimes.VERSION):
            # An earlier run wrote this version for a newer containerd.
            self.main.restore(containerd_runtimes.VERSION)
            others = self.reads.of(self.context, {**self.files.planned_documents(), **hidden})
        return others

    def _disabled(self, request: engines_base.RuntimeRequest, path: str) -> engines_base.EnginePlan:
        said = (
            f"{path}: disabled_plugins switches containerd's CRI off, as Docker's packages do. No Kubernetes runs on"
            " it, so there is nothing to configure"
        )
        if request.cri_disabled == "fail":
            raise errors.NvidiaError(f"{said}. Remove the entry to use the CRI, or set cri_disabled to warn.")
        self.warnings.append(f"{said}, and nothing was changed.")
        state = configured_state(self.current)._replace(lists_runtimes=False)
        return engines_base.EnginePlan(
            (), state, engines_base.Action.NONE, tuple(self.warnings), None, self.current.version
        )

    def _mode(self, asked: str) -> str:
        """Return in_place, drop_in (only the entries of this collection) or snapshot (a copy of all CRI settings)."""
        if asked not in MODES:
            raise errors.NvidiaError(f"containerd has no config_mode: {asked}. Use one of {', '.join(MODES)}.")
        merges = self.current.merges
        if asked == "in_place" or (asked == "auto" and not merges):
            return "in_place"
        return "drop_in" if merges else "snapshot"

    def _default(self, request: engines_base.RuntimeRequest, writer: containerd_runtimes.RuntimeTableWriter) -> None:
        name = request.default(self.kept[containerd_config.DEFAULT])
        if name is None:
            return
        if request.use_legacy_config:
            writer.legacy_default(name)
            return
        if writer.others.legacy_default() is not None:
            raise errors.NvidiaError(
                f"{writer.others.source()}: the table default_runtime takes precedence over default_runtime_name in"
                " containerd 1.x. Move it to runtimes.NAME with default_runtime_name = NAME, then run this again."
            )
        writer.leaf(containerd_config.DEFAULT, name)

    def _cdi(self, request: engines_base.RuntimeRequest, writer: containerd_runtimes.RuntimeTableWriter) -> None:
        version, wanted = self.context.version, request.enable_cdi
        if wanted == engines_base.CDI_AUTO and version is not None:
            # `containerd config default` of 1.7 prints enable_cdi = false, so false in a file is not a decision of the
            # user. Later versions print true. restore() removes what an earlier run wrote and this run does not.
            if CDI_SINCE <= version < CDI_BY_DEFAULT_SINCE:
                writer.leaf(containerd_runtimes.CDI, value=True)
            return
        if wanted is None or wanted == engines_base.CDI_AUTO:
            if self.kept[containerd_runtimes.CDI] is not None:
                writer.leaf(containerd_runtimes.CDI, self.kept[containerd_runtimes.CDI])
            return
        name = f"containerd {'.'.join(map(str, version))}" if version else "containerd"
        if version is not None and version < CDI_SINCE:
            self.warnings.append(f"{name} knows no CDI, which begins with 1.7. Nothing was written for it.")
        else:
            on = version is not None and version >= CDI_BY_DEFAULT_SINCE
            if not (wanted and on) or toml_plan.lookup(writer.others.cri(), containerd_runtimes.CDI) is False:
                writer.leaf(containerd_runtimes.CDI, wanted)

    def _kept(self, path: toml_plan.KeyPath) -> t.Any:
        """Return the value of a setting that this collection wrote, from whichever file holds it, or None."""
        for name in (self.main.path, *self.context.recorded):
            edit = self.files.edit(name)
            for root in containerd_config.CRI_TABLE.values():
                # The table default_runtime of this collection has precedence over default_runtime_name.
                legacy = kept_legacy(edit, root) if path == containerd_config.DEFAULT else None
                if legacy is not None:
                    return legacy
                if edit.owns(root + path):
                    return edit.document.value(*root, *path)
        return None

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> engines_base.EnginePlan:
        paths = [self.main.path, *self.context.recorded]
        resolved = self.context.files.resolve(self.drop_in)
        if resolved not in paths and self._belongs(resolved):
            paths.append(resolved)
        # A record of one file proves that this collection did not touch the others.
        unknown = not self.context.keep_unrecorded and all(self.files.edit(path).record is None for path in paths)
        # The main file comes last, because the imports that it keeps depend on what remains of the other files.
        for path in reversed(paths):
            edit = self.files.edit(path)
            if edit.record is not None:
                kept = (
                    (containerd_runtimes.VERSION, containerd_config.IMPORTS)
                    if edit is self.main and self.imports.needed()
                    else ()
                )
                _withdraw(edit, *kept)
            if unknown or _migrated(edit):
                self._remove_unrecorded(edit)
        self.imports.remove_own()
        self._repair_default()
        return self._plan(None)

    def _belongs(self, drop_in: str) -> bool:
        """Return whether a drop-in belongs to this configuration and not to another one."""
        record = self.files.edit(drop_in).record
        if record is not None:
            return record.main == self.main.path
        return any(file.path == drop_in for file in self.current.files)

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        """Remove runtimes that run NVIDIA's programs from a file whose earlier content is not recorded."""
        # Imported here because only a removal needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            nvidia_files,
        )

        found = nvidia_files.containerd_drop_in(edit.document, self.main.document) if edit is not self.main else None
        if found is not None and found.is_alone(edit.document):
            without = self.reads.of(self.context, {**self.files.overlay(), edit.path: None})
            # The rest of the drop-in is a copy, which would hide later changes of the main file. A drop-in that is
            # imported by its plain name has to stay, because containerd does not start without it.
            edit.removed = not without.missing
            if edit.removed:
                return
        for root in dict.fromkeys(containerd_config.CRI_TABLE.values()):
            runtimes = edit.document.value(*root, *containerd_config.RUNTIMES)
            for name, entry in (runtimes if isinstance(runtimes, dict) else {}).items():
                if engines_base.is_nvidia_program(containerd_config.program_of(entry)):
                    edit.document = edit.document.delete((*root, *containerd_config.RUNTIMES, name), prune=True)
            edit.document = without_legacy(edit.document, root)

    def _repair_default(self) -> None:
        """Repair a default runtime that is no longer defined, and keep runc defined where other runtimes would hide it.

        Without this, the CRI would not start.
        """
        after = self._after()
        root, runtimes, default = after.cri_path, after.runtimes(), after.default_runtime()
        edit = self.files.edit(after.holder(containerd_config.DEFAULT))
        lost = default is not None and default not in runtimes and default in self.current.runtimes()
        if lost and not _as_recorded(edit):
            holding = (
                place for place in after.roots(edit.document) if edit.document.has(*place, *containerd_config.DEFAULT)
            )
            edit.document = self._mended_default(edit, next(holding, root), runtimes)
            default = self._after().default_runtime()
            self.warnings.append(
                f"The default runtime is no longer defined: it is now {default or containerd_runtimes.BUILTIN_DEFAULT}."
            )
        edit = self.files.edit(after.source())
        entry = (*containerd_config.RUNTIMES, containerd_runtimes.BUILTIN_DEFAULT, "runtime_type")
        typed = toml_plan.lookup(after.cri(), entry), toml_plan.lookup(self.current.cri(), entry)
        before = edit.original.value(*root, *containerd_config.RUNTIMES) or {}
        lost = (
            bool(runtimes)
            and typed[0] is None
            and (default or containerd_runtimes.BUILTIN_DEFAULT) == containerd_runtimes.BUILTIN_DEFAULT
        )
        ours = typed[1] is not None and (not before or containerd_runtimes.BUILTIN_DEFAULT in before)
        if lost and ours and not after.merges and not _as_recorded(edit):
            edit.document = edit.document.set(root + entry, containerd_runtimes.BUILTIN_TYPE)
            self.warnings.append(
                f"runtimes.{containerd_runtimes.BUILTIN_DEFAULT} stays in {edit.path}: without it the other runtimes"
                f" there would hide the"
                " built-in one, and the CRI would not start."
            )

    @staticmethod
    def _mended_default(
        edit: toml_plan.TomlEdit, root: toml_plan.KeyPath, runtimes: t.Mapping[str, t.Any]
    ) -> toml_document.TomlDocument:
        for former in containerd_config.CRI_TABLE.values():
            known = edit.original.value(*former, *containerd_config.DEFAULT)
            if isinstance(known, str) and known in runtimes:
                return edit.document.set((*root, *containerd_config.DEFAULT), known)
        return edit.document.delete((*root, *containerd_config.DEFAULT), prune=True)

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_types(self, target: toml_plan.TomlEdit, others: containerd_config.ContainerdFiles) -> None:
        document = target.document
        for checked in (document, *(file.document for file, _table in others.tables())):
            for root in others.roots(checked):
                _check_settings(checked, root)
        if target is not self.main and not target.owns(containerd_runtimes.VERSION):
            version = document.value("version")
            if version not in (None, others.version) and not (
                others.migrates and version in containerd_config.CRI_TABLE
            ):
                raise document.error(
                    ("version",),
                    f"version = {version} beside version = {others.version} in {self.main.path}: containerd would lose"
                    " the settings of one of them",
                    "Move the file away if an earlier tool left it, or give both the same version.",
                )

    def _check_effective_config(self, request: engines_base.RuntimeRequest) -> None:
        """Raise NvidiaError if another file overrides a planned entry, or if the CRI would not start."""
        after = self._after()
        containerd_config.check_order(after)
        runtimes = after.runtimes()
        for name, program in request.runtimes().items():
            found = containerd_config.program_of(runtimes.get(name))
            if not isinstance(found, str) or not self.context.same_program(found, program):
                raise errors.NvidiaError(
                    f"{self._overriding_file(after, (*containerd_config.RUNTIMES, name))}: it takes precedence and"
                    f" would hide"
                    f" the runtime {name}."
                    " Remove its entry for this runtime, or its settings for the CRI, then run this again."
                )
        # The table default_runtime has precedence over default_runtime_name.
        if after.legacy_default() is None:
            self._prove_named_default(request, after, runtimes)
        for path in after.mismatched_versions():
            self.warnings.append(
                f"{path} has settings for the CRI in another version of the format than {self.main.path}. containerd"
                " ignores one of the two; give both the same version."
            )

    def _prove_named_default(
        self,
        request: engines_base.RuntimeRequest,
        after: containerd_config.ContainerdFiles,
        runtimes: t.Mapping[str, t.Any],
    ) -> None:
        default = after.default_runtime()
        default = containerd_runtimes.BUILTIN_DEFAULT if default is None else default
        if request.set_as_default and default != request.runtime_name:
            raise errors.NvidiaError(
                f"{self._overriding_file(after, containerd_config.DEFAULT)}: it takes precedence and makes {default}"
                f" the"
                f" default runtime. Remove"
                " default_runtime_name there, then run this again."
            )
        if default not in runtimes and not (default == containerd_runtimes.BUILTIN_DEFAULT and after.merges):
            raise errors.NvidiaError(
                f"{self._overriding_file(after, containerd_config.DEFAULT)}: default_runtime_name is {default!r}, but"
                f" there is"
                f" no runtime of this"
                " name: containerd would start with its CRI dead. Define it, or name another default, then run this"
                " again."
            )

    def _overriding_file(self, after: containerd_config.ContainerdFiles, entry: toml_plan.KeyPath) -> str:
        tables = [
            file.path
            for file, table in after.tables()
            if not after.merges or toml_plan.lookup(table, entry) is not None
        ]
        return tables[-1] if tables else self.main.path

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, drop_in: str | None) -> engines_base.EnginePlan:
        files = tuple(
            self.imports.counted(file) if file.path == self.main.path else file
            for file in self.files.planned([file.path for file in self.current.files])
        )
        after = self._after()
        # containerd reads its files only when it starts, and a reload signal would end it.
        action = engines_base.Action.RESTART if any(file.changed for file in files) else engines_base.Action.NONE
        return engines_base.EnginePlan(
            files, configured_state(after), action, tuple(self.warnings), drop_in, after.version
        )

    def _after(self) -> containerd_config.ContainerdFiles:
        return self.reads.of(self.context, self.files.planned_documents())


def configured_state(files: containerd_config.ContainerdFiles) -> engines_base.ConfiguredState:
    """Return runtimes, default runtime and CDI setting of a containerd that starts with these files."""
    runtimes = {
        name: {"path": containerd_config.program_of(entry), **entry}
        for name, entry in files.runtimes().items()
        if isinstance(entry, dict)
    }
    runtimes, default = with_legacy(runtimes, files)
    return engines_base.ConfiguredState(
        runtimes, default, _cdi_of(files), lists_runtimes=files.cri_disabled_in() is None
    )


def _cdi_of(files: containerd_config.ContainerdFiles) -> bool | None:
    version = files.engine_version
    if version is None or version < CDI_SINCE:
        return None
    written = toml_plan.lookup(files.cri(), containerd_runtimes.CDI)
    on = version >= CDI_BY_DEFAULT_SINCE
    return written if isinstance(written, bool) else on


def _withdraw(edit: toml_plan.TomlEdit, *kept: toml_plan.KeyPath) -> None:
    """Remove all entries of this collection except ``kept``. A version on which entries of others depend stays."""
    toml_plan.revert_own_entries(edit, kept.__contains__)
    bare = edit.before.has(*containerd_runtimes.VERSION) and not edit.document.has(*containerd_runtimes.VERSION)
    if bare and not _as_recorded(edit) and not containerd_config.has_no_versioned_settings(edit.document):
        edit.document = edit.before
        toml_plan.revert_own_entries(edit, {containerd_runtimes.VERSION, *kept}.__contains__)


def _as_recorded(edit: toml_plan.TomlEdit) -> bool:
    """Return whether the file has the content that it had before the first change."""
    return edit.record is not None and edit.document.to_bytes() == edit.record.original


def _migrated(edit: toml_plan.TomlEdit) -> bool:
    """Return whether another tool migrated the file to another version, which moved the entries of this collection."""
    roots = {path[:2] for path in edit.recorded() if path[:1] == ("plugins",)}
    return bool(roots) and not any(edit.before.has(*root) for root in roots)


def _check_settings(document: toml_document.TomlDocument, root: toml_plan.KeyPath) -> None:
    """Raise ConfigurationError for CRI settings whose type containerd does not accept."""
    for depth in range(1, len(root) + 1):
        toml_plan.require(document, root[:depth], dict, "Make it a table, or remove it.")
    toml_plan.require(document, (*root, *containerd_runtimes.CDI), bool, "Write true or false without quotes.")
    toml_plan.require(document, root + containerd_config.DEFAULT, str, "Write the name of a runtime in quotes.")
    runtimes = toml_plan.require(document, root + containerd_config.RUNTIMES, dict, "Make it a table, or remove it.")
    for name in runtimes or {}:
        toml_plan.require(document, (*root, *containerd_config.RUNTIMES, name), dict, "Make it a table, or remove it.")
        toml_plan.require(
            document,
            (*root, *containerd_config.RUNTIMES, name, *containerd_config.PROGRAM),
            str,
            "Write the path in quotes.",
        )


def _begin(edit: toml_plan.TomlEdit, words: bytes) -> None:
    """Start a drop-in of this collection with ``words``, the comment that says what the file is."""
    text = edit.document.to_bytes()
    former = next((known for known in (SNAPSHOT, toml_plan.HEADER) if text.startswith(known)), b"")
    if (former or not text) and former != words:
        edit.fresh = words
        edit.document = toml_document.TomlDocument.from_bytes(edit.path, words + text[len(former) :])
