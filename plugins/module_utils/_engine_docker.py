# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: Docker as it stands on a host.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_api import get
from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import (
    BUILTIN_DEFAULT,
    DockerPlanner,
    catch_up,
    configured_state,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        Action,
        ConfiguredState,
        Context,
        EnginePlan,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

PID_FILE = "/var/run/docker.pid"


class _Docker:
    name = "docker"
    config_path = "/etc/docker/daemon.json"
    service = "docker.service"
    socket_unit = "docker.socket"
    socket = "/var/run/docker.sock"
    default_runtime = BUILTIN_DEFAULT

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: HostRoot) -> Installation:
        unit = load_unit(host, self.service)
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        named = unit.flag_values("--config-file") if unit is not None else []
        pid_files = unit.flag_values("--pidfile", "-p") if unit is not None else []
        return Installation(
            binary=host.find_executable([*programs, "dockerd"]),
            unit=unit,
            service=self.service,
            socket=self._socket(host, unit),
            config_path=named[-1] if named else self.config_path,
            pid=_running(host, pid_files[-1] if pid_files else PID_FILE) if host.live else None,
        )

    def _socket(self, host: HostRoot, unit: Unit | None) -> str:
        addresses = unit.flag_values("--host", "-H") if unit is not None else []
        for address in addresses:
            if address.startswith("unix://"):
                return address[len("unix://") :] or self.socket
        if any(address.startswith("fd://") for address in addresses):
            activation = load_unit(host, self.socket_unit)
            for stream in activation.listen if activation is not None else ():
                if stream.startswith("/"):
                    return stream
        return self.socket

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        # Without a process nobody may be asked: socket activation would start the daemon.
        if installation.pid is None:
            return None
        info = get(host.outer(installation.socket), "/info")
        if not isinstance(info, dict):
            return None
        runtimes = info.get("Runtimes")
        directories = info.get("CDISpecDirs")
        return LiveState(
            version=str(info.get("ServerVersion", "")),
            runtimes={
                name: str(entry.get("path", ""))
                for name, entry in (runtimes if isinstance(runtimes, dict) else {}).items()
                if isinstance(entry, dict)
            },
            default_runtime=str(info.get("DefaultRuntime", "")),
            cdi=None if "CDISpecDirs" not in info else bool(directories),
            live_restore=bool(info.get("LiveRestoreEnabled")),
            running_containers=int(info.get("ContainersRunning") or 0),
        )

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return DockerPlanner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return DockerPlanner(context).absent()

    def configured(self, context: Context) -> ConfiguredState:
        document = JsonDocument.from_bytes(context.path, context.content or b"")
        return configured_state(document, context.unit, context.version)

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        return catch_up(live, state)

    # -- the program ---------------------------------------------------------------------------------------------

    def version_argv(self, binary: str) -> list[str]:
        return [binary, "--version"]

    def validate_argv(self, binary: str, candidate: str, unit: Unit | None) -> list[str]:
        # With the unit's own flags, so that a setting that stands in both is found too.
        flags = _without_config_file(unit.arguments[1:]) if unit is not None else []
        return [binary, "--validate", "--config-file", candidate, *flags]

    def validator_missing(self, output: str) -> bool:
        return "unknown flag: --validate" in output


def _running(host: HostRoot, pid_file: str) -> int | None:
    """The process in dockerd's own pid file, if it is indeed a dockerd."""
    text = host.read_text(pid_file).strip()
    if text.isdigit() and host.read_text(f"/proc/{text}/comm").strip() == "dockerd":
        return int(text)
    return None


def _without_config_file(arguments: t.Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--config-file":
            next(words, None)
        elif not word.startswith("--config-file="):
            kept.append(word)
    return kept


DOCKER = _Docker()
