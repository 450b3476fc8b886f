# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The containerd of MicroK8s on a host.

This module does not parse or plan configuration files; ``config`` does.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import engine as containerd_engine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.microk8s import config as microk8s_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_ARGUMENTS = "/var/snap/microk8s/current/args"
# Fedora and related distributions have snaps below /var/lib/snapd.
_PROGRAMS = ("/snap/microk8s/current/bin/containerd", "/var/lib/snapd/snap/microk8s/current/bin/containerd")
# The errors of a program that finds its libraries only inside the snap, and of one that cannot be started at all.
_NOT_STARTED = ("error while loading shared libraries", "cannot be run: ", "failed to run command")


class MicroK8s(containerd_engine.Containerd):
    """The containerd of MicroK8s. Its configuration is the template, from which MicroK8s generates a file beside it."""

    flavor = "microk8s"
    key = "microk8s"
    config_path = f"{_ARGUMENTS}/containerd-template.toml"
    drop_in_path: str | None = None
    service = "snap.microk8s.daemon-containerd.service"
    socket = "/var/snap/microk8s/common/run/containerd.sock"

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        name = systemd_units.unit_name(service or self.service)
        # The unit runs `snap run`, whose script names the paths above.
        unit = systemd_units.load_unit(host, name)
        return engines_base.Installation(
            binary=host.find_executable(_PROGRAMS),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self.config_path,
            pid=processes.find_process(host, unit, self.program),
        )

    def _paths(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        generated = f"{host.resolve(_ARGUMENTS)}/{microk8s_config.GENERATED_NAME}"
        return [*super()._paths(host, installation), *([generated] if host.exists(generated) else [])]

    def present(self, request: engines_base.RuntimeRequest, context: engines_base.Context) -> engines_base.EnginePlan:
        return microk8s_config.TemplatePlanner(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return microk8s_config.TemplatePlanner(context).absent()

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        files = microk8s_config.TemplateFiles(context.files, context.path, context.version)
        return files.filled_state(containerd_plan.configured_state(files))

    def validator_missing(self, output: str) -> bool:
        return any(words in output for words in _NOT_STARTED)


MICROK8S = MicroK8s()
