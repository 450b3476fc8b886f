# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a changed configuration becomes the running one, or the former one comes back.  Whatever
# happens, the end is told: new, old, or, if neither could be proven, unknown.

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import ENGINES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import ask_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._preflight import Preflight
from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Evidence, Expectation, Witness
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart_note import RestartNote
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Rollback
from ansible_collections.gpufleet.nvidia.plugins.module_utils._taking_over import Means, means_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._validator_words import without_secrets

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Change

# Seconds between two looks at a daemon.
_PAUSE = 0.2
# Lines of the journal that go into the message; the result has more.
_QUOTED = 4


class RestartOptions(t.NamedTuple):
    """The task's parameters; ``timeout`` in seconds is for the proof of each state, the new one and the old one."""

    engine: str
    mode: str = "auto"
    action: str = "restart"
    service: str | None = None
    socket: str | None = None
    expect: Expectation = Expectation()
    rollback: tuple[Change, ...] = ()
    allow_disruption: bool = False
    require_runtime: bool = True
    validate: str = "auto"
    timeout: float = 60.0
    retries: int = 1
    backup_dir: str = ""


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
    """The new state could not be proven; ``outcome`` tells what became of the host."""

    def __init__(self, message: str, outcome: Restarted) -> None:
        super().__init__(message)
        self.outcome = outcome


