# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the health of an engine before and after a restart. It does not restart or change anything.

An active unit proves little: containerd is active even if its CRI plugin could not be loaded, and dockerd keeps its
previous settings if it rejects a file.
"""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import validator
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The number of containers that a message lists.
_LISTED = 10


class Preflight(t.NamedTuple):
    """The checks before a restart: would the engine start with its files, and which containers would stop?

    ``installation`` is the engine as it would start. ``version`` is None if it is unknown. With ``rolls_back``, the
    restart is one with the previous files. It is then also allowed if a daemon does not report its containers.
    """

    probe: HealthProbe
    installation: engines_base.Installation
    version: str | None
    run: core_plan.Runner
    rolls_back: bool = False

    def config_problem(self, validate: str, require_runtime: bool) -> str:
        """Return why a daemon that starts with the current files would not work; empty if no problem was found.

        Raises:
            HostError: The cause is not in the files, for example a unit whose program is missing.
        """
        unit, host, name = self.installation.unit, self.probe.host, self.probe.engine.name
        program = unit.arguments[0] if unit is not None and unit.arguments else ""
        # A specifier such as %h (systemd.unit(5)) is not resolved here.
        if unit is not None and program.startswith("/") and "%" not in program and not host.is_executable(program):
            raise errors.HostError(
                f"The unit {unit.name} starts {program}, which is not an executable file. {name} would not start, so"
                " it was not restarted. Correct the unit."
            )
        try:
            return self._validation_error(validate) or self._default_runtime_problem(require_runtime)
        except (errors.HostError, errors.MissingPackageError):
            raise
        except errors.NvidiaError as error:
            return str(error).rstrip(".")

    def _validation_error(self, validate: str) -> str:
        if validate == "false":
            return ""
        engine = self.probe.engine
        config_validator = validator.ConfigValidator(
            engine, self.probe.host, self.run, self.installation.binary, validate == "true"
        )
        error = config_validator.validation_error(self.probe.context(self.installation, self.version)).rstrip(".")
        return f"the validator of {engine.name} rejects {self.installation.config_path}: {error}" if error else ""

    def _default_runtime_problem(self, require_runtime: bool) -> str:
        """Return a problem of the default runtime. Validators miss it, because they check the text and not the host."""
        engine = self.probe.engine
        context = self.probe.context(self.installation, self.version)
        state = engine.configured(context)
        default = state.default_runtime or engine.default_runtime
        if not engine.defines_runtime(default, state, context.version):
            return f"{engine.default_runtime_source(context)}: the default runtime {default} is not defined"
        program = state.paths().get(default, "")
        # The engine searches for a bare name in the PATH of its unit, which is not known here.
        if require_runtime and program.startswith("/") and not self.probe.host.is_executable(program):
            return (
                f"{engine.default_runtime_source(context)}: {program}, the program of the default runtime {default}, is"
                " not an executable file, so no container would start"
            )
        return ""

    # -- containers that the restart would stop ------------------------------------------------------------------

    def disruption_reason(
        self,
        dependent_units: t.Collection[str] = (),
        killed_pids: t.Sequence[int] = (),
        losing_gpus: t.Sequence[str] = (),
    ) -> str:
        """Return why a restart is refused because of running containers; empty if it would affect none.

        Args:
            dependent_units: The units that systemd restarts together with this one.
            killed_pids: The container processes that the restart kills.
            losing_gpus: The containers that lose their GPUs when systemd reloads its units.
        """
        name, service = self.probe.engine.name, self.installation.service
        if losing_gpus:
            return (
                f"systemd must reload its units before it restarts {service}, because the unit has changed. Then the"
                f" containers {_listed(losing_gpus)} lose the GPUs that the legacy hook gave them."
                f" {self._outcome} Stop these containers, or set {errors.option:allow_disruption}: true."
            )
        if killed_pids:
            noun = "process" if len(killed_pids) == 1 else "processes"
            return (
                f"A restart of {name} would kill {len(killed_pids)} container {noun}, because KillMode of {service}"
                f" is not process. {self._outcome} Set KillMode=process in the unit, or set"
                f" {errors.option:allow_disruption}: true."
            )
        stopped = self._stopped_containers(self.probe.engine, self.installation)
        if stopped or not dependent_units:
            return stopped
        # The engine of a user has a unit of the same name, but that is a different unit.
        others = (target.load() for target in engines_registry.targets_on(self.probe.host) if target.user is None)
        for engine in others:
            if engine.key != self.probe.engine.key and engine.service in dependent_units and not stopped:
                stopped = self._stopped_containers(engine, engine.inspect(self.probe.host))
        return stopped

    @property
    def _outcome(self) -> str:
        files = " with the previous files" if self.rolls_back else ""
        return f"{self.probe.engine.name} was not restarted{files}."

    def _stopped_containers(self, engine: engines_base.Daemon, installation: engines_base.Installation) -> str:
        """Return the refusal of a restart that stops containers of ``engine``; empty if it stops none."""
        name, containers = engine.name, engine.containers_stopped_by_restart(self.probe.host, installation)
        of_user = installation.user is not None
        if containers is None and not self.rolls_back:
            return (
                f"{name} runs but does not answer on {installation.socket}, so it is unknown which containers a"
                f" restart would stop. {self._outcome} Run `systemctl{' --user' * of_user}"
                f" status {installation.service}` on the host and correct what it reports, or set"
                f" {errors.option:allow_disruption}: true."
            )
        if not containers:
            return ""
        # A rootless Docker stops its containers in any case.
        keeping = "" if of_user else " set live-restore in Docker's configuration (a swarm does not support it),"
        return (
            f"A restart of {name} would stop running containers: {_listed(containers)}. {self._outcome} Stop these"
            f" containers,{keeping} or set {errors.option:allow_disruption}: true."
        )


def _listed(names: t.Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


class Expectation(t.NamedTuple):
    """The state that the caller expects of the running daemon. None and empty values are not checked."""

    runtimes: tuple[str, ...] = ()
    default_runtime: str | None = None
    cdi: bool | None = None

    def unmet(
        self, engine: engines_base.Engine, live: engines_base.LiveState, state: engines_base.ConfiguredState
    ) -> list[str]:
        """Return the expectations that ``live`` does not meet.

        If the daemon does not report its runtimes, its configuration files are used.
        """
        if not live.runtimes_unknown:
            runtimes, default, cdi = set(live.runtimes), live.default_runtime, live.cdi
        elif state.lists_runtimes:
            version = core_text.parse_version(live.version)
            runtimes = {name for name in self.runtimes if engine.defines_runtime(name, state, version)}
            default, cdi = state.default_runtime or engine.default_runtime, state.cdi
        else:
            return ["its CRI is disabled, so it has no runtimes"] if self.runtimes else []
        unmet = [f"the runtime {name} is missing" for name in self.runtimes if name not in runtimes]
        if self.default_runtime not in (None, default) and default not in engine.default_aliases:
            unmet.append(f"its default runtime is {default}, not {self.default_runtime}")
        if None not in (self.cdi, cdi) and self.cdi is not cdi:
            unmet.append(f"CDI is {'on' if cdi else 'off'}")
        return unmet


class ProbeResult(t.NamedTuple):
    """The result of probing a daemon.

    ``problems`` are the reasons why the daemon is not healthy, as parts of a sentence. With ``final``, waiting would
    not change the result. With ``retry``, another attempt might. ``unmet`` are the expectations that are not met
    although the daemon runs with its files. ``check`` is the code of the health check that failed, or empty if
    ``problems`` have another reason.
    """

    pid: int | None
    problems: tuple[str, ...] = ()
    final: bool = False
    retry: bool = False
    unmet: tuple[str, ...] = ()
    check: str = ""

    @property
    def reasons(self) -> str:
        return ", ".join(self.problems)


class HealthProbe(t.NamedTuple):
    """The health probe of one engine on one host, with the given ``service`` and ``socket`` if they are not None.

    With ``by_socket``, a process that is not found otherwise is the one that answers on the socket.
    """

    engine: engines_base.Engine
    host: hostfs.HostFS
    service: str | None = None
    socket: str | None = None
    by_socket: bool = False

    def inspect(self) -> engines_base.Installation:
        installation = self.engine.inspect(self.host, self.service)
        installation = installation if self.socket is None else installation._replace(socket=self.socket)
        if self.by_socket and installation.pid is None:
            pid = processes.peer_pid(self.host.real_path(installation.socket), self.engine.ping_request) or 0
            return installation._replace(
                pid=pid if processes.runs_program(self.host, pid, self.engine.program) else None
            )
        return installation

    def context(self, installation: engines_base.Installation, version: str | None) -> engines_base.Context:
        return engines_base.HostFiles(self.host, self.engine.key).as_configured(installation, version)

    def texts(self) -> tuple[bytes, ...]:
        """Return the texts of the engine's configuration files, as far as they can be read."""
        found: list[bytes | None] = []
        with contextlib.suppress(errors.NvidiaError):
            found.extend(self.host.read(path) for path in self.engine.config_files(self.host, self.inspect()))
        return tuple(text for text in found if text)

    def check_health(self) -> ProbeResult:
        """Return whether the daemon works at the moment, with any configuration."""
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        if live is None:
            return _no_answer(installation)
        return self._unhealthy(installation, live, None) or ProbeResult(installation.pid)

    def check_applied(self, expectation: Expectation, version: str | None, fresh: bool = False) -> ProbeResult:
        """Return whether the daemon works, runs with its files, and meets ``expectation``.

        Args:
            expectation: The expected state.
            version: The engine's version, used if the daemon does not report one.
            fresh: The daemon was just started with its files, so their time stamps are ignored.
        """
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        try:
            reported = live.version if live is not None else None
            state = self.engine.configured(self.context(installation, reported or version))
        except errors.MissingPackageError:
            # The controller may have the package, and then sends it with the task.
            raise
        except errors.NvidiaError as error:
            return ProbeResult(installation.pid, (str(error).rstrip("."),), final=True)
        if live is None:
            return _no_answer(installation)
        unhealthy = self._unhealthy(installation, live, state)
        if unhealthy is not None:
            return unhealthy
        live = live._replace(outdated=False) if fresh else live
        unmet = tuple(expectation.unmet(self.engine, live, state))
        if self._differs(installation, live, state):
            difference = f"its settings differ from {installation.config_path}{_missing_runtimes(live, state)}"
            return ProbeResult(installation.pid, (difference, *unmet), final=True)
        return ProbeResult(installation.pid, unmet, final=True, unmet=unmet)

    def _unhealthy(
        self,
        installation: engines_base.Installation,
        live: engines_base.LiveState,
        state: engines_base.ConfiguredState | None,
    ) -> ProbeResult | None:
        """Return the result for a daemon that reports a health problem, else None."""
        problem = self.engine.health_problem(self.host, installation, live, state)
        if problem is None:
            return None
        return ProbeResult(installation.pid, (problem.message,), final=problem.final, check=problem.check)

    def _differs(
        self, installation: engines_base.Installation, live: engines_base.LiveState, state: engines_base.ConfiguredState
    ) -> bool:
        # If the unit starts a wrapper script, it is unknown which file the engine reads.
        known = installation.unit is None or not installation.unit.wrapper
        return known and self.engine.required_action(live, state) is not engines_base.Action.NONE


def _no_answer(installation: engines_base.Installation) -> ProbeResult:
    if installation.pid is None:
        return ProbeResult(None, (f"no process of {installation.service} runs",), check="runs")
    return ProbeResult(installation.pid, (f"it does not answer on {installation.socket}",), check="answers")


def _missing_runtimes(live: engines_base.LiveState, state: engines_base.ConfiguredState) -> str:
    """Return the runtimes that the files define and the daemon lacks, in parentheses; empty if there are none."""
    names = [name for name, path in state.paths().items() if live.runtimes.get(name) != path]
    return f" (runtimes: {', '.join(names)})" if names and not live.runtimes_unknown else ""
