# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the containerd inside K3s and RKE2.  They generate its configuration at every start, and
# find NVIDIA's programs by themselves: that file is read and never written.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import BUILTIN_DEFAULT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action, Installation, Trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_containerd import LEGACY_DEFAULT_NAME, Containerd
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rancher_generated import GeneratedConfig, host_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rancher_plan import FILE_NAME, RancherPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rancher_settings import (
    DEFAULT_RUNTIME,
    Place,
    Settings,
    data_dir,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_runtime
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

# Below the folder of all that it makes; so named whatever the version of its format (pkg/agent/containerd/config.go).
_GENERATED = "agent/etc/containerd/config.toml"


class Rancher(Containerd):
    """One of the two; ``title`` is what people call it, ``services`` are its units, that of a server first.

    Its versions are those of the distribution, not of the containerd in it.
    """

    # The same for both (pkg/agent/config/config_linux.go).
    socket = "/run/k3s/containerd/containerd.sock"
    # The CRI tells all that our file can change.
    tells_all = True

    def __init__(self, title: str, program: str, services: tuple[str, ...]) -> None:
        self.title = title
        self.flavor = self.key = program
        self.place = Place(program)
        self.services = services
        self.service = services[0]
        self.config_path = f"{self.place.data_dir}/{_GENERATED}"
        self.drop_in_path = f"{self.place.config_file}.d/{FILE_NAME}"
        self.no_reload = f"{title} reads its settings, and has its containerd read its own, only when it starts"

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        program = self.place.program
        name = unit_name(service) if service else service_of(host, self.services, program, self.program)
        unit = load_unit(host, name, program)
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        return Installation(
            binary=host.find_executable([*programs, program]),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self._generated(host, unit),
            pid=process_of(host, unit, self.program),
        )

    def _generated(self, host: HostRoot, unit: Unit | None) -> str:
        return f"{data_dir(self.place, host, unit)}/{_GENERATED}"

    # -- what it says of itself ----------------------------------------------------------------------------------

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        """What the CRI tells; one that is silent runs with the file that was generated at its start."""
        said = super().live(host, installation)
        if said is None:
            return None
        if said.silent:
            try:
                state = GeneratedConfig(HostFiles(host, self.key).as_configured(installation, None)).state()
            except GpufleetError:
                return said._replace(outdated=False)
            said = said._replace(
                runtimes=state.paths(), default_runtime=state.default_runtime or BUILTIN_DEFAULT, cdi=state.cdi
            )
        # Our file says only what it tells anyway, whatever its age.
        return said._replace(version="", outdated=False)

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        """A restart for a runtime of NVIDIA's that came, went or moved, and for another default; else nothing."""
        if not state.lists_runtimes:
            return Action.NONE
        programs = state.paths()
        wanted = _of_nvidia({name: programs.get(name, "") for name in state.runtimes})
        known = _of_nvidia(live.runtimes)
        default = state.default_runtime or BUILTIN_DEFAULT
        same = wanted == known and (live.default_runtime or BUILTIN_DEFAULT) in (default, LEGACY_DEFAULT_NAME)
        return Action.NONE if same else Action.RESTART

    def knows(self, runtime: str, state: ConfiguredState, _version: tuple[int, ...] | None) -> bool:
        """runc is always there, but as a default that is set it is not found (pkg/agent/containerd/config_linux.go)."""
        if runtime == BUILTIN_DEFAULT:
            return runtime != state.default_runtime
        return not state.lists_runtimes or runtime in state.runtimes

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return self._planner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return self._planner(context).absent()

    def _planner(self, context: Context) -> RancherPlanner:
        return RancherPlanner(self.title, self.place, self._generated(host_of(context), context.unit), context)

    def configured(self, context: Context) -> ConfiguredState:
        """What it would know after a restart.  Raises GpufleetError."""
        settings = Settings(self.place, host_of(context), context.unit)
        return GeneratedConfig(context).expected(settings.value(DEFAULT_RUNTIME))

    def sources(self, host: HostRoot, installation: Installation) -> list[str]:
        generated = GeneratedConfig(HostFiles(host, self.key).as_configured(installation, None))
        return [*generated.sources(), *Settings(self.place, host, installation.unit).files()]

    # -- no validator --------------------------------------------------------------------------------------------

    def trial(self, _binary: str, _folder: str, _files: t.Sequence[PlannedFile], _context: Context) -> Trial:
        """There is no command that judges settings: this one only fails, as one that an old program does not know."""
        return Trial({}, ("false",))

    def verdict(self, _before: str, _after: str, _files: t.Sequence[PlannedFile]) -> str:
        return ""

    def validator_missing(self, _output: str) -> bool:
        return True


def _of_nvidia(runtimes: t.Mapping[str, str]) -> dict[str, str]:
    return {name: program for name, program in runtimes.items() if is_nvidia_runtime(name, program)}


K3S = Rancher("K3s", "k3s", ("k3s.service", "k3s-agent.service"))
RKE2 = Rancher("RKE2", "rke2", ("rke2-server.service", "rke2-agent.service"))
