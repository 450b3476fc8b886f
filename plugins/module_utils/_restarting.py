# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a changed configuration becomes the running one, or the former one comes back.  Whatever
# happens, the end is told: new, old, or, if neither could be proven, unknown.

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._bringing_up import BringUp
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import AUTO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import TIMEOUT, host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._notes import AppliedNote, Note
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import ask_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._preflight import Preflight
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import started
from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Evidence, Expectation, Witness
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import default_backup_dir, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Rollback, formers_of, joined
from ansible_collections.gpufleet.nvidia.plugins.module_utils._scratch import remove_abandoned
from ansible_collections.gpufleet.nvidia.plugins.module_utils._taking_over import Means, means_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._targets import resolve_target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._validator_words import without_secrets

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Change, Former

# Lines of the journal that go into the message; the result has more.
_QUOTED = 4


class RestartOptions(t.NamedTuple):
    """The task's parameters; ``timeout`` in seconds is for the proof of each state, the new one and the old one."""

    engine: str
    mode: str = "auto"
    action: str = "restart"
    flavor: str = AUTO
    user: str | None = None
    service: str | None = None
    socket: str | None = None
    expect: Expectation = Expectation()
    rollback: tuple[Change, ...] = ()
    allow_disruption: bool = False
    require_runtime: bool = True
    validate: str = "auto"
    timeout: float = 60.0
    retries: int = 1
    backup_dir: str | None = None

    def check(self) -> None:
        """Raises GpufleetError for numbers that make no sense."""
        if self.timeout <= 0 or self.retries < 0:
            raise GpufleetError("timeout has to be greater than 0, and retries must not be negative. Correct them.")


class Restarted(t.NamedTuple):
    """How it ended; ``state`` is new, old or unknown, ``rejected`` are the files that were taken back."""

    changed: bool
    state: str
    mode: str
    service: str
    socket: str
    pid: int | None
    attempts: int = 0
    daemon_reloaded: bool = False
    rejected: tuple[t.Mapping[str, str | None], ...] = ()
    rolled_back: bool = False
    journal: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RestartError(GpufleetError):
    """The new state is not there; ``outcome`` tells what became of the host."""

    def __init__(self, message: str, outcome: Restarted) -> None:
        super().__init__(message)
        self.outcome = outcome


