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


_SHOWN = 10


class Preflight(t.NamedTuple):
    """The checks before a restart: would the engine start with its files, and which containers would stop?

    ``installation`` is the engine as it would start. ``version`` is None if it is unknown.
    """

    witness: HealthProbe
    installation: engines_base.Installation
    version: str | None
    run: core_plan.Runner

    def objection(self, validate: str, require_runtime: bool) -> str:
        """Return why a daemon that starts with the current files would not work; empty if nothing was found.

        Raises:
            HostError: The cause is not in the files, for example a unit whose program is missing.
        """
        unit, host = self.installation.unit, self.witness.host
        program = unit.arguments[0] if unit is not None and unit.arguments else ""
        # A specifier such as %h (systemd.unit(5)) is not resolved here.
        if unit is not None and program.startswith("/") and "%" not in program and not host.is_executable(program):
            raise errors.HostError(
                f"The unit {unit.name} starts {program}, which is not an executable file, so"
                f" {self.witness.engine.name} would not come back; it was left as it runs. Correct the unit."
            )
        try:
            return self._judged(validate) or self._flaw(require_runtime)
        except (errors.HostError, errors.MissingPackageError):
            raise
        except errors.NvidiaError as error:
            return str(error).rstrip(".")

    def _judged(self, validate: str) -> str:
        if validate == "false":
            return ""
        engine = self.witness.engine
        judge = validator.ConfigValidator(
            engine, self.witness.host, self.run, self.installation.binary, validate == "true"
        )
        said = judge.validation_error(self.witness.context(self.installation, self.version))
        return f"{engine.name} refuses {self.installation.config_path} and says: {said.rstrip('.')}" if said else ""

    def _flaw(self, require_runtime: bool) -> str:
        """Return an error that validators miss, because they check the text and not the host."""
        engine = self.witness.engine
        context = self.witness.context(self.installation, self.version)
        state = engine.configured(context)
        default = state.default_runtime or engine.default_runtime
        if not engine.defines_runtime(default, state, context.version):
            return f"{self.installation.config_path}: the default runtime {default} is not defined"
        program = state.paths().get(default, "")
        # The engine searches for a bare name in the PATH of its unit, which is not known here.
        if require_runtime and program.startswith("/") and not self.witness.host.is_executable(program):
            return (
                f"{self.installation.config_path}: the program of the default runtime {default}, {program}, is not an"
                " executable file, so no container would start"
            )
        return ""

    # -- containers that the restart would stop ------------------------------------------------------------------

    def disruption_reason(
        self, dragged: t.Collection[str] = (), doomed: t.Sequence[int] = (), cut_off: t.Sequence[str] = ()
    ) -> str:
        """Return why a restart is refused because it would stop containers; empty if it would stop none.

        Args:
            dragged: Dependent units, which systemd restarts together with this one.
            doomed: Processes of containers that are killed by the restart.
            cut_off: Containers that lose their GPUs when systemd reads the unit again.
        """
        name = self.witness.engine.name
        if cut_off:
            return (
                f"{self.installation.service} has changed, so systemd has to read its units again before a restart of"
                f" {name}. The containers {', '.join(cut_off[:_SHOWN])}{_more(cut_off)} would lose their GPUs, which"
                " the legacy hook gave them. It was not restarted. Stop them, or set allow_disruption: true."
            )
        if doomed:
            return (
                f"A restart of {name} would end {len(doomed)} processes of containers, since the KillMode of"
                f" {self.installation.service} is not process. It was not restarted. Correct the unit, or set"
                " allow_disruption: true."
            )
        stopped = self._stopped(self.witness.engine, self.installation)
        if stopped or not dragged:
            return stopped
        # An engine of a user has a unit of the same name, but that is a different unit.
        others = (target.load() for target in engines_registry.targets_on(self.witness.host) if target.user is None)
        for engine in others:
            if engine.key != self.witness.engine.key and engine.service in dragged and not stopped:
                stopped = self._stopped(engine, engine.inspect(self.witness.host))
        return stopped

    def _stopped(self, engine: engines_base.Engine, installation: engines_base.Installation) -> str:
        name, names = engine.name, engine.containers_stopped_by_restart(self.witness.host, installation)
        if names is None:
            return (
                f"{name} runs but does not answer on {installation.socket}, so it is unknown which containers a"
                " restart would stop; nothing was restarted. Find out what is wrong with it, or set"
                " allow_disruption: true."
            )
        if not names:
            return ""
        return (
            f"A restart of {name} would stop running containers: {', '.join(names[:_SHOWN])}{_more(names)}. It was not"
            " restarted. Stop them, or have Docker keep them by its setting live-restore, which a reload takes over but"
            " a swarm does not allow, or set allow_disruption: true."
        )


