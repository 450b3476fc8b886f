# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configure one engine: plan, validate, lock, plan again, write, and build the result.

The steps are the same for all engines. An engine only makes the plan.
"""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes as core_changes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (
    applied,
    cdi_alone,
    flavors,
    program_version,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import legacy_cleanup


class ConfigureResult(t.NamedTuple):
    """What was found and changed, or would be changed in check mode.

    - ``restart_action``: the action that the change of this task needs.
    - ``pending_action``: the action that the running daemon needs, None if the daemon does not answer.
    - ``unrecorded``: files with NVIDIA runtimes that a removal kept.
    - ``previous_default``: the default runtime of the running daemon, empty if it is unknown.
    - ``missed_toolkit``: ``pending_action`` is a restart only because the toolkit was installed after the start.
    """

    changed: bool
    files: list[core_plan.PlannedFile]
    backup_files: list[dict[str, str | None]]
    syntax: str
    config_path: str
    drop_in_path: str | None
    config_version: int | None
    engine_version: str | None
    runtimes: dict[str, str]
    default_runtime: str
    cdi: bool | None
    restart_action: engines_base.Action
    pending_action: engines_base.Action | None
    service: str
    socket: str
    warnings: list[str]
    target: str
    leftovers: tuple[legacy_cleanup.Leftover, ...]
    unrecorded: list[str]
    previous_default: str = ""
    missed_toolkit: bool = False


def build_result(
    state: EngineState,
    plan: engines_base.EnginePlan,
    changed: bool,
    backups: list[dict[str, str | None]],
    unrecorded: list[str],
) -> ConfigureResult:
    """Return the result of the task."""
    pending, warnings = _pending(state, plan)
    missed, more = _missed_toolkit(state, pending)
    return ConfigureResult(
        changed=changed,
        files=[file for file in plan.files if file.changed],
        backup_files=backups,
        syntax=state.engine.syntax,
        config_path=state.config_path,
        drop_in_path=plan.drop_in_path,
        config_version=plan.config_version,
        engine_version=state.version,
        runtimes=plan.state.paths(),
        default_runtime=plan.state.default_runtime or state.engine.default_runtime,
        cdi=plan.state.cdi,
        # If the daemon does not read the file, no restart is needed.
        restart_action=plan.action if state.takes_effect else engines_base.Action.NONE,
        pending_action=engines_base.Action.RESTART if missed else pending,
        service=state.installation.service,
        socket=state.installation.socket,
        warnings=[*plan.warnings, *warnings, *more, *_missing_runtimes(state, plan)],
        target=str(state.target),
        leftovers=state.leftovers,
        unrecorded=unrecorded,
        previous_default=state.live.default_runtime if state.live is not None else "",
        missed_toolkit=missed,
    )


def _missed_toolkit(state: EngineState, pending: engines_base.Action | None) -> tuple[bool, list[str]]:
    """Return whether only the toolkit needs a restart of the daemon, and a warning if that would stop containers."""
    if state.removal or pending in (None, engines_base.Action.RESTART):
        return False, []
    reason = state.engine.missed_toolkit(state.host, state.installation, state.version)
    stopped = state.engine.containers_stopped_by_restart(state.host, state.installation) if reason else []
    if not reason or stopped == []:
        return bool(reason), []
    containers = f" It runs {core_text.listed(stopped)}." if stopped else ""
    return False, [f"{reason} until it is restarted.{containers} Restart it when its containers may stop."]


def _pending(state: EngineState, plan: engines_base.EnginePlan) -> tuple[engines_base.Action | None, list[str]]:
    """Return the action that applies the planned file to the running daemon (None: unknown), and warnings."""
    installation, live = state.installation, state.live
    warnings = list(installation.warnings())
    if state.has_nothing_to_remove and not any(file.changed for file in plan.files):
        return None, warnings
    if not state.takes_effect:
        warnings.append(
            f"{installation.service} reads {installation.config_path}, not {state.config_path}. Remove"
            f" {errors.option:config_path} to change the file that the engine reads."
        )
    elif live is not None:
        action = state.engine.required_action(live, plan.state)
        # A daemon may need the action of the plan for settings that it does not report. ``live`` was read before the
        # change, so it does not show that the daemon is older than the changed files.
        changing = not state.engine.reports_full_state and any(file.changed for file in plan.files)
        return max(action, plan.action if changing else engines_base.Action.NONE), warnings
    elif installation.pid is not None:
        warnings.append(
            f"{state.engine.name} runs (process {installation.pid}) but does not answer on {installation.socket}, so it"
            " is unknown whether it uses the current files. Restart it to make sure."
        )
    return None, warnings


def _missing_runtimes(state: EngineState, plan: engines_base.EnginePlan) -> list[str]:
    requested = state.request.runtimes() if state.request is not None else {}
    # Some engines search for the programs themselves, and some need none.
    runtimes = {name: path for name, path in plan.state.paths().items() if name in requested}
    return [
        f"The runtime {name} is registered with the program {path}, which is not an executable file on this host."
        f" Install the NVIDIA Container Toolkit, or set {errors.option:runtime_dir} to its directory."
        for name, path in runtimes.items()
        # An engine searches for a name without a directory.
        if state.host.find_executable([path]) is None
    ]


class Options(t.NamedTuple):
    """The parameters of the task. ``request`` is None for state=absent."""

    engine: str
    request: engines_request.RuntimeRequest | None
    flavor: str = core_constants.AUTO
    user: str | None = None
    service: str | None = None
    config_path: str | None = None
    engine_version: str | None = None
    validate: str = "auto"
    backup_dir: str | None = None
    purge_backups: bool = False
    purge_legacy: bool = False
    keep_unrecorded: bool = False
    require_runtime: bool = False

    def for_target(self, name: str) -> Options:
        """Return the options for the engine ``name`` (ENGINE/FLAVOR/INSTANCE), without settings that it cannot have."""
        engine, flavor, instance = (*name.split("/", 2), "", "")[:3]
        flavor = flavor or core_constants.SYSTEM
        if (engine, flavor) not in flavors.FLAVORS:
            supported = ", ".join(str(engines_registry.Target(*key)) for key in flavors.FLAVORS)
            raise errors.NvidiaError(
                f"Unsupported target {name!r}. Supported: {supported}, each with /INSTANCE for a unit or a user."
            )
        by_user = flavors.FLAVORS[engine, flavor].by_user
        return self._replace(
            engine=engine,
            flavor=flavor,
            user=instance or None if by_user else None,
            service=None if by_user else instance or None,
            request=self.request and self.request.for_engine(engine, flavor),
        )


class EngineState:
    """One engine of one host in the current run. Each plan is made from the current files."""

    def __init__(self, options: Options, host: hostfs.HostFS, run: core_plan.Runner) -> None:
        self.options = options
        self.host = host
        self.request = _normalized(options.request, host)
        self.target: engines_registry.Target = engines_registry.resolve_target(
            host, options.engine, options.flavor, options.user, options.service
        )
        self.engine: engines_base.Engine = self.target.load()
        if options.engine_version and core_text.parse_version(options.engine_version) is None:
            raise errors.NvidiaError(
                f"{errors.option:engine_version} {options.engine_version!r} is not a version. Write it in digits and"
                " dots, such as 26.1.5, or remove the option."
            )
        self._named_path = host.check_path("config_path", options.config_path) if options.config_path else None
        # What the last plan removes permanently.
        self.leftovers: tuple[legacy_cleanup.Leftover, ...] = ()
        self.version = options.engine_version
        self.observe()
        self.version = self.version or program_version.ask_version(self.engine, self.installation, host, run)

    def observe(self) -> None:
        """Read how the engine is installed and what the running daemon reports. Another run may have changed both."""
        self.installation: engines_base.Installation = self.engine.inspect(self.host, self.options.service)
        self.config_path = self._named_path or self.installation.config_path
        self.live: engines_base.LiveState | None = self.engine.live(self.host, self.installation)
        if not self.options.engine_version and self.live is not None and self.live.version:
            self.version = self.live.version

    @property
    def removal(self) -> bool:
        return self.request is None

    @property
    def main_path(self) -> str:
        """The configuration file with all links resolved."""
        return self.host.resolve(self.config_path)

    @property
    def takes_effect(self) -> bool:
        """Whether the engine reads the file, as far as that is known."""
        unit = self.installation.unit
        return (unit is not None and bool(unit.wrapper)) or self.main_path == self.host.resolve(
            self.installation.config_path
        )

    def plan(self, context: engines_base.Context | None = None) -> engines_base.EnginePlan:
        """Return the plan for ``context``, by default for the current files."""
        context = context or self.context()
        if not self.options.purge_legacy:
            return self._engine_plan(context)
        # The import is needed for purge_legacy only.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            legacy_cleanup,
        )

        cleanup = legacy_cleanup.LegacyCleanup(self.host, self.engine, context, self.request)
        self.leftovers = tuple(cleanup.leftovers)
        return cleanup.plan(self._engine_plan)

    def _engine_plan(self, context: engines_base.Context) -> engines_base.EnginePlan:
        facts, row = flavors.FACTS[self.target.engine], flavors.FLAVORS[self.target.engine, self.target.flavor]
        if self.request is None:
            return self.engine.absent(context)
        if self.request.register or "register" not in facts.options:
            planned = self.engine.present(self.request, context)
            if not self.request.enable_cdi or not planned.state.has_empty_cdi_folders:
                return planned
            advice = flavors.cdi_advice(row, planned.state.cdi_folders, "")
            warning = f"{errors.option:enable_cdi} has no effect: {facts.name} has no directory of CDI specifications."
            return planned._replace(warnings=(*planned.warnings, f"{warning} {advice}"))

        return cdi_alone.plan(self.engine, facts, row, self.request, context)

    def context(self) -> engines_base.Context:
        """Return the context of a plan with the current files.

        A removal that names no file covers all files that the engine's records name.
        """
        path, recorded = self.main_path, self.recorded()
        files = engines_base.HostFiles(self.host, self.engine.key)
        context = files.context(path, self.installation.unit, core_text.parse_version(self.version or ""), recorded)
        return context._replace(keep_unrecorded=self.options.keep_unrecorded)

    def recorded(self) -> tuple[str, ...]:
        """Return the recorded files of this configuration beside the main one."""
        path = self.main_path
        everything = self.removal and not self.options.config_path
        return tuple(
            record.path
            for record in core_records.load_records(self.host, self.engine.key)
            if record.path != path and (everything or record.main == path)
        )

    def unrecorded(self, plan: engines_base.EnginePlan) -> list[str]:
        """Return the files that ``plan`` keeps because of ``keep_unrecorded`` and would change without it."""
        if not (self.removal and self.options.keep_unrecorded):
            return []
        context = self.context()
        try:
            full = self.plan(context._replace(keep_unrecorded=False))
        except errors.NvidiaError:
            # This removal keeps the file. Only a removal without keep_unrecorded would be refused.
            return [context.path] if any(map(engines_base.is_nvidia_program, plan.state.paths().values())) else []
        kept = {file.path: file.after for file in plan.files}
        return [file.path for file in full.files if file.changed and file.after != kept.get(file.path, file.before)]

    @property
    def has_nothing_to_remove(self) -> bool:
        """Whether a removal with ``keep_unrecorded`` finds no record and no interrupted change."""
        if not (self.removal and self.options.keep_unrecorded):
            return False
        # The import is needed for a removal only.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            journal as engines_journal,
        )

        entries = (
            engines_journal.JournalEntry.pending_changes(self.host, self.engine.key),
            engines_journal.JournalEntry.restart_in_progress(self.host, self.engine.key),
        )
        return not core_records.load_records(self.host, self.engine.key) and not any(
            entry.exists() for entry in entries
        )

    def restores_original(self, file: core_plan.PlannedFile) -> bool:
        """Return whether the file is deleted or, in a removal, gets its original content again."""
        if file.after is None or not self.removal:
            return file.after is None
        record = core_records.load_record(self.host, self.engine.key, file.path)
        return record is not None and file.after == record.original


def _normalized(
    request: engines_request.RuntimeRequest | None, host: hostfs.HostFS
) -> engines_request.RuntimeRequest | None:
    """Return the request with normalized paths.

    Raises NvidiaError for a request that no engine accepts.
    """
    if request is None:
        return None
    request.check()
    if not request.register:
        request = cdi_alone.completed(request)
    request = request._replace(runtime_dir=host.check_path("runtime_dir", request.runtime_dir))
    if request.drop_in_path is not None:
        request = request._replace(drop_in_path=host.check_path("drop_in_path", request.drop_in_path))
    return request


class ConfigureEngine:
    """The task that brings one engine of one host to the state in ``options``."""

    def __init__(self, options: Options, host: hostfs.HostFS, run: core_plan.Runner) -> None:
        self.options = options
        self.host = host
        self.run = run
        named = host.check_path("backup_dir", options.backup_dir) if options.backup_dir is not None else None
        if named is not None:
            trusted_paths.check_backup_dir(host, named, core_constants.CONFIG_DIRS)
        self.state = EngineState(options, host, run)
        self.backup_dir = named or core_records.default_backup_dir(host, self.state.engine.key)

    def execute(self, check_mode: bool) -> ConfigureResult:
        """Plan the change, and unless ``check_mode`` is set, write it under the lock of the host.

        Raises NvidiaError.
        """
        self._require_release()
        self._require_runtime()
        plan = self.state.plan()
        # This needs the records, which the write below may remove.
        unrecorded = self.state.unrecorded(plan)
        changed = self._has_work(plan.files)
        backups: list[dict[str, str | None]] = []
        if changed:
            core_changes.before_change()
        error = self._validation_error(plan) if changed else None
        if error is not None and check_mode:
            raise error
        if changed and not check_mode:
            # The import is needed for a change only.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock  # noqa: PLC0415

            lock.remove_stale_directories(self.host)
            with lock.host_lock(self.host):
                # Another run may have written files or restarted the engine since. Only what is read under the lock is
                # current.
                self.state.observe()
                fresh = self.state.plan()
                # The first validation may have failed because another run was writing, so it is repeated here.
                if fresh.files != plan.files or error is not None:
                    self._validate(fresh)
                plan, changed = fresh, self._has_work(fresh.files)
                if changed:
                    self._write_journal(fresh)
                    backups = self._writer().apply(fresh.files)
                    if self.state.removal and self.state.installation.pid is None:
                        # No restart follows that would remove it.
                        applied.AppliedFiles.of(self.host, self.state.engine.key).remove()
        result = build_result(self.state, plan, changed, backups, unrecorded)
        if result.pending_action is engines_base.Action.NONE and not check_mode:
            self._record_inspection()
        return result

    def _has_work(self, files: t.Sequence[core_plan.PlannedFile]) -> bool:
        return any(file.changed for file in files) or (self.state.removal and self._writer().has_work(files))

    def _writer(self) -> apply.ChangeWriter:
        """Return the writer for the file that is the main one now."""
        # The import is needed for a change or a removal only.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply  # noqa: PLC0415

        return apply.ChangeWriter(
            self.host,
            self.state.engine.key,
            self.state.main_path,
            self.backup_dir,
            removal=self.state.removal,
            purge=self.options.purge_backups,
            drop_in_path=self.state.engine.drop_in_path,
            recorded=(self.state.main_path, *self.state.recorded()) if self.state.removal else (),
        )

    def _write_journal(self, plan: engines_base.EnginePlan) -> None:
        """Record the files that a running engine uses now, for a rollback by a restart in a later play.

        This play may end before the restart.
        """
        state, host = self.state, self.host
        engine = state.engine
        changed = [file for file in plan.files if file.changed]
        if not changed or state.installation.pid is None or not state.takes_effect:
            return
        # The import is needed for a change on a live host only.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import (  # noqa: PLC0415
            journal as engines_journal,
        )

        steps = []
        for file in changed:
            record = core_records.load_record(host, engine.key, file.path)
            recorded = None if record is None else record.to_bytes()
            steps.append(
                engines_journal.PreviousFile(file.path, file.before, recorded, core_records.digest(file.after))
            )
        is_current = self._runs_with_present_files()
        journal = engines_journal.JournalEntry.pending_changes(host, engine.key)
        # The entry of earlier changes names the process that ran before them.
        started = (None if is_current else journal.started()) or processes.started(host, state.installation.pid)
        journal.write(engines_journal.joined(() if is_current else journal.previous_files(), steps), started)
        if is_current and not engine.reports_full_state:
            files = engine.applied_files(host, state.installation)
            applied.AppliedFiles.of(host, engine.key).write(state.installation.pid, files)

    def _record_inspection(self) -> None:
        """Record a process that runs with its files, so that a later change by any program is detected."""
        state, record = self.state, applied.AppliedFiles.of(self.host, self.state.engine.key)
        is_known = state.engine.reports_full_state or record.is_of(state.installation.pid)
        if is_known or state.removal or not core_records.load_records(self.host, state.engine.key):
            return
        # The import is needed for a new process only.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock  # noqa: PLC0415

        # Without a place for the record, the times of files decide, as before it. That is no reason to fail.
        with contextlib.suppress(errors.HostError), lock.host_lock(self.host):
            # Another run may have changed the files since.
            state.observe()
            if self._runs_with_present_files():
                record.write(state.installation.pid, state.engine.applied_files(self.host, state.installation))

    def _runs_with_present_files(self) -> bool:
        """Return whether the running engine uses the present files, False if that is unknown."""
        state, live = self.state, self.state.live
        if live is None:
            return False
        try:
            configured = state.engine.configured(state.context())
        except errors.NvidiaError:
            # The plan does not need a file that is undefined for the engine, for example in a removal.
            return False
        return state.engine.required_action(live, configured) is engines_base.Action.NONE

    def _require_release(self) -> None:
        """Raise NvidiaError for a release of the engine that does not start with NVIDIA's programs."""
        problem = None if self.state.removal else self.state.engine.release_problem(self.state.version)
        if problem is not None:
            message = f"{self.state.config_path} was not changed. {problem.message}"
            raise errors.with_advice(errors.NvidiaError, message, problem.advice)

    def _require_runtime(self) -> None:
        """Raise NvidiaError for a default runtime whose program is missing: no container of the host would start."""
        request = self.state.request
        if request is None or not request.set_as_default or not self.options.require_runtime:
            return
        if request.config_mode == "hook" or not self.state.engine.default_runtime:
            # For an engine without registered runtimes, the plan refuses a default runtime.
            return
        path = request.runtimes()[request.runtime_name]
        if not self.host.is_executable(path):
            raise errors.NvidiaError(
                f"The default runtime was not set to {request.runtime_name}, because {path} is not an executable file"
                f" on this host. Install the NVIDIA Container Toolkit, or set {errors.option:runtime_dir} to its"
                " directory."
            )

    def _validation_error(self, plan: engines_base.EnginePlan) -> errors.NvidiaError | None:
        try:
            self._validate(plan)
        except errors.NvidiaError as error:
            return error
        return None

    def _validate(self, plan: engines_base.EnginePlan) -> None:
        """Validate the new files with the engine's program.

        Files that are deleted or get their original content again are exempt, unless the program validates all files
        at once and there is another changed file. Raises NvidiaError for a file that the engine refuses.
        """
        state = self.state
        changed = [file for file in plan.files if file.changed]
        new = [file for file in changed if not state.restores_original(file)]
        if self.options.validate == "false" or not new:
            return
        strict = self.options.validate == "true"
        # The import is needed for a change only.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import validator  # noqa: PLC0415

        config_validator = validator.ConfigValidator(
            state.engine, self.host, self.run, state.installation.binary, strict
        )
        files = changed if state.engine.validates_all_files else new
        config_validator.check(files, state.context(), _expected(state.request, plan.state))


def _expected(
    request: engines_request.RuntimeRequest | None, state: engines_base.ConfiguredState
) -> engines_base.ConfiguredState:
    """Return the part of ``state`` that the request sets. It is empty for a removal."""
    if request is None:
        return engines_base.ConfiguredState()
    paths = state.paths()
    return engines_base.ConfiguredState(
        {name: {"path": paths[name]} for name in request.runtimes() if name in paths},
        # The table default_runtime of containerd 1.x is not the setting that containerd prints.
        request.runtime_name if request.set_as_default and not request.use_legacy_config else None,
        state.cdi if isinstance(request.enable_cdi, bool) else None,
    )
