# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the changes of containerd's files for present and absent.

This module reads through ``config`` and writes nothing to the host. ``runtimes`` edits the tables of the runtimes.
"""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import defaults as containerd_defaults
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import facts as containerd_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import imports as containerd_imports
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes

DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
# enable_cdi is true by default (internal/cri/config/config_unix.go): first 2.0.0, last without it 1.7.34. 2.4.0-beta.0
# still obeys false, although its removal was planned for 2.4 (internal/cri/server/container_create_linux.go).
CDI_SINCE, CDI_BY_DEFAULT_SINCE = containerd_facts.FACTS.cdi_newest[0][0], (2,)
# Before this release, an empty cdi_spec_dirs leaves CDI without any directory. Later ones use the usual directories
# (WithSpecDirs in pkg/cdi/spec-dirs.go of their CDI libraries; 1.7.24 and 2.1.9 report the empty list, run). First
# 2.4.0-beta.0, last without it 2.3.4.
_EMPTY_IS_USUAL_SINCE = (2, 4)
CONFIG_MODES = ("auto", "in_place", "drop_in")
# A type of containerd 1.x, whose options have no field BinaryName (runtime/linux/runctypes of 1.7.24).
OLD_LINUX_TYPE = "io.containerd.runtime.v1.linux"
_TABLE = "Make it a table, or remove it."
RESERVED = {
    ("runtime_type",): "runtime_type",
    containerd_options.PROGRAM: "runtime_dir",
    containerd_runtimes.ANNOTATIONS: "container_annotations",
}


class ContainerdPlanner:
    """One plan for all files of one containerd.

    ``files_class`` and ``writer_class`` read and write the files. Flavors with a containerd of their own replace them.
    ``drop_in`` is the default path of the drop-in. A containerd beside the system's has another one.
    """

    files_class: type[containerd_config.ContainerdFiles] = containerd_config.ContainerdFiles
    writer_class: type[containerd_runtimes.RuntimeTableWriter] = containerd_runtimes.RuntimeTableWriter
    drop_in = DROP_IN

    def __init__(self, context: engines_base.Context, drop_in: str | None = None) -> None:
        self.context = context
        self.drop_in = drop_in or self.drop_in
        self.files = toml_plan.TomlFiles(context)
        self.main = self.files.edit(context.path)
        self.current = self.files_class.of(context, self.files.overlay())
        self.warnings: list[str] = []
        self.imports = containerd_imports.Imports(context, self.files, self.warnings)
        self.own_values = {path: self._own_value(path) for path in (containerd_config.DEFAULT, containerd_runtimes.CDI)}

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        toml_plan.check_options(request.runtime_options, RESERVED, containerd_config.RUNTIME_FIELDS)
        self.current.check_names()
        disabled_in = self.current.cri_disabled_in()
        if disabled_in is not None:
            return self._plan_without_cri(request, disabled_in)
        writer = self._writer(request)
        writer.others.check_tables()
        containerd_runtimes.check_legacy(request, writer.others, self.warnings)
        self._write_version(writer)
        writer.write_runtimes(request)
        self._write_default(request, writer)
        self._write_cdi(request, writer)
        writer.remove_unwanted(request)
        in_place = writer.mode == "in_place"
        drop_in = writer.target.path if not in_place and writer.target.wanted else None
        if drop_in is not None:
            self._import(drop_in)
        self._repair_default()
        if drop_in is None:
            # The repair may have removed the last entry of an earlier drop-in.
            self._import(None)
        self._check_effective_config(request)
        plan = self._plan(None if in_place else request.drop_in_path or self.drop_in)
        warning = writer.snapshotter_warning() if plan.action is not engines_base.Action.NONE else ""
        return plan._replace(warnings=(*plan.warnings, warning)) if warning else plan

    def _write_version(self, writer: containerd_runtimes.RuntimeTableWriter) -> None:
        if writer.others.version > 1:
            writer.write_version(self.main)

    def _import(self, drop_in: str | None) -> None:
        """Import the drop-in, and remove the imports of this collection that are no longer needed."""
        self.imports.remove_own(drop_in)
        if drop_in is not None:
            self.imports.ensure(drop_in)

    def _writer(self, request: engines_request.RuntimeRequest) -> containerd_runtimes.RuntimeTableWriter:
        """Return the writer for the file that receives the entries of this collection."""
        drop_in = self.context.files.resolve(request.drop_in_path or self.drop_in)
        mode = self._mode(request.config_mode)
        if mode != "in_place" and drop_in == self.main.path:
            raise errors.NvidiaError(
                f"{errors.option:drop_in_path} {drop_in} is the main file. Set another {errors.option:drop_in_path},"
                f" or use {errors.option:config_mode}: in_place."
            )
        others = self._foreign_files(None if mode == "in_place" else drop_in)
        containerd_config.check_version(others)
        target = self.files.edit(others.target_path() if mode == "in_place" else drop_in)
        # The writer identifies the entries of this collection in it one by one.
        target.document = target.before
        if mode != "in_place" and not target.document.to_bytes():
            target.header = toml_plan.HEADER
            target.document = toml_document.TomlDocument.from_bytes(target.path, toml_plan.HEADER)
        self._check_types(target, others)
        return self.writer_class(self.context, others, target, mode)

    def _foreign_files(self, drop_in: str | None) -> containerd_config.ContainerdFiles:
        """Return all files without the entries of this collection, and without ``drop_in``."""
        for path in self.context.recorded:
            _revert_own_entries(self.files.edit(path))
        _revert_own_entries(self.main, containerd_runtimes.VERSION, containerd_config.IMPORTS)
        hidden = {} if drop_in is None else {drop_in: None}
        others = self.files_class.of(self.context, {**self.files.planned_documents(), **hidden})
        if containerd_config.version_too_new(others) and self.main.owns(containerd_runtimes.VERSION):
            # An earlier run wrote this version for a newer containerd.
            self.main.restore(containerd_runtimes.VERSION)
            others = self.files_class.of(self.context, {**self.files.planned_documents(), **hidden})
        return others

    def _plan_without_cri(self, request: engines_request.RuntimeRequest, path: str) -> engines_base.EnginePlan:
        message = (
            f"{path}: disabled_plugins disables containerd's CRI, as in Docker's packages. Kubernetes cannot use this"
            " containerd, so the file was not changed."
        )
        if request.cri_disabled == "fail":
            raise errors.NvidiaError(
                f"{message} Remove cri from disabled_plugins, or set {errors.option:cri_disabled}: warn."
            )
        if request.cri_disabled == "warn":
            self.warnings.append(message)
        state = configured_state(self.current)._replace(lists_runtimes=False)
        return engines_base.EnginePlan(
            (), state, engines_base.Action.NONE, tuple(self.warnings), None, self.current.version
        )

    def _mode(self, requested: str) -> str:
        """Return in_place or drop_in.

        Raises NvidiaError for a drop-in of a containerd that may replace all CRI settings by those of the drop-in.
        """
        if requested not in CONFIG_MODES:
            raise errors.NvidiaError(
                f"containerd does not support {errors.option:config_mode}: {requested}."
                f" Use one of {', '.join(CONFIG_MODES)}."
            )
        if requested == "auto":
            return "drop_in" if self.current.merges else "in_place"
        if requested == "drop_in" and not self.current.merges:
            version = self.context.version
            cause = (
                f"containerd {core_text.dotted(version)} replaces"
                if version is not None
                else "the version of containerd is unknown, and containerd 1.x replaces"
            )
            raise errors.NvidiaError(
                f"{self.main.path} was not changed, because {errors.option:config_mode} is drop_in, but {cause} all"
                f" settings of the CRI by those of a drop-in. Use {errors.option:config_mode}: in_place."
            )
        return requested

    def _write_default(
        self, request: engines_request.RuntimeRequest, writer: containerd_runtimes.RuntimeTableWriter
    ) -> None:
        name = request.default(self.own_values[containerd_config.DEFAULT])
        if name is None:
            return
        if request.use_legacy_config:
            writer.legacy_default(name)
            return
        if writer.others.legacy_default() is not None:
            raise errors.NvidiaError(
                f"{writer.others.target_path()}: in containerd 1.x the table default_runtime has precedence over"
                " default_runtime_name. Rename the table to runtimes.NAME and set default_runtime_name = NAME."
            )
        writer.write_setting(containerd_config.DEFAULT, name)

    def _write_cdi(
        self, request: engines_request.RuntimeRequest, writer: containerd_runtimes.RuntimeTableWriter
    ) -> None:
        version, enable = self.context.version, request.enable_cdi
        if enable == engines_request.CDI_AUTO and version is not None:
            # `containerd config default` of 1.7 prints enable_cdi = false, so false in a file is not a decision of the
            # user. Later versions print true. remove_unwanted() removes a value that only an earlier run wrote.
            if CDI_SINCE <= version < CDI_BY_DEFAULT_SINCE:
                writer.write_setting(containerd_runtimes.CDI, value=True)
            return
        if enable is None or enable == engines_request.CDI_AUTO:
            if self.own_values[containerd_runtimes.CDI] is not None:
                writer.write_setting(containerd_runtimes.CDI, self.own_values[containerd_runtimes.CDI])
            return
        if version is not None and version < CDI_SINCE:
            self.warnings.append(
                f"{errors.option:enable_cdi} has no effect: containerd {core_text.dotted(version)} does not support"
                f" CDI, which requires containerd {core_text.dotted(CDI_SINCE)} or newer."
            )
            return
        by_default = version is not None and version >= CDI_BY_DEFAULT_SINCE
        disabled = toml_plan.lookup(writer.others.cri(), containerd_runtimes.CDI) is False
        if not (enable and by_default) or disabled:
            writer.write_setting(containerd_runtimes.CDI, enable)

    def _own_value(self, path: toml_plan.KeyPath) -> t.Any:
        """Return the value of a setting that this collection wrote, in any file, or None."""
        for name in (self.main.path, *self.context.recorded):
            edit = self.files.edit(name)
            for root in containerd_config.CRI_TABLE.values():
                # The table default_runtime of this collection has precedence over default_runtime_name.
                legacy = (
                    containerd_runtimes.own_legacy_default(edit, root) if path == containerd_config.DEFAULT else None
                )
                if legacy is not None:
                    return legacy
                if edit.owns(root + path):
                    return edit.document.value(*root, *path)
        return None

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> engines_base.EnginePlan:
        planners = [*map(self._of_other_main, toml_plan.other_mains(self.files)), self]
        paths = [self.main.path, *self.context.recorded]
        resolved = self.context.files.resolve(self.drop_in)
        if resolved not in paths and self._belongs_to_main(resolved):
            paths.append(resolved)
        # A record of one file proves that this collection did not touch the others.
        unrecorded = not self.context.keep_unrecorded and all(self.files.edit(path).record is None for path in paths)
        mains = [planner.main.path for planner in planners]
        for path in reversed([path for path in paths if path not in mains]):
            self._revert(self.files.edit(path), unrecorded)
        # The main files come last, because the imports that they keep depend on what remains of the other files.
        for planner in planners:
            planner.remove_from_main(unrecorded)
        return self._plan(None)

    def _of_other_main(self, path: str) -> ContainerdPlanner:
        """Return the planner of another configuration of this containerd. Both plan the same files."""
        other = copy.copy(self)
        other.context = self.context.for_file(path)
        other.main = self.files.edit(path)
        other.current = self.files_class.of(other.context, self.files.overlay())
        other.imports = containerd_imports.Imports(other.context, self.files, self.warnings)
        return other

    def remove_from_main(self, unrecorded: bool) -> None:
        """Revert the main file after the files that it imports, and repair a default runtime that is gone."""
        self._revert_main(unrecorded)
        reverted = self.main.document
        self._repair_default()
        if self.main.document is reverted:
            # The repair may have removed the last entry of an imported file.
            self._revert_main(unrecorded)
        self.imports.remove_own()
        missing = self._missing_imports(self._after())
        self.warnings += [missing] if missing else []

    def _revert_main(self, unrecorded: bool) -> None:
        self.main.document = self.main.before
        kept = (containerd_runtimes.VERSION, containerd_config.IMPORTS) if self.imports.needed() else ()
        self._revert(self.main, unrecorded, *kept)

    def _revert(self, edit: toml_plan.TomlEdit, unrecorded: bool, *kept: toml_plan.KeyPath) -> None:
        """Remove the own entries except ``kept``, and ``unrecorded`` or migrated runtimes of NVIDIA."""
        if edit.record is not None:
            _revert_own_entries(edit, *kept)
        if unrecorded or _was_migrated(edit):
            self._remove_unrecorded(edit)

    def _belongs_to_main(self, drop_in: str) -> bool:
        """Return whether a drop-in belongs to this configuration and not to another one."""
        record = self.files.edit(drop_in).record
        if record is not None:
            return record.main == self.main.path
        return any(file.path == drop_in for file in self.current.files)

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        """Remove runtimes that run NVIDIA programs from a file without a record."""
        # Imported here because only a removal needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            nvidia_files,
        )

        found = nvidia_files.containerd_drop_in(edit.document, [self.main.document]) if edit is not self.main else None
        if found is not None and found.has_only_tool_entries(edit.document):
            without = self.files_class.of(self.context, {**self.files.overlay(), edit.path: None})
            # The rest of the drop-in is a copy, which would hide later changes of the main file. A drop-in that is
            # imported by its plain name has to stay, because containerd does not start without it.
            edit.removed = not without.missing
            if edit.removed:
                return
        self._remove_nvidia_runtimes(edit)

    def _remove_nvidia_runtimes(self, edit: toml_plan.TomlEdit, kept: str | None = None) -> list[toml_plan.KeyPath]:
        """Remove the runtimes that run NVIDIA programs, except the one with the name `kept`.

        Returns:
            The paths of the removed tables.
        """
        removed = []
        for root in dict.fromkeys(containerd_config.CRI_TABLE.values()):
            runtimes = edit.document.value(*root, *containerd_config.RUNTIMES)
            for name, entry in (runtimes if isinstance(runtimes, dict) else {}).items():
                program = containerd_options.program_of(entry)
                if name != kept and engines_base.is_nvidia_program(program):
                    removed.append((*root, *containerd_config.RUNTIMES, name))
                    edit.document = edit.document.delete(removed[-1], prune=True)
            edit.document = containerd_runtimes.remove_legacy_default(edit.document, root)
        return removed

    def _repair_default(self) -> None:
        containerd_defaults.DefaultRepair(self.files, self.current, self._after, self.warnings).repair()

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_types(self, target: toml_plan.TomlEdit, others: containerd_config.ContainerdFiles) -> None:
        document = target.document
        for checked in (document, *(file.document for file, _table in others.cri_tables())):
            for root in others.cri_paths(checked):
                _check_settings(checked, root)
        if target is not self.main and not target.owns(containerd_runtimes.VERSION):
            version = document.value("version")
            if version not in (None, others.version) and not (
                others.migrates and version in containerd_config.CRI_TABLE
            ):
                raise document.error(
                    ("version",),
                    f"the file has configuration version {version}, but {self.main.path} has version {others.version},"
                    " and containerd ignores the settings of one of them",
                    "Remove the file if no tool needs it, or convert both to the same version.",
                )

    def _check_effective_config(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError if another file overrides a planned entry, or if the CRI would not start."""
        after = self._after()
        containerd_imports.check_versions(after)
        after.check_names()
        missing = self._missing_imports(after)
        if missing:
            raise errors.NvidiaError(missing)
        runtimes = after.runtimes()
        for name, program in request.runtimes().items():
            self._check_type(after, name, runtimes.get(name), request.runtime_type)
            found = containerd_options.program_of(runtimes.get(name))
            if not isinstance(found, str) or not self.context.same_program(found, program):
                raise errors.NvidiaError(
                    f"{self._overriding_file(after, (*containerd_config.RUNTIMES, name))}: this file overrides the"
                    f" runtime {name}. Remove this runtime or all CRI settings from the file."
                )
        # The table default_runtime has precedence over default_runtime_name.
        if after.legacy_default() is None:
            self._check_default(request, after, runtimes)
        if after.engine_version is None and None not in after.both_tables(after.main):
            self.warnings.append(
                f"{self.main.path} and its imports contain CRI settings with the names of version 2 and of version 3."
                " Which of them have effect was not checked, because that depends on the release of containerd, which"
                f" is unknown. Set {errors.option:engine_version}."
            )
        for path in after.mismatched_versions():
            self.warnings.append(
                f"{path} has CRI settings for another configuration version than {after.version_file.path}, and"
                " containerd ignores one of them. Convert both to the same version."
            )

    def _missing_imports(self, after: containerd_config.ContainerdFiles) -> str:
        """Return the problem that imported files are missing, which `containerd config dump` of 2.x accepts, or ""."""
        if not after.missing:
            return ""
        return (
            f"{self.main.path} imports files that do not exist, and containerd would not start:"
            f" {', '.join(after.missing)}. Remove the imports, or create the files."
        )

    def _check_type(
        self, after: containerd_config.ContainerdFiles, name: str, entry: t.Any, requested: str | None
    ) -> None:
        """Raise NvidiaError for a runtime whose type does not use the option BinaryName.

        The option exists for runc only (getRuntimeOptionsType in pkg/cri/server/helpers.go of 1.6.20 and 1.7.24, and in
        internal/cri/config/config.go of 2.0.0 to 2.3.4).
        """
        found = toml_plan.lookup(entry, ("runtime_type",))
        is_requested = found == requested and found != OLD_LINUX_TYPE
        if found is not None and not is_requested and not self.writer_class.is_runc(str(found)):
            raise errors.NvidiaError(
                f"{self._overriding_file(after, (*containerd_config.RUNTIMES, name))}: the runtime {name} has the"
                f" {errors.option:runtime_type} {found}, which ignores the option {containerd_options.PROGRAM[-1]} and"
                f" so NVIDIA's program. Set {errors.option:runtime_type} to {containerd_runtimes.BUILTIN_TYPE}."
            )

    def _check_default(
        self,
        request: engines_request.RuntimeRequest,
        after: containerd_config.ContainerdFiles,
        runtimes: t.Mapping[str, t.Any],
    ) -> None:
        default = after.default_runtime()
        default = containerd_runtimes.BUILTIN_DEFAULT if default is None else default
        path = self._overriding_file(after, containerd_config.DEFAULT)
        if request.set_as_default and default != request.runtime_name:
            raise errors.NvidiaError(
                f"{path}: this file overrides default_runtime_name with {default!r}. Remove default_runtime_name from"
                " it."
            )
        if default not in runtimes and not (default == containerd_runtimes.BUILTIN_DEFAULT and after.merges):
            raise errors.NvidiaError(
                f"{path}: default_runtime_name is {default!r}, but no file defines this runtime, and containerd's CRI"
                " does not start without it. Define the runtime, or change default_runtime_name."
            )

    def _overriding_file(self, after: containerd_config.ContainerdFiles, entry: toml_plan.KeyPath) -> str:
        tables = [
            file.path
            for file, table in after.cri_tables()
            if not after.merges or toml_plan.lookup(table, entry) is not None
        ]
        return tables[-1] if tables else self.main.path

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, drop_in: str | None) -> engines_base.EnginePlan:
        files = tuple(
            self.imports.with_own_entries(file) if file.path == self.main.path else file
            for file in self.files.planned([file.path for file in self.current.files])
        )
        after = self._after()
        # containerd reads its files only when it starts, and SIGHUP ends it.
        action = engines_base.Action.RESTART if any(file.changed for file in files) else engines_base.Action.NONE
        return engines_base.EnginePlan(
            files, configured_state(after), action, tuple(self.warnings), drop_in, after.version
        )

    def _after(self) -> containerd_config.ContainerdFiles:
        return self.files_class.of(self.context, self.files.planned_documents())


