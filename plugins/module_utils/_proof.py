# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the proof that a daemon works with what its files say.  That its unit is active proves
# little: containerd is active with a CRI that could not be loaded, and dockerd that dislikes a file keeps what it had.

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action, parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._signals import is_program, sender_of

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        Ailment,
        ConfiguredState,
        Context,
        Engine,
        Installation,
        LiveState,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


class Expectation(t.NamedTuple):
    """What the caller wants to be live; None and nothing where there is no opinion."""

    runtimes: tuple[str, ...] = ()
    default_runtime: str | None = None
    cdi: bool | None = None

    def unmet(self, engine: Engine, live: LiveState, state: ConfiguredState) -> list[str]:
        """What ``live`` lacks, or, if it tells nothing of its runtimes, the files that it has read."""
        if not live.silent:
            known, default, cdi = set(live.runtimes), live.default_runtime, live.cdi
        elif state.lists_runtimes:
            version = parse_version(live.version)
            known = {name for name in self.runtimes if engine.knows(name, state, version)}
            default, cdi = state.default_runtime or engine.default_runtime, state.cdi
        else:
            return ["its CRI is switched off, so it has no runtimes"] if self.runtimes else []
        lacks = [f"it does not know the runtime {name}" for name in self.runtimes if name not in known]
        if self.default_runtime not in (None, default) and default not in engine.default_aliases:
            lacks.append(f"its default runtime is {default}, not {self.default_runtime}")
        if None not in (self.cdi, cdi) and self.cdi is not cdi:
            lacks.append(f"CDI is {'on' if cdi else 'off'}")
        return lacks


class Evidence(t.NamedTuple):
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


class Witness(t.NamedTuple):
    """Looks at one engine of one host, run by ``service`` and listening on ``socket`` if they are given.

    With ``by_socket`` the process is, if it cannot be found otherwise, the one that answers there.
    """

    engine: Engine
    host: HostRoot
    service: str | None = None
    socket: str | None = None
    by_socket: bool = False

    def inspect(self) -> Installation:
        installation = self.engine.inspect(self.host, self.service)
        installation = installation if self.socket is None else installation._replace(socket=self.socket)
        if self.by_socket and installation.pid is None:
            pid = sender_of(self.host.outer(installation.socket), self.engine.greeting) or 0
            return installation._replace(pid=pid if is_program(self.host, pid, self.engine.program) else None)
        return installation

    def context(self, installation: Installation, version: str | None) -> Context:
        return HostFiles(self.host, self.engine.key).as_configured(installation, version)

    def texts(self) -> tuple[bytes, ...]:
        """All that the engine's configuration says at the moment, as far as it can be read."""
        found: list[bytes | None] = []
        with contextlib.suppress(GpufleetError):
            found.extend(self.host.read(path) for path in self.engine.sources(self.host, self.inspect()))
        return tuple(text for text in found if text)

    def health(self) -> Evidence:
        """Whether the daemon of this moment does its work, with whatever configuration."""
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        if live is None:
            return _silent(installation)
        ailment = self.engine.ailment(self.host, installation, live, None)
        return Evidence(installation.pid, ()) if ailment is None else _ill(installation, ailment)

    def examine(self, expectation: Expectation, version: str | None, fresh: bool = False) -> Evidence:
        """What the daemon of this moment proves, an engine of ``version`` if it does not tell its own.

        With ``fresh`` it is known to have been started with its files, whatever their time stamps are.
        """
        installation = self.inspect()
        live = self.engine.live(self.host, installation)
        try:
            told = live.version if live is not None else None
            state = self.engine.configured(self.context(installation, told or version))
        except MissingPackageError:
            # The controller may have it.
            raise
        except GpufleetError as error:
            return Evidence(installation.pid, (str(error).rstrip("."),), settled=True)
        if live is None:
            return _silent(installation)
        ailment = self.engine.ailment(self.host, installation, live, state)
        if ailment is not None:
            return _ill(installation, ailment)
        live = live._replace(outdated=False) if fresh else live
        unmet = tuple(expectation.unmet(self.engine, live, state))
        if self._differs(installation, live, state):
            difference = f"it runs with something else than {installation.config_path} says{_named(live, state)}"
            return Evidence(installation.pid, (difference, *unmet), settled=True)
        return Evidence(installation.pid, unmet, settled=True, unmet=unmet)

    def _differs(self, installation: Installation, live: LiveState, state: ConfiguredState) -> bool:
        # Behind a wrapper nobody knows which file it reads.
        known = installation.unit is None or not installation.unit.wrapper
        return known and self.engine.catch_up(live, state) is not Action.NONE


def _silent(installation: Installation) -> Evidence:
    """What there is of a daemon that says nothing of itself."""
    if installation.pid is None:
        return Evidence(None, (f"no process of it runs as {installation.service}",), check="runs")
    return Evidence(installation.pid, (f"it does not answer on {installation.socket}",), check="answers")


def _ill(installation: Installation, ailment: Ailment) -> Evidence:
    return Evidence(installation.pid, (ailment.words,), settled=ailment.lasting, check=ailment.check)


def _named(live: LiveState, state: ConfiguredState) -> str:
    """The runtimes that the files have and the daemon does not, in brackets; empty if it is not about those."""
    names = [name for name, path in state.paths().items() if live.runtimes.get(name) != path]
    return f" (runtimes: {', '.join(names)})" if names and not live.silent else ""
