# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the drop-in of k0s for present and absent.

The plan of containerd does most of the work; this module contains the differences.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s import config as k0s_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


DROP_IN = f"{k0s_config.DROP_INS}/99-nvidia.toml"
MODES = ("auto", "drop_in")


class K0sPlanner(containerd_plan.ContainerdPlanner):
    """One plan for the drop-ins of one k0s."""

    files_class = k0s_config.K0sFiles
    drop_in = DROP_IN

    def __init__(self, context: engines_base.Context, running: tuple[int, ...] | None = None) -> None:
        """Create the planner. ``running`` is the version of the running containerd."""
        self.release = context.version if k0s_config.is_release(context.version) else None
        super().__init__(context._replace(version=k0s_config.containerd_of(context.version, running)))

    def present(self, request: engines_base.RuntimeRequest) -> engines_base.EnginePlan:
        self._check(request)
        if (
            request.enable_cdi == engines_base.CDI_AUTO
            and self.release is not None
            and self.release < k0s_config.MERGES_SINCE
        ):
            # This k0s has containerd 1.7, but the drop-ins that it concatenates cannot contain the setting.
            request = request._replace(enable_cdi=None)
        self._check_release(request)
        if self.main.content is not None and not k0s_config.is_managed(self.main.before.text, self.context.version):
            raise errors.NvidiaError(
                f"{self.main.path} is not k0s' own any more: it lacks the line {k0s_config.MARKER}, which from k0s"
                f" 1.36 on has to"
                f" be the first one, so k0s reads nothing in {k0s_config.DROP_INS}. Move the file away and restart"
                f" k0s, which then"
                " writes it again; or register the runtime in it yourself."
            )
        unit = self.context.unit
        idle = _idle(unit) if unit is not None else ""
        if idle:
            self.warnings.append(f"{idle}, so what is written in {k0s_config.DROP_INS} has no effect there.")
        return super().present(request)

    # -- requests ------------------------------------------------------------------------------------------------

    def _check(self, request: engines_base.RuntimeRequest) -> None:
        """Raise NvidiaError for options that k0s does not support."""
        if request.config_mode not in MODES:
            raise errors.NvidiaError(
                f"k0s has no config_mode: {request.config_mode}, for it writes {self.main.path} itself. Use one of"
                f" {', '.join(MODES)}."
            )
        if request.drop_in_path is not None and k0s_config.drop_in_name(request.drop_in_path) is None:
            raise errors.NvidiaError(
                f"drop_in_path {request.drop_in_path} is not read by k0s. Name a file that ends in .toml, right in"
                f" {k0s_config.DROP_INS}."
            )
        if request.use_legacy_config:
            raise errors.NvidiaError(
                "use_legacy_config is for a containerd of the system, not for that of k0s. Leave it out."
            )

    def _check_release(self, request: engines_base.RuntimeRequest) -> None:
        """Raise NvidiaError if this k0s reads no drop-ins, or does not merge them although the request needs it."""
        version = self.context.version
        if version is not None and version < k0s_config.CONTAINERD_SINCE:
            known = self.release is not None and self.release < k0s_config.READS_SINCE
            name = f"k0s {_dotted(self.release or ())}" if known else f"A k0s with containerd {_dotted(version)}"
            raise errors.NvidiaError(
                f"{name} reads no {k0s_config.DROP_INS}, which begins with k0s {_dotted(k0s_config.READS_SINCE)}."
                f" Upgrade k0s, then run this"
                " again."
            )
        tables = (request.set_as_default, self.kept_default(request), request.enable_cdi is not None)
        if self.release is not None and self.release < k0s_config.MERGES_SINCE and any(tables):
            raise errors.NvidiaError(
                f"k0s {_dotted(self.release)} lays drop-ins behind its own settings instead of merging them. With a"
                " default runtime or enable_cdi in one of them its containerd would not start. Upgrade k0s to"
                f" {_dotted(k0s_config.MERGES_SINCE)} or newer, or leave set_as_default and enable_cdi out."
            )

    def kept_default(self, request: engines_base.RuntimeRequest) -> bool:
        """Return whether this run would write a setting of an earlier run again."""
        return request.set_as_default is None and any(value is not None for value in self.own_values.values())

    # -- differences from containerd -----------------------------------------------------------------------------

    def _mode(self, _asked: str) -> str:
        """Return drop_in, because k0s merges drop-ins."""
        return "drop_in"

    def _write_version(self, writer: runtimes.RuntimeTableWriter) -> None:
        writer.target.write(runtimes.VERSION, writer.version)

    def _import(self, _needed: str | None) -> None:
        """Do nothing, because k0s reads all files in the directory of drop-ins."""

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        if edit is not self.main:
            super()._remove_unrecorded(edit)

    def _check_types(self, target: toml_plan.TomlEdit, others: containerd_config.ContainerdFiles) -> None:
        super()._check_types(target, others)
        for file, sign in others.mistaken() if isinstance(others, k0s_config.K0sFiles) else ():
            raise errors.NvidiaError(
                f"{file.path}: {sign} beside version = {others.version}, which is what k0s takes: k0s or its"
                " containerd would not start, or lose these settings. Bring the file to that version, or move it away,"
                " then run this again."
            )


def _idle(unit: systemd_units.Unit) -> str:
    """Return why k0s starts no containerd of its own; empty if it does."""
    flags = [word.partition("=") for word in unit.arguments[1:]]
    given = {name for name, _sign, value in flags if value != "false"}
    if "controller" in given and not given & {"--enable-worker", "--single"}:
        return f"{unit.name} runs a controller without a worker, and no containerd"
    if "--cri-socket" in given:
        return f"{unit.name} uses a container runtime that is not k0s' own (--cri-socket)"
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
