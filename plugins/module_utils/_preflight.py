# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what is looked at before a daemon is disturbed, so that one is not stopped that would not
# come back, and nobody's containers are.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    GpufleetError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._targets import targets_on

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine, Installation
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Witness

_SHOWN = 10


class Preflight(t.NamedTuple):
    """The questions about one engine, which would start as ``installation``; a ``version`` may be unknown (None)."""

    witness: Witness
    installation: Installation
    version: str | None
    run: Runner

    def objection(self, validate: str, require_runtime: bool) -> str:
        """Why a daemon that starts with the files as they stand would not work; empty if nothing speaks against it.

        Raises HostError if that cannot be found out, for which the files are not to blame.
        """
        unit, host = self.installation.unit, self.witness.host
        program = unit.arguments[0] if unit is not None and unit.arguments else ""
        # A specifier (systemd.unit(5)) is not resolved here.
        if unit is not None and program.startswith("/") and "%" not in program and not host.is_executable(program):
            raise HostError(
                f"The unit {unit.name} starts {program}, which is not an executable file, so"
                f" {self.witness.engine.name} would not come back; it was left as it runs. Correct the unit."
            )
        try:
            return self._judged(validate) or self._flaw(require_runtime)
        except (HostError, MissingPackageError):
            raise
        except GpufleetError as error:
            return str(error).rstrip(".")

    def _judged(self, validate: str) -> str:
        if validate == "false":
            return ""
        engine = self.witness.engine
        judge = Judge(engine, self.witness.host, self.run, self.installation.binary, validate == "true")
        said = judge.objection(self.witness.context(self.installation, self.version))
        return f"{engine.name} refuses {self.installation.config_path} and says: {said.rstrip('.')}" if said else ""

    def _flaw(self, require_runtime: bool) -> str:
        """What validators pass over: they look at the text, not at the host."""
        engine = self.witness.engine
        context = self.witness.context(self.installation, self.version)
        state = engine.configured(context)
        default = state.default_runtime or engine.default_runtime
        if not engine.knows(default, state, context.version):
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

    def disruption(
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
        others = (target.load() for target in targets_on(self.witness.host) if target.user is None)
        for engine in others:
            if engine.key != self.witness.engine.key and engine.service in dragged and not stopped:
                stopped = self._stopped(engine, engine.inspect(self.witness.host))
        return stopped

    def _stopped(self, engine: Engine, installation: Installation) -> str:
        name, names = engine.name, engine.casualties(self.witness.host, installation)
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
