# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: Podman, which has no daemon, as it stands on a host.  Every start of a container reads all
# files again, so nothing is ever restarted.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action, Installation, Trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import SYSTEM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._podman_files import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.plugins.module_utils._podman_plan import PodmanPlanner, configured_state

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        Ailment,
        ConfiguredState,
        Context,
        EnginePlan,
        LiveState,
        PlannedFile,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest


class Podman:
    """The system's own Podman, as root runs it."""

    name = "podman"
    flavor = SYSTEM
    key = "podman"
    program = "podman"
    companions: tuple[str, ...] = ()
    greeting = b""
    no_reload = "Podman has no daemon"
    default_aliases: tuple[str, ...] = ()
    syntax = "toml"
    judged_together = True
    tells_all = True
    config_path = MAIN
    drop_in_path: str | None = DROP_IN
    service = ""
    default_runtime = ""

    def inspect(self, host: HostRoot, _service: str | None = None) -> Installation:
        binary = host.find_executable([self.program])
        return Installation(binary, unit=None, service="", socket="", config_path=self.config_path)

    def live(self, _host: HostRoot, _installation: Installation) -> LiveState | None:
        """None: nothing runs."""
        return None

    def ailment(
        self, _host: HostRoot, _installation: Installation, _live: LiveState, _state: ConfiguredState | None
    ) -> Ailment | None:
        return None

    def sources(self, _host: HostRoot, installation: Installation) -> list[str]:
        return [installation.config_path, DROP_IN]

    def try_runtimes(
        self, _host: HostRoot, _installation: Installation, _runtimes: t.Sequence[str], _run: Runner
    ) -> tuple[list[str], list[str]]:
        return [], []

    def casualties(self, _host: HostRoot, _installation: Installation) -> list[str] | None:
        """None at all: nothing is restarted."""
        return []

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return PodmanPlanner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return PodmanPlanner(context).absent()

    def configured(self, context: Context) -> ConfiguredState:
        return configured_state(context.version)

    def catch_up(self, _live: LiveState, _state: ConfiguredState) -> Action:
        return Action.NONE

    def knows(self, _runtime: str, _state: ConfiguredState, _version: tuple[int, ...] | None) -> bool:
        return False

    # -- the program ---------------------------------------------------------------------------------------------

    def version_argv(self, binary: str) -> list[str]:
        return [binary, "--version"]

    def trial(self, binary: str, _folder: str, _files: t.Sequence[PlannedFile], _context: Context) -> Trial:
        """Podman judges nothing beforehand, which it says itself; a later release may."""
        return Trial({}, [binary, "--validate"])

    def verdict(self, _before: str, _after: str, _files: t.Sequence[PlannedFile]) -> str:
        return ""

    def validator_missing(self, output: str) -> bool:
        return "unknown flag: --validate" in output


PODMAN = Podman()
