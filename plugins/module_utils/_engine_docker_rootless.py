# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the Docker of a user, started by dockerd-rootless.sh in namespaces of its own, as a
# task of that user sees it.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._accounts import KEY, require_own
from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import CDI_SINCE, DockerPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import (
    PROGRAM,
    Docker,
    setting_values,
    settings_in,
    socket_in,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rootless import user_process, user_unit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import EnginePlan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# Before, its namespace hid what is in /etc/cdi and /var/run/cdi (moby #47676; release notes of 27.4.0, moby #49027).
_CDI_SEEN_SINCE = (27, 4)


class _RootlessPlanner(DockerPlanner):
    """One plan for the daemon.json of a user."""

    def present(self, request: RuntimeRequest) -> EnginePlan:
        plan = super().present(request)
        return plan._replace(warnings=(*plan.warnings, *self._cdi_doubts(request)))

    def _cdi_doubts(self, request: RuntimeRequest) -> t.Iterator[str]:
        unit, version = self.context.unit, self.context.version
        named = self.document.value("cdi-spec-dirs") or (unit is not None and unit.flag_values("--cdi-spec-dir"))
        if request.enable_cdi and version is not None and CDI_SINCE <= version < _CDI_SEEN_SINCE and not named:
            yield (
                f"Rootless Docker {'.'.join(map(str, version))} does not see the specifications in /etc/cdi and"
                " /var/run/cdi, which its namespace hides before Docker 27.4 (late builds of 25.0 and 26.1 have the"
                " correction too). Upgrade Docker, or copy the specification into a folder of the user's and name that"
                f" in cdi-spec-dirs in {self.context.path}."
            )


class RootlessDocker(Docker):
    """The Docker of the user who runs the task."""

    flavor = "rootless"
    companions: tuple[str, ...] = ()
    planner = _RootlessPlanner

    def __init__(self, user: str) -> None:
        self.user = user
        self.key = f"{KEY}{user}"
        self.config_path = f"~{user}/.config/docker/daemon.json"

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        """Raises GpufleetError unless that user runs this."""
        account = require_own(host, self.user)
        service = unit_name(service or self.service)
        unit = user_unit(host, account, service)
        environment = unit.environment if unit is not None else {}
        named = unit.flag_values("--config-file") if unit is not None else []
        usual = posixpath.join(environment.get("XDG_CONFIG_HOME") or ".config", "docker/daemon.json")
        # A user's daemons start in the user's home.
        config_path = posixpath.join(account.home, named[-1] if named else usual)
        runtime_dir = posixpath.join(account.home, environment.get("XDG_RUNTIME_DIR") or account.runtime_dir)
        settings = settings_in(host, config_path)
        socket = f"{runtime_dir}/docker.sock"
        pid_files = [*setting_values(unit, settings, "pidfile", "--pidfile", "-p"), f"{runtime_dir}/docker.pid"]
        pid = user_process(host, account, unit, PROGRAM, pid_files)
        binary = _program(host, unit, environment)
        return Installation(
            binary=binary,
            unit=unit,
            service=service,
            socket=socket_in(setting_values(unit, settings, "hosts", "--host", "-H"), socket) or socket,
            config_path=config_path,
            pid=pid,
            user=account,
            # The system's program alone does not make an engine of the user's.
            there=pid is not None or (unit is not None and binary is not None),
        )

    def _keeps_containers(self, _host: HostRoot, _installation: Installation) -> bool:
        """They end with the namespaces that dockerd-rootless.sh has made, whatever live-restore says."""
        return False


def _program(host: HostRoot, unit: Unit | None, environment: t.Mapping[str, str]) -> str | None:
    """The dockerd that dockerd-rootless.sh finds."""
    folders = environment.get("PATH", "").split(":")
    if unit is not None and unit.arguments:
        folders.append(posixpath.dirname(unit.arguments[0]))
    names = [environment.get("DOCKERD", ""), *(f"{folder}/{PROGRAM}" for folder in folders)]
    return host.find_executable([*(name for name in names if name.startswith("/")), PROGRAM])