class Restart:
    """One engine of one host, given its files and asked for proof."""

    def __init__(self, options: RestartOptions, host: HostRoot, run: Runner) -> None:
        """Raises GpufleetError for what cannot be done; nothing has happened then."""
        if not host.live:
            raise GpufleetError(
                f"host_root {host.root!r} is an offline tree, in which nothing runs. Leave the engine to its next"
                " start, or set host_root_live: true if it is the file system of a running host."
            )
        self.options = options
        self.host = host
        self.run = run
        self.witness = Witness(ENGINES[options.engine](), host, options.service, options.socket)
        self.engine = self.witness.engine
        self.installation = self.witness.inspect()
        self.means: Means = means_of(options.mode, options.action, self.witness, self.installation, run)
        self.note = RestartNote(host, options.engine)
        # What a run that was killed had begun comes first.
        self.rollback = Rollback(host, options.engine, (*self.note.changes(), *options.rollback), options.backup_dir)
        live = self.witness.live(self.installation)
        self.version = live.version if live is not None and live.version else None
        self.version = self.version or ask_version(self.engine, self.installation, host, run)
        self.began = time.time()
        self.outcome = Restarted(
            changed=False,
            state="unknown",
            mode=self.means.mode,
            service=self.installation.service,
            socket=self.installation.socket,
            pid=self.installation.pid,
        )

    @property
    def preflight(self) -> Preflight:
        return Preflight(self.witness, self.installation, self.version, self.run)

    def execute(self, check_mode: bool) -> Restarted:
        """Raises GpufleetError, and RestartError if the new state is not proven."""
        if self.means.restarts:
            refusal = self.preflight.disruption(self.options.allow_disruption)
            if refusal:
                self._fail(refusal, "old")
        if check_mode:
            return self.outcome._replace(changed=self.means.acts)
        if not self.means.acts:
            return self._only_proven()
        # Nobody may change the files between the judgement and the proof.
        with host_lock(self.host):
            return self._carried_out()

    def _only_proven(self) -> Restarted:
        evidence = self._await(self.options.expect, time.monotonic() + self.options.timeout)
        if evidence.lacks:
            message = f"{self.engine.name} is not as it should be: {_reasons(evidence)}. Nothing was done."
            self._fail(message, "unknown")
        return self.outcome._replace(state="new", pid=evidence.pid)

    def _carried_out(self) -> Restarted:
        edited = self.rollback.edited_since()
        objection = self.preflight.objection(self.options.validate, self.options.require_runtime)
        if objection:
            self._leave_alone(objection, edited)
        warnings = self._take_note()
        if self.means.daemon_reload():
            self.outcome = self.outcome._replace(daemon_reloaded=True)
        evidence = self._bring_up(self.options.expect)
        if evidence.lacks and edited and evidence.lacks == evidence.unmet:
            # What this run wanted has been changed by another one, which the daemon has taken over.
            warnings.append(f"{', '.join(edited)} was changed by others since: {_reasons(evidence)}.")
            evidence = evidence._replace(lacks=())
        if not evidence.lacks:
            names = self.options.expect.runtimes
            lacks, untried = self.engine.try_runtimes(self.host, self.installation, names, self.run)
            warnings += untried
            evidence = evidence._replace(lacks=tuple(lacks))
        if evidence.lacks:
            self._go_back(evidence)
        self.note.remove()
        return self.outcome._replace(state="new", pid=evidence.pid, warnings=tuple(warnings))

    # -- the new state -------------------------------------------------------------------------------------------

    def _take_note(self) -> list[str]:
        try:
            self.note.write((*self.note.changes(), *self.options.rollback))
        except HostError as error:
            return [f"The restart is not noted, so nobody would know if this run were killed: {error}"]
        return []

    def _bring_up(self, expectation: Expectation, *, force: bool = False) -> Evidence:
        """Have the files taken over, and again as often as allowed; what is proven in the end."""
        deadline = time.monotonic() + self.options.timeout
        evidence = Evidence(None, ())
        try:
            self.means.begin(force=force)
            for left in range(self.options.retries, -1, -1):
                self.outcome = self.outcome._replace(changed=True, attempts=self.outcome.attempts + 1)
                self.means.act()
                # A restart may take all the time there is; a signal that has no effect is sent again.
                share = 1 if self.means.restarts else left + 1
                now = time.monotonic()
                evidence = self._await(expectation, now + (deadline - now) / share)
                if not evidence.lacks or time.monotonic() >= deadline or not (evidence.again or share > 1):
                    break
        except HostError as error:
            return Evidence(None, (str(error).rstrip("."),))
        return evidence

    def _await(self, expectation: Expectation, end: float) -> Evidence:
        """The evidence as soon as it is complete, or cannot become so any more, or at ``end`` (monotonic)."""
        while True:
            obstacle = self.means.obstacle()
            evidence = self.witness.examine(expectation, self.version) if obstacle is None else obstacle
            # A daemon that reloads answers meanwhile as before.
            settled = evidence.settled and (self.means.restarts or not self.means.acts or obstacle is not None)
            if not evidence.lacks or settled or time.monotonic() >= end:
                return evidence
            time.sleep(_PAUSE)

    # -- the old state -------------------------------------------------------------------------------------------

    def _leave_alone(self, objection: str, edited: t.Sequence[str]) -> t.NoReturn:
        """The daemon runs with its former configuration; what would stop it at its next start goes."""
        state = "old" if self.installation.pid is not None else "unknown"
        message = f"{self.engine.name} was not disturbed: {objection}."
        advice = "Correct that, then run this again."
        if edited:
            message += f" {', '.join(edited)} was edited by others since it was written, so it is left to you."
        elif self.rollback.possible:
            try:
                self._put_back()
                self.note.remove()
                message += " The former files are back."
            except GpufleetError as error:
                message += f" THE FORMER FILES COULD NOT BE PUT BACK: {error}"
        self._fail(f"{message} {advice}", state)

    def _go_back(self, evidence: Evidence) -> t.NoReturn:
        journal = self._last_words()
        name = self.engine.name
        message = f"{name} did not take {self.installation.config_path} over: {_reasons(evidence)}."
        if not self.rollback.possible:
            self._fail(f"{message} There is no former state of its files to go back to.", "unknown", journal)
        try:
            self._put_back()
        except GpufleetError as error:
            self._fail(f"{message} THE FORMER FILES COULD NOT BE PUT BACK: {error}", "unknown", journal)
        former = self._bring_back()
        if former.lacks:
            message += (
                f" The former files are back, but {name} COULD NOT BE PROVEN TO WORK WITH THEM EITHER:"
                f" {_reasons(former)}. This host needs you."
            )
            self._fail(message, "unknown", (*journal, *self._last_words()))
        self.note.remove()
        self._fail(f"{message} The former files are back, and it works with them.", "old", journal)

    def _bring_back(self) -> Evidence:
        """Let the daemon take the former files over, by a restart if a reload is not enough and disturbs nobody."""
        former = self._bring_up(Expectation(), force=True)
        stronger = self.means.stronger()
        if former.lacks and stronger is not None and self._may_restart():
            self.means = stronger
            former = self._bring_up(Expectation(), force=True)
        return former

    def _may_restart(self) -> bool:
        return self.options.allow_disruption or self.engine.casualties(self.host, self.installation) == []

    def _put_back(self) -> None:
        rejected = self.rollback.carry_out()
        self.outcome = self.outcome._replace(changed=True, rejected=tuple(rejected), rolled_back=True)

    # -- words ---------------------------------------------------------------------------------------------------

    def _last_words(self) -> tuple[str, ...]:
        said = "\n".join(self.means.last_words(self.began))
        contents = [content for file in self.rollback.files for content in (file.content, self.host.read(file.path))]
        known = [content for content in contents if content]
        return tuple(without_secrets(said, self.engine.syntax, known, self.installation.unit).splitlines())

    def _fail(self, message: str, state: str, journal: t.Sequence[str] = ()) -> t.NoReturn:
        if journal:
            message += f" Its last words: {' | '.join(journal[-_QUOTED:])}"
        pid = self.witness.inspect().pid
        raise RestartError(message, self.outcome._replace(state=state, pid=pid, journal=tuple(journal)))


def _reasons(evidence: Evidence) -> str:
    return ", ".join(evidence.lacks)
