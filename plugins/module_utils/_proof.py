# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the proof that a daemon works with what its files say.  That its unit is active proves
# little: containerd is active with a CRI that could not be loaded, and dockerd that dislikes a file keeps what it had.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action, parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
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

    def unmet(self, live: LiveState) -> list[str]:
        """What ``live`` lacks; a daemon that tells nothing of its runtimes lacks nothing."""
        if live.silent:
            return []
        lacks = [f"it does not know the runtime {name}" for name in self.runtimes if name not in live.runtimes]
        if self.default_runtime is not None and live.default_runtime != self.default_runtime:
            lacks.append(f"its default runtime is {live.default_runtime}, not {self.default_runtime}")
        if self.cdi is not None and live.cdi is not None and live.cdi is not self.cdi:
            lacks.append(f"CDI is {'on' if live.cdi else 'off'}")
        return lacks


class Evidence(t.NamedTuple):
    """What was found of a daemon.

    ``lacks`` is why it is not proven, in half sentences; ``settled`` says that waiting would change nothing, ``again``
    that another try might.  ``unmet`` are expectations that a daemon disappoints which does what its files say.
    """

    pid: int | None
    lacks: tuple[str, ...]
    settled: bool = False
    again: bool = False
    unmet: tuple[str, ...] = ()


class Witness(t.NamedTuple):
    """Looks at one engine of one host, run by ``service`` and listening on ``socket`` if they are given."""

    engine: Engine
    host: HostRoot
    service: str | None = None
    socket: str | None = None

    def inspect(self) -> Installation:
        installation = self.engine.inspect(self.host, self.service)
        return installation if self.socket is None else installation._replace(socket=self.socket)

    def live(self, installation: Installation) -> LiveState | None:
        return self.engine.live(self.host, installation)

    def context(self, installation: Installation, version: str | None) -> Context:
        path = self.host.resolve(installation.config_path)
        files = HostFiles(self.host, self.engine.name)
        return files.context(path, installation.unit, parse_version(version or ""))

    def examine(self, expectation: Expectation, version: str | None) -> Evidence:
        """What the daemon of this moment proves, an engine of ``version`` if it does not tell its own."""
        installation = self.inspect()
        if installation.pid is None:
            return Evidence(None, (f"no process of it runs as {installation.service}",))
        live = self.live(installation)
        if live is None:
            return Evidence(installation.pid, (f"it does not answer on {installation.socket}",))
        try:
            state = self.engine.configured(self.context(installation, live.version or version))
        except GpufleetError as error:
            return Evidence(installation.pid, (str(error).rstrip("."),), settled=True)
        ailment = self.engine.ailment(self.host, installation, state)
        if ailment:
            return Evidence(installation.pid, (ailment,), settled="not answer" not in ailment)
        unmet = tuple(expectation.unmet(live))
        if self._differs(installation, live, state):
            difference = f"it runs with something else than {installation.config_path} says{_named(live, state)}"
            return Evidence(installation.pid, (difference, *unmet), settled=True)
        return Evidence(installation.pid, unmet, settled=True, unmet=unmet)

    def _differs(self, installation: Installation, live: LiveState, state: ConfiguredState) -> bool:
        # Behind a wrapper nobody knows which file it reads.
        known = installation.unit is None or not installation.unit.wrapper
        return known and self.engine.catch_up(live, state) is not Action.NONE


def _named(live: LiveState, state: ConfiguredState) -> str:
    """The runtimes that the files have and the daemon does not, in brackets; empty if it is not about those."""
    names = [name for name, path in state.paths().items() if live.runtimes.get(name) != path]
    return f" (runtimes: {', '.join(names)})" if names and not live.silent else ""
