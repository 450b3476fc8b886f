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
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import plan as crio_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records


HOOK_MODE = "hook"
HOOKS_DIR = (*crio_config.RUNTIME, "hooks_dir")
# The default of CRI-O (crio.conf.d(5)).
_DEFAULT = nvidia_files.HOOK_FOLDERS[:1]

_ADVICE = "Make it an array of strings."
_DEPRECATED = (
    "config_mode: hook is deprecated, by NVIDIA since version 1.18 of the toolkit. Use config_mode: auto, which"
    " registers a runtime, or CDI."
)


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

    def present(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        """Return the plan with the hook if the request asks for it, else the plan of the runtimes without it."""
        if request.config_mode == HOOK_MODE:
            return self._with_hook(request)
        plan = self._without_hook(self.planner.present(request))
        for path in nvidia_files.nvidia_hooks(self.context.files, self.folders(), plan.files):
            plan = plan._replace(warnings=(*plan.warnings, _doubled(path)))
        return plan

    def absent(self) -> engines_base.EnginePlan:
        # A record of a hook proves that this collection registered no runtime.
        return self._without_hook(self.planner.withdrawn() if self.records else self.planner.absent())

    def _with_hook(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        _check(request)
        folder = self._folder()
        there = bool(self.context.files.glob(folder))
        hook = self._hook(folder, request.runtime_dir)
        plan = self._without_hook(self.planner.withdrawn(), hook.path)
        names = [name for name, program in plan.state.paths().items() if engines_base.is_nvidia_program(program)]
        if names:
            self.warnings.append(
                f"NVIDIA's runtimes ({', '.join(names)}) are registered by others. A pod that uses one of them gets its"
                " GPUs twice, for the hook runs too. Remove them."
            )
        warnings = (_DEPRECATED, *plan.warnings, *self.warnings)
        action = engines_base.Action.NONE if there else engines_base.Action.RESTART
        return plan._replace(
            files=(hook, *plan.files),
            action=max(plan.action, action),
            warnings=(*warnings, *map(_doubled, self._other_hooks(plan, hook))),
            drop_in_path=hook.path,
        )

    def _without_hook(self, plan: engines_base.EnginePlan, kept: str | None = None) -> engines_base.EnginePlan:
        """Return ``plan`` extended by restoring all hooks of this collection, except the one at ``kept``."""
        gone = [self._given_back(record) for record in self.records if record.path != kept]
        warnings = [doubt for _file, doubt in gone if doubt]
        files = tuple(file for file, _doubt in gone)
        return plan._replace(files=plan.files + files, warnings=(*plan.warnings, *warnings))

    def _given_back(self, record: core_records.OriginalFile) -> tuple[core_plan.PlannedFile, str]:
        return nvidia_files.restore_hook(record, self.context.files.read(record.path))

    def _other_hooks(self, plan: engines_base.EnginePlan, hook: core_plan.PlannedFile) -> list[str]:
        files = self.context.files
        found = nvidia_files.nvidia_hooks(files, self.folders(), (*plan.files, hook))
        return [path for path in found if files.resolve(path) != hook.path]

    # -- the file ------------------------------------------------------------------------------------------------

    def _hook(self, folder: str, directory: str) -> core_plan.PlannedFile:
        files, program = self.context.files, posixpath.join(directory, nvidia_files.HOOK_PROGRAM)
        if not files.glob(program):
            raise errors.NvidiaError(
                f"{program} is not on this host, and CRI-O does not start with a hook whose program is missing. Install"
                " the NVIDIA Container Toolkit first, or set runtime_dir; nothing was changed."
            )
        path = files.resolve(f"{folder}/{nvidia_files.HOOK_NAME}")
        before, after = files.read(path), nvidia_files.hook_text(directory)
        if before is not None and not nvidia_files.is_nvidia_hook(before):
            raise errors.NvidiaError(
                f"{path} is not NVIDIA's hook, and is not replaced. Move it away, then run this again; nothing was"
                " changed."
            )
        if before is not None and nvidia_files.read_hook(before) == nvidia_files.read_hook(after):
            after = before
        return core_plan.PlannedFile(path, before, after, {nvidia_files.WRITTEN: program})

    def folders(self) -> list[str]:
        """Return the absolute paths of the directories in which CRI-O reads hooks, ignoring invalid values."""
        unit, value = self.context.unit, self.planner.current.value(HOOKS_DIR)
        flagged = unit.flag_values("--hooks-dir") if unit is not None else []
        named = [word for words in flagged for word in words.split(",")] if flagged else value
        known = named if isinstance(named, list) else _DEFAULT
        return [posixpath.normpath(name) for name in known if isinstance(name, str) and name.startswith("/")]

    def _folder(self) -> str:
        """Return the default hook directory if CRI-O reads it, else the last one that CRI-O reads.

        Raises NvidiaError if CRI-O reads no hook directory, or if a hook of the same name in a later directory has
        precedence.
        """
        current = self.planner.current
        for file in current.files:
            if not all(
                isinstance(name, str) for name in toml_plan.require(file.document, HOOKS_DIR, list, _ADVICE) or ()
            ):
                raise file.document.error(HOOKS_DIR, f"{'.'.join(HOOKS_DIR)} holds what is no string", _ADVICE)
        folders = self.folders()
        if not folders:
            definer = current.definer(HOOKS_DIR)
            place = definer.path if definer is not None else "The unit"
            raise errors.NvidiaError(
                f"{place}: hooks_dir names no folder, so CRI-O runs no hooks. Name {_DEFAULT[0]} there, or use"
                " config_mode: auto."
            )
        usual, files = _DEFAULT[0], self.context.files
        folder = usual if usual in folders else folders[-1]
        for later in folders[folders.index(folder) + 1 :]:
            if later != folder and files.glob(f"{later}/{nvidia_files.HOOK_NAME}"):
                raise errors.NvidiaError(
                    f"{later}/{nvidia_files.HOOK_NAME} takes the place of {folder}/{nvidia_files.HOOK_NAME}, for CRI-O"
                    f" reads it later. Remove it,"
                    " then run this again; nothing was changed."
                )
        return folder


def _check(request: engines_base.RuntimeRequest) -> None:
    """Raise NvidiaError for options that have no effect without a registered runtime."""
    given = {
        "set_as_default": bool(request.set_as_default),
        "extra_modes": bool(request.extra_modes),
        "drop_in_path": request.drop_in_path is not None,
        "runtime_type": request.runtime_type is not None,
        "runtime_options": bool(request.runtime_options),
        "container_annotations": bool(request.container_annotations),
    }
    unfit = [name for name, is_given in given.items() if is_given]
    if unfit:
        raise errors.NvidiaError(
            f"config_mode: hook registers no runtime, so {' and '.join(unfit)} would have no effect. Leave it out, or"
            " use config_mode: auto."
        )


def _doubled(path: str) -> str:
    return (
        f"{path} runs NVIDIA's hook for every container beside that, so a container that asks for GPUs gets them twice."
        " Remove it, for example with purge_legacy: true."
    )
