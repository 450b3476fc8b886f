# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Docker on a host: the system's, and the rootless one of a user."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import facts as docker_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import plan as docker_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes, rootless
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


PROGRAM = "dockerd"
SOCKET_UNIT = "docker.socket"
# Containers that the message about a restart may name. With a limit, Docker lists all states, so a filter is needed:
# {"status":["running","paused","restarting"]}.
_NAMED = 20
# No host runs more. A daemon could report any number.
_MOST_UNNAMED = 100_000
_SOME_RUNNING = (
    f"/containers/json?limit={_NAMED}&filters="
    "%7B%22status%22%3A%5B%22running%22%2C%22paused%22%2C%22restarting%22%5D%7D"
)
_SNAP = (
    "Docker is installed as a snap, which this collection does not configure. A snap is confined: its Docker cannot run"
    " the NVIDIA Container Toolkit of the host, and contains another one, which it registers itself. To use the toolkit"
    " of the host, install Docker from the distribution or from Docker's packages."
)


class Docker(engines_base.EngineDefaults):
    """The system's own Docker. The other flavors are subclasses."""

    name = "docker"
    flavor = core_constants.SYSTEM
    key = "docker"
    program = PROGRAM
    companions: tuple[str, ...] = (SOCKET_UNIT,)
    ping_request = b"GET /_ping HTTP/1.0\r\n\r\n"
    no_reload = ""
    syntax = "json"
    validates_all_files = False
    reports_full_state = True
    drop_in_path: str | None = None
    config_path = "/etc/docker/daemon.json"
    (service,) = flavors.FLAVORS["docker", core_constants.SYSTEM].services
    socket = "/var/run/docker.sock"
    pid_file = "/var/run/docker.pid"
    default_runtime = docker_plan.BUILTIN_DEFAULT
    planner = docker_plan.DockerPlanner

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        service = systemd_units.unit_name(service or self.service)
        unit = self._unit(host, service)
        named = unit.flag_values("--config-file") if unit is not None else []
        config_path = unit.absolute(named[-1]) if unit is not None and named else self.config_path
        # dockerd refuses to start with a setting in both places, so their order does not matter.
        settings = settings_in(host, config_path)
        return engines_base.Installation(
            binary=systemd_units.find_program(host, unit, PROGRAM),
            unit=unit,
            service=service,
            socket=self._socket(host, setting_values(unit, settings, "hosts", "--host", "-H", "-DH")),
            config_path=config_path,
            pid=self._pid(host, unit, setting_values(unit, settings, "pidfile", "--pidfile", "-p")),
        )

    def _unit(self, host: hostfs.HostFS, service: str) -> systemd_units.Unit | None:
        return processes.with_flags(host, systemd_units.load_unit(host, service, PROGRAM), PROGRAM)

    def _socket(self, host: hostfs.HostFS, addresses: t.Sequence[str]) -> str:
        named = socket_in(addresses, self.socket)
        if named is not None:
            return named
        if any(address.startswith("fd://") for address in addresses):
            activation = systemd_units.load_unit(host, SOCKET_UNIT)
            for stream in activation.listen if activation is not None else ():
                # %t is the directory of a system unit's sockets (systemd.unit(5), "Specifiers").
                stream = stream.replace("%t", "/run", 1)
                if stream.startswith("/"):
                    return stream
        return self.socket

    def _pid(self, host: hostfs.HostFS, unit: systemd_units.Unit | None, pid_files: t.Sequence[str]) -> int | None:
        """Return the unit's process, otherwise the one in dockerd's own pid file.

        The pid file is used without systemd or its control groups.
        """
        if not host.live:
            return None
        pid = processes.find_process(host, unit, PROGRAM)
        if pid is not None:
            return pid
        text = host.read_text(pid_files[-1] if pid_files else self.pid_file, hostfs.UNIT_BYTES).strip()
        if not (text.isascii() and text.isdigit()) or host.read_text(f"/proc/{text}/comm").strip() != PROGRAM:
            return None
        # An old pid file may name the dockerd of a user.
        return None if processes.uid_of(host, text) else int(text)

    def _ask(self, host: hostfs.HostFS, installation: engines_base.Installation, request: str) -> t.Any:
        """Return the daemon's answer, None if it does not answer."""
        return unix_socket.http_get_json(host.real_path(installation.socket), request)

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        # Without a process there must be no request: socket activation would start the daemon.
        if installation.pid is None:
            return None
        info = self._ask(host, installation, "/info")
        if not isinstance(info, dict):
            return None
        runtimes: dict[str, t.Any] = json_data.get(info, "Runtimes", {})
        directories = info.get("CDISpecDirs")
        return engines_base.LiveState(
            version=json_data.get(info, "ServerVersion", ""),
            runtimes={
                name: json_data.get(entry, "path", "") for name, entry in runtimes.items() if isinstance(entry, dict)
            },
            default_runtime=json_data.get(info, "DefaultRuntime", ""),
            cdi=None if "CDISpecDirs" not in info else bool(directories),
            cdi_folders=json_data.texts(directories) or None,
            live_restore=bool(info.get("LiveRestoreEnabled")),
            running_containers=_count(info),
        )

    def config_files(self, _host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        return [installation.config_path]

    def containers_stopped_by_restart(
        self, host: hostfs.HostFS, installation: engines_base.Installation
    ) -> list[str] | None:
        if installation.pid is None:
            return []
        info = self._ask(host, installation, "/info")
        if not isinstance(info, dict):
            return None
        # Containers keep running only if both the daemon that stops and the one that starts have this setting.
        if info.get("LiveRestoreEnabled") and self._keeps_containers(host, installation):
            return []
        # A list of thousands of containers may be longer than any limit. The number of them is in the answer above.
        containers = self._ask(host, installation, _SOME_RUNNING)
        listed = [container for container in containers or () if isinstance(container, dict)]
        count = _count(info)
        if not isinstance(containers, list):
            return [f"{count} containers, which {self.name} does not list"] if count else None
        unnamed = min(max(0, count - len(listed)), _MOST_UNNAMED) if len(listed) >= _NAMED else 0
        return [*sorted(map(_name_of, listed)), *["another container"] * unnamed]

    def missed_toolkit(self, host: hostfs.HostFS, installation: engines_base.Installation, version: str | None) -> str:
        """Return why the daemon refuses ``--gpus``, empty if it does not, or if no unit restarts it.

        dockerd searches these programs only when it starts (daemon/nvidia_linux.go of moby 20.10 to 28.2,
        daemon/devices_nvidia_linux.go of 28.3 to 29.7). Its API does not say what it has found.
        """
        number = core_text.parse_version(version or "")
        by_cdi = number is None or number >= docker_facts.GPUS_BY_CDI_SINCE
        program = host.find_executable(docker_facts.GPUS_PROGRAMS if by_cdi else docker_facts.GPUS_PROGRAMS[:1])
        if installation.pid is None or installation.unit is None or program is None:
            return ""
        installed = processes.recorded_moment(host, core_records.INSTALLED_PACKAGES)
        started = processes.started(host, installation.pid)
        if host.will_be_new(program) or (installed is not None and installed.is_after(started)):
            return f"{self.name} was started before the NVIDIA Container Toolkit was installed, so it refuses --gpus"
        return ""

    def _keeps_containers(self, host: hostfs.HostFS, installation: engines_base.Installation) -> bool:
        arguments = installation.unit.arguments if installation.unit is not None else ()
        flags = [argument for argument in arguments if argument.partition("=")[0] == "--live-restore"]
        if flags:
            return flags[-1].partition("=")[2] in ("", *core_text.GO_TRUE)
        return settings_in(host, installation.config_path).get("live-restore") is True

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        request.refuse_toml_settings(self.name)
        return self.planner(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        plan = self.planner(context).absent()
        for path in context.recorded:
            # dockerd reads one file. The unit's flags cannot conflict with another file, and changing that one needs no
            # restart.
            other = self.planner(context.for_file(path)._replace(unit=None)).absent()
            plan = plan.joined(other._replace(action=engines_base.Action.NONE))
        return plan

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        document = _document(context)
        docker_plan.check_names(document)
        return docker_plan.configured_state(document, context.unit, context.version)

    def default_runtime_source(self, context: engines_base.Context) -> str:
        unit, in_file = context.unit, _document(context).value(docker_plan.DEFAULT)
        if unit is None or in_file or not unit.flag_values("--default-runtime"):
            return context.path
        # A drop-in of the unit may set the flag.
        return f"the unit {unit.name}"

    def required_action(self, live: engines_base.LiveState, state: engines_base.ConfiguredState) -> engines_base.Action:
        return docker_plan.required_action(live, state)

    def defines_runtime(
        self, runtime: str, state: engines_base.ConfiguredState, _version: tuple[int, ...] | None
    ) -> bool:
        return docker_plan.is_accepted(runtime) or runtime in state.runtimes or runtime in state.flagged_runtimes

    # -- the program ---------------------------------------------------------------------------------------------

    def validation_command(
        self, binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        # With the flags of the unit, dockerd also reports settings that are both in the unit and in the file.
        flags = _without_config_file(context.unit.arguments[1:]) if context.unit is not None else []
        (file,) = files
        name = posixpath.basename(file.path)
        argv = [binary, "--validate", "--config-file", f"{folder}/{name}", *flags]
        return engines_base.ValidationCommand({name: file.after or b""}, argv, original_paths={name: file.path})


def _document(context: engines_base.Context) -> json_document.JsonDocument:
    return json_document.JsonDocument.from_bytes(context.path, context.content or b"")


def _count(info: dict[str, t.Any]) -> int:
    """Return how many containers a restart may stop: a paused one is stopped like one that runs."""
    return json_data.get(info, "ContainersRunning", 0) + json_data.get(info, "ContainersPaused", 0)


def _name_of(container: t.Mapping[str, t.Any]) -> str:
    """Return the name of a container as users know it: the API puts a slash before it."""
    listed: list[t.Any] = json_data.get(container, "Names", [])
    names = [name for name in listed if isinstance(name, str)]
    return (names or [json_data.get(container, "Id", "")[:12]])[0].lstrip("/")


def settings_in(host: hostfs.HostFS, path: str) -> dict[str, t.Any]:
    """Return the file as a dictionary, empty if it cannot be read. The plan reports such a file with more detail."""
    try:
        found = json_data.load(host.read(path, hostfs.JSON_BYTES) or b"{}")
    except (errors.HostError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def socket_in(addresses: t.Iterable[str], usual: str) -> str | None:
    """Return the first Unix socket among the addresses. An address without a path stands for ``usual``."""
    return next((found[len("unix://") :] or usual for found in addresses if found.startswith("unix://")), None)


def setting_values(
    unit: systemd_units.Unit | None, settings: t.Mapping[str, t.Any], key: str, *flags: str
) -> list[str]:
    """Return the values of a setting from the unit's flags, otherwise from the file.

    The result is a list even for a setting with only one value.
    """
    values = unit.flag_values(*flags) if unit is not None else []
    found = settings.get(key)
    if not values and found:
        values = [value for value in (found if isinstance(found, list) else [found]) if isinstance(value, str)]
    return values


def _without_config_file(arguments: t.Sequence[str]) -> list[str]:
    kept: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--config-file":
            next(remaining, None)
        elif not argument.startswith("--config-file="):
            kept.append(argument)
    return kept


class DockerSnap(Docker):
    """Canonical's snap of Docker, which is reported but not configured."""

    flavor = "snap"
    key = "docker_snap"
    companions: tuple[str, ...] = ()
    config_path = "/var/snap/docker/current/config/daemon.json"
    (service,) = flavors.FLAVORS["docker", "snap"].services
    pid_file = "/run/snap.docker/docker.pid"

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        # Its program runs inside the snap only, so it is not run to get its version or to validate files.
        installation = super().inspect(host, service)
        there = installation.unit is not None or installation.pid is not None
        return installation._replace(binary=None, detected=there, unsupported=_SNAP)

    def _unit(self, host: hostfs.HostFS, service: str) -> systemd_units.Unit | None:
        """Return the unit without its arguments, which are those of the program ``snap``."""
        unit = systemd_units.load_unit(host, service)
        return unit._replace(arguments=()) if unit is not None else None

    def present(
        self, _request: engines_request.RuntimeRequest, _context: engines_base.Context
    ) -> engines_base.EnginePlan:
        raise errors.NvidiaError(_SNAP)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        # All entries of the file belong to the snap.
        return self.planner(context._replace(record=None, keep_unrecorded=True)).absent()


DOCKER = Docker()
DOCKER_SNAP = DockerSnap()


# The namespace of older releases hides /etc/cdi and /var/run/cdi (moby #47676, contrib/dockerd-rootless.sh). First
# 27.4.0, last without it 27.3.1; on the branch 25.0 first 25.0.8, last without it 25.0.7. No release of 26 has it.
_CDI_VISIBLE_SINCE, _CDI_VISIBLE_IN_25_SINCE = (27, 4), (25, 0, 8)


class _RootlessPlanner(docker_plan.DockerPlanner):
    """One plan for the daemon.json of a user."""

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        plan = super().present(request)
        return plan._replace(warnings=(*plan.warnings, *self._cdi_warnings(request)))

    def _cdi_warnings(self, request: engines_request.RuntimeRequest) -> t.Iterator[str]:
        unit, version = self.context.unit, self.context.version
        if (
            request.enable_cdi
            and version is not None
            and docker_plan.CDI_SINCE <= version < _CDI_VISIBLE_SINCE
            and not _CDI_VISIBLE_IN_25_SINCE <= version < (26,)
            and not docker_plan.cdi_folders(self.document, unit)
        ):
            yield (
                f"Rootless Docker {core_text.dotted(version)} cannot read the CDI specifications in /etc/cdi and"
                " /var/run/cdi, because its mount namespace hides them before Docker 27.4 (except 25.0.8 and newer of"
                " 25.0). Upgrade Docker, or copy the specification to a directory of the user and set cdi-spec-dirs"
                f" in {self.context.path} to it."
            )


class RootlessDocker(Docker):
    """The Docker of the user who runs the task."""

    flavor = "rootless"
    companions: tuple[str, ...] = ()
    planner = _RootlessPlanner

    def __init__(self, user: str) -> None:
        self.user = user
        self.key = f"{accounts.ROOTLESS_PREFIX}{user}"
        self.config_path = f"~{user}/.config/docker/daemon.json"

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        """Return how the user's engine is installed.

        Raises NvidiaError unless that user runs the task.
        """
        account = accounts.require_own(host, self.user)
        service = systemd_units.unit_name(service or self.service)
        unit = rootless.user_unit(host, account, service)
        environment = unit.environment if unit is not None else {}
        named = unit.flag_values("--config-file") if unit is not None else []
        usual = posixpath.join(environment.get("XDG_CONFIG_HOME") or ".config", "docker/daemon.json")
        # A user's daemons start in the user's home.
        config_path = posixpath.join(account.home, named[-1] if named else usual)
        runtime_dir = posixpath.join(account.home, environment.get("XDG_RUNTIME_DIR") or account.runtime_dir)
        settings = settings_in(host, config_path)
        socket = f"{runtime_dir}/docker.sock"
        pid_files = [*setting_values(unit, settings, "pidfile", "--pidfile", "-p"), f"{runtime_dir}/docker.pid"]
        pid = rootless.user_process(host, account, unit, PROGRAM, pid_files)
        binary = _program(host, unit, environment)
        return engines_base.Installation(
            binary=binary,
            unit=unit,
            service=service,
            socket=socket_in(setting_values(unit, settings, "hosts", "--host", "-H"), socket) or socket,
            config_path=config_path,
            pid=pid,
            user=account,
            # The program of the system alone is not an installation of the user.
            detected=pid is not None or (unit is not None and binary is not None),
        )

    def _keeps_containers(self, _host: hostfs.HostFS, _installation: engines_base.Installation) -> bool:
        """Return False: containers end with the namespaces that dockerd-rootless.sh made, whatever live-restore is."""
        return False


def _program(host: hostfs.HostFS, unit: systemd_units.Unit | None, environment: t.Mapping[str, str]) -> str | None:
    """Return the dockerd that dockerd-rootless.sh finds."""
    folders = environment.get("PATH", "").split(":")
    if unit is not None and unit.arguments:
        folders.append(posixpath.dirname(unit.arguments[0]))
    names = [environment.get("DOCKERD", ""), *(f"{folder}/{PROGRAM}" for folder in folders)]
    return host.find_executable([*(name for name in names if name.startswith("/")), PROGRAM])
