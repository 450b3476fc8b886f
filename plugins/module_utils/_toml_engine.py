# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what engines that are configured in TOML, and serve Kubernetes alone, have in common.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import arguments_of, process_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit, unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner


class TomlEngine:
    """How such an engine is installed, and how its program is run; ``socket_flags`` name the socket of its unit."""

    name: str
    flavor: str
    key: str
    program: str
    service: str
    socket: str
    socket_flags: tuple[str, ...]
    config_path: str
    companions: tuple[str, ...] = ()
    greeting = b""
    no_reload: str
    default_aliases: tuple[str, ...] = ()
    syntax = "toml"
    judged_together = True
    tells_all = False

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        service = unit_name(service or self.service)
        unit = load_unit(host, service, self.program)
        pid = process_of(host, unit, self.program)
        # What a wrapper keeps to itself the process tells.
        told = arguments_of(host, pid) if unit is not None and unit.wrapper and pid is not None else ()
        if unit is not None and told:
            unit = unit._replace(arguments=told, wrapper="")
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        named = unit.flag_values("--config", "-c") if unit is not None else []
        sockets = unit.flag_values(*self.socket_flags) if unit is not None else []
        return Installation(
            binary=host.find_executable([*programs, self.program]),
            unit=unit,
            service=service,
            socket=sockets[-1] if sockets else self.socket,
            config_path=named[-1] if named else self.config_path,
            pid=pid,
        )

    def try_runtimes(
        self, _host: HostRoot, _installation: Installation, _runtimes: t.Sequence[str], _run: Runner
    ) -> tuple[list[str], list[str]]:
        return [], []

    def casualties(self, _host: HostRoot, _installation: Installation) -> list[str] | None:
        """None at all: containers outlive these engines."""
        return []

    def version_argv(self, binary: str) -> list[str]:
        return [binary, "--version"]

    def validator_missing(self, _output: str) -> bool:
        return False
