# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Types that all engines share: the state of an installation, the plan, and the protocols of an engine.

The engines themselves are packages beside this file. `registry.py` lists them.
"""

from __future__ import annotations

import enum
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


class Action(enum.IntEnum):
    """What a daemon needs to apply a change. A higher value includes the lower ones."""

    NONE = 0
    RELOAD = 1
    RESTART = 2

    def __str__(self) -> str:
        return self.name.lower()


class Installation(t.NamedTuple):
    """One engine as it is installed on one host.

    - ``binary``: path of the engine's program.
    - ``unit``: the systemd unit that starts the engine.
    - ``service``: the name of that unit.
    - ``socket``: path of the engine's API socket.
    - ``config_path``: the configuration file that the unit uses.
    - ``pid``: process of the daemon, None if it does not run.
    - ``user``: the user whose systemd manages the unit, None for the system's.
    - ``detected``: whether the engine is installed. None: it is installed if ``binary`` is set.
    - ``unsupported``: why this collection reports the engine but does not configure it. Empty for all others.
    """

    binary: str | None
    unit: systemd_units.Unit | None
    service: str
    socket: str
    config_path: str
    pid: int | None = None
    user: accounts.Account | None = None
    detected: bool | None = None
    unsupported: str = ""

    @property
    def installed(self) -> bool:
        """Whether the engine is installed."""
        return self.binary is not None if self.detected is None else self.detected

    def problems(self) -> list[errors.Problem]:
        """Return why information may be incomplete. A wrapper is a program, such as a shell, that starts the engine."""
        if self.unsupported:
            return [errors.Problem("engine-unsupported", self.unsupported)]
        if self.unit is None or not self.unit.wrapper:
            return []
        message = f"{self.service} starts the engine through {self.unit.wrapper}, so the engine's flags cannot be read."
        advice = f"If they name another configuration file, set {errors.option:config_path} to it."
        return [errors.Problem("flags-unreadable", message, advice)]

    def warnings(self) -> list[str]:
        """Return problems() as warnings."""
        return [errors.in_full(problem._asdict()) for problem in self.problems()]


class LiveState(t.NamedTuple):
    """What a running daemon reports about itself.

    - ``runtimes``: program of each runtime by name.
    - ``entries``: the other reported settings of each runtime, with the key names of the configuration file.
    - ``cdi``: whether CDI is enabled, and ``cdi_folders``: its directories of specifications. None if the daemon does
      not report it.
    - ``live_restore``, ``running_containers``: only for Docker, where a restart may stop containers.
    - ``runtimes_unknown``: True for a daemon that does not report its runtimes. Only ``outdated`` is known of it.
    - ``outdated``: a file that the process reads has changed since it was started, or may have. For a daemon that
      reports its runtimes: a file that this collection created.
    """

    version: str
    runtimes: dict[str, str]
    default_runtime: str
    cdi: bool | None = None
    cdi_folders: tuple[str, ...] | None = None
    live_restore: bool | None = None
    running_containers: int | None = None
    runtimes_unknown: bool = False
    outdated: bool = False
    entries: t.Mapping[str, t.Any] = core_plan.NOTHING


class HealthProblem(t.NamedTuple):
    """Why a daemon does not work.

    - ``check``: code of the health check that failed.
    - ``message``: the problem, in the daemon's own text if it has one.
    - ``final``: True if waiting does not help.
    """

    check: str
    message: str
    final: bool = False


class ConfiguredState(t.NamedTuple):
    """What a daemon that starts now would use, from its files and the flags of its unit.

    - ``default_runtime``: None if the engine's own default applies.
    - ``cdi``: None if it is unknown or if this version does not support CDI.
    - ``flagged_runtimes``: runtimes that the unit's flags define.
    - ``lists_runtimes``: whether runtimes of the file count: Docker's file has a table of them, containerd's CRI is on.
    - ``cdi_folders``: the directories of CDI specifications. None if those of the release apply.
    """

    runtimes: t.Mapping[str, t.Any] = core_plan.NOTHING
    default_runtime: str | None = None
    cdi: bool | None = None
    flagged_runtimes: tuple[str, ...] = ()
    lists_runtimes: bool = True
    cdi_folders: tuple[str, ...] | None = None

    @property
    def has_empty_cdi_folders(self) -> bool:
        """Whether CDI is off because of an empty list of directories, which no option of this collection changes."""
        return self.cdi is False and self.cdi_folders == ()

    def paths(self) -> dict[str, str]:
        """Return the program of each runtime that is registered by path, by name."""
        entries = ((name, entry.get("path")) for name, entry in self.runtimes.items() if isinstance(entry, dict))
        return {name: path for name, path in entries if isinstance(path, str)}


def folders_in(value: t.Any) -> tuple[str, ...] | None:
    """Return the directories in the value of a setting, None if the setting has no list."""
    return tuple(filter(None, json_data.texts(value))) if isinstance(value, list) else None


def cdi_folders(live: LiveState | None, state: ConfiguredState | None) -> tuple[str, ...] | None:
    """Return the directories of CDI specifications of an engine, None if those of its release apply.

    A running engine may have started with other files, so what it reports has precedence.
    """
    if live is not None and live.cdi_folders is not None:
        return live.cdi_folders
    return state.cdi_folders if state is not None else None


class Files(t.Protocol):
    """The configuration files of a host and their records. Paths are paths on the host."""

    def read(self, path: str) -> bytes | None:
        """Return the content, None if there is no file."""

    def record(self, path: str) -> core_records.OriginalFile | None:
        """Return the record of the file, None if there is none."""

    def resolve(self, path: str) -> str:
        """Return the path with all links resolved."""

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted paths that match."""

    def walk(self, folder: str) -> list[str]:
        """Return all files in the directory and its subdirectories, in lexical order."""


