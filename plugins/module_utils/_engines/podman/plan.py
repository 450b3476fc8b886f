# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the drop-in that makes Podman read the directories of CDI specifications, and the removal of NVIDIA's OCI hook.

This file writes nothing. `config.py` reads Podman's configuration files.
"""

from __future__ import annotations

import contextlib
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (
    cdi_support,
    flavors,
    nvidia_files,
    toml_plan,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import config as podman_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

# The first release in which the setting cdi_spec_dirs has an effect. Earlier releases accept and ignore it (podman
# #25717, libpod/container_internal_common.go). First 5.5.0, last without it 5.4.2.
CDI_DIRS_SINCE = (5, 5)


class PodmanPlanner:
    """Makes one plan for the Podman of a host."""

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.files = context.files
        self.toml = toml_plan.TomlFiles(context)
        folder, name = posixpath.split(podman_config.DROP_IN)
        self.drop_in = posixpath.join(self.files.resolve(folder), name)
        self.warnings: list[str] = []

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        self._check(request)
        version = self.context.version
        default = () if version is None else default_folders(version)
        if version is None:
            self.warnings.append(
                "Podman is not configured, because its version is unknown. The directories in which Podman searches"
                f" for CDI specifications depend on the version. Set {errors.option:engine_version}."
            )
        elif not default:
            self.warnings.append(
                f"Podman is not configured, because Podman {core_text.dotted(version)} does not support CDI, with which"
                f" containers get GPUs. Update it to {cdi_support.first_release('podman')} or newer."
            )
        else:
            self._write_folders(version, default)
        folders = self._planned()
        hooks = self._hooks() if default else []
        written = any(file.after is not None for file in folders)
        state = configured_state(version)
        return engines_base.EnginePlan(
            (*folders, *hooks),
            state,
            engines_base.Action.NONE,
            tuple(self.warnings),
            podman_config.DROP_IN if written else None,
        )

    def _check(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError for settings that Podman does not support."""
        if self.context.path != self.files.resolve(podman_config.MAIN):
            raise errors.NvidiaError(
                f"{errors.option:config_path} is not supported for podman, which always reads {podman_config.MAIN} and"
                " its drop-ins. Remove the option."
            )
        request.refuse_toml_settings("podman")
        names = request.given({"set_as_default", "extra_modes"}, config_mode=request.config_mode != "auto")
        if names:
            raise errors.NvidiaError(
                f"Unsupported for podman: {names}, because no runtime is registered. Remove the options."
                " Containers get GPUs with --device nvidia.com/gpu=all."
            )
        if request.enable_cdi is False:
            raise errors.NvidiaError(
                f"{errors.option:enable_cdi}: false is not supported for podman, where CDI is always on. Remove the"
                " option."
            )

    def _write_folders(self, version: tuple[int, ...], default: t.Sequence[str]) -> None:
        """Plan the drop-in with which Podman reads all of CDI_SPEC_DIRS, or its removal if Podman does not need it."""
        if version < CDI_DIRS_SINCE:
            # This release ignores the setting, so the files need not be read. Only entries of earlier runs are removed.
            if self.files.record(self.drop_in) is not None:
                toml_plan.revert_own_entries(self.toml.edit(self.drop_in))
            return
        edit = self.toml.edit(self.drop_in)
        others = podman_config.ContainersConf(self.files, version, default, edit.original)
        if self._missing(others.cdi_dirs().folders):
            if edit.content is None:
                edit.document = toml_document.TomlDocument.from_bytes(edit.path, toml_plan.HEADER)
            before = others.cdi_dirs(before=podman_config.DROP_IN)
            missing = self._missing(before.folders)
            folders = missing if before.appends else _in_order(before.folders, missing)
            toml_plan.write_table(edit, podman_config.CDI_DIRS[:1], {podman_config.CDI_DIRS[1]: folders})
            self._check_effective_config(podman_config.ContainersConf(self.files, version, default, edit.document))
        toml_plan.revert_own_entries(edit)

    def _missing(self, folders: t.Iterable[str]) -> list[str]:
        """Return those of CDI_SPEC_DIRS that are not in ``folders``. Paths are compared with links resolved."""
        real = {self.files.resolve(folder) for folder in folders}
        return [folder for folder in core_constants.CDI_SPEC_DIRS if self.files.resolve(folder) not in real]

    def _check_effective_config(self, after: podman_config.ContainersConf) -> None:
        """Raise NvidiaError if, despite the drop-in, another file keeps Podman from reading all of CDI_SPEC_DIRS."""
        missing = self._missing(after.cdi_dirs().folders)
        overriding = after.overriding_file(podman_config.DROP_IN)
        if missing and overriding is not None:
            raise errors.NvidiaError(
                f"Podman reads {overriding} instead of {podman_config.DROP_IN}, because both have the same file name."
                f" Rename {overriding}, then run this task again."
            )
        replacing = after.replacing_file()
        if missing and replacing is not None:
            unread = " and ".join(missing)
            raise replacing.document.error(
                podman_config.CDI_DIRS,
                f"this entry overrides {podman_config.DROP_IN}, so Podman does not read {unread}",
                f"Add {unread} to the entry, or remove it, then run this task again.",
            )

    def _hooks(self) -> list[core_plan.PlannedFile]:
        """Return the planned removal of NVIDIA's hook.

        With CDI, the hook injects the GPUs a second time. If its program is missing, no container starts.
        """
        planned: dict[str, core_plan.PlannedFile] = {}
        for path in nvidia_files.HOOK_PATHS:
            real = self.files.resolve(path)
            content = self.files.read(real)
            if content is None:
                continue
            if self._is_crio_hook(real):
                self.warnings.append(
                    f"{path} was kept, because CRI-O is configured with {errors.option:config_mode}: hook. Podman runs"
                    " the hook too. The hook adds GPUs to every container for which NVIDIA_VISIBLE_DEVICES is set."
                )
            elif nvidia_files.is_nvidia_hook(content) and self._crio_may_need_hook():
                self.warnings.append(
                    f"{path} was kept, because CRI-O on this host may need the hook: no NVIDIA runtime was found in"
                    " the files of CRI-O. Podman runs the hook in addition to CDI. Register a runtime with"
                    f" {errors.option:engine}: crio, then run this task again, or remove the hook with"
                    f" {errors.option:purge_legacy}: true."
                )
            elif nvidia_files.is_nvidia_hook(content):
                planned[real] = nvidia_files.plan_hook_removal(real, content)
            else:
                self.warnings.append(
                    f"{path} was kept, because it does not run NVIDIA's hook program. Podman reads this file as an OCI"
                    " hook. Remove it if it is not needed."
                )
        for path in nvidia_files.nvidia_hooks(self.files, planned=planned.values()):
            if posixpath.basename(path) != nvidia_files.HOOK_NAME:
                self.warnings.append(
                    f"{path} makes Podman run NVIDIA's hook program in addition to CDI. It was kept, because NVIDIA's"
                    f" tools use another file name ({nvidia_files.HOOK_NAME}). Remove it if it is not needed."
                )
        if planned and not self._has_specification():
            self.warnings.append(
                f"This task removes {', '.join(planned)}, but {' and '.join(core_constants.CDI_SPEC_DIRS)} contain no"
                " CDI specification, so containers get no GPUs. Create a specification with nvidia_cdi_spec."
            )
        return list(planned.values())

    def _has_specification(self) -> bool:
        """Return whether there is any CDI specification."""
        patterns = (f"{folder}/*.{form}" for folder in core_constants.CDI_SPEC_DIRS for form in ("yaml", "json"))
        return any(self.files.glob(pattern) for pattern in patterns)

    def _is_crio_hook(self, path: str) -> bool:
        """Return whether this collection wrote the hook for CRI-O."""
        where = core_records.record_path("crio", path)
        with contextlib.suppress(errors.HostError):
            content = self.files.read(where)
            return content is not None and nvidia_files.WRITTEN in (
                core_records.OriginalFile.from_bytes(where, content).keys or {}
            )
        return False

    def _crio_may_need_hook(self) -> bool:
        """Return whether the host has CRI-O, and no NVIDIA runtime is found in the files at CRI-O's default paths."""
        row = flavors.FLAVORS["crio", core_constants.SYSTEM]
        programs = (f"{folder}/{name}" for folder in hostfs.SERVICE_PATH for name in row.programs)
        units = (f"{folder}/{name}" for folder in systemd_units.UNIT_DIRS for name in row.services)
        # row.paths is not used, because nvidia-ctk may have created this directory.
        is_present = any(self.files.glob(path) for path in (*programs, *units, crio_config.MAIN))
        if not is_present and not self.files.walk(crio_config.CONFIG_DIR):
            return False
        with contextlib.suppress(errors.NvidiaError):
            crio = crio_config.CrioFiles(
                self.files, self.files.resolve(crio_config.MAIN), self.files.resolve(crio_config.CONFIG_DIR)
            )
            return not any(
                engines_base.is_nvidia_program(entry.get(crio_config.PROGRAM)) for entry in crio.runtimes().values()
            )
        return True

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> engines_base.EnginePlan:
        hooks = nvidia_files.hook_records(self.files, self.context.recorded)
        restored = [nvidia_files.restore_hook(record, self.files.read(record.path)) for record in hooks]
        self.warnings += [warning for _file, warning in restored if warning]
        if self.files.read(self.drop_in) is not None or self.files.record(self.drop_in) is not None:
            toml_plan.revert_own_entries(self.toml.edit(self.drop_in))
        files = (*self._planned(), *(file for file, _warning in restored))
        return engines_base.EnginePlan(
            files, configured_state(self.context.version), engines_base.Action.NONE, tuple(self.warnings)
        )

    def _planned(self) -> list[core_plan.PlannedFile]:
        """Return the planned drop-in.

        Its mode is not derived from other files (``like``): rootless users must be able to read it, and it contains
        nothing but paths.
        """
        return [file._replace(like=()) for file in self.toml.planned()]


