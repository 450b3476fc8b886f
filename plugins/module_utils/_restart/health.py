# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the health of an engine before and after a restart.

An active unit proves little: containerd is active with a CRI that could not be loaded, and dockerd keeps its
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
    """The questions about one engine, which would start as ``installation``; a ``version`` may be unknown (None)."""

    witness: HealthProbe
    installation: engines_base.Installation
    version: str | None
    run: core_plan.Runner

    def objection(self, validate: str, require_runtime: bool) -> str:
        """Why a daemon that starts with the files as they stand would not work; empty if nothing speaks against it.

        Raises HostError if that cannot be found out, for which the files are not to blame.
        """
        unit, host = self.installation.unit, self.witness.host
        program = unit.arguments[0] if unit is not None and unit.arguments else ""
        # A specifier (systemd.unit(5)) is not resolved here.
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
        said = judge.objection(self.witness.context(self.installation, self.version))
        return f"{engine.name} refuses {self.installation.config_path} and says: {said.rstrip('.')}" if said else ""

    def _flaw(self, require_runtime: bool) -> str:
        """What validators pass over: they look at the text, not at the host."""
        engine = self.witness.engine
        context = self.witness.context(self.installation, self.version)
        state = engine.configured(context)
        default = state.default_runtime or engine.default_runtime
        if not engine.defines_runtime(default, state, context.version):
            return f"{self.installation.config_path}: the default runtime {default} is not defined"
        program = state.paths().get(default, "")
        # Where the engine looks for a bare name is its unit's business.
        if require_runtime and program.startswith("/") and not self.witness.host.is_executable(program):
            return (
                f"{self.installation.config_path}: the program of the default runtime {default}, {program}, is not an"
                " executable file, so no container would start"
            )
        return ""

    # -- whom it would stop --------------------------------------------------------------------------------------

    def disruption_reason(
        self, dragged: t.Collection[str] = (), doomed: t.Sequence[int] = (), cut_off: t.Sequence[str] = ()
    ) -> str:
        """Why a restart is refused that would stop containers; empty if it would not.

        ``dragged`` are other units that systemd restarts along with this one, ``doomed`` the processes of containers
        that it ends with it, ``cut_off`` the containers that lose their GPUs when systemd reads the unit again.
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
        # A user's engine has a unit of the same name, which is another one.
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
    """How many names beyond _SHOWN there are, as the end of a list."""
    return f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""


class Expectation(t.NamedTuple):
    """What the caller wants to be live; None and nothing where there is no opinion."""

    runtimes: tuple[str, ...] = ()
    default_runtime: str | None = None
    cdi: bool | None = None

    def unmet(
        self, engine: engines_base.Engine, live: engines_base.LiveState, state: engines_base.ConfiguredState
    ) -> list[str]:
        """What ``live`` lacks, or, if it tells nothing of its runtimes, the files that it has read."""
        if not live.silent:
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
    """What was found of a daemon.

    ``lacks`` is why it is not proven, in half sentences; ``settled`` says that waiting would change nothing, ``again``
    that another try might.  ``unmet`` are expectations that a daemon disappoints which does what its files say.
    ``check`` is the code of the health check that failed, empty if another thing is lacking.
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
    """Looks at one engine of one host, run by ``service`` and listening on ``socket`` if they are given.

    With ``by_socket`` the process is, if it cannot be found otherwise, the one that answers there.
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
            return installation._replace(pid=pid if processes.is_program(self.host, pid, self.engine.program) else None)
        return installation

    def context(self, installation: engines_base.Installation, version: str | None) -> engines_base.Context:
        return engines_base.HostFiles(self.host, self.engine.key).as_configured(installation, version)

    def texts(self) -> tuple[bytes, ...]:
        """All that the engine's configuration says at the moment, as far as it can be read."""
        found: list[bytes | None] = []
        with contextlib.suppress(errors.NvidiaError):
            found.extend(self.host.read(path) for path in self.engine.sources(self.host, self.inspect()))
        return tuple(text for text in found if text)

    def health(self) -> ProbeResult:
        """Whether the daemon of this moment does its work, with whatever configuration."""
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        if live is None:
            return _silent(installation)
        ailment = self.engine.ailment(self.host, installation, live, None)
        return ProbeResult(installation.pid, ()) if ailment is None else _ill(installation, ailment)

    def examine(self, expectation: Expectation, version: str | None, fresh: bool = False) -> ProbeResult:
        """What the daemon of this moment proves, an engine of ``version`` if it does not tell its own.

        With ``fresh`` it is known to have been started with its files, whatever their time stamps are.
        """
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        try:
            told = live.version if live is not None else None
            state = self.engine.configured(self.context(installation, told or version))
        except errors.MissingPackageError:
            # The controller may have it.
            raise
        except errors.NvidiaError as error:
            return ProbeResult(installation.pid, (str(error).rstrip("."),), settled=True)
        if live is None:
            return _silent(installation)
        ailment = self.engine.ailment(self.host, installation, live, state)
        if ailment is not None:
            return _ill(installation, ailment)
        live = live._replace(outdated=False) if fresh else live
        unmet = tuple(expectation.unmet(self.engine, live, state))
        if self._differs(installation, live, state):
            difference = f"it runs with something else than {installation.config_path} says{_named(live, state)}"
            return ProbeResult(installation.pid, (difference, *unmet), settled=True)
        return ProbeResult(installation.pid, unmet, settled=True, unmet=unmet)

    def _differs(
        self, installation: engines_base.Installation, live: engines_base.LiveState, state: engines_base.ConfiguredState
    ) -> bool:
        # Behind a wrapper nobody knows which file it reads.
        known = installation.unit is None or not installation.unit.wrapper
        return known and self.engine.required_action(live, state) is not engines_base.Action.NONE


def _silent(installation: engines_base.Installation) -> ProbeResult:
    """What there is of a daemon that says nothing of itself."""
    if installation.pid is None:
        return ProbeResult(None, (f"no process of it runs as {installation.service}",), check="runs")
    return ProbeResult(installation.pid, (f"it does not answer on {installation.socket}",), check="answers")


def _ill(installation: engines_base.Installation, ailment: engines_base.HealthProblem) -> ProbeResult:
    return ProbeResult(installation.pid, (ailment.words,), settled=ailment.lasting, check=ailment.check)


def _named(live: engines_base.LiveState, state: engines_base.ConfiguredState) -> str:
    """The runtimes that the files have and the daemon does not, in brackets; empty if it is not about those."""
    names = [name for name, path in state.paths().items() if live.runtimes.get(name) != path]
    return f" (runtimes: {', '.join(names)})" if names and not live.silent else ""