class Context(t.NamedTuple):
    """Everything that a plan depends on besides the request: the file, its record, and the engine.

    - ``path``, ``content``, ``record``: the main configuration file. Links in ``path`` are resolved.
    - ``version``: version of the engine, None if it is unknown.
    - ``same_program``: tells whether two paths lead to the same program.
    - ``recorded``: other recorded files of the same configuration. For a removal that names no file: of the same
      engine.
    - ``keep_unrecorded``: a removal keeps NVIDIA runtimes that this collection did not record.
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

    def for_file(self, path: str) -> Context:
        """Return the same context for another file."""
        return self._replace(path=path, content=self.files.read(path), record=self.files.record(path))


class EnginePlan(t.NamedTuple):
    """The files in the order in which they must be written, the resulting state, and the required action."""

    files: tuple[core_plan.PlannedFile, ...]
    state: ConfiguredState
    action: Action
    warnings: tuple[str, ...] = ()
    drop_in_path: str | None = None
    config_version: int | None = None

    def joined(self, other: EnginePlan) -> EnginePlan:
        """Return a plan with the files, actions and warnings of both. The state stays that of this plan."""
        return self._replace(
            files=self.files + other.files,
            action=max(self.action, other.action),
            warnings=self.warnings + other.warnings,
        )


class ValidationCommand(t.NamedTuple):
    """The command that validates the files of a plan.

    - ``files``: content by name. The validator writes them into a scratch directory.
    - ``argv``: the command that validates these files.
    - ``compare``: a command that dumps the current configuration. ``Validator.compare_dumps`` compares its output with
      that of ``argv``. Empty: no comparison.
    - ``original_paths``: the path of the real file by the name of its copy.
    """

    files: t.Mapping[str, bytes]
    argv: t.Sequence[str]
    compare: t.Sequence[str] = ()
    original_paths: t.Mapping[str, str] = core_plan.NOTHING


class InstalledEngine(t.Protocol):
    """An engine as something that may be installed on a host.

    - ``flavor``: how the engine is installed on the host.
    - ``key``: the name under which its records and journal entries are stored.
    - ``default_runtime``: the runtime of containers if no file sets another one.
    """

    name: str
    flavor: str
    key: str
    service: str
    config_path: str
    default_runtime: str

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> Installation:
        """Return how the engine is installed on ``host``. The engine need not be installed.

        ``service`` names another unit than the engine's usual one.
        """

    def version_argv(self, binary: str) -> list[str]:
        """Return the command that prints the engine's version."""

    def release_problem(self, version: str | None) -> errors.Problem | None:
        """Return why this release does not start with NVIDIA's programs, None if it does or is unknown."""


