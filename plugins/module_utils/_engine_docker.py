# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: Docker as it stands on a host.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_api import ask_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import (
    BUILTIN_DEFAULT,
    DockerPlanner,
    catch_up,
    configured_state,
    is_builtin,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
    Action,
    Ailment,
    EnginePlan,
    Installation,
    LiveState,
    Trial,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import SYSTEM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import JSON_BYTES, UNIT_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import get, load
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of, uid_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit, unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Context,
        PlannedFile,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

PROGRAM = "dockerd"
SOCKET_UNIT = "docker.socket"
_SNAP = (
    "Docker is a snap, which this collection does not configure. A snap is confined, so its Docker cannot run the"
    " host's NVIDIA Container Toolkit; it brings a toolkit of its own and registers it by itself. Use the Docker of the"
    " distribution or Docker's own packages for the host's toolkit."
)


class Docker:
    """The system's own Docker; other flavours are made from it."""

    name = "docker"
    flavor = SYSTEM
    key = "docker"
    program = PROGRAM
    companions: tuple[str, ...] = (SOCKET_UNIT,)
    greeting = b"GET /_ping HTTP/1.0\r\n\r\n"
    no_reload = ""
    default_aliases: tuple[str, ...] = ()
    syntax = "json"
    judged_together = False
    tells_all = True
    drop_in_path: str | None = None
    config_path = "/etc/docker/daemon.json"
    service = "docker.service"
    socket = "/var/run/docker.sock"
    pid_file = "/var/run/docker.pid"
    default_runtime = BUILTIN_DEFAULT
    planner = DockerPlanner

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        service = unit_name(service or self.service)
        unit = self._unit(host, service)
        named = unit.flag_values("--config-file") if unit is not None else []
        config_path = named[-1] if named else self.config_path
        # dockerd refuses to start with a setting in both places, so their order does not matter.
        settings = settings_in(host, config_path)
        return Installation(
            binary=self._binary(host, unit),
            unit=unit,
            service=service,
            socket=self._socket(host, setting_values(unit, settings, "hosts", "--host", "-H")),
            config_path=config_path,
            pid=self._pid(host, unit, setting_values(unit, settings, "pidfile", "--pidfile", "-p")),
        )

    def _unit(self, host: HostRoot, service: str) -> Unit | None:
        return load_unit(host, service, PROGRAM)

    def _binary(self, host: HostRoot, unit: Unit | None) -> str | None:
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        return host.find_executable([*programs, PROGRAM])

    def _socket(self, host: HostRoot, addresses: t.Sequence[str]) -> str:
        named = socket_in(addresses, self.socket)
        if named is not None:
            return named
        if any(address.startswith("fd://") for address in addresses):
            activation = load_unit(host, SOCKET_UNIT)
            for stream in activation.listen if activation is not None else ():
                # %t is where a system unit's sockets are (systemd.unit(5), "Specifiers").
                stream = stream.replace("%t", "/run", 1)
                if stream.startswith("/"):
                    return stream
        return self.socket

    def _pid(self, host: HostRoot, unit: Unit | None, pid_files: t.Sequence[str]) -> int | None:
        """The unit's process, else (no systemd, or not its control groups) the one in dockerd's own pid file."""
        if not host.live:
            return None
        pid = process_of(host, unit, PROGRAM)
        if pid is not None:
            return pid
        text = host.read_text(pid_files[-1] if pid_files else self.pid_file, UNIT_BYTES).strip()
        if not (text.isascii() and text.isdigit()) or host.read_text(f"/proc/{text}/comm").strip() != PROGRAM:
            return None
        # An old pid file may name a dockerd of a user.
        return None if uid_of(host, text) else int(text)

    def _ask(self, host: HostRoot, installation: Installation, request: str) -> t.Any:
        """What the daemon answers, None where it does not."""
        return ask_json(host.outer(installation.socket), request)

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        # Without a process nobody may be asked: socket activation would start the daemon.
        if installation.pid is None:
            return None
        info = self._ask(host, installation, "/info")
        if not isinstance(info, dict):
            return None
        runtimes: dict[str, t.Any] = get(info, "Runtimes", {})
        directories = info.get("CDISpecDirs")
        return LiveState(
            version=get(info, "ServerVersion", ""),
            runtimes={name: get(entry, "path", "") for name, entry in runtimes.items() if isinstance(entry, dict)},
            default_runtime=get(info, "DefaultRuntime", ""),
            cdi=None if "CDISpecDirs" not in info else bool(directories),
            live_restore=bool(info.get("LiveRestoreEnabled")),
            running_containers=get(info, "ContainersRunning", 0),
        )

    def ailment(
        self, _host: HostRoot, _installation: Installation, _live: LiveState, _state: ConfiguredState | None
    ) -> Ailment | None:
        """A dockerd that answers does its work."""
        return None

    def sources(self, _host: HostRoot, installation: Installation) -> list[str]:
        return [installation.config_path]

    def try_runtimes(
        self, _host: HostRoot, _installation: Installation, _runtimes: t.Sequence[str], _run: Runner
    ) -> tuple[list[str], list[str]]:
        """What dockerd says of its runtimes is so."""
        return [], []

    def casualties(self, host: HostRoot, installation: Installation) -> list[str] | None:
        info = self._ask(host, installation, "/info") if installation.pid is not None else {}
        containers = self._ask(host, installation, "/containers/json") if installation.pid is not None else []
        if not isinstance(info, dict) or not isinstance(containers, list):
            return None
        # The daemon that stops leaves them alone if it knows of this setting, and so does the one that starts.
        if info.get("LiveRestoreEnabled") and self._keeps_containers(host, installation):
            return []
        return sorted(_name_of(container) for container in containers if isinstance(container, dict))

    def _keeps_containers(self, host: HostRoot, installation: Installation) -> bool:
        arguments = installation.unit.arguments if installation.unit is not None else ()
        flags = [word for word in arguments if word.partition("=")[0] == "--live-restore"]
        if flags:
            return flags[-1].partition("=")[2] in ("", "1", "t", "true", "T", "TRUE", "True")
        return settings_in(host, installation.config_path).get("live-restore") is True

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        request.check_plain(self.name)
        return self.planner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        plan = self.planner(context).absent()
        for path in context.recorded:
            # dockerd reads one file: with another one the unit's flags have no quarrel, and its change disturbs nobody.
            other = self.planner(context.about(path)._replace(unit=None)).absent()
            plan = plan.joined(other._replace(action=Action.NONE))
        return plan

    def configured(self, context: Context) -> ConfiguredState:
        document = JsonDocument.from_bytes(context.path, context.content or b"")
        return configured_state(document, context.unit, context.version)

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        return catch_up(live, state)

    def knows(self, runtime: str, state: ConfiguredState, _version: tuple[int, ...] | None) -> bool:
        return is_builtin(runtime) or runtime in state.runtimes or runtime in state.flagged_runtimes

    # -- the program ---------------------------------------------------------------------------------------------

    def version_argv(self, binary: str) -> list[str]:
        return [binary, "--version"]

    def trial(self, binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        # With the unit's own flags, so that a setting that stands in both is found too.
        flags = _without_config_file(context.unit.arguments[1:]) if context.unit is not None else []
        (file,) = files
        name = posixpath.basename(file.path)
        argv = [binary, "--validate", "--config-file", f"{folder}/{name}", *flags]
        return Trial({name: file.after or b""}, argv, stands_for={name: file.path})

    def verdict(self, _before: str, _after: str, _files: t.Sequence[PlannedFile]) -> str:
        return ""

    def validator_missing(self, output: str) -> bool:
        return "unknown flag: --validate" in output


def _name_of(container: t.Mapping[str, t.Any]) -> str:
    """Its name as people know it: the API puts a slash before it."""
    listed: list[t.Any] = get(container, "Names", [])
    names = [name for name in listed if isinstance(name, str)]
    return (names or [get(container, "Id", "")[:12]])[0].lstrip("/")


def settings_in(host: HostRoot, path: str) -> dict[str, t.Any]:
    """The file as a dictionary, empty where it cannot be read: plans complain of that, and better."""
    try:
        found = load(host.read(path, JSON_BYTES) or b"{}")
    except (HostError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def socket_in(addresses: t.Iterable[str], usual: str) -> str | None:
    """The first Unix socket among the addresses; an address without a path means the ``usual`` one."""
    return next((found[len("unix://") :] or usual for found in addresses if found.startswith("unix://")), None)


def setting_values(unit: Unit | None, settings: t.Mapping[str, t.Any], key: str, *flags: str) -> list[str]:
    """What the unit's flags say, else what the file says; the flags give a list even where there can be only one."""
    values = unit.flag_values(*flags) if unit is not None else []
    found = settings.get(key)
    if not values and found:
        values = [value for value in (found if isinstance(found, list) else [found]) if isinstance(value, str)]
    return values


def _without_config_file(arguments: t.Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--config-file":
            next(words, None)
        elif not word.startswith("--config-file="):
            kept.append(word)
    return kept


class _SnapPlanner(DockerPlanner):
    """A removal from the snap's daemon.json."""

    def leftover(self, _path: t.Any) -> bool:
        """An entry without a record is the snap's own."""
        return False


class DockerSnap(Docker):
    """Canonical's snap of Docker: it is reported and refused.

    What earlier versions of this collection recorded of its file is still restored.
    """

    flavor = "snap"
    key = "docker_snap"
    companions: tuple[str, ...] = ()
    config_path = "/var/snap/docker/current/config/daemon.json"
    service = "snap.docker.dockerd.service"
    pid_file = "/run/snap.docker/docker.pid"
    planner = _SnapPlanner

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        # Its program runs inside the snap only, so neither its version nor its validator is asked for.
        installation = super().inspect(host, service)
        there = installation.unit is not None or installation.pid is not None
        return installation._replace(binary=None, there=there, unsupported=_SNAP)

    def _unit(self, host: HostRoot, service: str) -> Unit | None:
        """The unit without its arguments, which are those of the program ``snap``."""
        unit = load_unit(host, service)
        return unit._replace(arguments=()) if unit is not None else None

    def present(self, _request: RuntimeRequest, _context: Context) -> EnginePlan:
        raise GpufleetError(f"{_SNAP} Nothing was changed.")


DOCKER = Docker()
DOCKER_SNAP = DockerSnap()