def default_folders(version: tuple[int, ...]) -> tuple[str, ...]:
    """Return the directories in which a Podman of ``version`` searches for CDI specifications by default."""
    return cdi_support.known_engine("podman", core_text.dotted(version)).folders


def configured_folders(files: engines_base.Files, version: tuple[int, ...] | None) -> tuple[str, ...] | None:
    """Return the directories of CDI specifications after all files.

    None if the version is unknown, or if a Podman of that version ignores the setting.

    Raises ConfigurationError if a file, or the setting in it, is not valid for Podman.
    """
    if version is None or version < CDI_DIRS_SINCE:
        return None
    return podman_config.ContainersConf(files, version, default_folders(version)).cdi_dirs().folders


def configured_state(version: tuple[int, ...] | None) -> engines_base.ConfiguredState:
    """Return the state that a plan for Podman leads to: no runtimes, and CDI if the release supports it."""
    return engines_base.ConfiguredState(
        cdi=None if version is None else bool(default_folders(version)), lists_runtimes=False
    )


def _in_order(present: t.Sequence[str], missing: t.Sequence[str]) -> list[str]:
    """Return both lists in ascending precedence.

    If /etc/cdi is missing, it comes first. If /var/run/cdi is missing, it comes last, because its specifications are
    generated at run time.
    """
    static = [folder for folder in missing if folder == core_constants.CDI_SPEC_DIRS[0]]
    return [*static, *present, *(folder for folder in missing if folder not in static)]
