# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the containerd that k0s brings along, as it stands on a host.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_plan import configured_state
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation, Trial, parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_containerd import Containerd
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._k0s_files import (
    DATA_DIR,
    GENERATED,
    MAIN,
    K0sFiles,
    containerd_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._k0s_plan import DROP_IN, K0sPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._serving_units import service_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit, unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Context,
        EnginePlan,
        LiveState,
        PlannedFile,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

_PROGRAM = "k0s"
# What `k0s install` calls its services.
SERVICES = ("k0sworker.service", "k0scontroller.service")
# The words of a command that could not be started, here and in a tree.
_NOT_STARTED = ("cannot be run: ", "failed to run command")


class K0s(Containerd):
    """k0s' containerd is a child of k0s in the unit of that; ``binary`` is k0s, which unpacks it when it starts.

    k0s 1.27.1 and newer restart it by themselves a few seconds after a drop-in changed, by the signal that ends it.
    Its versions are those of k0s; that of the containerd that ``live`` met last decides how drop-ins are written.
    """

    flavor = "k0s"
    key = "k0s"
    config_path = MAIN
    drop_in_path: str | None = DROP_IN
    service = SERVICES[0]
    socket = "/run/k0s/containerd.sock"
    running: tuple[int, ...] | None = None

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        name = unit_name(service) if service else service_of(host, SERVICES, _PROGRAM, self.program)
        unit = load_unit(host, name, _PROGRAM)
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        return Installation(
            binary=host.find_executable([*programs, _PROGRAM]),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self.config_path,
            pid=process_of(host, unit, self.program),
        )

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        said = super().live(host, installation)
        self.running = parse_version(said.version) if said is not None else None
        return said._replace(version="") if said is not None else None

    def _paths(self, host: HostRoot, installation: Installation) -> list[str]:
        try:
            files = K0sFiles(HostFiles(host, self.key), host.resolve(installation.config_path), None)
        except GpufleetError:
            return [installation.config_path]
        generated = [GENERATED] if files.managed and host.exists(GENERATED) else []
        return [*(file.path for file in files.files), *generated]

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return K0sPlanner(context, self.running).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return K0sPlanner(context, self.running).absent()

    def configured(self, context: Context) -> ConfiguredState:
        return configured_state(self._files(context))

    def knows(self, runtime: str, state: ConfiguredState, version: tuple[int, ...] | None) -> bool:
        return super().knows(runtime, state, containerd_of(version, self.running))

    # -- the program ---------------------------------------------------------------------------------------------

    def version_argv(self, binary: str) -> list[str]:
        """k0s prints its own, such as v1.30.4+k0s.0."""
        return [binary, "version"]

    def trial(self, _binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        """The dump of what drop-ins amount to, made into one file as k0s does it, without what k0s begins with."""
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_trial import overlay_of  # noqa: PLC0415

        texts = {
            "after.toml": _merged_text(self._files(context, overlay_of(files))),
            "before.toml": _merged_text(self._files(context)),
        }
        program = posixpath.join(_data_dir(context.unit), "bin", self.program)
        after, before = ([program, "--config", f"{folder}/{name}", "config", "dump"] for name in texts)
        return Trial(texts, after, before, {"after.toml": ", ".join(file.path for file in files)})

    def validator_missing(self, output: str) -> bool:
        """k0s that never started has not unpacked its containerd."""
        return any(words in output for words in _NOT_STARTED)

    def _files(self, context: Context, overlay: t.Any = None) -> K0sFiles:
        return K0sFiles(context.files, context.path, containerd_of(context.version, self.running), overlay)


def _merged_text(files: K0sFiles) -> bytes:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument  # noqa: PLC0415

    text = f"version = {files.version}\n".encode()
    return TomlDocument.from_bytes(files.files[0].path, text).set(files.cri_path, files.cri()).to_bytes()


def _data_dir(unit: Unit | None) -> str:
    given = unit.flag_values("--data-dir") if unit is not None else []
    return given[-1] if given and given[-1].startswith("/") else DATA_DIR


K0S = K0s()
