# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what is looked at before a daemon is disturbed, so that one is not stopped that would not
# come back.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Judge

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation
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
        """Why a daemon that starts with the files as they stand would not work; empty if nothing speaks against it."""
        unit, host = self.installation.unit, self.witness.host
        if unit is not None and unit.arguments and host.find_executable(unit.arguments[:1]) is None:
            return f"its unit {unit.name} starts {unit.arguments[0]}, which is not an executable file"
        try:
            return self._judged(validate) or self._flaw(require_runtime)
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
        program = state.paths().get(default)
        if require_runtime and program and self.witness.host.find_executable([program]) is None:
            return (
                f"{self.installation.config_path}: the program of the default runtime {default}, {program}, is not an"
                " executable file, so no container would start"
            )
        return ""

    def disruption(self, allowed: bool) -> str:
        """Why a restart is refused that would stop containers; empty if it would not, or if that is ``allowed``."""
        if allowed:
            return ""
        engine, host = self.witness.engine, self.witness.host
        stopped = engine.casualties(host, self.installation)
        if stopped is None:
            return (
                f"{engine.name} runs but does not answer on {self.installation.socket}, so it is unknown which"
                " containers a restart would stop; nothing was done. Find out what is wrong with it, or set"
                " allow_disruption: true."
            )
        if not stopped:
            return ""
        more = f" and {len(stopped) - _SHOWN} more" if len(stopped) > _SHOWN else ""
        return (
            f"A restart of {engine.name} would stop running containers: {', '.join(stopped[:_SHOWN])}{more}. It was not"
            " restarted and works with its former configuration. Set live-restore to true in its configuration and"
            " reload it, stop the containers, or set allow_disruption: true."
        )
