# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The containerd of k0s on a host.

This module does not parse or plan configuration files; ``config`` and ``plan`` do.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import engine as containerd_engine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s import config as k0s_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s import plan as k0s_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_PROGRAM = "k0s"
# The services that `k0s install` creates.
SERVICES = ("k0sworker.service", "k0scontroller.service")
# Parts of the error message when the validation command cannot start, on this host and in a chroot.
_NOT_STARTED = ("cannot be run: ", "failed to run command")


class K0s(containerd_engine.Containerd):
    """The containerd of k0s, a child process in the unit of k0s.

    ``binary`` is k0s, which unpacks containerd when it starts. k0s 1.27.1 and newer restart containerd a few seconds
    after a drop-in changed, with the signal that ends it. Versions are those of k0s. ``running`` is the version of the
    containerd that ``live`` found last; it determines the format of drop-ins.
    """

    flavor = "k0s"
    key = "k0s"
    config_path = k0s_config.MAIN
    drop_in_path: str | None = k0s_plan.DROP_IN
    service = SERVICES[0]
    socket = "/run/k0s/containerd.sock"
    running: tuple[int, ...] | None = None

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        name = (
            systemd_units.unit_name(service)
            if service
            else processes.active_unit(host, SERVICES, _PROGRAM, self.program)
        )
        unit = systemd_units.load_unit(host, name, _PROGRAM)
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        return engines_base.Installation(
            binary=host.find_executable([*programs, _PROGRAM]),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self.config_path,
            pid=processes.find_process(host, unit, self.program),
        )

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        said = super().live(host, installation)
        self.running = core_text.parse_version(said.version) if said is not None else None
        return said._replace(version="") if said is not None else None

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

    def present(self, request: engines_base.RuntimeRequest, context: engines_base.Context) -> engines_base.EnginePlan:
        return k0s_plan.K0sPlanner(context, self.running).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return k0s_plan.K0sPlanner(context, self.running).absent()

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        return containerd_plan.configured_state(self._files(context))

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
        """Return the command that dumps the merged drop-ins.

        This collection merges the drop-ins into one file, as k0s does, without the defaults of k0s.
        """
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            toml_plan,
        )

        texts = {
            "after.toml": _merged_text(self._files(context, toml_plan.overlay_of(files))),
            "before.toml": _merged_text(self._files(context)),
        }
        program = posixpath.join(_data_dir(context.unit), "bin", self.program)
        after, before = ([program, "--config", f"{folder}/{name}", "config", "dump"] for name in texts)
        return engines_base.ValidationCommand(
            texts, after, before, {"after.toml": ", ".join(file.path for file in files)}
        )

    def validator_missing(self, output: str) -> bool:
        """Return whether containerd could not be started. A k0s that never started has not unpacked it."""
        return any(words in output for words in _NOT_STARTED)

    def _files(self, context: engines_base.Context, overlay: t.Any = None) -> k0s_config.K0sFiles:
        return k0s_config.K0sFiles(
            context.files, context.path, k0s_config.containerd_of(context.version, self.running), overlay
        )


def _merged_text(files: k0s_config.K0sFiles) -> bytes:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
        toml_document,
    )

    text = f"version = {files.version}\n".encode()
    return toml_document.TomlDocument.from_bytes(files.files[0].path, text).set(files.cri_path, files.cri()).to_bytes()


def _data_dir(unit: systemd_units.Unit | None) -> str:
    given = unit.flag_values("--data-dir") if unit is not None else []
    return given[-1] if given and given[-1].startswith("/") else k0s_config.DATA_DIR


K0S = K0s()
