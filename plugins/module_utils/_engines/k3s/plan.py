# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the drop-in that sets the default runtime of K3s or RKE2, and compare what they generated.

This module never changes the generated containerd configuration.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import config as k3s_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import generated as k3s_generated
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import releases

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


FILE_NAME = "99-gpufleet-nvidia.yaml"
_KEY: KeyPath = (k3s_config.DEFAULT_RUNTIME,)


class RancherPlanner:
    """One plan for the settings of one installation. ``title`` is the display name of the distribution."""

    def __init__(self, title: str, place: k3s_config.Place, generated: str, context: engines_base.Context) -> None:
        self.title = title
        self.place = place
        self.generated_path = generated
        self.generated = k3s_generated.GeneratedConfig(context)
        self.context = context
        self.host = k3s_generated.host_of(context)
        self.before = k3s_config.Settings(place, self.host, context.unit)
        self.path = context.files.resolve(f"{self.before.config_file}.d/{FILE_NAME}")
        self.content = self.host.read(self.path)
        self.found = k3s_generated.found_in(context)
        self.warnings: list[str] = []

    # -- present -------------------------------------------------------------------------------------------------

    def present(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        """Return the plan that fulfills ``request``. Raises NvidiaError before anything is written."""
        self._check(request)
        kept = self._said() if request.set_as_default is None else None
        name = request.runtime_name if request.set_as_default else kept
        if name is not None:
            self._check_default(name)
        files = [self._file(name)] if name is not None else []
        # If the request leaves the default open, a file that others changed since is kept.
        unwanted = [self.path] if request.set_as_default is False else []
        unwanted += [path for path in self.context.recorded if path != self.path]
        plan = self._plan([*files, *self._given_back(unwanted)])
        if name is not None:
            self._check_effect(name, plan.state)
        self._warn(request, plan.state)
        return plan._replace(warnings=tuple(self.warnings), drop_in_path=self.path if name is not None else None)

    def _check(self, request: engines_base.RuntimeRequest) -> None:
        """Raise NvidiaError for options that do not exist here or would have no effect."""
        request.refuse_toml_settings(self.title)
        if request.config_mode != "auto":
            raise errors.NvidiaError(
                f"{self.title} generates its containerd's configuration at every start, so there is no config_mode."
                " Leave it out for this flavor."
            )
        if self.context.path != self.context.files.resolve(self.generated_path):
            raise errors.NvidiaError(
                f"config_path {self.context.path} is not what {self.title} generates ({self.generated_path}), and"
                " that is never edited. Leave config_path out for this flavor."
            )
        self._check_names(request)
        folders = releases.folders_of(self.host, self.context.version, k3s_generated.environment_of(self.context))
        if self.host.resolve(request.runtime_dir) not in map(self.host.resolve, folders):
            raise errors.NvidiaError(
                f"{self.title} does not look for NVIDIA's programs in runtime_dir {request.runtime_dir}, only in"
                f" {', '.join(folders)}. Link them into one of these, or set PATH in /etc/default/{self._unit_stem()},"
                f" which {releases.own_path_since()} and later follow."
            )
        if self.before.value(k3s_config.DOCKER) == "true" or self.before.value(k3s_config.ENDPOINT):
            asked = k3s_config.DOCKER if self.before.value(k3s_config.DOCKER) == "true" else k3s_config.ENDPOINT
            raise errors.NvidiaError(
                f"{self.before.source(asked)}: {self.title} is told to use another engine ({asked}) and starts no"
                " containerd of its own. Configure that engine instead."
            )

    def _check_names(self, request: engines_base.RuntimeRequest) -> None:
        names = releases.programs_of(self.context.version)
        wanted = [request.runtime_name, *(engines_base.MODE_NAMES[mode] for mode in request.extra_modes)]
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise errors.NvidiaError(
                f"This release of {self.title} registers no runtime {unknown[0]}, and takes none from outside. It"
                f" registers those of {', '.join(names)} whose programs it finds: choose among these with runtime_name"
                " and extra_modes."
            )

    def _check_default(self, name: str) -> None:
        """Raise NvidiaError for a default runtime with which the distribution would not start."""
        if not releases.sets_default(self.context.version):
            raise errors.NvidiaError(
                f"This release of {self.title} has no setting {k3s_config.DEFAULT_RUNTIME}, which came with"
                f" {releases.default_since()}."
                " Bring it up to date, or leave set_as_default out and name the runtime in pods by a RuntimeClass."
            )
        if name not in self.found:
            folders = ", ".join(
                releases.folders_of(self.host, self.context.version, k3s_generated.environment_of(self.context))
            )
            raise errors.NvidiaError(
                f"{name} is not made the default runtime: {self.title} would not find"
                f" {releases.PROGRAMS.get(name, name)} in"
                f" {folders}, and does not start with a default runtime that it does not find. Install the NVIDIA"
                " Container Toolkit first; nothing was changed."
            )
        if not self.before.config_file.startswith("/"):
            raise errors.NvidiaError(
                f"{self.title} reads its settings from {self.before.config_file}, which is no file of this host, so"
                f" none can be laid beside it. Set {k3s_config.DEFAULT_RUNTIME}: {name} there."
            )

    def _check_effect(self, name: str, state: engines_base.ConfiguredState) -> None:
        """Raise NvidiaError if another setting of the default runtime has precedence over this collection's file."""
        if self.after.value(k3s_config.DEFAULT_RUNTIME) == name != state.default_runtime:
            raise errors.NvidiaError(
                f"{self.generated.override}: it takes precedence, and with it {name} would not be the default runtime."
                ' Let a template begin with {{ template "base" . }}, or remove what an import says of runtimes. Then'
                " run this again; nothing was changed."
            )
        if self.after.value(k3s_config.DEFAULT_RUNTIME) != name:
            raise errors.NvidiaError(
                f"{self.after.source(k3s_config.DEFAULT_RUNTIME)}: it takes precedence and sets"
                f" {k3s_config.DEFAULT_RUNTIME} to"
                f" {self.after.value(k3s_config.DEFAULT_RUNTIME) or 'nothing'}. Remove it there, then run this again;"
                f" nothing was"
                " changed."
            )

    # -- file of this collection ---------------------------------------------------------------------------------

    def _said(self) -> str | None:
        """Return the default runtime in the file of this collection, or None."""
        said = k3s_config.own_default(self.content)
        if said is not None:
            return said
        record = self.context.files.record(self.path)
        kept = (record.keys or {}).get(_KEY) if record is not None else None
        return str(kept) if kept is not None and k3s_config.own_line(kept) in _lines(self.content) else None

    def _file(self, name: str) -> core_plan.PlannedFile:
        """Return the planned file with ``name`` as the default.

        Raises NvidiaError instead of replacing what others wrote.
        """
        record = self.context.files.record(self.path)
        undisturbed = k3s_config.own_default(self.content) is not None or (
            record is not None and record.restorable(self.content)
        )
        if self.content is None or undisturbed:
            return core_plan.PlannedFile(self.path, self.content, k3s_config.own_text(name), {_KEY: name})
        if self._value_in_file() == name:
            owned = {_KEY: name} if record is not None and record.owns(_KEY, name) else {}
            return core_plan.PlannedFile(self.path, self.content, self.content, owned)
        raise errors.NvidiaError(
            f"{self.path} holds what this collection did not write. Move it into a file of another name in that folder,"
            " then run this again; nothing was changed."
        )

    def _value_in_file(self) -> str:
        return (
            self.before.value(k3s_config.DEFAULT_RUNTIME)
            if self.before.source(k3s_config.DEFAULT_RUNTIME) == self._shown()
            else ""
        )

    def _shown(self) -> str:
        """Return the path under which the distribution reads the file of this collection."""
        return f"{self.before.config_file}.d/{FILE_NAME}"

    def _given_back(self, paths: t.Iterable[str]) -> list[core_plan.PlannedFile]:
        """Return the planned files at ``paths``: the original, or the content without this collection's lines."""
        planned = []
        for path in paths:
            content, record = self.host.read(path), self.context.files.record(path)
            if record is not None:
                kept = (record.keys or {}).get(_KEY)
                after = record.original if record.restorable(content) else _without(content, kept)
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
        return self._plan(self._given_back(paths))

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, files: t.Sequence[core_plan.PlannedFile]) -> engines_base.EnginePlan:
        overlay = {file.path: file.after for file in files}
        self.after = k3s_config.Settings(self.place, self.host, self.context.unit, overlay)
        same = self.before.value(k3s_config.DEFAULT_RUNTIME) == self.after.value(k3s_config.DEFAULT_RUNTIME)
        state = self.generated.expected(self.after.value(k3s_config.DEFAULT_RUNTIME))
        return engines_base.EnginePlan(
            tuple(files), state, engines_base.Action.NONE if same else engines_base.Action.RESTART
        )

    def _warn(self, request: engines_base.RuntimeRequest, state: engines_base.ConfiguredState) -> None:
        if self.generated.override is not None:
            self.warnings.append(
                f"{self.generated.override} takes precedence over what {self.title} finds, so {self.title} is not"
                " restarted for a program that came or went. It was left unchanged: remove it, or let a template begin"
                ' with {{ template "base" . }}, and take the default and programs of NVIDIA out of an import.'
            )
        program = self.found.get(request.runtime_name)
        if program is None:
            folders = ", ".join(
                releases.folders_of(self.host, self.context.version, k3s_generated.environment_of(self.context))
            )
            self.warnings.append(
                f"{self.title} will not register {request.runtime_name}: {releases.PROGRAMS[request.runtime_name]} is"
                f" in none of"
                f" {folders}. Install the NVIDIA Container Toolkit."
            )
        elif self.host.resolve(posixpath.dirname(program)) != self.host.resolve(request.runtime_dir):
            self.warnings.append(
                f"{self.title} takes {program} for {request.runtime_name}, not a program in {request.runtime_dir}: it"
                " chooses by itself. Remove the one that is not meant."
            )
        if isinstance(request.enable_cdi, bool) and state.cdi is not None and request.enable_cdi is not state.cdi:
            self.warnings.append(
                f"CDI is {'on' if state.cdi else 'off'} in {self.generated_path}, and {self.title} decides that by"
                " itself: enable_cdi has no effect."
            )
        if request.set_as_default is False and state.default_runtime in releases.PROGRAMS:
            source = self.after.source(k3s_config.DEFAULT_RUNTIME) or self.generated_path
            self.warnings.append(f"{source} makes {state.default_runtime} the default runtime. Remove it there.")

    def _unit_stem(self) -> str:
        return posixpath.splitext(self.context.unit.name)[0] if self.context.unit is not None else self.place.program


def _lines(content: bytes | None) -> list[bytes]:
    return (content or b"").splitlines(keepends=True)


def _without(content: bytes | None, kept: t.Any) -> bytes | None:
    """Return a file without the two lines of this collection, None if nothing else remains.

    This is for files that others changed since.
    """
    rest = b"".join(line for line in _lines(content) if line not in (toml_plan.HEADER, k3s_config.own_line(str(kept))))
    return rest if rest.strip() else None
