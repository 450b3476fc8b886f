# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The containerd of MicroK8s on a host, and the plan of its template.

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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import engine as containerd_engine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document


CONFIG_MODES = ("auto", "in_place")
GENERATED_NAME = "containerd.toml"
RUNTIME, RUNTIME_TYPE = "${RUNTIME}", "${RUNTIME_TYPE}"
# The template of the snap contains a runtime of this name.
BUNDLED = core_constants.MAIN_PROGRAM
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")
_ARGUMENTS = "/var/snap/microk8s/current/args"
# Fedora and related distributions have snaps below /var/lib/snapd.
_SNAPS = ("/snap/microk8s/current", "/var/lib/snapd/snap/microk8s/current")
_PROGRAMS = tuple(f"{folder}/bin/containerd" for folder in _SNAPS)
_SNAP_INFO = tuple(f"{folder}/meta/snap.yaml" for folder in _SNAPS)
_ROW = flavors.FLAVORS["containerd", "microk8s"]
# The errors of a program that finds its libraries only inside the snap, and of one that cannot be started at all.
_NOT_STARTED = ("error while loading shared libraries", "cannot be run: ", "failed to run command")


class MicroK8s(containerd_engine.Containerd):
    """The containerd of MicroK8s. Its configuration is the template, from which MicroK8s generates a file beside it."""

    flavor = "microk8s"
    key = "microk8s"
    config_path = f"{_ARGUMENTS}/containerd-template.toml"
    drop_in_path: str | None = None
    service = _ROW.services[0]
    socket = _ROW.cri

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        name = systemd_units.unit_name(service or self.service)
        # The unit runs `snap run`, whose script names the paths above.
        unit = systemd_units.load_unit(host, name)
        return engines_base.Installation(
            binary=host.find_executable(_PROGRAMS),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self.config_path,
            pid=processes.find_process(host, unit, self.program),
        )

    def _paths(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        generated = f"{host.resolve(_ARGUMENTS)}/{GENERATED_NAME}"
        return [*super()._paths(host, installation), *([generated] if host.exists(generated) else [])]

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        return TemplatePlanner(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return TemplatePlanner(context).absent()

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        files = self._files(context)
        return files.filled_state(containerd_plan.configured_state(files))

    def _files(self, context: engines_base.Context) -> TemplateFiles:
        return TemplateFiles(context.files, context.path, context.version)

    def validator_missing(self, output: str) -> bool:
        return any(part in output for part in _NOT_STARTED)


def placeholders(files: engines_base.Files, path: str) -> dict[str, str]:
    """Return the values that the start script substitutes for the placeholders of the template at ``path``.

    All links in ``path`` are resolved. The source is run-containerd-with-args of MicroK8s. The default runtime is runc;
    older releases use NVIDIA's runtime while the file var/lock/gpu exists. The runtime type depends on cgroup v1 or v2,
    so it is read from the file that was generated last.
    """
    arguments = posixpath.dirname(path)
    data = posixpath.dirname(arguments)
    revision = posixpath.basename(data)
    default, runtime_type = _generated(files, f"{arguments}/{GENERATED_NAME}")
    # A user or another tool may have written another name into the template and removed it since.
    if default not in (containerd_runtimes.BUILTIN_DEFAULT, BUNDLED):
        default = BUNDLED if files.glob(f"{data}/var/lock/gpu") else containerd_runtimes.BUILTIN_DEFAULT
    if not isinstance(runtime_type, str) or _PLACEHOLDER.search(runtime_type):
        runtime_type = containerd_runtimes.BUILTIN_TYPE
    return {
        RUNTIME: default,
        RUNTIME_TYPE: runtime_type,
        "${SNAP}": f"/snap/microk8s/{revision}",
        "${SNAP_DATA}": data,
    }


def _generated(files: engines_base.Files, path: str) -> tuple[str | None, t.Any]:
    """Return the default runtime and the type of runc in the file that was generated last."""
    try:
        if files.glob(path):
            generated = containerd_config.ContainerdFiles(files, path, None)
            runc = generated.runtimes().get(containerd_runtimes.BUILTIN_DEFAULT)
            return generated.default_runtime(), toml_plan.lookup(runc, ("runtime_type",))
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

    @staticmethod
    def is_runc(runtime_type: str) -> bool:
        return runtime_type == RUNTIME_TYPE or containerd_runtimes.RuntimeTableWriter.is_runc(runtime_type)


class TemplatePlanner(containerd_plan.ContainerdPlanner):
    """One plan for the template of one MicroK8s."""

    files_class = TemplateFiles
    writer_class = TemplateWriter

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        self._check(request)
        if self.context.content is None:
            raise errors.NvidiaError(f"{self.main.path} does not exist. Install MicroK8s, which contains this file.")
        if any(b"confinement: strict" in (self._snap_info(path) or b"") for path in _SNAP_INFO):
            self.warnings.append(
                "This MicroK8s is strictly confined and cannot run NVIDIA's runtimes of the host. Install MicroK8s from"
                " a channel with classic confinement."
            )
        return self._filled(super().present(request))

    def absent(self) -> engines_base.EnginePlan:
        return self._filled(super().absent())

    def _check(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError for options that MicroK8s does not support."""
        if request.config_mode not in CONFIG_MODES:
            raise errors.NvidiaError(
                f"MicroK8s does not support {errors.option:config_mode}: {request.config_mode}, because it generates"
                f" the configuration of its containerd from {self.main.path}. Use one of {', '.join(CONFIG_MODES)}."
            )
        for name in ("drop_in_path", "use_legacy_config"):
            if getattr(request, name):
                raise errors.NvidiaError(f"MicroK8s does not support {errors.option:{name}}. Remove this option.")

    def _snap_info(self, path: str) -> bytes | None:
        try:
            return self.context.files.read(path)
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
        for *parents, name in self._remove_nvidia_runtimes(edit, kept=BUNDLED):
            default = (*parents[: -len(containerd_config.RUNTIMES)], *containerd_config.DEFAULT)
            if edit.document.value(*default) == name:
                edit.document = edit.document.set(default, RUNTIME)


MICROK8S = MicroK8s()
