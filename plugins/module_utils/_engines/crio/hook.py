# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The deprecated hook mode of CRI-O: an OCI hook instead of a runtime.

Files other than hooks are left to ``plan``. NVIDIA deprecates the mode in nvidia-ctk since 1.18. CRI-O watches its
hook directories (cmd/crio/main.go), but only those that exist when it starts: older releases skip a missing directory,
newer ones create it at that moment (pkg/config/config.go).
"""

from __future__ import annotations

import posixpath

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import plan as crio_plan

HOOK_MODE = "hook"
HOOKS_DIR = (*crio_config.RUNTIME, "hooks_dir")
# The default of CRI-O (crio.conf.d(5)).
DEFAULT_DIRS = nvidia_files.HOOK_FOLDERS[:1]


class CrioHooks:
    """The hooks of one CRI-O. CrioPlanner plans all other files."""

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.records = nvidia_files.hook_records(context.files, context.recorded)
        hooks = {record.path for record in self.records}
        others = tuple(path for path in context.recorded if path not in hooks)
        self.planner = crio_plan.CrioPlanner(context._replace(recorded=others))
        self.warnings: list[str] = []

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        """Return the plan with the hook if the request asks for it, else the plan of the runtimes without it."""
        if request.config_mode == HOOK_MODE:
            return self._with_hook(request)
        plan = self._without_hook(self.planner.present(request))
        for path in nvidia_files.nvidia_hooks(self.context.files, self.hook_dirs(), plan.files):
            plan = plan._replace(warnings=(*plan.warnings, _duplicate_warning(path)))
        return plan

    def absent(self) -> engines_base.EnginePlan:
        # A record of a hook proves that this collection registered no runtime.
        return self._without_hook(self.planner.absent_recorded() if self.records else self.planner.absent())

    def _with_hook(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        _check(request)
        folder = self._target_dir()
        exists = bool(self.context.files.glob(folder))
        hook = self._hook(folder, request.runtime_dir)
        self.planner.warn_about_cdi(request)
        plan = self._without_hook(self.planner.absent_recorded(), hook.path)
        names = [name for name, program in plan.state.paths().items() if engines_base.is_nvidia_program(program)]
        if names:
            self.warnings.append(
                f"Another tool registered NVIDIA's runtimes ({', '.join(names)}). A pod that uses one of them gets its"
                " GPUs twice, because the hook runs too. Remove these runtimes."
            )
        files = self.context.files
        nvidia_hooks = nvidia_files.nvidia_hooks(files, self.hook_dirs(), (*plan.files, hook))
        duplicates = [path for path in nvidia_hooks if files.resolve(path) != hook.path]
        deprecated = (
            f"{errors.option:config_mode}: hook is deprecated. NVIDIA deprecated it in version 1.18 of the toolkit. Use"
            f" {errors.option:config_mode}: auto, which registers a runtime, or CDI."
        )
        warnings = (deprecated, *plan.warnings, *self.warnings, *map(_duplicate_warning, duplicates))
        return plan._replace(
            files=(hook, *plan.files),
            action=max(plan.action, engines_base.Action.NONE if exists else engines_base.Action.RESTART),
            warnings=warnings,
            drop_in_path=hook.path,
        )

    def _without_hook(self, plan: engines_base.EnginePlan, kept: str | None = None) -> engines_base.EnginePlan:
        """Return ``plan`` extended by restoring all hooks of this collection, except the one at ``kept``."""
        restored = [
            nvidia_files.restore_hook(record, self.context.files.read(record.path))
            for record in self.records
            if record.path != kept
        ]
        warnings = [warning for _file, warning in restored if warning]
        files = tuple(file for file, _warning in restored)
        return plan._replace(files=plan.files + files, warnings=(*plan.warnings, *warnings))

    # -- the file ------------------------------------------------------------------------------------------------

    def _hook(self, folder: str, directory: str) -> core_plan.PlannedFile:
        files, program = self.context.files, posixpath.join(directory, nvidia_files.HOOK_PROGRAM)
        if not files.glob(program):
            raise errors.NvidiaError(
                f"{program} does not exist, and CRI-O does not start with a hook whose program is missing. Install the"
                f" NVIDIA Container Toolkit first, or correct {errors.option:runtime_dir}."
            )
        path = files.resolve(f"{folder}/{nvidia_files.HOOK_NAME}")
        before, after = files.read(path), nvidia_files.hook_text(directory)
        if before is not None and not nvidia_files.is_nvidia_hook(before):
            raise errors.NvidiaError(
                f"{path} is not NVIDIA's hook, and this collection does not replace it. Move the file away."
            )
        if before is not None and nvidia_files.read_hook(before) == nvidia_files.read_hook(after):
            after = before
        return core_plan.PlannedFile(path, before, after, {nvidia_files.WRITTEN: program})

    def hook_dirs(self) -> list[str]:
        """Return the absolute paths of the directories in which CRI-O reads hooks, ignoring invalid values."""
        flags = self._flags()
        paths = [path for flag in flags for path in flag.split(",")] if flags else self.planner.current.value(HOOKS_DIR)
        return [
            posixpath.normpath(path)
            for path in (paths if isinstance(paths, list) else DEFAULT_DIRS)
            if isinstance(path, str) and path.startswith("/")
        ]

    def _flags(self) -> list[str]:
        return self.context.unit.flag_values("--hooks-dir") if self.context.unit is not None else []

    def _target_dir(self) -> str:
        """Return the default hook directory if CRI-O reads it, else the last one that CRI-O reads.

        Raises NvidiaError if CRI-O reads no hook directory, or if a hook of the same name in a later directory has
        precedence.
        """
        current = self.planner.current
        for file in current.files:
            crio_config.check_strings(file.document, HOOKS_DIR)
        folders = self.hook_dirs()
        if not folders:
            # A flag replaces the setting of the files.
            defining = None if self._flags() else current.defining_file(HOOKS_DIR)
            place = f"{defining.path}: hooks_dir" if defining is not None else "The flag --hooks-dir of the unit"
            raise errors.NvidiaError(
                f"{place} contains no absolute path, so CRI-O runs no hooks. Add {DEFAULT_DIRS[0]}, or use"
                f" {errors.option:config_mode}: auto."
            )
        folder = DEFAULT_DIRS[0] if DEFAULT_DIRS[0] in folders else folders[-1]
        name = nvidia_files.HOOK_NAME
        for later in folders[folders.index(folder) + 1 :]:
            if later != folder and self.context.files.glob(f"{later}/{name}"):
                raise errors.NvidiaError(
                    f"{later}/{name} overrides {folder}/{name}, because CRI-O reads {later} later. Remove"
                    f" {later}/{name}."
                )
        return folder


def _check(request: engines_request.RuntimeRequest) -> None:
    """Raise NvidiaError for options that have no effect without a registered runtime."""
    useless = request.given({"set_as_default", "drop_in_path", *engines_facts.TABLES})
    if useless:
        raise errors.NvidiaError(
            f"{useless} would have no effect, because {errors.option:config_mode}: hook registers no"
            f" runtime. Remove these options, or use {errors.option:config_mode}: auto."
        )


def _duplicate_warning(path: str) -> str:
    return (
        f"{path} runs NVIDIA's hook for every container too, so a container that requests GPUs gets them twice. Remove"
        f" this file, for example with {errors.option:purge_legacy}: true."
    )