class Restart:
    """One engine of one host, given its files and asked for proof.  The host's lock is held if anything is to be done.

    Raises GpufleetError for what cannot be done; nothing has happened then.
    """

    def __init__(self, options: RestartOptions, host: HostRoot, run: Runner) -> None:
        self.options = options
        self.host = host
        self.run = run
        by_socket = options.mode == "signal"
        target = resolve_target(host, options.engine, options.flavor, options.user, options.service)
        self.witness = Witness(target.load(), host, options.service, options.socket, by_socket)
        self.engine = self.witness.engine
        self.installation = self.witness.inspect()
        means: Means = means_of(options.mode, options.action, self.witness, self.installation, run)
        live = self.engine.live(host, self.installation)
        version = live.version if live is not None and live.version else None
        self.version = version or ask_version(self.engine, self.installation, host, run)
        self.bring_up = BringUp(self.witness, means, self.version, options.timeout, options.retries)
        self.note = Note.of_restart(host, self.engine.key)
        self.changes = Note.of_changes(host, self.engine.key)
        # A run that was killed has left the engine in any state.
        self.unfinished = means.acts and self.note.exists()
        self.formers = joined(self._noted() if means.acts else (), formers_of(host, options.rollback))
        backup_dir = options.backup_dir or default_backup_dir(host, self.engine.key)
        self.rollback = Rollback(host, self.engine.key, self.formers, backup_dir)
        self.texts = self.witness.texts()
        self.began = time.time()
        self.daemon_reloaded = False
        self.warnings: list[str] = []
        # What the health probe finds while the daemon still runs with the previous files.
        self.before = self._health_before()

    def _noted(self) -> tuple[Former, ...]:
        """What earlier runs have left to be taken back: a restart that was cut off, changes that none was given."""
        changes = self.changes.formers()
        if changes and not self.unfinished and not self.witness.examine(Expectation(), self.version).lacks:
            # The daemon has taken them over by itself.
            changes = ()
        return joined(self.note.formers(), changes)

    def _health_before(self) -> Evidence:
        """What the probe lacks before anything is restarted; nothing if that is not the previous state.

        A daemon that does not run, or may have been started with the new files, is no measure for them.
        """
        if self.unfinished or not self.means.acts or not self.means.up():
            return Evidence(None, ())
        found = self.witness.health()
        born = started(self.host, found.pid) if found.pid is not None else None
        # A removed file shows in its directory.
        paths = [file.path if self.host.exists(file.path) else os.path.dirname(file.path) for file in self.formers]
        restarted = born is not None and any(self.host.modified(path) < born for path in paths)
        return Evidence(None, ()) if restarted else found

    @property
    def means(self) -> Means:
        return self.bring_up.means

    @property
    def preflight(self) -> Preflight:
        return Preflight(self.witness, self.installation, self.version, self.run)

    def foretell(self) -> Restarted:
        """What would be done.  Raises RestartError for a disruption that is refused."""
        refusal = self._refusal()
        if refusal:
            raise RestartError(refusal, self._outcome(self._untouched()))
        if self.means.acts and self.before.lacks:
            self.warnings.append(self._undetermined("A restart could not be judged by it."))
        return self._outcome("unknown")._replace(changed=self.means.acts)

    def prove(self) -> Restarted:
        """Only look.  Raises RestartError."""
        evidence = self.bring_up.await_proof(self.options.expect, time.monotonic() + self.options.timeout)
        if evidence.lacks:
            message = f"{self.engine.name} is not as it should be: {evidence.reasons}. Nothing was done."
            raise RestartError(self._masked(message), self._outcome("unknown"))
        return self._outcome("new")

    def carry_out(self) -> Restarted:
        """Take over, prove, go back if need be.  Raises RestartError if the new state is not there."""
        if self.unfinished and self.formers and not self.rollback.possible and not self.options.rollback:
            self._finish_going_back()
        edited = self.rollback.edited_since()
        objection = self.preflight.objection(self.options.validate, self.options.require_runtime)
        if objection:
            self._leave_alone(objection, edited)
        refusal = self._refusal()
        if refusal and self._finished_after_all():
            self._drop_note()
            return self._outcome("new")
        if refusal:
            raise RestartError(refusal, self._outcome(self._untouched()))
        self._take_note()
        self.rollback.prepare()
        evidence = self._taken_over()
        if evidence.lacks and edited and evidence.lacks == evidence.unmet:
            # The daemon does what its files say, which others have changed meanwhile.
            self.warnings.append(f"{', '.join(edited)} was changed by others since: {evidence.reasons}.")
            evidence = evidence._replace(lacks=())
        if evidence.check and evidence.check == self.before.check:
            self.warnings.append(
                self._undetermined(
                    f"It was so before the {self.options.action}, so the new files stay. Whether the engine works with"
                    " them is not known."
                )
            )
            self._drop_note()
            return self._outcome("unknown")
        if not evidence.lacks:
            names = self.options.expect.runtimes
            lacks, untried = self.engine.try_runtimes(self.host, self.installation, names, self.run)
            self.warnings += untried
            evidence = evidence._replace(lacks=tuple(lacks))
        if evidence.lacks:
            self._go_back(evidence)
        self._drop_note()
        return self._outcome("new")

    # -- the new state -------------------------------------------------------------------------------------------

    def _refusal(self) -> str:
        """Why nothing is restarted, since that would stop containers; empty if it would not, or if that is allowed."""
        if self.options.allow_disruption or not self.means.restarts:
            return ""
        return self.preflight.disruption(self.means.dragged(), self.means.doomed(), self.means.cut_off())

    def _finished_after_all(self) -> bool:
        """Whether the run that was killed had come far enough: then nobody needs to be stopped once more."""
        evidence = self.witness.examine(self.options.expect, self.version)
        return self.unfinished and not self.options.rollback and not evidence.lacks

    def _taken_over(self) -> Evidence:
        try:
            cut_off = self.means.cut_off()
            self.daemon_reloaded = self.means.prepare()
        except HostError as error:
            return self.witness.health()._replace(lacks=(str(error).rstrip("."),), check="")
        if cut_off:
            self.warnings.append(
                f"systemd read its units again, so the containers {', '.join(cut_off)} have lost the GPUs that the"
                " legacy hook gave them. Restart them."
            )
        return self.bring_up.carry_out(self.options.expect)

    def _take_note(self) -> None:
        try:
            self.note.write(self.formers)
        except HostError as error:
            self.warnings.append(f"The restart is not noted, so nobody would know if this run were killed: {error}")

    def _drop_note(self) -> None:
        self.rollback.discard()
        try:
            self._note_applied()
            self.changes.remove()
            self.note.remove()
        except GpufleetError as error:
            self.warnings.append(f"The next run will take this restart for an unfinished one: {error}")

    def _note_applied(self) -> None:
        """Note what a daemon was started with that does not report it.  Raises HostError."""
        note = AppliedNote.of(self.host, self.engine.key)
        installation = self.witness.inspect()
        live = self.engine.live(self.host, installation) if load_records(self.host, self.engine.key) else None
        born = started(self.host, installation.pid) if installation.pid is not None else None
        if born is None or live is None or not live.silent or live.outdated:
            note.remove()
        else:
            note.write(born, self.engine.sources(self.host, installation))

    # -- the old state -------------------------------------------------------------------------------------------

    def _leave_alone(self, objection: str, edited: t.Sequence[str]) -> t.NoReturn:
        """The daemon is not told of files with which it would not start; if they are ours, they go."""
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

    def _go_back(self, evidence: Evidence) -> t.NoReturn:
        message = f"{self.engine.name} did not take {self.installation.config_path} over: {evidence.reasons}."
        if self.before.lacks:
            message += f" The health probe failed before the {self.options.action} too: {self.before.reasons}."
        if not self.rollback.possible:
            self._fail(f"{message} There is nothing to go back to.", "unknown", self._last_words())
        message = self._put_back(message, "unknown")
        self._prove_former(message, self._last_words())

    def _finish_going_back(self) -> t.NoReturn:
        self._prove_former("A run was killed after it had put the former files back")

    def _put_back(self, message: str, state: str) -> str:
        """The message with what has become of the files; fails in ``state`` if they cannot be put back."""
        self.texts += self.witness.texts()
        try:
            self.rollback.carry_out()
        except GpufleetError as error:
            self._fail(f"{message} THE FORMER FILES COULD NOT BE PUT BACK: {error}", state, self._last_words())
        finally:
            self.rollback.discard()
        lost = self.rollback.without_copy()
        message += f" NO COPY COULD BE KEPT of what stood in {', '.join(lost)}." if lost else ""
        return f"{message} The former files are back"

    def _prove_former(self, message: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        """Let the daemon take the former files over, by a restart if a reload is not enough and disturbs nobody."""
        name = self.engine.name
        self.began = time.time()
        patience = self.options.timeout / 2
        if self.means.restarts and not self._may_restart():
            message += f", but {name} WAS NOT RESTARTED WITH THEM, for that would stop containers started meanwhile."
            self._fail(message, "unknown", journal)
        former = self.bring_up.carry_out(Expectation(), patience)
        stronger = self.means.stronger()
        judged = former.check != self.before.check or not former.check
        if former.lacks and judged and stronger is not self.means and self._may_restart():
            self.bring_up.means = stronger
            former = self.bring_up.carry_out(Expectation(), patience)
        if former.lacks:
            message += f". The health of {name} cannot be determined: {former.reasons}. {self._where_to_look()}."
            self._fail(message, "unknown", (*journal, *self._last_words()))
        self._drop_note()
        self._fail(f"{message}, and it works with them.", "old", journal)

    def _may_restart(self) -> bool:
        """A daemon that does not even answer has nothing more to lose; one that is not up need not be asked."""
        if self.options.allow_disruption or not self.means.up():
            return True
        return not self.engine.casualties(self.host, self.witness.inspect())

    def _untouched(self) -> str:
        """The state of a daemon that this run has told nothing."""
        return "unknown" if self.unfinished or self.witness.health().lacks else "old"

    def _undetermined(self, consequence: str) -> str:
        """The warning for an engine whose health the probe cannot tell with its previous files either."""
        return (
            f"The health of {self.engine.name} cannot be determined: {self.before.reasons}. {consequence}"
            f" {self._where_to_look()}, or give its socket if it listens elsewhere."
        )

    def _where_to_look(self) -> str:
        systemctl = "systemctl" if self.installation.user is None else "systemctl --user"
        return f"Run `{systemctl} status {self.installation.service}` on the host and correct what it reports"

    # -- words ---------------------------------------------------------------------------------------------------

    def _outcome(self, state: str) -> Restarted:
        attempts = self.bring_up.attempts
        gone_back = bool(self.rollback.rejected)
        return Restarted(
            changed=bool(attempts) or gone_back or self.daemon_reloaded,
            state=state,
            mode=self.means.mode,
            service=self.installation.service,
            socket=self.installation.socket,
            pid=self.witness.inspect().pid,
            attempts=attempts,
            daemon_reloaded=self.daemon_reloaded,
            rejected=tuple(self.rollback.rejected),
            rolled_back=gone_back,
            warnings=tuple(self._masked(warning) for warning in self.warnings),
        )

    def _last_words(self) -> tuple[str, ...]:
        return tuple(self._masked("\n".join(self.means.last_words(self.began))).splitlines())

    def _masked(self, text: str) -> str:
        return without_secrets(text, self.engine.syntax, self.texts, self.installation.unit)

    def _fail(self, message: str, state: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        message = self._masked(message)
        if journal:
            message += f" Its last words: {' | '.join(journal[-_QUOTED:])}"
        raise RestartError(message, self._outcome(state)._replace(journal=tuple(journal)))


def restart(options: RestartOptions, host: HostRoot, run: Runner, check_mode: bool) -> Restarted:
    """Do what ``options`` say.  Raises GpufleetError, and RestartError if the new state is not there."""
    options.check()
    if not host.live:
        raise GpufleetError(
            f"host_root {host.root!r} is an offline tree, in which nothing runs. Leave the engine to its next start, or"
            " set host_root_live: true if it is the file system of a running host."
        )
    if check_mode:
        return Restart(options, host, run).foretell()
    if options.mode == "none":
        return Restart(options, host, run).prove()
    remove_abandoned(host)
    # No other run may change the files, or restart the engine, between the first look and the proof.
    with host_lock(host, TIMEOUT + 3 * options.timeout):
        return Restart(options, host, run).carry_out()
