# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The containerd of K3s and RKE2 on a host.

This module does not parse or plan configuration files; ``config``, ``generated`` and ``plan`` do.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import engine as containerd_engine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import config as k3s_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import generated as k3s_generated
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import plan as k3s_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


# Relative to the data directory. The name is the same for all format versions (pkg/agent/containerd/config.go).
_GENERATED = "agent/etc/containerd/config.toml"
# According to public reports, these builds end at their start once they find a program of NVIDIA. The next build of the
# same release, +k3s2, does not.
_ENDING_BUILDS = ("1.25.15+k3s1", "1.26.10+k3s1", "1.27.7+k3s1", "1.28.3+k3s1")


class K3sFamily(containerd_engine.EmbeddedContainerd):
    """K3s or RKE2.

    ``title`` is the display name. The versions are those of the distribution, not of its containerd.
    """

    # The CRI reports everything that the file of this collection can change.
    reports_full_state = True

    def __init__(self, title: str, program: str) -> None:
        self.title = title
        self.flavor = self.key = self.starter = program
        self.distribution = k3s_config.RancherDistribution(program)
        row = flavors.FLAVORS["containerd", program]
        self.services, self.service, self.socket = row.services, row.services[0], row.cri
        self.config_path = f"{self.distribution.data_dir}/{_GENERATED}"
        self.drop_in_path = f"{self.distribution.config_file}.d/{k3s_plan.FILE_NAME}"
        self.no_reload = f"{title} and its containerd read their configuration only when they start"

    def _config_path(self, host: hostfs.HostFS, unit: systemd_units.Unit | None) -> str:
        return f"{k3s_config.data_dir(self.distribution, host, unit)}/{_GENERATED}"

    # -- reported state ------------------------------------------------------------------------------------------

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        """Return what the CRI reports, or the state of the file generated at the last start if it reports nothing."""
        live = super().live(host, installation)
        if live is None:
            return None
        if live.runtimes_unknown:
            try:
                state = k3s_generated.GeneratedConfig(
                    engines_base.HostFiles(host, self.key).as_configured(installation, None)
                ).state()
            except errors.NvidiaError:
                return live._replace(outdated=False)
            live = live._replace(
                runtimes=state.paths(),
                default_runtime=state.default_runtime or containerd_runtimes.BUILTIN_DEFAULT,
                cdi=state.cdi,
            )
        # The CRI reports everything that the file of this collection sets, so the age of the file does not matter.
        return live._replace(version="", outdated=False)

    def required_action(self, live: engines_base.LiveState, state: engines_base.ConfiguredState) -> engines_base.Action:
        """Return RESTART if an NVIDIA runtime was added, removed or moved, or if the default changed; else NONE."""
        if not state.lists_runtimes:
            return engines_base.Action.NONE
        programs = state.paths()
        configured = _nvidia_runtimes({name: programs.get(name, "") for name in state.runtimes})
        reported = _nvidia_runtimes(live.runtimes)
        default = state.default_runtime or containerd_runtimes.BUILTIN_DEFAULT
        same = configured == reported and (live.default_runtime or containerd_runtimes.BUILTIN_DEFAULT) in (
            default,
            containerd_runtimes.LEGACY_NAME,
        )
        return engines_base.Action.NONE if same else engines_base.Action.RESTART

    def defines_runtime(
        self, runtime: str, state: engines_base.ConfiguredState, _version: tuple[int, ...] | None
    ) -> bool:
        """Return whether the distribution defines ``runtime``.

        runc is always defined, but the setting default-runtime does not find it (pkg/agent/containerd/config_linux.go).
        """
        if runtime == containerd_runtimes.BUILTIN_DEFAULT:
            return runtime != state.default_runtime
        return not state.lists_runtimes or runtime in state.runtimes

    def release_problem(self, version: str | None) -> errors.Problem | None:
        build = (version or "").lstrip("v")
        if build not in _ENDING_BUILDS:
            return None
        message = f"{self.title} {build} does not start on a host that has a program of the NVIDIA Container Toolkit."
        advice = f"Upgrade {self.title} to {build[:-1]}2 or newer before you install the toolkit."
        return errors.Problem("engine-release-fails", message, advice)

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        return self._planner(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return self._planner(context).absent()

    def _planner(self, context: engines_base.Context) -> k3s_plan.K3sPlanner:
        return k3s_plan.K3sPlanner(
            self.title, self.distribution, self._config_path(k3s_generated.host_of(context), context.unit), context
        )

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        """Return the state after the next restart. Raises NvidiaError."""
        default = self._settings(context).value(k3s_config.DEFAULT_RUNTIME)
        return k3s_generated.GeneratedConfig(context).expected(default)

    def default_runtime_source(self, context: engines_base.Context) -> str:
        return k3s_generated.GeneratedConfig(context).default_source(self._settings(context))

    def _settings(self, context: engines_base.Context) -> k3s_config.RancherSettings:
        return k3s_config.RancherSettings(self.distribution, k3s_generated.host_of(context), context.unit)

    def config_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        generated = k3s_generated.GeneratedConfig(
            engines_base.HostFiles(host, self.key).as_configured(installation, None)
        )
        return [*generated.sources(), *k3s_config.RancherSettings(self.distribution, host, installation.unit).files()]

    # -- no validator --------------------------------------------------------------------------------------------

    def validation_command(
        self, _binary: str, _folder: str, _files: t.Sequence[core_plan.PlannedFile], _context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        """Return a command that always fails, because no command validates the settings.

        The failure is handled like that of an old program without a validator.
        """
        return engines_base.ValidationCommand({}, ("false",))

    def compare_dumps(self, _before: str, _after: str, _files: t.Sequence[core_plan.PlannedFile]) -> str:
        return ""

    def validator_missing(self, _output: str) -> bool:
        return True


def _nvidia_runtimes(runtimes: t.Mapping[str, str]) -> dict[str, str]:
    return {name: program for name, program in runtimes.items() if engines_base.is_nvidia_runtime(name, program)}


K3S = K3sFamily("K3s", "k3s")
RKE2 = K3sFamily("RKE2", "rke2")
