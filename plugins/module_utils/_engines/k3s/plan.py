# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the drop-in that sets the default runtime of K3s or RKE2, and warn of what they will not register.

This module never changes the generated containerd configuration.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import config as k3s_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import generated as k3s_generated

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


FILE_NAME = "99-gpufleet-nvidia.yaml"
_KEY: KeyPath = (k3s_config.DEFAULT_RUNTIME,)
_OVERRIDE_ADVICE = (
    'If it is a template, begin it with {{ template "base" . }}. If it is an import, remove the default runtime and'
    " NVIDIA's runtimes from it."
)


class K3sPlanner:
    """One plan for the settings of one installation. ``title`` is the display name of the distribution."""

    def __init__(
        self, title: str, distribution: k3s_config.RancherDistribution, generated: str, context: engines_base.Context
    ) -> None:
        self.title = title
        self.distribution = distribution
        self.generated_path = generated
        self.generated = k3s_generated.GeneratedConfig(context)
        self.context = context
        self.host = k3s_generated.host_of(context)
        self.before = k3s_config.RancherSettings(distribution, self.host, context.unit)
        # The settings with the planned files, once there is a plan.
        self.after = self.before
        self.path = context.files.resolve(self._own_path())
        self.content = self.host.read(self.path)
        self.found = k3s_generated.find_programs(context)
        self.search_dirs = k3s_generated.search_dirs(context)
        self.warnings: list[str] = []

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        """Return the plan that fulfills ``request``. Raises NvidiaError before anything is written."""
        self._check(request)
        own_default = self._own_default() if request.set_as_default is None else None
        name = request.runtime_name if request.set_as_default else own_default
        if name is not None:
            self._check_default(name)
        files = [self._file(name)] if name is not None else []
        # If the request leaves the default open, a file that others changed since is kept.
        unwanted = [self.path] if request.set_as_default is False else []
        unwanted += [path for path in self.context.recorded if path != self.path]
        plan = self._plan([*files, *self._restored(unwanted)])
        if name is not None:
            self._check_effect(name, plan.state)
        self._warn(request, plan.state)
        return plan._replace(warnings=tuple(self.warnings), drop_in_path=self.path if name is not None else None)

    def _check(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError for options that do not exist here or would have no effect."""
        request.refuse_toml_settings(self.title)
        if request.config_mode != "auto":
            raise errors.NvidiaError(
                f"{self.title} does not support {errors.option:config_mode}, because it generates the configuration of"
                f" its containerd at every start. Remove {errors.option:config_mode}."
            )
        if self.context.path != self.context.files.resolve(self.generated_path):
            raise errors.NvidiaError(
                f"{errors.option:config_path} {self.context.path} is not the file that {self.title} generates"
                f" ({self.generated_path}). Remove {errors.option:config_path}."
            )
        self._check_names(request)
        if self.host.resolve(request.runtime_dir) not in map(self.host.resolve, self.search_dirs):
            raise errors.NvidiaError(
                f"{self.title} does not search {errors.option:runtime_dir} {request.runtime_dir}, only"
                f" {', '.join(self.search_dirs)}. Link the programs into one of these directories, or set PATH in"
                f" /etc/default/{self._unit_stem()}, which requires {k3s_generated.own_path_since()} or newer."
            )
        docker = self.before.value(k3s_config.DOCKER) == "true"
        if docker or self.before.value(k3s_config.ENDPOINT):
            setting = k3s_config.DOCKER if docker else k3s_config.ENDPOINT
            raise errors.NvidiaError(
                f"{self.before.source(setting)}: with the setting {setting}, {self.title} uses another engine and"
                " starts no containerd. Configure that engine instead."
            )

    def _check_names(self, request: engines_request.RuntimeRequest) -> None:
        names = k3s_generated.registered_programs(self.context.version)
        unknown = [name for name in _requested(request) if name not in names]
        if unknown:
            raise errors.NvidiaError(
                f"This release of {self.title} does not register a runtime {unknown[0]}. It registers"
                f" {', '.join(names)} if it finds their programs. Correct {errors.option:runtime_name} and"
                f" {errors.option:extra_modes}."
            )

    def _check_default(self, name: str) -> None:
        """Raise NvidiaError for a default runtime with which the distribution would not start."""
        if not k3s_generated.sets_default(self.context.version):
            raise errors.NvidiaError(
                f"This release of {self.title} has no setting {k3s_config.DEFAULT_RUNTIME}, which requires"
                f" {k3s_generated.default_since()} or newer. Upgrade {self.title}, or remove"
                f" {errors.option:set_as_default} and select the runtime in pods with a RuntimeClass."
            )
        if name not in self.found:
            raise errors.NvidiaError(
                f"{self.title} would not start with the default runtime {name}, because"
                f" {k3s_generated.PROGRAMS.get(name, name)} is in none of {', '.join(self.search_dirs)}. Install the"
                " NVIDIA Container Toolkit first."
            )
        if not self.before.config_file.startswith("/"):
            raise errors.NvidiaError(
                f"{self.title} reads its settings from {self.before.config_file}, which is not a file on this host, so"
                f" this collection cannot add a drop-in. Set {k3s_config.DEFAULT_RUNTIME}: {name} there."
            )

    def _check_effect(self, name: str, state: engines_base.ConfiguredState) -> None:
        """Raise NvidiaError if another setting of the default runtime has precedence over this collection's file."""
        value = self.after.value(k3s_config.DEFAULT_RUNTIME)
        if value == name != state.default_runtime:
            raise errors.NvidiaError(
                f"{self.generated.override}: this file overrides {k3s_config.DEFAULT_RUNTIME}, so {name} would not be"
                f" the default runtime. {_OVERRIDE_ADVICE}"
            )
        if value != name:
            raise errors.NvidiaError(
                f"{self.after.source(k3s_config.DEFAULT_RUNTIME)}: {k3s_config.DEFAULT_RUNTIME} is {value or 'empty'}"
                f" here and overrides {self.path}. Remove this setting."
            )

    # -- file of this collection ---------------------------------------------------------------------------------

    def _own_default(self) -> str | None:
        """Return the default runtime in the file of this collection, or None."""
        default = k3s_config.own_default(self.content)
        if default is not None:
            return default
        record = self.context.files.record(self.path)
        recorded = (record.keys or {}).get(_KEY) if record is not None else None
        if recorded is None:
            return None
        exists = any(k3s_config.is_own_line(line, str(recorded)) for line in _lines(self.content))
        return str(recorded) if exists else None

    def _file(self, name: str) -> core_plan.PlannedFile:
        """Return the planned file with ``name`` as the default.

        Raises NvidiaError instead of replacing what others wrote.
        """
        record = self.context.files.record(self.path)
        unchanged = k3s_config.own_default(self.content) is not None or (
            record is not None and record.restorable(self.content)
        )
        if self.content is None or unchanged:
            return core_plan.PlannedFile(self.path, self.content, k3s_config.own_text(name), {_KEY: name})
        if self.before.value_in(self._own_path(), k3s_config.DEFAULT_RUNTIME) == name:
            own_keys = {_KEY: name} if record is not None and record.owns(_KEY, name) else {}
            return core_plan.PlannedFile(self.path, self.content, self.content, own_keys)
        raise errors.NvidiaError(
            f"{self.path} contains settings of another tool. Move them into another file in the same directory."
        )

    def _own_path(self) -> str:
        """Return the path under which the distribution reads the file of this collection."""
        return f"{self.before.config_file}.d/{FILE_NAME}"

    def _restored(self, paths: t.Iterable[str]) -> list[core_plan.PlannedFile]:
        """Return the planned files at ``paths``: the original, or the content without this collection's lines."""
        planned = []
        for path in paths:
            content, record = self.host.read(path), self.context.files.record(path)
            if record is not None:
                recorded = (record.keys or {}).get(_KEY)
                after = record.original if record.restorable(content) else _without_own_lines(content, recorded)
                # An unrecorded file of this collection may have existed before the record was made.
                after = None if k3s_config.own_default(after) is not None else after
                planned.append(core_plan.PlannedFile(path, content, after))
            elif k3s_config.own_default(content) is not None:
                planned.append(core_plan.PlannedFile(path, content, None))
        return planned

    # -- absent --------------------------------------------------------------------------------------------------

    def absent(self) -> engines_base.EnginePlan:
        paths = dict.fromkeys([self.path, *self.context.recorded])
        if self.context.keep_unrecorded:
            paths = dict.fromkeys(path for path in paths if self.context.files.record(path) is not None)
        return self._plan(self._restored(paths))

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, files: t.Sequence[core_plan.PlannedFile]) -> engines_base.EnginePlan:
        overlay = {file.path: file.after for file in files}
        self.after = k3s_config.RancherSettings(self.distribution, self.host, self.context.unit, overlay)
        same = self.before.value(k3s_config.DEFAULT_RUNTIME) == self.after.value(k3s_config.DEFAULT_RUNTIME)
        state = self.generated.expected(self.after.value(k3s_config.DEFAULT_RUNTIME))
        return engines_base.EnginePlan(
            tuple(files), state, engines_base.Action.NONE if same else engines_base.Action.RESTART
        )

    def _warn(self, request: engines_request.RuntimeRequest, state: engines_base.ConfiguredState) -> None:
        if self.generated.override is not None:
            self.warnings.append(
                f"{self.generated.override} overrides the default runtime or the programs that {self.title} finds, so"
                f" this collection does not restart {self.title} when NVIDIA's programs change. {_OVERRIDE_ADVICE}"
            )
        self.warnings += [warning for name in _requested(request) for warning in self._of_program(name, request)]
        unchangeable = isinstance(request.enable_cdi, bool) and not state.has_empty_cdi_folders
        if unchangeable and state.cdi is not None and request.enable_cdi is not state.cdi:
            self.warnings.append(
                f"{errors.option:enable_cdi} has no effect: CDI is {'on' if state.cdi else 'off'} in the containerd of"
                f" {self.title}, and this collection does not change that."
            )
        if request.set_as_default is False and state.default_runtime in k3s_generated.PROGRAMS:
            source = self.generated.default_source(self.after)
            self.warnings.append(f"{source} makes {state.default_runtime} the default runtime. Remove it there.")

    def _of_program(self, name: str, request: engines_request.RuntimeRequest) -> t.Iterator[str]:
        """Yield the warning about a requested runtime whose program is missing, or is another one."""
        program = self.found.get(name)
        if program is None:
            yield (
                f"{self.title} will not register {name}, because {k3s_generated.PROGRAMS[name]} is in none of"
                f" {', '.join(self.search_dirs)}. Install the NVIDIA Container Toolkit."
            )
        elif self.host.resolve(posixpath.dirname(program)) != self.host.resolve(request.runtime_dir):
            yield (
                f"{self.title} uses {program} for {name}, because it searches {posixpath.dirname(program)} before"
                f" {errors.option:runtime_dir} {request.runtime_dir}. Remove the unwanted program."
            )

    def _unit_stem(self) -> str:
        return (
            posixpath.splitext(self.context.unit.name)[0]
            if self.context.unit is not None
            else self.distribution.program
        )


def _requested(request: engines_request.RuntimeRequest) -> list[str]:
    return [request.runtime_name, *(engines_request.MODE_NAMES[mode] for mode in request.extra_modes)]


def _lines(content: bytes | None) -> list[bytes]:
    return (content or b"").splitlines(keepends=True)


def _without_own_lines(content: bytes | None, default: t.Any) -> bytes | None:
    """Return a file that was changed since, without the two lines of this collection; None if nothing else remains."""
    rest = b"".join(
        line
        for line in _lines(content)
        if line.rstrip() != toml_plan.HEADER.rstrip() and not k3s_config.is_own_line(line, str(default))
    )
    return rest if rest.strip() else None
