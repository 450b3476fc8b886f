# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Edit the containerd template of MicroK8s.

The plan of containerd does most of the work; this module contains the differences. It does not write the file that
MicroK8s generates from the template.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document


MODES = ("auto", "in_place")
GENERATED_NAME = "containerd.toml"
RUNTIME, RUNTIME_TYPE = "${RUNTIME}", "${RUNTIME_TYPE}"
# The template of the snap contains a runtime of this name.
SHIPPED = core_constants.MAIN_PROGRAM
_SNAP_INFO = "/snap/microk8s/current/meta/snap.yaml"
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")


def placeholders(files: engines_base.Files, path: str) -> dict[str, str]:
    """Return the values that the start script substitutes for the placeholders of the template at ``path``.

    All links in ``path`` are resolved. The source is run-containerd-with-args of MicroK8s. The default runtime is runc;
    older releases use NVIDIA's runtime while the file var/lock/gpu exists. The runtime type depends on cgroup v1 or v2,
    so it is read from the file that was generated last.
    """
    arguments = posixpath.dirname(path)
    data = posixpath.dirname(arguments)
    revision = posixpath.basename(data)
    default, kind = _generated(files, f"{arguments}/{GENERATED_NAME}")
    # A user or another tool may have written another name into the template and removed it since.
    if default not in (containerd_runtimes.BUILTIN_DEFAULT, SHIPPED):
        default = SHIPPED if files.glob(f"{data}/var/lock/gpu") else containerd_runtimes.BUILTIN_DEFAULT
    return {
        RUNTIME: default,
        RUNTIME_TYPE: kind
        if isinstance(kind, str) and not _PLACEHOLDER.search(kind)
        else containerd_runtimes.BUILTIN_TYPE,
        "${SNAP}": f"/snap/microk8s/{revision}",
        "${SNAP_DATA}": data,
    }


def _generated(files: engines_base.Files, path: str) -> tuple[str | None, t.Any]:
    """Return the default runtime and the type of runc in the file that was generated last."""
    try:
        if files.glob(path):
            made = containerd_config.ContainerdFiles(files, path, None)
            return made.default_runtime(), toml_plan.lookup(
                made.runtimes().get(containerd_runtimes.BUILTIN_DEFAULT), ("runtime_type",)
            )
    except (errors.ConfigurationError, errors.HostError):
        # MicroK8s recreates the file at each start.
        pass
    return None, None


class TemplateFiles(containerd_config.ContainerdFiles):
    """The template. Values for the placeholders are those of the start script."""

    def __init__(
        self,
        files: engines_base.Files,
        path: str,
        engine_version: tuple[int, ...] | None,
        overlay: t.Mapping[str, toml_document.TomlDocument | None] | None = None,
    ) -> None:
        super().__init__(files, path, engine_version, overlay)
        self.placeholders = placeholders(files, self.files[0].path)

    def default_runtime(self) -> str | None:
        found = super().default_runtime()
        return found if found is None else str(self.filled(found))

    def filled(self, value: t.Any) -> t.Any:
        """Return ``value`` with the placeholders replaced."""
        if isinstance(value, dict):
            return {name: self.filled(entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [self.filled(entry) for entry in value]
        if isinstance(value, str):
            return _PLACEHOLDER.sub(lambda match: self.placeholders.get(match.group(), match.group()), value)
        return value

    def filled_state(self, state: engines_base.ConfiguredState) -> engines_base.ConfiguredState:
        return state._replace(runtimes=self.filled(dict(state.runtimes)))


class TemplateWriter(containerd_runtimes.RuntimeTableWriter):
    """A writer for the runtimes in the template."""

    def _is_runc(self, kind: str) -> bool:
        return kind == RUNTIME_TYPE or super()._is_runc(kind)


class TemplatePlanner(containerd_plan.ContainerdPlanner):
    """One plan for the template of one MicroK8s."""

    files_class = TemplateFiles
    writer_class = TemplateWriter

    def present(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        self._check(request)
        if self.context.content is None:
            raise errors.NvidiaError(f"{self.main.path} is not there. Install MicroK8s first, which brings it along.")
        if b"confinement: strict" in (self._snap_info() or b""):
            self.warnings.append(
                "This MicroK8s is strictly confined and cannot run programs of the host, NVIDIA's runtimes among them."
                " Install it from a channel with classic confinement."
            )
        return self._filled(super().present(request))

    def absent(self) -> engines_base.EnginePlan:
        return self._filled(super().absent())

    def _check(self, request: engines_base.RuntimeRequest) -> None:
        """Raise NvidiaError for options that MicroK8s does not support."""
        if request.config_mode not in MODES:
            raise errors.NvidiaError(
                f"MicroK8s has no config_mode: {request.config_mode}, for all its containerd reads is made from"
                f" {self.main.path}. Use one of {', '.join(MODES)}."
            )
        if request.drop_in_path is not None:
            raise errors.NvidiaError("MicroK8s has no drop_in_path. Leave it out for this flavor.")
        if request.use_legacy_config:
            raise errors.NvidiaError(
                "use_legacy_config is for a containerd of the system, not for that of MicroK8s. Leave it out."
            )

    def _snap_info(self) -> bytes | None:
        try:
            return self.context.files.read(_SNAP_INFO)
        except errors.HostError:
            return None

    def _filled(self, plan: engines_base.EnginePlan) -> engines_base.EnginePlan:
        view = self._after()
        return plan._replace(state=view.filled_state(plan.state)) if isinstance(view, TemplateFiles) else plan

    def _mode(self, _asked: str) -> str:
        """Return in_place, because MicroK8s overwrites the generated file at each start and imports nothing."""
        return "in_place"

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        """Remove all NVIDIA runtimes except the one that the snap contains.

        A default runtime that is removed becomes the placeholder of the template again.
        """
        for root in dict.fromkeys(containerd_config.CRI_TABLE.values()):
            runtimes = edit.document.value(*root, *containerd_config.RUNTIMES)
            names = [
                name
                for name, entry in (runtimes if isinstance(runtimes, dict) else {}).items()
                if name != SHIPPED and engines_base.is_nvidia_program(containerd_config.program_of(entry))
            ]
            for name in names:
                edit.document = edit.document.delete((*root, *containerd_config.RUNTIMES, name), prune=True)
            if edit.document.value(*root, *containerd_config.DEFAULT) in names:
                edit.document = edit.document.set((*root, *containerd_config.DEFAULT), RUNTIME)