def configured_state(files: containerd_config.ContainerdFiles) -> engines_base.ConfiguredState:
    """Return runtimes, default runtime and CDI setting of a containerd that starts with these files."""
    runtimes = {
        name: {"path": containerd_options.program_of(entry), **entry}
        for name, entry in files.runtimes().items()
        if isinstance(entry, dict)
    }
    runtimes, default = containerd_runtimes.add_legacy_default(runtimes, files)
    folders = cdi_folders(toml_plan.lookup(files.cri(), containerd_runtimes.CDI_FOLDERS), files.engine_version)
    return engines_base.ConfiguredState(
        runtimes,
        default,
        _effective_cdi(files, folders),
        lists_runtimes=files.cri_disabled_in() is None,
        cdi_folders=folders,
    )


def cdi_folders(value: t.Any, version: tuple[int, ...] | None) -> tuple[str, ...] | None:
    """Return the directories of CDI specifications in a ``value`` of cdi_spec_dirs, None if those of the release apply.

    Without any directory, CDI is off.
    """
    is_usual = value == [] and version is not None and version >= _EMPTY_IS_USUAL_SINCE
    return None if is_usual else engines_base.folders_in(value)


def _effective_cdi(files: containerd_config.ContainerdFiles, folders: tuple[str, ...] | None) -> bool | None:
    version = files.engine_version
    # The setting belongs to the CRI.
    if version is None or version < CDI_SINCE or files.cri_disabled_in() is not None:
        return None
    if folders == ():
        return False
    configured = toml_plan.lookup(files.cri(), containerd_runtimes.CDI)
    return configured if isinstance(configured, bool) else version >= CDI_BY_DEFAULT_SINCE