class Planner(InstalledEngine, t.Protocol):
    """The files of an engine: what they configure now, and how they must change."""

    drop_in_path: str | None

    def present(self, request: engines_request.RuntimeRequest, context: Context) -> EnginePlan:
        """Return the plan that fulfills ``request``.

        Raises NvidiaError before anything is written.
        """

    def absent(self, context: Context) -> EnginePlan:
        """Return the plan that removes the entries of this collection."""

    def configured(self, context: Context) -> ConfiguredState:
        """Return what the files and the unit configure now."""

    def default_runtime_source(self, context: Context) -> str:
        """Return the file or the unit in which the default runtime can be changed. Raises NvidiaError."""

    def defines_runtime(self, runtime: str, state: ConfiguredState, version: tuple[int, ...] | None) -> bool:
        """Return whether an engine of ``version`` that starts in ``state`` defines ``runtime``, even built in."""

    def config_files(self, host: hostfs.HostFS, installation: Installation) -> list[str]:
        """Return the files that the engine's configuration consists of.

        Raises NvidiaError if they cannot be read.
        """


class Daemon(InstalledEngine, t.Protocol):
    """The running daemon of an engine: its state, its health and its restart.

    - ``program``: the name of its process.
    - ``companions``: units that start the engine or are started with it.
    - ``no_reload``: why a signal does not make the engine read its files again. Empty if it does.
    - ``ping_request``: a request that the engine answers on its socket. Only an engine that reloads needs it.
    - ``default_aliases``: names that a running daemon may report for its default runtime, whatever that is.
    - ``reports_full_state``: a daemon that answers reports all that the files of this collection can change.
    """

    program: str
    companions: tuple[str, ...]
    ping_request: bytes
    no_reload: str
    default_aliases: tuple[str, ...]
    reports_full_state: bool

    def live(self, host: hostfs.HostFS, installation: Installation) -> LiveState | None:
        """Return what the running daemon reports, None if no daemon runs or it does not answer."""

    def required_action(self, live: LiveState, state: ConfiguredState) -> Action:
        """Return the smallest action that brings a daemon in state ``live`` to ``state``."""

    def health_problem(
        self, host: hostfs.HostFS, installation: Installation, live: LiveState, state: ConfiguredState | None
    ) -> HealthProblem | None:
        """Return why a running daemon that reports ``live`` does not work, None if no problem is known.

        ``state`` is the required state, None if it does not matter.
        """

    def check_runtimes(
        self, host: hostfs.HostFS, installation: Installation, runtimes: t.Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return what prevents a healthy daemon from using ``runtimes``, and what could not be checked."""

    def containers_stopped_by_restart(self, host: hostfs.HostFS, installation: Installation) -> list[str] | None:
        """Return the running containers that a restart would stop, None if the daemon does not report them."""

    def applied_files(self, host: hostfs.HostFS, installation: Installation) -> list[str]:
        """Return the files whose changes show that a running daemon is outdated; none if it reports its settings."""

    def missed_toolkit(self, host: hostfs.HostFS, installation: Installation, version: str | None) -> str:
        """Return why a running daemon needs a restart after the toolkit was installed; empty if it needs none."""


class Validator(t.Protocol):
    """How the program of an engine validates files.

    - ``syntax``: the format of the files.
    - ``validates_all_files``: the validator checks all files of a plan at once, otherwise one after the other.
    """

    name: str
    syntax: str
    validates_all_files: bool

    def validation_command(
        self, binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: Context
    ) -> ValidationCommand:
        """Return the validation command for ``files``. The validator puts copies of them into ``folder``."""

    def compare_dumps(self, before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
        """Return the settings that ``files`` would change by mistake, empty if there are none.

        ``before`` and ``after`` are the outputs of ``compare`` and ``argv`` of the validation command.
        """

    def printed_state(self, dump: str, version: tuple[int, ...] | None) -> ConfiguredState | None:
        """Return the state in ``dump``, which the validation command printed. None if it prints none."""

    def validator_missing(self, output: str) -> bool:
        """Return whether ``output`` of the validation command shows that this version has no validator."""


class Engine(Planner, Daemon, Validator, t.Protocol):
    """All roles of an engine. ``_engines/registry.py`` has the table of all engines."""


class EngineDefaults:
    """The attributes and methods that are the same in most engines."""

    companions: tuple[str, ...] = ()
    ping_request = b""
    default_aliases: tuple[str, ...] = ()

    def default_runtime_source(self, context: Context) -> str:
        return context.path

    def health_problem(
        self,
        _host: hostfs.HostFS,
        _installation: Installation,
        _live: LiveState,
        _state: ConfiguredState | None,
    ) -> HealthProblem | None:
        return None

    def check_runtimes(
        self, _host: hostfs.HostFS, _installation: Installation, _runtimes: t.Sequence[str]
    ) -> tuple[list[str], list[str]]:
        return [], []

    def containers_stopped_by_restart(self, _host: hostfs.HostFS, _installation: Installation) -> list[str] | None:
        """Return an empty list: containers keep running when the engine restarts."""
        return []

    def applied_files(self, _host: hostfs.HostFS, _installation: Installation) -> list[str]:
        return []

    def missed_toolkit(self, _host: hostfs.HostFS, _installation: Installation, _version: str | None) -> str:
        return ""

    def version_argv(self, binary: str) -> list[str]:
        return [binary, "--version"]

    def release_problem(self, _version: str | None) -> errors.Problem | None:
        return None

    def compare_dumps(self, _before: str, _after: str, _files: t.Sequence[core_plan.PlannedFile]) -> str:
        return ""

    def printed_state(self, _dump: str, _version: tuple[int, ...] | None) -> ConfiguredState | None:
        return None

    def validator_missing(self, output: str) -> bool:
        return "unknown flag: --validate" in output


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
        """Return the context from which the engine's configuration is read, without its records.

        Code that only reads does not need the records, and only root may be able to read them.
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
        """Return everything that a plan for the configuration in ``path`` (links resolved) may read."""
        return Context(path, self.read(path), self.record(path), unit, version, self.host.same_program, self, recorded)


# The toolkit's container of 1.6.0 to 1.13.5 had another program, with two spellings.
_EXPERIMENTAL = (f"{core_constants.MAIN_PROGRAM}.experimental", f"{core_constants.MAIN_PROGRAM}-experimental")
_PROGRAMS = (core_constants.MAIN_PROGRAM, *core_constants.MODE_PROGRAMS.values(), *_EXPERIMENTAL)


def is_nvidia_program(path: t.Any) -> bool:
    """Return whether ``path`` names one of NVIDIA's runtimes, of any version and in any directory."""
    return isinstance(path, str) and posixpath.basename(path) in _PROGRAMS


def is_nvidia_runtime(name: str, program: t.Any) -> bool:
    """Return whether a runtime is NVIDIA's by its name or its program. Other runtimes must not inherit from it."""
    return name.startswith("nvidia") or is_nvidia_program(program)
