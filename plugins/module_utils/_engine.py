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
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._accounts import Account
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
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
    ``pid`` the daemon's process (None while it does not run), ``user`` whose systemd has the unit (None: the system's).
    ``binary`` is its program; ``there`` says whether the engine is there (None: as ``binary`` says).  ``unsupported``
    says why it is only reported and never configured; it is empty for all others.
    """

    binary: str | None
    unit: Unit | None
    service: str
    socket: str
    config_path: str
    pid: int | None = None
    user: Account | None = None
    there: bool | None = None
    unsupported: str = ""

    @property
    def installed(self) -> bool:
        """Whether the engine is there."""
        return self.binary is not None if self.there is None else self.there

    def doubts(self) -> list[str]:
        """Why what is known of it may not be all."""
        if self.unsupported:
            return [self.unsupported]
        if self.unit is None or not self.unit.wrapper:
            return []
        doubt = (
            f"{self.service} starts the engine through {self.unit.wrapper}, so the flags that it passes cannot be read."
            " If they name another configuration file, give it as config_path."
        )
        return [doubt]


class LiveState(t.NamedTuple):
    """What a running daemon says of itself.

    ``runtimes`` are their programs, ``entries`` what else it tells of each in the words of its files.  ``cdi`` is None
    where it does not tell.  ``silent`` is for a daemon that tells nothing of its runtimes: then all that is known is
    whether it is ``outdated``, that is older than a file that it reads (one that answers: than what we wrote last).
    ``live_restore`` and ``running_containers`` are Docker's alone, whose restart ends containers.
    """

    version: str
    runtimes: dict[str, str]
    default_runtime: str
    cdi: bool | None = None
    live_restore: bool | None = None
    running_containers: int | None = None
    silent: bool = False
    outdated: bool = False
    entries: t.Mapping[str, t.Any] = NOTHING


class Ailment(t.NamedTuple):
    """Why a daemon cannot do its work, in its own words if it has any; ``lasting`` if waiting will not help."""

    words: str
    lasting: bool = False


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


class Files(t.Protocol):
    """The configuration files of a host and what was recorded of them; paths are the host's own."""

    def read(self, path: str) -> bytes | None:
        """The content, None where there is no file."""

    def record(self, path: str) -> FileRecord | None:
        """What was recorded of the file."""

    def resolve(self, path: str) -> str:
        """The path with all links resolved."""

    def glob(self, pattern: str) -> list[str]:
        """The paths that match, sorted."""

    def walk(self, folder: str) -> list[str]:
        """All files in the folder and those below it, in lexical order."""


class Context(t.NamedTuple):
    """All that a plan depends on beside the request: the file, what was recorded of it, and the engine around it.

    ``recorded`` are the other files that belong to the same configuration, or (removal without a named file) to the
    same engine.  ``keep_unrecorded``: a removal leaves NVIDIA's runtimes that were not recorded.
    """

    path: str
    content: bytes | None
    record: FileRecord | None
    unit: Unit | None
    version: tuple[int, ...] | None
    same_program: t.Callable[[str, str], bool]
    files: Files
    recorded: tuple[str, ...] = ()
    keep_unrecorded: bool = False

    def about(self, path: str) -> Context:
        """The same for another file."""
        return self._replace(path=path, content=self.files.read(path), record=self.files.record(path))


class Purged(t.NamedTuple):
    """That something of others goes from a file for good; ``original`` is what counts as the file before us then."""

    original: bytes | None


class PlannedFile(t.NamedTuple):
    """One file before and after (None: no file), and the entries in it that are ours afterwards.

    ``like``: files whose modes it never exceeds, for it may hold what they do; a new one takes owner and mode of the
    first.  ``mode`` is another limit, where it is given.  ``purged`` is for one from which leftovers of others go.
    """

    path: str
    before: bytes | None
    after: bytes | None
    keys: t.Mapping[tuple[str, ...], t.Any] = NOTHING
    like: tuple[str, ...] = ()
    mode: int | None = None
    purged: Purged | None = None

    @property
    def changed(self) -> bool:
        return self.before != self.after


