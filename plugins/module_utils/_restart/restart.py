# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restart an engine, wait until it is healthy, and roll back if it is not.

The restart methods, the health probe and the restoring of files are in the other files of this package.
"""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import applied, program_version, validator
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import journal as engines_journal
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import health as restart_health
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import methods as restart_methods
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import rollback as restart_rollback
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# Seconds, at most, for which the probe before a restart is repeated while it fails.
_PROBE_BEFORE = 10.0
# The number of journal lines quoted in the message; the module's result has more.
_QUOTED = 4


class RestartOptions(t.NamedTuple):
    """The parameters of the task. ``timeout`` is in seconds, once for the new files and once for the previous ones."""

    engine: str
    mode: str = "auto"
    action: str = "restart"
    flavor: str = core_constants.AUTO
    user: str | None = None
    service: str | None = None
    socket: str | None = None
    expect: restart_health.Expectation = restart_health.Expectation()
    rollback: tuple[restart_rollback.ChangedFile, ...] = ()
    allow_disruption: bool = False
    require_runtime: bool = True
    validate: str = "auto"
    timeout: float = 60.0
    retries: int = 1
    backup_dir: str | None = None

    def check(self) -> None:
        """Raise NvidiaError if a number is out of range."""
        if self.timeout <= 0 or self.retries < 0:
            raise errors.NvidiaError(
                f"{errors.option:timeout} must be greater than 0, and {errors.option:retries} must not be negative."
                f" They are {self.timeout:g} and {self.retries}. Correct them."
            )


class RestartResult(t.NamedTuple):
    """The result of the task.

    ``state`` is applied, rolled_back (the engine works with the previous files) or unknown.
    """

    changed: bool
    state: str
    mode: str
    service: str
    socket: str
    pid: int | None
    attempts: int = 0
    daemon_reloaded: bool = False
    rolled_back: bool = False
    rolled_back_files: tuple[t.Mapping[str, str | None], ...] = ()
    journal: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RestartError(errors.NvidiaError):
    """The error for files that are not applied; ``result`` has the state of the host."""

    def __init__(self, message: str, result: RestartResult) -> None:
        super().__init__(message)
        self.result = result


class Restart:
    """The restart of one engine on one host. The caller holds the host's lock if anything is changed.

    With ``check_mode``, the probe before the restart is not repeated.

    Raises:
        NvidiaError: The request cannot be executed. It is refused before the restart.
    """

    def __init__(
        self, options: RestartOptions, host: hostfs.HostFS, run: core_plan.Runner, check_mode: bool = False
    ) -> None:
        self.options = options
        self.host = host
        self.run = run
        target = engines_registry.resolve_target(host, options.engine, options.flavor, options.user, options.service)
        self.engine = target.load()
        self.probe = restart_health.HealthProbe(
            self.engine, host, options.service, options.socket, by_socket=options.mode == "signal"
        )
        self.installation = self.probe.inspect()
        method = restart_methods.select_method(options.mode, options.action, self.probe, self.installation, run)
        live = self.engine.live(host, self.installation)
        version = live.version if live is not None and live.version else None
        self.version = version or program_version.ask_version(self.engine, self.installation, host, run)
        self.loop = restart_methods.RestartLoop(self.probe, method, self.version, options.timeout, options.retries)
        self.restart_journal = engines_journal.JournalEntry.restart_in_progress(host, self.engine.key)
        self.changes_journal = engines_journal.JournalEntry.pending_changes(host, self.engine.key)
        # A task that was killed may have left the engine in any state.
        self.interrupted = method.applies and self.restart_journal.exists()
        self.previous_files = engines_journal.joined(
            self._files_of_journals() if method.applies else (), restart_rollback.previous_files(host, options.rollback)
        )
        backup_dir = options.backup_dir or core_records.default_backup_dir(host, self.engine.key)
        self.rollback = restart_rollback.Rollback(host, self.engine.key, self.previous_files, backup_dir)
        self.texts = self.probe.texts()
        self.started_at = time.time()
        self.daemon_reloaded = False
        self.warnings: list[str] = []
        # The probe result while the daemon still runs with the previous files.
        self.before = self._health_before(0.0 if check_mode else min(options.timeout / 2, _PROBE_BEFORE))

    def _files_of_journals(self) -> tuple[engines_journal.PreviousFile, ...]:
        """Return the previous files that earlier tasks recorded: before a killed restart, or before pending changes."""
        changes = self.changes_journal.previous_files()
        if (
            changes
            and not self.interrupted
            and not self.probe.check_applied(restart_health.Expectation(), self.version).problems
        ):
            # The daemon was restarted outside this module and already runs with these files.
            changes = ()
        return engines_journal.joined(self.restart_journal.previous_files(), changes)

    def _health_before(self, timeout: float) -> restart_health.ProbeResult:
        """Return the probe result before the restart; an empty one if it does not describe the previous files.

        A daemon that does not run, or that may have been started with the new files, cannot be used for comparison.
        One that is busy may not answer at once, so the probe is repeated for ``timeout`` seconds.
        """
        # A task that was killed may have made the daemon reload the new files, and no time stamp shows a reload.
        reloaded = self.interrupted and not self.method.restarts
        if reloaded or not self.method.applies or not self.method.is_up():
            return restart_health.ProbeResult(None)
        end = time.monotonic() + timeout
        result = self.probe.check_health()
        while result.problems and not result.final and time.monotonic() < end:
            time.sleep(restart_methods.PROBE_INTERVAL)
            result = self.probe.check_health()
        return restart_health.ProbeResult(None) if self._may_run_new_files(result.pid) else result

    def _may_run_new_files(self, pid: int | None) -> bool:
        """Return whether the daemon may have been started with the new files."""
        started = processes.started(self.host, pid)
        if started is None:
            return self.interrupted
        # A killed task may have restored the files after a restart, but it wrote its journal before the restart.
        entries = [entry for entry in (self.restart_journal, self.changes_journal) if entry.exists()]
        if not entries:
            return bool(self.previous_files)
        return any(entry.started() != started for entry in entries)

    def _failed_before(self, result: restart_health.ProbeResult) -> bool:
        """Return whether the probe failed in the same way before the restart."""
        same = bool(result.check) and result.check == self.before.check
        # A final failure names its cause, and another cause is another failure.
        return same and (not result.final or result.problems == self.before.problems)

    @property
    def method(self) -> restart_methods.RestartMethod:
        return self.loop.method

    @property
    def _preflight(self) -> restart_health.Preflight:
        return restart_health.Preflight(self.probe, self.installation, self.version, self.run)

    def check_mode_result(self) -> RestartResult:
        """Return what would be done. Raises RestartError if the restart is refused because of containers."""
        if not self._needs_restart():
            return self._result("applied")
        if self.method.applies and self.before.problems:
            self.warnings.append(self._unknown_health("A restart cannot be checked."))
        return self._result("unknown")._replace(changed=self.method.applies)

    def check_only(self) -> RestartResult:
        """Check the health and change nothing. Raises RestartError if the engine is not healthy."""
        result = self.loop.wait_until_healthy(self.options.expect, time.monotonic() + self.options.timeout)
        if result.problems:
            message = (
                f"The check of {self.engine.name} failed: {result.reasons}. {errors.option:mode} is none, so it was"
                f" not restarted. Use {errors.option:mode}: auto to restart or reload it."
            )
            raise RestartError(self._redact(message), self._result("unknown"))
        return self._result("applied")

    def execute(self) -> RestartResult:
        """Restart or reload the engine, wait until it is healthy, and roll back if it is not.

        Raises:
            RestartError: The new files are not applied.
        """
        # A removal may have restored the previous files on purpose. Then they are the ones that are wanted.
        unwanted = [file for file in self.previous_files if file.written != core_records.digest(file.content)]
        if self.interrupted and unwanted and not self.rollback.has_changes and not self.options.rollback:
            self._apply_previous_files("An earlier run restored the previous files and was then interrupted.")
        edited = self.rollback.edited_since()
        problem = self._preflight.config_problem(self.options.validate, self.options.require_runtime)
        if problem:
            self._fail_without_restart(problem, edited)
        if not self._needs_restart():
            self._remove_journals()
            return self._result("applied")
        self._write_journal()
        self.rollback.stage()
        result = self._apply_new_files()
        if result.problems and edited and result.problems == result.unmet:
            # The daemon runs with its files, which another tool has changed meanwhile.
            self.warnings.append(f"Another program has changed {', '.join(edited)}: {result.reasons}.")
            result = result._replace(problems=())
        # Without previous files, no file was changed, and the restart should make the engine healthy. A failure is then
        # an error, even if it existed before the restart.
        if self.previous_files and self._failed_before(result):
            return self._keep_new_files()
        if not result.problems:
            runtimes = self.options.expect.runtimes
            problems, untested = self.engine.check_runtimes(self.host, self.installation, runtimes)
            self.warnings += untested
            result = result._replace(problems=tuple(problems))
        if result.problems:
            self._roll_back(result)
        self._remove_journals()
        return self._result("applied")

    # -- the new files -------------------------------------------------------------------------------------------

    def _keep_new_files(self) -> RestartResult:
        """Keep the new files of an engine that the probe found unhealthy in the same way before the restart."""
        consequence = f"The probe failed in the same way before the {self.options.action}, so the new files stay."
        self.warnings.append(self._unknown_health(consequence))
        self._remove_journals()
        return self._result("unknown")

    def _needs_restart(self) -> bool:
        """Return False if the restart would stop containers, and a killed task has already applied the files.

        Raises RestartError if the restart would stop containers and is needed.
        """
        refusal = self._disruption_reason(self.method)
        if refusal and not self._interrupted_run_applied_files():
            raise RestartError(refusal, self._result(self._state_without_restart()))
        return not refusal

    def _disruption_reason(self, method: restart_methods.RestartMethod, rolls_back: bool = False) -> str:
        """Return why a restart by ``method`` is refused because of running containers; empty if it is allowed.

        With ``rolls_back``, it is also allowed for a daemon that is down or does not report its containers.
        """
        systemctl = method.systemctl
        if self.options.allow_disruption or not method.restarts or systemctl is None:
            return ""
        if rolls_back and not method.is_up():
            return ""
        # systemd does not reload its units for a rollback.
        losing_gpus = () if rolls_back else method.containers_losing_gpus()
        preflight = self._preflight._replace(installation=self.probe.inspect(), rolls_back=rolls_back)
        return preflight.disruption_reason(systemctl.dependent_units(), systemctl.container_pids_killed(), losing_gpus)

    def _interrupted_run_applied_files(self) -> bool:
        """Return whether a killed task had already applied the files, so that no restart is needed."""
        result = self.probe.check_applied(self.options.expect, self.version)
        return self.interrupted and not self.options.rollback and not result.problems

    def _apply_new_files(self) -> restart_health.ProbeResult:
        try:
            losing_gpus = self.method.containers_losing_gpus()
            self.daemon_reloaded = self.method.reload_units()
        except errors.HostError as error:
            return self.probe.check_health()._replace(problems=(str(error).rstrip("."),), check="")
        if losing_gpus:
            self.warnings.append(
                f"systemd has reloaded its units, so the containers {', '.join(losing_gpus)} have lost the GPUs that"
                " the legacy hook gave them. Restart these containers."
            )
        return self.loop.execute(self.options.expect)

    def _write_journal(self) -> None:
        # The entry of an interrupted task names the process that ran before its restart.
        running = processes.started(self.host, self.installation.pid)
        started = self.restart_journal.started() if self.interrupted else running
        try:
            self.restart_journal.write(self.previous_files, started)
        except errors.HostError as error:
            self.warnings.append(f"The next run cannot complete this restart if it is interrupted: {error}")

    def _remove_journals(self) -> None:
        """Remove the journal entries of this restart, and record the files with which the daemon runs."""
        self.rollback.discard()
        try:
            self._record_applied_files()
            self.changes_journal.remove()
            self.restart_journal.remove()
        except errors.NvidiaError as error:
            self.warnings.append(f"The next run will treat this restart as interrupted: {error}")

    def _record_applied_files(self) -> None:
        """Record the files with which a daemon was started that does not report its settings. Raises HostError."""
        record, installation = applied.AppliedFiles.of(self.host, self.engine.key), self.probe.inspect()
        is_managed = bool(core_records.load_records(self.host, self.engine.key))
        live = self.engine.live(self.host, installation)
        is_outdated = live is not None and live.outdated
        if self.loop.attempts:
            # Without a record, a file with a wrong time would require a restart again and again.
            is_needed = is_managed or is_outdated
        else:
            is_needed = is_managed and live is not None and not is_outdated
        if is_needed and not self.engine.reports_full_state:
            record.write(installation.pid, self.engine.applied_files(self.host, installation))
        else:
            record.remove()

    # -- the previous files --------------------------------------------------------------------------------------

    def _fail_without_restart(self, problem: str, edited: t.Sequence[str]) -> t.NoReturn:
        """Fail without restarting a daemon that would not start; restore its files if this collection wrote them."""
        message = f"{self.engine.name} was not {self.options.action}ed: {problem}."
        state = self._state_without_restart()
        if edited:
            message += f" Another program has changed {', '.join(edited)}, so no previous file was restored."
        elif self.rollback.has_changes:
            self._write_journal()
            message = self._restore_files(message, state)
            if self.interrupted:
                self._apply_previous_files(message)
            self._remove_journals()
        self._fail(f"{message} Correct the problem, then run the task again.", state)

    def _roll_back(self, result: restart_health.ProbeResult) -> t.NoReturn:
        message = f"{self.engine.name} does not work with {self.installation.config_path}: {result.reasons}."
        if self.before.problems:
            message += f" The health probe failed before the {self.options.action} too: {self.before.reasons}."
        if not self.rollback.has_changes:
            if not self.previous_files and self._failed_before(result):
                # No file was changed, and the probe failed in the same way before. A later task must not treat this
                # restart as interrupted.
                self._remove_journals()
            message += f" There are no previous files to restore. {self._status_advice()}."
            self._fail(message, "unknown", self._journal_tail())
        message = self._restore_files(message, "unknown")
        self._apply_previous_files(message, self._journal_tail())

    def _restore_files(self, message: str, state: str) -> str:
        """Restore the previous files and return the message extended by the result.

        Fails with ``state`` if they cannot be restored.
        """
        self.texts += self.probe.texts()
        try:
            self.rollback.restore()
        except errors.NvidiaError as error:
            self._fail(f"{message} The previous files could not be restored: {error}", state, self._journal_tail())
        finally:
            self.rollback.discard()
        if self.rollback.without_copy:
            message += (
                f" No backup of the replaced content of {', '.join(self.rollback.without_copy)} could be written."
            )
        return f"{message} The previous files are restored."

    def _apply_previous_files(self, message: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        """Make the daemon apply the previous files, and fail with the result.

        If a reload does not suffice, the engine is restarted, unless that would stop containers.
        """
        name = self.engine.name
        self.started_at = time.time()
        refusal = self._disruption_reason(self.method, rolls_back=True)
        if refusal:
            self._fail(f"{message} {refusal}", "unknown", journal)
        fallback = self.method.fallback()
        self.method.stop_timeout = fallback.stop_timeout = self.options.timeout / 2
        result = self.loop.execute(restart_health.Expectation())
        if result.problems and not self._failed_before(result) and fallback is not self.method:
            refusal = self._disruption_reason(fallback, rolls_back=True)
            if refusal:
                message += f" {name} does not work with them without a restart: {result.reasons}."
                self._fail(f"{message} {refusal}", "unknown", journal)
            self.loop.method = fallback
            result = self.loop.execute(restart_health.Expectation())
        if not result.problems:
            self._remove_journals()
            self._fail(f"{message} {name} works with them.", "rolled_back", journal)
        if self._failed_before(result):
            # The daemon was restarted with the previous files. If the journal stayed, the next task would ignore its
            # probe result from before the restart.
            self._remove_journals()
            message += f" The health of {name} cannot be determined: {result.reasons}."
        else:
            message += f" {name} does not work with them either: {result.reasons}. Manual intervention is needed."
        self._fail(f"{message} {self._status_advice()}.", "unknown", (*journal, *self._journal_tail()))

    def _state_without_restart(self) -> str:
        """Return the state of a daemon that this task did not restart."""
        return "unknown" if self.interrupted or self.probe.check_health().problems else "rolled_back"

    # -- results and messages ------------------------------------------------------------------------------------

    def _unknown_health(self, consequence: str) -> str:
        """Return the warning for an engine that the probe also finds unhealthy with its previous files."""
        return (
            f"The health of {self.engine.name} cannot be determined: {self.before.reasons}. {consequence}"
            f" {self._status_advice()}. If it listens on another socket, set {errors.option:socket}."
        )

    def _status_advice(self) -> str:
        systemctl = "systemctl" if self.installation.user is None else "systemctl --user"
        return f"Run `{systemctl} status {self.installation.service}` on the host and correct what it reports"

    def _result(self, state: str) -> RestartResult:
        attempts = self.loop.attempts
        rolled_back = bool(self.rollback.restored)
        return RestartResult(
            changed=bool(attempts) or rolled_back or self.daemon_reloaded,
            state=state,
            mode=self.method.mode,
            service=self.installation.service,
            socket=self.installation.socket,
            pid=self.probe.inspect().pid,
            attempts=attempts,
            daemon_reloaded=self.daemon_reloaded,
            rolled_back=rolled_back,
            rolled_back_files=tuple(self.rollback.restored),
            warnings=tuple(self._redact(warning) for warning in self.warnings),
        )

    def _journal_tail(self) -> tuple[str, ...]:
        return tuple(self._redact("\n".join(self.method.journal_tail(self.started_at))).splitlines())

    def _redact(self, text: str) -> str:
        return validator.redact(text, self.engine.syntax, self.texts, self.installation.unit)

    def _fail(self, message: str, state: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        message = self._redact(message)
        if journal:
            message += f" Last lines of its journal: {' | '.join(journal[-_QUOTED:])}"
        raise RestartError(message, self._result(state)._replace(journal=tuple(journal)))


def restart(options: RestartOptions, host: hostfs.HostFS, run: core_plan.Runner, check_mode: bool) -> RestartResult:
    """Execute the task.

    Raises:
        NvidiaError: The request cannot be executed.
        RestartError: The new files are not applied.
    """
    options.check()
    if not host.live:
        raise errors.NvidiaError(
            f"{errors.option:host_root} {host.root!r} is an offline tree, in which no engine runs. Remove this task,"
            f" because the engine reads its files when it starts, or set {errors.option:host_root_live}: true if it is"
            " the file system of a running host."
        )
    if check_mode:
        return Restart(options, host, run, check_mode).check_mode_result()
    if options.mode == "none":
        return Restart(options, host, run).check_only()
    lock.remove_stale_directories(host)
    # No other task may change the files or restart the engine until its health is confirmed.
    with lock.host_lock(host, lock.TIMEOUT + 3 * options.timeout):
        return Restart(options, host, run).execute()
