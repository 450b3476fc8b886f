# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Podman on a host. It runs no daemon, so nothing is restarted."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import config as podman_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import plan as podman_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


class Podman(engines_base.EngineDefaults):
    """The system's own Podman, as root runs it."""

    name = "podman"
    flavor = core_constants.SYSTEM
    key = "podman"
    program = "podman"
    no_reload = "Podman has no daemon"
    syntax = "toml"
    validates_all_files = True
    reports_full_state = True
    config_path = podman_config.MAIN
    drop_in_path: str | None = podman_config.DROP_IN
    service = ""
    default_runtime = ""

    def inspect(self, host: hostfs.HostFS, _service: str | None = None) -> engines_base.Installation:
        binary = host.find_executable([self.program])
        return engines_base.Installation(binary, unit=None, service="", socket="", config_path=self.config_path)

    def live(self, _host: hostfs.HostFS, _installation: engines_base.Installation) -> engines_base.LiveState | None:
        """Return None: there is no daemon."""
        return None

    def config_files(self, _host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        return [installation.config_path, podman_config.DROP_IN]

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        return podman_plan.PodmanPlanner(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return podman_plan.PodmanPlanner(context).absent()

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        podman_config.check_syntax(context.files, context.version)
        return podman_plan.configured_state(context.version)._replace(
            cdi_folders=podman_plan.configured_folders(context.files, context.version)
        )

    def required_action(
        self, _live: engines_base.LiveState, _state: engines_base.ConfiguredState
    ) -> engines_base.Action:
        return engines_base.Action.NONE

    def defines_runtime(
        self, _runtime: str, _state: engines_base.ConfiguredState, _version: tuple[int, ...] | None
    ) -> bool:
        return False

    # -- the program ---------------------------------------------------------------------------------------------

    def validation_command(
        self, binary: str, _folder: str, _files: t.Sequence[core_plan.PlannedFile], _context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        """Return a command that fails: Podman has no validator. ``validator_missing`` recognizes the error."""
        return engines_base.ValidationCommand({}, [binary, "--validate"])


PODMAN = Podman()