def _revert_own_entries(edit: toml_plan.TomlEdit, *kept: toml_plan.KeyPath) -> None:
    """Remove all own entries except ``kept``. The version stays if foreign entries depend on it."""
    toml_plan.revert_own_entries(edit, kept.__contains__)
    removed = edit.before.has(*containerd_runtimes.VERSION) and not edit.document.has(*containerd_runtimes.VERSION)
    if removed and not toml_plan.is_original(edit) and not containerd_config.has_no_versioned_settings(edit.document):
        edit.document = edit.before
        toml_plan.revert_own_entries(edit, {containerd_runtimes.VERSION, *kept}.__contains__)


def _was_migrated(edit: toml_plan.TomlEdit) -> bool:
    """Return whether another tool migrated the file to another version, which moved the entries of this collection."""
    roots = {path[:2] for path in edit.recorded() if path[:1] == ("plugins",)}
    return bool(roots) and not any(edit.before.has(*root) for root in roots)


def _check_settings(document: toml_document.TomlDocument, root: toml_plan.KeyPath) -> None:
    """Raise ConfigurationError for CRI settings whose type containerd does not accept."""
    for depth in range(1, len(root) + 1):
        toml_plan.require(document, root[:depth], dict, _TABLE)
    toml_plan.require(document, (*root, *containerd_runtimes.CDI), bool, "Write true or false without quotes.")
    toml_plan.require(document, root + containerd_config.DEFAULT, str, "Write the name of a runtime in quotes.")
    path = root + containerd_config.RUNTIMES
    for name in toml_plan.require(document, path, dict, _TABLE) or {}:
        toml_plan.require(document, (*path, name), dict, _TABLE)
        toml_plan.require(document, (*path, name, *containerd_options.PROGRAM), str, "Write the path in quotes.")