def _more(names: t.Sequence[str]) -> str:
    """Return the end of a list that shows _SHOWN names: how many more there are."""
    return f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""


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
            known, default, cdi = set(live.runtimes), live.default_runtime, live.cdi
        elif state.lists_runtimes:
            version = core_text.parse_version(live.version)
            known = {name for name in self.runtimes if engine.defines_runtime(name, state, version)}
            default, cdi = state.default_runtime or engine.default_runtime, state.cdi
        else:
            return ["its CRI is switched off, so it has no runtimes"] if self.runtimes else []
        lacks = [f"it does not know the runtime {name}" for name in self.runtimes if name not in known]
        if self.default_runtime not in (None, default) and default not in engine.default_aliases:
            lacks.append(f"its default runtime is {default}, not {self.default_runtime}")
        if None not in (self.cdi, cdi) and self.cdi is not cdi:
            lacks.append(f"CDI is {'on' if cdi else 'off'}")
        return lacks


class ProbeResult(t.NamedTuple):
    """The result of probing a daemon.

    ``lacks`` are the reasons why the daemon is not healthy, as parts of a sentence. With ``settled``, waiting would not
    change the result. With ``again``, another attempt might. ``unmet`` are the expectations that are not met although
    the daemon runs with its files. ``check`` is the code of the health check that failed, or empty if ``lacks`` has
    another reason.
    """

    pid: int | None
    lacks: tuple[str, ...]
    settled: bool = False
    again: bool = False
    unmet: tuple[str, ...] = ()
    check: str = ""

    @property
    def reasons(self) -> str:
        return ", ".join(self.lacks)


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

    def health(self) -> ProbeResult:
        """Return whether the daemon works at the moment, with any configuration."""
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        if live is None:
            return _silent(installation)
        health_problem = self.engine.health_problem(self.host, installation, live, None)
        return ProbeResult(installation.pid, ()) if health_problem is None else _ill(installation, health_problem)

    def examine(self, expectation: Expectation, version: str | None, fresh: bool = False) -> ProbeResult:
        """Return the probe result of the running daemon, compared with its files and with ``expectation``.

        Args:
            expectation: The expected state.
            version: The engine's version, used if the daemon does not report one.
            fresh: The daemon was just started with its files, so their time stamps are ignored.
        """
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        try:
            told = live.version if live is not None else None
            state = self.engine.configured(self.context(installation, told or version))
        except errors.MissingPackageError:
            # The controller may have the package, and then sends it with the task.
            raise
        except errors.NvidiaError as error:
            return ProbeResult(installation.pid, (str(error).rstrip("."),), settled=True)
        if live is None:
            return _silent(installation)
        health_problem = self.engine.health_problem(self.host, installation, live, state)
        if health_problem is not None:
            return _ill(installation, health_problem)
        live = live._replace(outdated=False) if fresh else live
        unmet = tuple(expectation.unmet(self.engine, live, state))
        if self._differs(installation, live, state):
            difference = f"it runs with something else than {installation.config_path} says{_named(live, state)}"
            return ProbeResult(installation.pid, (difference, *unmet), settled=True)
        return ProbeResult(installation.pid, unmet, settled=True, unmet=unmet)

    def _differs(
        self, installation: engines_base.Installation, live: engines_base.LiveState, state: engines_base.ConfiguredState
    ) -> bool:
        # If the unit starts a wrapper script, it is unknown which file the engine reads.
        known = installation.unit is None or not installation.unit.wrapper
        return known and self.engine.required_action(live, state) is not engines_base.Action.NONE


def _silent(installation: engines_base.Installation) -> ProbeResult:
    """Return the result for a daemon that does not answer."""
    if installation.pid is None:
        return ProbeResult(None, (f"no process of it runs as {installation.service}",), check="runs")
    return ProbeResult(installation.pid, (f"it does not answer on {installation.socket}",), check="answers")


def _ill(installation: engines_base.Installation, problem: engines_base.HealthProblem) -> ProbeResult:
    return ProbeResult(installation.pid, (problem.message,), settled=problem.final, check=problem.check)


def _named(live: engines_base.LiveState, state: engines_base.ConfiguredState) -> str:
    """Return the runtimes that the files define and the daemon lacks, in parentheses; empty if there are none."""
    names = [name for name, path in state.paths().items() if live.runtimes.get(name) != path]
    return f" (runtimes: {', '.join(names)})" if names and not live.runtimes_unknown else ""
