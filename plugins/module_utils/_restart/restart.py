# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restart an engine, wait until it is healthy, and roll back if it is not.

The loop that waits, the restart methods, the health probe and the rollback are in the other files of this package.
"""

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock, scratch
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import configure as engines_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import journal as engines_journal
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import validator
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import health as restart_health
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import methods as restart_methods
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart_loop
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import rollback as restart_rollback
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# Seconds, at most, for which the probe before a restart is repeated while it fails.
_BEFORE = 10.0


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
    rollback: tuple[restart_rollback.Change, ...] = ()
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
                "timeout has to be greater than 0, and retries must not be negative. Correct them."
            )


class Restarted(t.NamedTuple):
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
    rolled_back_files: tuple[t.Mapping[str, str | None], ...] = ()
    rolled_back: bool = False
    journal: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RestartError(errors.NvidiaError):
    """The error for files that are not applied; ``outcome`` is the result with the state of the host."""

    def __init__(self, message: str, outcome: Restarted) -> None:
        super().__init__(message)
        self.outcome = outcome


class Restart:
    """The restart of one engine on one host. The caller holds the host's lock if anything is changed.

    With ``check_mode``, the probe before the restart is not repeated.

    Raises:
        NvidiaError: The request cannot be executed. Nothing was changed.
    """

    def __init__(
        self, options: RestartOptions, host: hostfs.HostFS, run: core_plan.Runner, check_mode: bool = False
    ) -> None:
        self.options = options
        self.host = host
        self.run = run
        by_socket = options.mode == "signal"
        target = engines_registry.resolve_target(host, options.engine, options.flavor, options.user, options.service)
        self.witness = restart_health.HealthProbe(target.load(), host, options.service, options.socket, by_socket)
        self.engine = self.witness.engine
        self.installation = self.witness.inspect()
        means: restart_methods.RestartMethod = restart_methods.means_of(
            options.mode, options.action, self.witness, self.installation, run
        )
        live = self.engine.live(host, self.installation)
        version = live.version if live is not None and live.version else None
        self.version = version or engines_configure.ask_version(self.engine, self.installation, host, run)
        self.bring_up = restart_loop.RestartLoop(self.witness, means, self.version, options.timeout, options.retries)
        self.note = engines_journal.Journal.restart_in_progress(host, self.engine.key)
        self.changes = engines_journal.Journal.pending_changes(host, self.engine.key)
        # A task that was killed may have left the engine in any state.
        self.unfinished = means.acts and self.note.exists()
        self.previous_files = engines_journal.joined(
            self._noted() if means.acts else (), restart_rollback.previous_files(host, options.rollback)
        )
        backup_dir = options.backup_dir or core_records.default_backup_dir(host, self.engine.key)
        self.rollback = restart_rollback.Rollback(host, self.engine.key, self.previous_files, backup_dir)
        self.texts = self.witness.texts()
        self.began = time.time()
        self.daemon_reloaded = False
        self.warnings: list[str] = []
        # The probe result while the daemon still runs with the previous files.
        self.before = self._health_before(0.0 if check_mode else min(options.timeout / 2, _BEFORE))

    def _noted(self) -> tuple[engines_journal.PreviousFile, ...]:
        """Return the previous files that earlier tasks recorded: before a killed restart, or before pending changes."""
        changes = self.changes.previous_files()
        if (
            changes
            and not self.unfinished
            and not self.witness.examine(restart_health.Expectation(), self.version).lacks
        ):
            # The daemon was restarted outside this module and already runs with these files.
            changes = ()
        return engines_journal.joined(self.note.previous_files(), changes)

    def _health_before(self, patience: float) -> restart_health.ProbeResult:
        """Return the probe result before the restart; an empty one if it does not describe the previous files.

        A daemon that does not run, or that may have been started with the new files, cannot be used for comparison.
        One that is busy may not answer at once, so the probe is repeated for ``patience`` seconds.
        """
        # A task that was killed may have made the daemon reload the new files, and no time stamp shows a reload.
        reloaded = self.unfinished and not self.means.restarts
        if reloaded or not self.means.acts or not self.means.up():
            return restart_health.ProbeResult(None, ())
        end = time.monotonic() + patience
        found = self.witness.health()
        while found.lacks and not found.settled and time.monotonic() < end:
            time.sleep(restart_loop.PAUSE)
            found = self.witness.health()
        return restart_health.ProbeResult(None, ()) if self._started_since_the_change(found.pid) else found

    def _started_since_the_change(self, pid: int | None) -> bool:
        """Return whether the daemon may have been started with the new files."""
        born = processes.start_time(self.host, pid) if pid is not None else None
        if born is None:
            return self.unfinished
        times = [self._changed(file.path) for file in self.previous_files]
        if self.unfinished:
            # A killed task may have restored the files after a restart, but it wrote its note before the restart.
            times.append(self.host.mtime(self.note.path))
        return any(changed < born for changed in times)

    def _changed(self, path: str) -> float:
        """Return when the file was changed or removed, in seconds since 1970."""
        # A removal changes the modification time of the directory, which may have been removed as well.
        while not self.host.exists(path) and path != "/":
            path = os.path.dirname(path)
        return self.host.mtime(path)

    def _failed_before(self, evidence: restart_health.ProbeResult) -> bool:
        """Return whether the probe failed in the same way before the restart."""
        same = bool(evidence.check) and evidence.check == self.before.check
        # A settled failure names its cause, and another cause is another failure.
        return same and (not evidence.settled or evidence.lacks == self.before.lacks)

    @property
    def means(self) -> restart_methods.RestartMethod:
        return self.bring_up.means

    @property
    def preflight(self) -> restart_health.Preflight:
        return restart_health.Preflight(self.witness, self.installation, self.version, self.run)

    def check_mode_result(self) -> Restarted:
        """Return what would be done. Raises RestartError if a disruption is refused."""
        refusal = self._refusal()
        if refusal:
            raise RestartError(refusal, self._outcome(self._untouched()))
        if self.means.acts and self.before.lacks:
            self.warnings.append(self._undetermined("A restart could not be judged by it."))
        return self._outcome("unknown")._replace(changed=self.means.acts)

    def prove(self) -> Restarted:
        """Check the health and change nothing. Raises RestartError if the engine is not healthy."""
        evidence = self.bring_up.wait_until_healthy(self.options.expect, time.monotonic() + self.options.timeout)
        if evidence.lacks:
            message = f"{self.engine.name} is not as it should be: {evidence.reasons}. Nothing was done."
            raise RestartError(self._masked(message), self._outcome("unknown"))
        return self._outcome("applied")

    def carry_out(self) -> Restarted:
        """Restart or reload the engine, wait until it is healthy, and roll back if it is not.

        Raises:
            RestartError: The new files are not applied.
        """
        if self.unfinished and self.previous_files and not self.rollback.possible and not self.options.rollback:
            self._finish_going_back()
        edited = self.rollback.edited_since()
        objection = self.preflight.objection(self.options.validate, self.options.require_runtime)
        if objection:
            self._leave_alone(objection, edited)
        refusal = self._refusal()
        if refusal and self._finished_after_all():
            self._drop_note()
            return self._outcome("applied")
        if refusal:
            raise RestartError(refusal, self._outcome(self._untouched()))
        self._take_note()
        self.rollback.prepare()
        evidence = self._taken_over()
        if evidence.lacks and edited and evidence.lacks == evidence.unmet:
            # The daemon runs with its files, which another tool has changed meanwhile.
            self.warnings.append(f"{', '.join(edited)} was changed by others since: {evidence.reasons}.")
            evidence = evidence._replace(lacks=())
        # Without previous files, no change is to be judged, and the restart was to make the engine healthy.
        if self.previous_files and self._failed_before(evidence):
            return self._leave_unjudged()
        if not evidence.lacks:
            names = self.options.expect.runtimes
            lacks, untried = self.engine.check_runtimes(self.host, self.installation, names, self.run)
            self.warnings += untried
            evidence = evidence._replace(lacks=tuple(lacks))
        if evidence.lacks:
            self._go_back(evidence)
        self._drop_note()
        return self._outcome("applied")

    # -- the new state -------------------------------------------------------------------------------------------

    def _leave_unjudged(self) -> Restarted:
        """Keep the new files of an engine that the probe found unhealthy in the same way before the restart."""
        self.warnings.append(
            self._undetermined(
                f"It was so before the {self.options.action}, so the new files stay. Whether the engine works with"
                " them is not known."
            )
        )
        self._drop_note(applied=False)
        return self._outcome("unknown")

    def _refusal(self) -> str:
        """Return why the restart is refused because it would stop containers; empty if it is allowed."""
        if self.options.allow_disruption or not self.means.restarts:
            return ""
        return self.preflight.disruption_reason(
            self.means.dragged(), self.means.container_pids_killed(), self.means.cut_off()
        )

    def _finished_after_all(self) -> bool:
        """Return whether the killed task had already applied the files. Then a restart is not needed."""
        evidence = self.witness.examine(self.options.expect, self.version)
        return self.unfinished and not self.options.rollback and not evidence.lacks

    def _taken_over(self) -> restart_health.ProbeResult:
        try:
            cut_off = self.means.cut_off()
            self.daemon_reloaded = self.means.prepare()
        except errors.HostError as error:
            return self.witness.health()._replace(lacks=(str(error).rstrip("."),), check="")
        if cut_off:
            self.warnings.append(
                f"systemd read its units again, so the containers {', '.join(cut_off)} have lost the GPUs that the"
                " legacy hook gave them. Restart them."
            )
        return self.bring_up.carry_out(self.options.expect)

    def _take_note(self) -> None:
        try:
            self.note.write(self.previous_files)
        except errors.HostError as error:
            self.warnings.append(f"The restart is not noted, so nobody would know if this run were killed: {error}")

    def _drop_note(self, applied: bool = True) -> None:
        """Remove the notes of this restart; ``applied`` if the daemon is known to work with its files."""
        self.rollback.discard()
        try:
            if applied:
                self._note_applied()
            self.changes.remove()
            self.note.remove()
        except errors.NvidiaError as error:
            self.warnings.append(f"The next run will take this restart for an unfinished one: {error}")

    def _note_applied(self) -> None:
        """Record the files with which a daemon was started that does not report its settings. Raises HostError."""
        note = engines_journal.AppliedFiles.of(self.host, self.engine.key)
        installation = self.witness.inspect()
        live = (
            self.engine.live(self.host, installation) if core_records.load_records(self.host, self.engine.key) else None
        )
        born = processes.start_time(self.host, installation.pid) if installation.pid is not None else None
        if born is None or live is None or not live.runtimes_unknown or live.outdated:
            note.remove()
        else:
            note.write(born, self.engine.config_files(self.host, installation))

    # -- the previous state --------------------------------------------------------------------------------------

    def _leave_alone(self, objection: str, edited: t.Sequence[str]) -> t.NoReturn:
        """Fail without restarting a daemon that would not start; roll back its files if this collection wrote them."""
        message = f"{self.engine.name} was not disturbed: {objection}."
        state = self._untouched()
        if edited:
            message += (
                f" {', '.join(edited)} was edited by others since it was written, so it is left to you, and with it the"
                " rest."
            )
        elif self.rollback.possible:
            self._take_note()
            message = self._put_back(message, state)
            if self.unfinished:
                self._prove_former(message)
            message += "."
            self._drop_note()
        self._fail(f"{message} Correct that, then run this again.", state)

    def _go_back(self, evidence: restart_health.ProbeResult) -> t.NoReturn:
        message = f"{self.engine.name} did not take {self.installation.config_path} over: {evidence.reasons}."
        if self.before.lacks:
            message += f" The health probe failed before the {self.options.action} too: {self.before.reasons}."
        if not self.rollback.possible:
            if not self.previous_files and self._failed_before(evidence):
                # Nothing was changed, so a later task need not take this restart for an unfinished one.
                self._drop_note(applied=False)
            self._fail(f"{message} There is nothing to go back to.", "unknown", self._last_words())
        message = self._put_back(message, "unknown")
        self._prove_former(message, self._last_words())

    def _finish_going_back(self) -> t.NoReturn:
        self._prove_former("A run was killed after it had put the former files back")

    def _put_back(self, message: str, state: str) -> str:
        """Restore the previous files and return the message extended by the result.

        Fails with ``state`` if they cannot be restored.
        """
        self.texts += self.witness.texts()
        try:
            self.rollback.carry_out()
        except errors.NvidiaError as error:
            self._fail(f"{message} THE FORMER FILES COULD NOT BE PUT BACK: {error}", state, self._last_words())
        finally:
            self.rollback.discard()
        lost = self.rollback.without_copy()
        message += f" NO COPY COULD BE KEPT of what stood in {', '.join(lost)}." if lost else ""
        return f"{message} The former files are back"

    def _prove_former(self, message: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        """Make the daemon apply the previous files, and fail with the result.

        If a reload does not suffice, the engine is restarted, unless that would stop containers.
        """
        name = self.engine.name
        self.began = time.time()
        patience = self.options.timeout / 2
        if self.means.restarts and not self._may_restart():
            message += f", but {name} WAS NOT RESTARTED WITH THEM, for that would stop containers started meanwhile."
            self._fail(message, "unknown", journal)
        former = self.bring_up.carry_out(restart_health.Expectation(), patience)
        stronger = self.means.fallback()
        if former.lacks and not self._failed_before(former) and stronger is not self.means and self._may_restart():
            self.bring_up.means = stronger
            former = self.bring_up.carry_out(restart_health.Expectation(), patience)
        if former.lacks:
            if self._failed_before(former):
                # The daemon was restarted with the previous files. The note would switch off the next probe before.
                self._drop_note(applied=False)
            message += f". The health of {name} cannot be determined: {former.reasons}. {self._where_to_look()}."
            self._fail(message, "unknown", (*journal, *self._last_words()))
        self._drop_note()
        self._fail(f"{message}, and it works with them.", "rolled_back", journal)

    def _may_restart(self) -> bool:
        """Return whether a restart is allowed. A daemon that is down or silent has no containers to protect."""
        if self.options.allow_disruption or not self.means.up():
            return True
        return not self.engine.containers_stopped_by_restart(self.host, self.witness.inspect())

    def _untouched(self) -> str:
        """Return the state of a daemon that this task did not restart."""
        return "unknown" if self.unfinished or self.witness.health().lacks else "rolled_back"

    def _undetermined(self, consequence: str) -> str:
        """Return the warning for an engine that the probe also finds unhealthy with its previous files."""
        return (
            f"The health of {self.engine.name} cannot be determined: {self.before.reasons}. {consequence}"
            f" {self._where_to_look()}, or give its socket if it listens elsewhere."
        )

    def _where_to_look(self) -> str:
        systemctl = "systemctl" if self.installation.user is None else "systemctl --user"
        return f"Run `{systemctl} status {self.installation.service}` on the host and correct what it reports"

    # -- results and messages ------------------------------------------------------------------------------------

    def _outcome(self, state: str) -> Restarted:
        attempts = self.bring_up.attempts
        gone_back = bool(self.rollback.restored)
        return Restarted(
            changed=bool(attempts) or gone_back or self.daemon_reloaded,
            state=state,
            mode=self.means.mode,
            service=self.installation.service,
            socket=self.installation.socket,
            pid=self.witness.inspect().pid,
            attempts=attempts,
            daemon_reloaded=self.daemon_reloaded,
            rolled_back_files=tuple(self.rollback.restored),
            rolled_back=gone_back,
            warnings=tuple(self._masked(warning) for warning in self.warnings),
        )

    def _last_words(self) -> tuple[str, ...]:
        return tuple(self._masked("\n".join(self.means.journal_tail(self.began))).splitlines())

    def _masked(self, text: str) -> str:
        return validator.redact(text, self.engine.syntax, self.texts, self.installation.unit)

    def _fail(self, message: str, state: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        message = self._masked(message)
        if journal:
            message += f" Its last words: {' | '.join(journal[-_QUOTED:])}"
        raise RestartError(message, self._outcome(state)._replace(journal=tuple(journal)))


def restart(options: RestartOptions, host: hostfs.HostFS, run: core_plan.Runner, check_mode: bool) -> Restarted:
    """Execute the task.

    Raises:
        NvidiaError: The request cannot be executed.
        RestartError: The new files are not applied.
    """
    options.check()
    if not host.live:
        raise errors.NvidiaError(
            f"host_root {host.root!r} is an offline tree, in which nothing runs. Leave the engine to its next start, or"
            " set host_root_live: true if it is the file system of a running host."
        )
    if check_mode:
        return Restart(options, host, run, check_mode).check_mode_result()
    if options.mode == "none":
        return Restart(options, host, run).prove()
    scratch.remove_abandoned(host)
    # No other task may change the files or restart the engine until its health is confirmed.
    with lock.host_lock(host, lock.TIMEOUT + 3 * options.timeout):
        return Restart(options, host, run).carry_out()
