# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The containerd of k0s on a host, and the plan of its drop-ins.

The planner is a subclass of containerd's planner. ``config`` reads the files.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import engine as containerd_engine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s import config as k0s_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


DROP_IN = f"{k0s_config.DROP_INS}/99-nvidia.toml"
CONFIG_MODES = ("auto", "drop_in")
_ROW = flavors.FLAVORS["containerd", "k0s"]
# Parts of the error message when the validation command cannot start, on this host and in a chroot.
_NOT_STARTED = ("cannot be run: ", "failed to run command")


class K0s(containerd_engine.EmbeddedContainerd):
    """The containerd of k0s, a child process in the unit of k0s.

    ``binary`` is k0s, which unpacks containerd when it starts. A few seconds after a drop-in has changed, k0s 1.27.1
    and newer sends containerd a signal that ends it, and starts it again. Versions are versions of k0s, except for
    ``running``, which is the version of the containerd that ``live`` found last. It determines the format of drop-ins.
    """

    flavor = "k0s"
    key = "k0s"
    config_path = k0s_config.MAIN
    drop_in_path: str | None = DROP_IN
    starter = "k0s"
    services = _ROW.services
    service = _ROW.services[0]
    socket = _ROW.cri
    running: tuple[int, ...] | None = None

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        live = super().live(host, installation)
        self.running = core_text.parse_version(live.version) if live is not None else None
        return live._replace(version="") if live is not None else None

    def _paths(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        try:
            files = k0s_config.K0sFiles(
                engines_base.HostFiles(host, self.key), host.resolve(installation.config_path), None
            )
        except errors.NvidiaError:
            return [installation.config_path]
        generated = [k0s_config.GENERATED] if files.managed and host.exists(k0s_config.GENERATED) else []
        return [*(file.path for file in files.files), *generated]

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        return K0sPlanner(context, self.running).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return K0sPlanner(context, self.running).absent()

    def defines_runtime(
        self, runtime: str, state: engines_base.ConfiguredState, version: tuple[int, ...] | None
    ) -> bool:
        return super().defines_runtime(runtime, state, k0s_config.containerd_of(version, self.running))

    # -- the program ---------------------------------------------------------------------------------------------

    def version_argv(self, binary: str) -> list[str]:
        """Return the command that prints the version of k0s, such as v1.30.4+k0s.0."""
        return [binary, "version"]

    def validation_command(
        self, _binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        """Return the commands that dump the merged drop-ins before and after the change.

        This collection merges the drop-ins into one file, as k0s does, without the defaults of k0s.
        """
        texts = {
            "after.toml": _merged_text(self._files(context, toml_plan.overlay_of(files))),
            "before.toml": _merged_text(self._files(context)),
        }
        program = posixpath.join(_data_dir(context.unit), "bin", self.program)
        after, before = ([program, "--config", f"{folder}/{name}", "config", "dump"] for name in texts)
        return engines_base.ValidationCommand(
            texts, after, before, {"after.toml": ", ".join(file.path for file in files)}
        )

    def printed_state(self, dump: str, version: tuple[int, ...] | None) -> engines_base.ConfiguredState | None:
        return super().printed_state(dump, k0s_config.containerd_of(version, self.running))

    def validator_missing(self, output: str) -> bool:
        """Return whether containerd could not be started. A k0s that never started has not unpacked it."""
        return any(part in output for part in _NOT_STARTED)

    def _files(self, context: engines_base.Context, overlay: t.Any = None) -> k0s_config.K0sFiles:
        return k0s_config.K0sFiles(
            context.files, context.path, k0s_config.containerd_of(context.version, self.running), overlay
        )


def _merged_text(files: k0s_config.K0sFiles) -> bytes:
    text = f"version = {files.version}\n".encode()
    return toml_document.TomlDocument.from_bytes(files.files[0].path, text).set(files.cri_path, files.cri()).to_bytes()


def _data_dir(unit: systemd_units.Unit | None) -> str:
    values = unit.flag_values("--data-dir") if unit is not None else []
    return values[-1] if values and values[-1].startswith("/") else k0s_config.DATA_DIR


class K0sPlanner(containerd_plan.ContainerdPlanner):
    """The planner for the drop-ins of one k0s."""

    files_class = k0s_config.K0sFiles
    drop_in = DROP_IN

    def __init__(self, context: engines_base.Context, running: tuple[int, ...] | None = None) -> None:
        """Create the planner for ``context``, whose version is that of k0s or of containerd.

        ``running`` is the version of the running containerd. ``release`` becomes the version of k0s if it is known, and
        the version of the context becomes that of containerd.
        """
        self.release = context.version if k0s_config.is_release(context.version) else None
        self.concatenates = self.release is not None and self.release < k0s_config.MERGES_SINCE
        super().__init__(context._replace(version=k0s_config.containerd_of(context.version, running)))

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        self._check(request)
        if request.enable_cdi == engines_request.CDI_AUTO and self.concatenates and request.register:
            # This k0s has containerd 1.7, but the drop-ins that it concatenates cannot contain the setting.
            request = request._replace(enable_cdi=None)
        self._check_release(request)
        if self.concatenates:
            # With set_as_default: false, the value that an earlier run wrote is removed.
            self.own_values[containerd_runtimes.CDI] = None
        if self.main.content is not None and not k0s_config.is_managed(self.main.before.text, self.context.version):
            raise errors.NvidiaError(
                f"k0s does not manage {self.main.path} and ignores {k0s_config.DROP_INS}, because the main file lacks"
                f" the line {k0s_config.MARKER} (from k0s 1.36 on, as the first line). Move this file away and restart"
                " k0s, which creates it again. Or register the runtime in this file yourself."
            )
        problem = _no_containerd(self.context.unit)
        if problem:
            self.warnings.append(f"{problem}, so the files in {k0s_config.DROP_INS} have no effect.")
        return super().present(request)

    # -- requests ------------------------------------------------------------------------------------------------

    def _check(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError for options that k0s does not support."""
        if request.config_mode not in CONFIG_MODES:
            raise errors.NvidiaError(
                f"k0s does not support {errors.option:config_mode}: {request.config_mode}, because k0s writes"
                f" {self.main.path} itself. Use one of {', '.join(CONFIG_MODES)}."
            )
        if request.drop_in_path is not None and k0s_config.drop_in_name(request.drop_in_path) is None:
            raise errors.NvidiaError(
                f"k0s does not read {errors.option:drop_in_path} {request.drop_in_path}. Set the path of a file in"
                f" {k0s_config.DROP_INS} whose name ends in .toml."
            )
        if request.use_legacy_config:
            raise errors.NvidiaError(f"k0s does not support {errors.option:use_legacy_config}. Remove this option.")

    def _check_release(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError if this k0s reads no drop-ins, or does not merge them although the request needs it."""
        version = self.context.version
        if version is not None and version < k0s_config.CONTAINERD_SINCE:
            is_old = self.release is not None and self.release < k0s_config.READS_SINCE
            name = f"k0s {core_text.dotted(self.release or ())}" if is_old else "A k0s"
            running = "" if is_old else f" with containerd {core_text.dotted(version)}"
            raise errors.NvidiaError(
                f"{name}{running} does not read {k0s_config.DROP_INS}. Upgrade k0s to"
                f" {core_text.dotted(k0s_config.READS_SINCE)} or newer."
            )
        own_values = request.set_as_default is None and any(value is not None for value in self.own_values.values())
        writes_tables = request.set_as_default or own_values or request.enable_cdi is not None
        if self.concatenates and writes_tables:
            other = (
                f"{errors.option:set_as_default}: false and remove {errors.option:enable_cdi}"
                if request.register
                else f"{errors.option:register}: true"
            )
            raise errors.NvidiaError(
                f"k0s {core_text.dotted(self.release or ())} concatenates drop-ins instead of merging them. Its"
                f" containerd would not start with a default runtime or {errors.option:enable_cdi} in a drop-in."
                f" Upgrade k0s to {core_text.dotted(k0s_config.MERGES_SINCE)} or newer, or set {other}."
            )

    # -- differences from containerd -----------------------------------------------------------------------------

    def _mode(self, _asked: str) -> str:
        """Return drop_in, because k0s merges drop-ins."""
        return "drop_in"

    def _write_version(self, writer: containerd_runtimes.RuntimeTableWriter) -> None:
        writer.target.write(containerd_runtimes.VERSION, writer.version)

    def _import(self, _needed: str | None) -> None:
        """Do nothing, because k0s reads all files in the directory of drop-ins."""

    def _remove_unrecorded(self, edit: toml_plan.TomlEdit) -> None:
        if edit is not self.main:
            super()._remove_unrecorded(edit)

    def _check_types(self, target: toml_plan.TomlEdit, others: containerd_config.ContainerdFiles) -> None:
        super()._check_types(target, others)
        for file, setting in others.wrong_versions() if isinstance(others, k0s_config.K0sFiles) else ():
            raise errors.NvidiaError(
                f"{file.path}: k0s requires version = {others.version}, but the file contains {setting}. k0s would not"
                f" start, or would ignore these settings. Convert the file to version = {others.version}, or remove it."
            )


def _no_containerd(unit: systemd_units.Unit | None) -> str:
    """Return why k0s starts no containerd; empty if it does."""
    if unit is None:
        return ""
    if "controller" in unit.arguments and not (unit.is_on("enable-worker") or unit.is_on("single")):
        return f"{unit.name} runs a controller without a worker, and no containerd"
    if unit.flag_values("--cri-socket"):
        return f"{unit.name} uses another container runtime (--cri-socket)"
    return ""


K0S = K0s()
