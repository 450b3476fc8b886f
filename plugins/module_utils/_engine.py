# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what every container engine has in common, and the plan that an engine's file makes.

from __future__ import annotations

import enum
import re
import types
import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit


# Plain tuples with names, here and everywhere below: a dataclass costs an unchanged task eight times their making.
NOTHING: t.Mapping[t.Any, t.Any] = types.MappingProxyType({})


class Action(enum.IntEnum):
    """What a daemon needs to take a change over; the greater includes the lesser."""

    NONE = 0
    RELOAD = 1
    RESTART = 2

    def __str__(self) -> str:
        return self.name.lower()


class Installation(t.NamedTuple):
    """One engine as it stands on one host.

    ``config_path`` is the file that its unit really uses, ``flags`` the unit's command line behind the program,
    ``pid`` the daemon's process (None while it does not run).
    """

    binary: str | None
    unit: Unit | None
    service: str
    socket: str
    config_path: str
    pid: int | None = None


class LiveState(t.NamedTuple):
    """What a running daemon says of itself; ``cdi`` is None where it does not tell."""

    version: str
    runtimes: dict[str, str]
    default_runtime: str
    cdi: bool | None
    live_restore: bool
    running_containers: int


class ConfiguredState(t.NamedTuple):
    """What a daemon that starts now would know, from its file and its unit's flags.

    ``default_runtime`` is None where the engine's own default applies, ``cdi`` None where it is unknown or does not
    exist in this version.  ``lists_runtimes`` says whether the file has a table of runtimes at all, be it empty.
    """

    runtimes: t.Mapping[str, t.Any] = NOTHING
    default_runtime: str | None = None
    cdi: bool | None = None
    flagged_runtimes: tuple[str, ...] = ()
    lists_runtimes: bool = True

    def paths(self) -> dict[str, str]:
        """Name to path of each runtime that is registered by path."""
        entries = ((name, entry.get("path")) for name, entry in self.runtimes.items() if isinstance(entry, dict))
        return {name: path for name, path in entries if isinstance(path, str)}


class Context(t.NamedTuple):
    """All that a plan depends on beside the request: the file, what was recorded of it, and the engine around it."""

    path: str
    content: bytes | None
    record: FileRecord | None
    unit: Unit | None
    version: tuple[int, ...] | None
    same_program: t.Callable[[str, str], bool]

    @property
    def original(self) -> bytes | None:
        """The bytes before the first change ever made here."""
        return self.record.original if self.record is not None else self.content


class PlannedFile(t.NamedTuple):
    """One file before and after (None: no file), and the entries in it that are ours afterwards."""

    path: str
    before: bytes | None
    after: bytes | None
    keys: t.Mapping[tuple[str, ...], t.Any] = NOTHING

    @property
    def changed(self) -> bool:
        return self.before != self.after


class EnginePlan(t.NamedTuple):
    """The files in the order in which they must be written, and what follows from them."""

    files: tuple[PlannedFile, ...]
    state: ConfiguredState
    action: Action
    warnings: tuple[str, ...] = ()


class Engine(t.Protocol):
    """What an engine's file offers; the table that lists all engines is in ``_engines.py``."""

    name: str
    config_path: str
    service: str
    default_runtime: str

    def inspect(self, host: HostRoot) -> Installation:
        """How the engine is installed on ``host``; nothing of it needs to be there."""

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        """What the running daemon says of itself, None where none runs or it does not answer."""

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        """The plan that makes ``request`` true.  Raises GpufleetError before anything is written."""

    def absent(self, context: Context) -> EnginePlan:
        """The plan that takes away what is ours."""

    def configured(self, context: Context) -> ConfiguredState:
        """What the file and the unit say now."""

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        """The least that brings a daemon in state ``live`` to ``state``."""

    def version_argv(self, binary: str) -> list[str]:
        """The command that prints the engine's version."""

    def validate_argv(self, binary: str, candidate: str, unit: Unit | None) -> list[str]:
        """The command with which the engine judges the file ``candidate``."""

    def validator_missing(self, output: str) -> bool:
        """Whether ``output`` of that command says that this version has no validator."""


def parse_version(text: str) -> tuple[int, ...] | None:
    """The leading dotted number in ``text`` (``20.10.24+dfsg1`` is 20.10.24), None where there is none."""
    match = re.match(r"\s*v?([0-9]+(?:\.[0-9]+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None
