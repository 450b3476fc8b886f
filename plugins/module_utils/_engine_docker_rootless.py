# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the Docker of a user, started by dockerd-rootless.sh in namespaces of its own.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import CDI_SINCE, DockerPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation, Trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import (
    PROGRAM,
    Docker,
    setting_values,
    settings_in,
    socket_in,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rootless import (
    KEY,
    Account,
    account_of,
    check_own,
    is_own,
    trusted_program,
    user_process,
    user_unit,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, EnginePlan, PlannedFile
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
    """The Docker of one user."""

    flavor = "rootless"
    companions: tuple[str, ...] = ()
    planner = _RootlessPlanner

    def __init__(self, user: str) -> None:
        self.user = user
        self.key = f"{KEY}{user}"
        self.config_path = f"~{user}/.config/docker/daemon.json"
        self._seen: tuple[HostRoot, Account] | None = None

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        """Raises GpufleetError where there is no such user."""
        account = account_of(host, self.user)
        self._seen = host, account
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
        theirs = _their_program(host, unit, environment)
        return Installation(
            binary=_binary(host, theirs),
            unit=unit,
            service=service,
            socket=socket_in(setting_values(unit, settings, "hosts", "--host", "-H"), socket) or socket,
            config_path=config_path,
            pid=pid,
            user=account,
            # A dockerd in the home is there too, though root does not run it; the system's alone is nobody's own.
            there=pid is not None or (unit is not None and theirs is not None),
        )

    def _ask(self, host: HostRoot, installation: Installation, request: str) -> t.Any:
        """A user could have a link to the socket of another's daemon."""
        account = installation.user
        if account is None or not is_own(host, account, installation.socket):
            return None
        return super()._ask(host, installation, request)

    def _keeps_containers(self, _host: HostRoot, _installation: Installation) -> bool:
        """They end with the namespaces that dockerd-rootless.sh has made, whatever live-restore says."""
        return False

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return self._owned(super().present(request, context))

    def absent(self, context: Context) -> EnginePlan:
        return self._owned(super().absent(context))

    def _owned(self, plan: EnginePlan) -> EnginePlan:
        """The plan with files that are the user's.  Raises GpufleetError if one that changes is not."""
        if self._seen is None:
            raise RuntimeError("whose files they are is only known after inspect()")
        host, account = self._seen
        for file in plan.files:
            if file.changed:
                check_own(host, account, file.path)
        owner = (account.uid, account.gid)
        return plan._replace(files=tuple(file._replace(owner=owner) for file in plan.files))

    # -- the program ---------------------------------------------------------------------------------------------

    def trial(self, binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        # Without the unit's flags: root runs this, and by them a user could have it start a daemon instead.
        return super().trial(binary, folder, files, context._replace(unit=None))


def _their_program(host: HostRoot, unit: Unit | None, environment: t.Mapping[str, str]) -> str | None:
    """The dockerd that dockerd-rootless.sh finds.  Root must not run it: a user says here which it is."""
    folders = environment.get("PATH", "").split(":")
    if unit is not None and unit.arguments:
        folders.append(posixpath.dirname(unit.arguments[0]))
    names = [environment.get("DOCKERD", ""), *(f"{folder}/{PROGRAM}" for folder in folders)]
    return host.find_executable([*(name for name in names if name.startswith("/")), PROGRAM])


def _binary(host: HostRoot, theirs: str | None) -> str | None:
    """The system's dockerd, unless the user has another one, of which it would know nothing."""
    program = trusted_program(host, PROGRAM)
    return program if program is not None and theirs is not None and host.same_program(program, theirs) else None
