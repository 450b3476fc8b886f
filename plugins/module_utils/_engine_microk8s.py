# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the containerd in the snap of MicroK8s, as it stands on a host.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_plan import configured_state
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_containerd import Containerd
from ansible_collections.gpufleet.nvidia.plugins.module_utils._microk8s_template import (
    GENERATED_NAME,
    TemplateFiles,
    TemplatePlanner,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit, unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Context,
        EnginePlan,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest

_ARGUMENTS = "/var/snap/microk8s/current/args"
# Fedora and its kin have snaps below /var/lib/snapd.
_PROGRAMS = ("/snap/microk8s/current/bin/containerd", "/var/lib/snapd/snap/microk8s/current/bin/containerd")
# Of a program that finds its libraries inside the snap only, and of one that cannot be started at all.
_NOT_STARTED = ("error while loading shared libraries", "cannot be run: ", "failed to run command")


class MicroK8s(Containerd):
    """All that is configured is the template; what is made of it is a file beside it."""

    flavor = "microk8s"
    key = "microk8s"
    config_path = f"{_ARGUMENTS}/containerd-template.toml"
    drop_in_path: str | None = None
    service = "snap.microk8s.daemon-containerd.service"
    socket = "/var/snap/microk8s/common/run/containerd.sock"

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        name = unit_name(service or self.service)
        # It starts `snap run`, whose script names the files above.
        unit = load_unit(host, name)
        return Installation(
            binary=host.find_executable(_PROGRAMS),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self.config_path,
            pid=process_of(host, unit, self.program),
        )

    def _paths(self, host: HostRoot, installation: Installation) -> list[str]:
        generated = f"{host.resolve(_ARGUMENTS)}/{GENERATED_NAME}"
        return [*super()._paths(host, installation), *([generated] if host.exists(generated) else [])]

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return TemplatePlanner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return TemplatePlanner(context).absent()

    def configured(self, context: Context) -> ConfiguredState:
        files = TemplateFiles(context.files, context.path, context.version)
        return files.filled_state(configured_state(files))

    def validator_missing(self, output: str) -> bool:
        return any(words in output for words in _NOT_STARTED)


MICROK8S = MicroK8s()