class EnginePlan(t.NamedTuple):
    """The files in the order in which they must be written, and what follows from them."""

    files: tuple[PlannedFile, ...]
    state: ConfiguredState
    action: Action
    warnings: tuple[str, ...] = ()
    drop_in_path: str | None = None
    config_version: int | None = None

    def joined(self, other: EnginePlan) -> EnginePlan:
        """Both at once; the state stays this one's."""
        return self._replace(
            files=self.files + other.files,
            action=max(self.action, other.action),
            warnings=self.warnings + other.warnings,
        )


class Trial(t.NamedTuple):
    """How the engine judges a plan: ``argv`` is run with ``files`` (by name) in its scratch folder.

    ``stands_for`` names the file that each is a copy of.  ``compare`` is a command whose output, of what stands now,
    ``Engine.verdict`` compares with that of ``argv``.
    """

    files: t.Mapping[str, bytes]
    argv: t.Sequence[str]
    compare: t.Sequence[str] = ()
    stands_for: t.Mapping[str, str] = NOTHING


class Engine(t.Protocol):
    """What an engine's file offers; the table that lists all engines is in ``_engines.py``.

    ``flavor`` is how it comes to the host, ``key`` in whose name its records and notes are kept.
    ``program`` is the name of its process, ``companions`` the units that start it or are started with it.
    ``no_reload`` says why a signal does not make it read its files again, and is empty for one that does; only such an
    engine needs a ``greeting``, which it answers on its socket.
    ``default_aliases`` are names that a running daemon may give to its default runtime, whatever that is.
    ``judged_together``: whether its validator judges all files of a plan at once, or one after the other.
    ``tells_all``: whether a running daemon that answers tells of everything that our files can change.
    """

    name: str
    flavor: str
    key: str
    program: str
    companions: tuple[str, ...]
    greeting: bytes
    no_reload: str
    default_aliases: tuple[str, ...]
    syntax: str
    judged_together: bool
    tells_all: bool
    config_path: str
    drop_in_path: str | None
    service: str
    default_runtime: str

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        """How the engine is installed on ``host``; ``service`` is for another unit than its own.

        Nothing of it needs to be there.
        """

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        """What the running daemon says of itself, None where none runs or it does not answer."""

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        """The plan that makes ``request`` true.  Raises GpufleetError before anything is written."""

    def absent(self, context: Context) -> EnginePlan:
        """The plan that takes away what is ours."""

    def configured(self, context: Context) -> ConfiguredState:
        """What the files and the unit say now."""

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        """The least that brings a daemon in state ``live`` to ``state``."""

    def knows(self, runtime: str, state: ConfiguredState, version: tuple[int, ...] | None) -> bool:
        """Whether an engine of ``version`` that starts in ``state`` defines ``runtime``, be it built in."""

    def ailment(
        self, host: HostRoot, installation: Installation, live: LiveState, state: ConfiguredState | None
    ) -> Ailment | None:
        """Why a daemon that runs, and says ``live`` of itself, cannot do its work; None if nothing is known.

        ``state`` is what it is meant to do, None where that is of no concern.
        """

    def sources(self, host: HostRoot, installation: Installation) -> list[str]:
        """The files that its configuration consists of.  Raises GpufleetError."""

    def try_runtimes(
        self, host: HostRoot, installation: Installation, runtimes: t.Sequence[str], run: Runner
    ) -> tuple[list[str], list[str]]:
        """Whether the daemon, which seems to work, can use ``runtimes``: what it lacks, and what could not be tried."""

    def casualties(self, host: HostRoot, installation: Installation) -> list[str] | None:
        """The running containers that a restart would stop, None if the daemon does not tell."""

    def version_argv(self, binary: str) -> list[str]:
        """The command that prints the engine's version."""

    def trial(self, binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        """How the engine judges ``files``, copies of which are put into ``folder``."""

    def verdict(self, before: str, after: str, files: t.Sequence[PlannedFile]) -> str:
        """What is wrong with ``files`` of which the trial's ``argv`` printed ``after``; empty if nothing is."""

    def validator_missing(self, output: str) -> bool:
        """Whether ``output`` of that command says that this version has no validator."""


def parse_version(text: str) -> tuple[int, ...] | None:
    """The leading dotted number in ``text`` (``20.10.24+dfsg1`` is 20.10.24), None where there is none."""
    match = re.match(r"\s*v?([0-9]{1,9}(?:\.[0-9]{1,9})*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None
