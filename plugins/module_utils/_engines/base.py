# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all engines share: the request, the state of an installation, the plan, and the protocol of an engine.

The engines themselves are packages beside this file; `registry.py` lists them.
"""

from __future__ import annotations

import enum
import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


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
    unit: systemd_units.Unit | None
    service: str
    socket: str
    config_path: str
    pid: int | None = None
    user: accounts.Account | None = None
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
    entries: t.Mapping[str, t.Any] = core_plan.NOTHING


class HealthProblem(t.NamedTuple):
    """Why a daemon cannot do its work, in its own words if it has any; ``lasting`` if waiting will not help.

    ``check`` is the code of the health check that failed.
    """

    check: str
    words: str
    lasting: bool = False


class ConfiguredState(t.NamedTuple):
    """What a daemon that starts now would know, from its file and its unit's flags.

    ``default_runtime`` is None where the engine's own default applies, ``cdi`` None where it is unknown or does not
    exist in this version.  ``lists_runtimes`` says whether the file has a table of runtimes at all, be it empty.
    """

    runtimes: t.Mapping[str, t.Any] = core_plan.NOTHING
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

    def record(self, path: str) -> core_records.OriginalFile | None:
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
    record: core_records.OriginalFile | None
    unit: systemd_units.Unit | None
    version: tuple[int, ...] | None
    same_program: t.Callable[[str, str], bool]
    files: Files
    recorded: tuple[str, ...] = ()
    keep_unrecorded: bool = False

    def about(self, path: str) -> Context:
        """The same for another file."""
        return self._replace(path=path, content=self.files.read(path), record=self.files.record(path))


class EnginePlan(t.NamedTuple):
    """The files in the order in which they must be written, and what follows from them."""

    files: tuple[core_plan.PlannedFile, ...]
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
    stands_for: t.Mapping[str, str] = core_plan.NOTHING


class Engine(t.Protocol):
    """What an engine's file offers; the table that lists all engines is in ``_engines/registry.py``.

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
    ping_request: bytes
    no_reload: str
    default_aliases: tuple[str, ...]
    syntax: str
    validates_all_files: bool
    reports_full_state: bool
    config_path: str
    drop_in_path: str | None
    service: str
    default_runtime: str

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> Installation:
        """How the engine is installed on ``host``; ``service`` is for another unit than its own.

        Nothing of it needs to be there.
        """

    def live(self, host: hostfs.HostFS, installation: Installation) -> LiveState | None:
        """What the running daemon says of itself, None where none runs or it does not answer."""

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        """The plan that makes ``request`` true.  Raises NvidiaError before anything is written."""

    def absent(self, context: Context) -> EnginePlan:
        """The plan that takes away what is ours."""

    def configured(self, context: Context) -> ConfiguredState:
        """What the files and the unit say now."""

    def required_action(self, live: LiveState, state: ConfiguredState) -> Action:
        """The least that brings a daemon in state ``live`` to ``state``."""

    def defines_runtime(self, runtime: str, state: ConfiguredState, version: tuple[int, ...] | None) -> bool:
        """Whether an engine of ``version`` that starts in ``state`` defines ``runtime``, be it built in."""

    def ailment(
        self, host: hostfs.HostFS, installation: Installation, live: LiveState, state: ConfiguredState | None
    ) -> HealthProblem | None:
        """Why a daemon that runs, and says ``live`` of itself, cannot do its work; None if nothing is known.

        ``state`` is what it is meant to do, None where that is of no concern.
        """

    def sources(self, host: hostfs.HostFS, installation: Installation) -> list[str]:
        """The files that its configuration consists of.  Raises NvidiaError."""

    def check_runtimes(
        self, host: hostfs.HostFS, installation: Installation, runtimes: t.Sequence[str], run: core_plan.Runner
    ) -> tuple[list[str], list[str]]:
        """Whether the daemon, which seems to work, can use ``runtimes``: what it lacks, and what could not be tried."""

    def containers_stopped_by_restart(self, host: hostfs.HostFS, installation: Installation) -> list[str] | None:
        """The running containers that a restart would stop, None if the daemon does not tell."""

    def version_argv(self, binary: str) -> list[str]:
        """The command that prints the engine's version."""

    def trial(self, binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: Context) -> Trial:
        """How the engine judges ``files``, copies of which are put into ``folder``."""

    def verdict(self, before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
        """What is wrong with ``files`` of which the trial's ``argv`` printed ``after``; empty if nothing is."""

    def validator_missing(self, output: str) -> bool:
        """Whether ``output`` of that command says that this version has no validator."""


class HostFiles(t.NamedTuple):
    """The ``Files`` of one engine on one host."""

    host: hostfs.HostFS
    engine: str

    def read(self, path: str) -> bytes | None:
        return self.host.read(path)

    def record(self, path: str) -> core_records.OriginalFile | None:
        return core_records.load_record(self.host, self.engine, self.host.resolve(path))

    def resolve(self, path: str) -> str:
        return self.host.resolve(path)

    def glob(self, pattern: str) -> list[str]:
        return self.host.glob(pattern)

    def walk(self, folder: str) -> list[str]:
        return self.host.walk(folder)

    def as_configured(self, installation: Installation, version: str | None) -> Context:
        """What the engine's configuration is read from, without what was recorded of it.

        That is of no concern to those who only read, and perhaps for root's eyes only.
        """
        path, unit = self.resolve(installation.config_path), installation.unit
        return Context(
            path, self.read(path), None, unit, core_text.parse_version(version or ""), self.host.same_program, self
        )

    def context(
        self,
        path: str,
        unit: systemd_units.Unit | None,
        version: tuple[int, ...] | None,
        recorded: tuple[str, ...] = (),
    ) -> Context:
        """Everything that a plan for the configuration in ``path`` (links resolved) may look at."""
        return Context(path, self.read(path), self.record(path), unit, version, self.host.same_program, self, recorded)


MODE_NAMES = {mode: f"nvidia-{mode}" for mode in core_constants.MODE_PROGRAMS}
MAIN_NAME = "nvidia"
CDI_AUTO = "auto"
# Releases 1.12 and 1.13 had another program, in two spellings.
_EXPERIMENTAL = (f"{core_constants.MAIN_PROGRAM}.experimental", f"{core_constants.MAIN_PROGRAM}-experimental")
_PROGRAMS = (core_constants.MAIN_PROGRAM, *core_constants.MODE_PROGRAMS.values(), *_EXPERIMENTAL)

# A runtime under one of these names would shadow the low-level runtime that the NVIDIA one itself calls.
RESERVED_NAMES = ("runc", "crun")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


class RuntimeRequest(t.NamedTuple):
    """What the user asks of one engine, in words that every engine understands.

    ``set_as_default`` and ``enable_cdi`` are None where the user said nothing: leave it as it is.  ``enable_cdi`` may
    also be CDI_AUTO: on in a version in which it is off by default.  From ``config_mode`` on the fields are for engines
    that are configured in TOML.
    """

    runtime_name: str = MAIN_NAME
    runtime_dir: str = "/usr/bin"
    extra_modes: tuple[str, ...] = ()
    set_as_default: bool | None = None
    enable_cdi: bool | str | None = None
    config_mode: str = "auto"
    drop_in_path: str | None = None
    runtime_type: str | None = None
    runtime_options: t.Mapping[str, t.Any] = types.MappingProxyType({})
    container_annotations: tuple[str, ...] = ()
    cri_disabled: str = "note"
    use_legacy_config: bool = False

    def check(self) -> None:
        """Raises NvidiaError for a name or a directory that no engine should be given."""
        if not _NAME.match(self.runtime_name):
            raise errors.NvidiaError(
                f"runtime_name {self.runtime_name!r} is not usable. Use letters, digits, '_', '.' and '-' only."
            )
        if self.runtime_name in RESERVED_NAMES or self.runtime_name.startswith("io.containerd."):
            raise errors.NvidiaError(
                f"runtime_name {self.runtime_name!r} belongs to a low-level runtime. Choose another name."
            )

    def check_plain(self, engine: str) -> None:
        """Raises NvidiaError for what an engine that is not configured in TOML has no place for."""
        given = {
            "config_mode": self.config_mode in ("drop_in", "hook"),
            "drop_in_path": self.drop_in_path is not None,
            "runtime_type": self.runtime_type is not None,
            "runtime_options": bool(self.runtime_options),
            "container_annotations": bool(self.container_annotations),
            "use_legacy_config": self.use_legacy_config,
        }
        unfit = [name for name, is_given in given.items() if is_given]
        if unfit:
            raise errors.NvidiaError(f"{engine} has no {' and no '.join(unfit)}. Leave it out for this engine.")

    def runtimes(self) -> dict[str, str]:
        """Name to path of each runtime, the main one first.

        As in NVIDIA's installer: if the name asked for is that of a mode, the main runtime keeps the name nvidia.
        """
        modes = [
            mode
            for mode in core_constants.MODE_PROGRAMS
            if mode in self.extra_modes or MODE_NAMES[mode] == self.runtime_name
        ]
        main = MAIN_NAME if self.runtime_name in MODE_NAMES.values() else self.runtime_name
        names = {main: core_constants.MAIN_PROGRAM}
        names.update((MODE_NAMES[mode], core_constants.MODE_PROGRAMS[mode]) for mode in modes)
        return {name: posixpath.join(self.runtime_dir, program) for name, program in names.items()}

    def default(self, kept: str | None) -> str | None:
        """The runtime to make the default: the one asked for, or where nothing is said, ours so far while it stays."""
        if self.set_as_default is None:
            return kept if kept in self.runtimes() else None
        return self.runtime_name if self.set_as_default else None


def is_nvidia_program(path: t.Any) -> bool:
    """Whether ``path`` names one of NVIDIA's runtimes, of whatever version and wherever it was installed."""
    return isinstance(path, str) and posixpath.basename(path) in _PROGRAMS


def is_nvidia_runtime(name: str, program: t.Any) -> bool:
    """Whether a runtime is one of NVIDIA's by its name or its program, from which no other may inherit."""
    return name.startswith("nvidia") or is_nvidia_program(program)
