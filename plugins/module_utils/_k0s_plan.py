# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what must change in the drop-ins of k0s' containerd; its main file is k0s' own.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_plan import ContainerdPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import VERSION
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._k0s_files import (
    CONTAINERD_SINCE,
    DROP_INS,
    MARKER,
    MERGES_SINCE,
    READS_SINCE,
    K0sFiles,
    containerd_of,
    drop_in_name,
    is_managed,
    is_release,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import CDI_AUTO

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ContainerdFiles
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import Writer
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, EnginePlan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import TomlEdit

DROP_IN = f"{DROP_INS}/99-nvidia.toml"
MODES = ("auto", "drop_in")


class K0sPlanner(ContainerdPlanner):
    """One plan for the drop-ins of one k0s."""

    reads = K0sFiles
    drop_in = DROP_IN

    def __init__(self, context: Context, running: tuple[int, ...] | None = None) -> None:
        """``running`` is the version of the containerd that runs now."""
        self.release = context.version if is_release(context.version) else None
        super().__init__(context._replace(version=containerd_of(context.version, running)))

    def present(self, request: RuntimeRequest) -> EnginePlan:
        self._check(request)
        if request.enable_cdi == CDI_AUTO and self.release is not None and self.release < MERGES_SINCE:
            # It has containerd 1.7, but no place for the setting.
            request = request._replace(enable_cdi=None)
        self._check_release(request)
        if self.main.content is not None and not is_managed(self.main.before.text, self.context.version):
            raise GpufleetError(
                f"{self.main.path} is not k0s' own any more: it lacks the line {MARKER}, which from k0s 1.36 on has to"
                f" be the first one, so k0s reads nothing in {DROP_INS}. Move the file away and restart k0s, which then"
                " writes it again; or register the runtime in it yourself."
            )
        unit = self.context.unit
        idle = _idle(unit) if unit is not None else ""
        if idle:
            self.warnings.append(f"{idle}, so what is written in {DROP_INS} has no effect there.")
        return super().present(request)

    # -- requests ------------------------------------------------------------------------------------------------

    def _check(self, request: RuntimeRequest) -> None:
        """Raises GpufleetError for what k0s has no place for."""
        if request.config_mode not in MODES:
            raise GpufleetError(
                f"k0s has no config_mode: {request.config_mode}, for it writes {self.main.path} itself. Use one of"
                f" {', '.join(MODES)}."
            )
        if request.drop_in_path is not None and drop_in_name(request.drop_in_path) is None:
            raise GpufleetError(
                f"drop_in_path {request.drop_in_path} is not read by k0s. Name a file that ends in .toml, right in"
                f" {DROP_INS}."
            )
        if request.use_legacy_config:
            raise GpufleetError(
                "use_legacy_config is for a containerd of the system, not for that of k0s. Leave it out."
            )

    def _check_release(self, request: RuntimeRequest) -> None:
        """Raises GpufleetError for a k0s that reads no drop-ins, or not as they are needed."""
        version = self.context.version
        if version is not None and version < CONTAINERD_SINCE:
            known = self.release is not None and self.release < READS_SINCE
            name = f"k0s {_dotted(self.release or ())}" if known else f"A k0s with containerd {_dotted(version)}"
            raise GpufleetError(
                f"{name} reads no {DROP_INS}, which begins with k0s {_dotted(READS_SINCE)}. Upgrade k0s, then run this"
                " again."
            )
        tables = (request.set_as_default, self.kept_default(request), request.enable_cdi is not None)
        if self.release is not None and self.release < MERGES_SINCE and any(tables):
            raise GpufleetError(
                f"k0s {_dotted(self.release)} lays drop-ins behind its own settings instead of merging them. With a"
                " default runtime or enable_cdi in one of them its containerd would not start. Upgrade k0s to"
                f" {_dotted(MERGES_SINCE)} or newer, or leave set_as_default and enable_cdi out."
            )

    def kept_default(self, request: RuntimeRequest) -> bool:
        """Whether a setting of an earlier run would be written again."""
        return request.set_as_default is None and any(value is not None for value in self.kept.values())

    # -- the ways of k0s -----------------------------------------------------------------------------------------

    def _mode(self, _asked: str) -> str:
        """k0s merges."""
        return "drop_in"

    def _write_version(self, writer: Writer) -> None:
        writer.target.write(VERSION, writer.version)

    def _import(self, _needed: str | None) -> None:
        """k0s finds drop-ins by itself."""

    def _remove_unrecorded(self, edit: TomlEdit) -> None:
        if edit is not self.main:
            super()._remove_unrecorded(edit)

    def _check_types(self, target: TomlEdit, others: ContainerdFiles) -> None:
        super()._check_types(target, others)
        for file, sign in others.mistaken() if isinstance(others, K0sFiles) else ():
            raise GpufleetError(
                f"{file.path}: {sign} beside version = {others.version}, which is what k0s takes: k0s or its"
                " containerd would not start, or lose these settings. Bring the file to that version, or move it away,"
                " then run this again."
            )


def _idle(unit: Unit) -> str:
    """Why k0s starts no containerd of its own; empty if it does."""
    flags = [word.partition("=") for word in unit.arguments[1:]]
    given = {name for name, _sign, value in flags if value != "false"}
    if "controller" in given and not given & {"--enable-worker", "--single"}:
        return f"{unit.name} runs a controller without a worker, and no containerd"
    if "--cri-socket" in given:
        return f"{unit.name} uses a container runtime that is not k0s' own (--cri-socket)"
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
