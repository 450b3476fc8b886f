# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make a running engine apply changed files, by restart, reload or signal, and wait until it is healthy.

This file does not restore files: `rollback.py` does.
"""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import health as restart_health
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import systemctl as systemd_systemctl

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base


# Seconds to wait until a daemon stops that was not active before the restart. Then it is killed.
KILL_AFTER = 5.0
# Seconds to wait until systemd begins a restart. systemd can accept a restart without an error and never begin it.
BEGIN_TIMEOUT = 2.0
# Seconds between two probes of a daemon, and seconds after which a healthy daemon is probed once more.
PROBE_INTERVAL = 0.2
STABLE_AFTER = 1.0


class RestartMethod:
    """The base of all restart methods, and the method of mode none, which does nothing.

    - ``mode``: the name of the method in the module's result.
    - ``applies``: whether trigger() makes the engine apply its files.
    - ``restarts``: whether it does so by a restart.
    - ``stop_timeout``: seconds after which a daemon that does not stop is killed; None for no limit.
    """

    mode = "none"
    applies = False
    restarts = False
    stop_timeout: float | None = None

    def __init__(self, systemctl: systemd_systemctl.Systemctl | None = None) -> None:
        self.systemctl = systemctl

    def trigger(self) -> None:
        """Make the daemon apply its files, without a check whether the daemon did so.

        Raises HostError if the restart, reload or signal failed.
        """

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        """Return None if the daemon can be probed now, else a result to use instead of a probe. Raises HostError.

        The result is final if the daemon failed to start. Otherwise it is not ready yet.
        """

    def is_up(self) -> bool:
        """Return whether the unit of the daemon is active; True for a method without systemd. Raises HostError."""
        return True

    def reload_units(self) -> bool:
        """Make systemd reload its units if this unit has changed; return whether it did. Raises HostError."""
        return False

    def containers_losing_gpus(self) -> list[str]:
        """Return the running containers that lose their GPUs because of reload_units()."""
        return []

    def journal_tail(self, since: float) -> list[str]:
        """Return what the daemon logged since that time (seconds since 1970)."""
        return self.systemctl.journal_tail(since) if self.systemctl is not None else []

    def fallback(self) -> RestartMethod:
        """Return the method to try if this one fails; the method itself if there is no other."""
        return self


class _SystemdMethod(RestartMethod):
    """A method in which systemd acts on the engine's unit."""

    mode = "systemd"
    applies = True
    systemctl: systemd_systemctl.Systemctl

    def is_up(self) -> bool:
        return self.systemctl.status().active in systemd_systemctl.RUNNING_STATES


class SystemdRestart(_SystemdMethod):
    """The method in which systemd stops the unit and starts it again."""

    restarts = True

    def __init__(self, systemctl: systemd_systemctl.Systemctl) -> None:
        super().__init__(systemctl)
        self._previous_invocation = ""
        self._requested_at = 0.0
        self._kill_after: float | None = None

    def trigger(self) -> None:
        before = self.systemctl.status()
        self._previous_invocation = before.invocation
        # An active daemon may need long to stop in an orderly way. A daemon that hangs during its start has no state to
        # save, so it is killed soon.
        self._kill_after = self.stop_timeout
        if self.stop_timeout is not None and before.active != "active":
            self._kill_after = min(self.stop_timeout, KILL_AFTER)
        self.systemctl.restart()
        self._requested_at = time.monotonic()

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        status = self.systemctl.status()
        unit, waited = self.systemctl.unit, time.monotonic() - self._requested_at
        # Until systemd begins the restart, the status is that of the previous invocation.
        begun = status.invocation != self._previous_invocation
        if status.failed and (begun or waited > BEGIN_TIMEOUT):
            problem = f"{unit} is {status.active} ({status.detail})"
            return restart_health.ProbeResult(None, (problem,), final=True, retry=True)
        if status.runs and begun:
            return None
        if self._kill_after is not None and not begun and waited > self._kill_after:
            self._kill_after = None
            self.systemctl.kill()
        return restart_health.ProbeResult(None, (f"{unit} is still {status.active} ({status.detail})",))

    def reload_units(self) -> bool:
        if not self.systemctl.status().needs_reload:
            return False
        self.systemctl.daemon_reload()
        return True

    def containers_losing_gpus(self) -> list[str]:
        return self.systemctl.cut_off_by_reload() if self.systemctl.status().needs_reload else []


class SystemdReload(_SystemdMethod):
    """The method in which systemd runs the unit's reload command."""

    def trigger(self) -> None:
        self.systemctl.reload()

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        status = self.systemctl.status()
        if status.runs:
            return None
        problem = f"{self.systemctl.unit} is {status.active} ({status.detail})"
        return restart_health.ProbeResult(None, (problem,), final=status.failed)

    def fallback(self) -> RestartMethod:
        return SystemdRestart(self.systemctl)


class SignalReload(RestartMethod):
    """The method that sends SIGHUP to the daemon's process, with or without systemd."""

    mode = "signal"
    applies = True

    def __init__(self, probe: restart_health.HealthProbe, systemctl: systemd_systemctl.Systemctl | None) -> None:
        super().__init__(systemctl)
        self.probe = probe

    def trigger(self) -> None:
        program, host = self.probe.engine.program, self.probe.host
        for pid in self._candidates():
            if processes.runs_program(host, pid, program):
                processes.send_sighup(host, pid, program)
                return
        raise errors.HostError(
            f"No {program} process was found, so no signal was sent. Neither the main process of the unit nor the"
            f" process that answers on {self.probe.inspect().socket} is {program}. Set {errors.option:mode}: none, and"
            " restart the engine yourself."
        )

    def _candidates(self) -> t.Iterator[int]:
        installation = self.probe.inspect()
        if installation.user is not None:
            # The main process of a rootless unit is RootlessKit, which only starts the daemon.
            yield installation.pid or 0
            return
        if self.systemctl is not None:
            yield self.systemctl.status().pid
        # The main process may be a shell that started the daemon. It is also possible that systemd does not run the
        # daemon.
        socket_path = self.probe.host.real_path(installation.socket)
        yield processes.peer_pid(socket_path, self.probe.engine.ping_request) or 0


def select_method(
    mode: str,
    action: str,
    probe: restart_health.HealthProbe,
    installation: engines_base.Installation,
    run: core_plan.Runner,
) -> RestartMethod:
    """Return the restart method for ``action``.

    ``mode`` auto selects systemd if it runs the engine, and otherwise a signal if ``action`` is a reload.

    Raises:
        NvidiaError: No method is available.
    """
    engine, service = probe.engine, installation.service
    if mode == "none":
        return RestartMethod()
    reload = action == "reload"
    if reload and engine.no_reload:
        raise errors.NvidiaError(f"{engine.no_reload}. It was not reloaded. Use {errors.option:action}: restart.")
    if mode == "signal" and not reload:
        raise errors.NvidiaError(
            f"A signal cannot restart {engine.name}. Use {errors.option:mode}: systemd, or {errors.option:action}:"
            " reload."
        )
    if reload and installation.pid is None:
        raise errors.NvidiaError(
            f"{engine.name} does not run as {service}, so it cannot be reloaded. Start it. It reads its current files"
            " when it starts."
        )
    systemctl = _systemctl_of(probe, installation, run)
    if systemctl is not None and mode != "signal":
        if not reload:
            return SystemdRestart(systemctl)
        # Not every unit has a reload command: the units that snapd writes have none.
        if mode == "systemd" or systemctl.status().reloadable:
            return SystemdReload(systemctl)
    if mode != "systemd" and reload:
        return SignalReload(probe, systemctl)
    user = installation.user
    if user is not None and systemctl is None and not systemd_systemctl.Systemctl.booted(probe.host, user):
        raise errors.NvidiaError(
            f"The systemd of the user {user.name} does not run, so {service} cannot be restarted. Run"
            f" `loginctl enable-linger {user.name}` as root, then run the task again."
        )
    raise errors.NvidiaError(
        f"{engine.name} cannot be {action}ed, because systemd does not run it as {service}. Set"
        f" {errors.option:service} to the engine's unit, or set {errors.option:mode}: none and {action} the engine"
        " yourself."
    )


def _systemctl_of(
    probe: restart_health.HealthProbe, installation: engines_base.Installation, run: core_plan.Runner
) -> systemd_systemctl.Systemctl | None:
    """Return the systemctl of the engine's unit, or None if systemd does not run the engine.

    Starting the unit of a daemon that was started by hand would only add a second daemon.
    """
    user = installation.user
    if not systemd_systemctl.Systemctl.booted(probe.host, user):
        return None
    systemctl = systemd_systemctl.Systemctl(probe.host, run, installation.service, probe.engine.companions, user)
    status = systemctl.status()
    if not status.loaded:
        return None
    if installation.unit is None or status.name != installation.service:
        raise errors.NvidiaError(
            f"{installation.service} is another name of {status.name} or an instance of a template, so its process"
            f" cannot be identified. Set {errors.option:service} to the name of a unit that has its own file, or set"
            f" {errors.option:mode}: none and restart the engine yourself."
        )
    # The process is looked up again, because the first lookup may have found a process that was just ending.
    unmanaged = installation.pid is not None and not status.pid and not status.busy
    return None if unmanaged and probe.inspect().pid is not None else systemctl


class RestartLoop:
    """The loop that triggers the restart method until the engine is healthy.

    ``version`` is used if the engine does not report its own. ``timeout`` is in seconds. ``retries`` is the number of
    attempts of execute() after the first. ``attempts`` counts the attempts of all calls of execute().
    """

    def __init__(
        self,
        probe: restart_health.HealthProbe,
        method: RestartMethod,
        version: str | None,
        timeout: float,
        retries: int,
    ) -> None:
        self.probe = probe
        self.method = method
        self.version = version
        self.timeout = timeout
        self.retries = retries
        self.attempts = 0

    def execute(self, expectation: restart_health.Expectation) -> restart_health.ProbeResult:
        """Trigger the restart method, at most retries + 1 times, and return the last probe result."""
        deadline = time.monotonic() + self.timeout
        retries_left = self.retries
        while True:
            result = self._attempt(expectation, deadline, retries_left)
            retry = result.retry or (not self.method.restarts and not _only_unmet(result))
            if not result.problems or not retries_left or not retry or time.monotonic() >= deadline:
                return result
            retries_left -= 1

    def _attempt(
        self, expectation: restart_health.Expectation, deadline: float, retries_left: int
    ) -> restart_health.ProbeResult:
        # A restart may use the whole remaining time. A reload without effect is repeated, so the attempts that are left
        # divide the remaining time.
        parts = 1 if self.method.restarts else retries_left + 1
        now = time.monotonic()
        end = now + (deadline - now) / parts
        try:
            self.method.trigger()
            self.attempts += 1
            result = self.wait_until_healthy(expectation, end)
            if self.method.restarts and not result.problems:
                result = self._confirm_stable(expectation, result)
        except errors.HostError as error:
            # The engine may be healthy although the command failed.
            result = self.probe.check_applied(expectation, self.version)
            if result.problems:
                return restart_health.ProbeResult(result.pid, (str(error).rstrip("."),))
        return result

    def wait_until_healthy(self, expectation: restart_health.Expectation, end: float) -> restart_health.ProbeResult:
        """Probe the daemon until it is healthy or the result is final, at most until ``end`` (time.monotonic())."""
        while True:
            not_ready = self.method.not_ready_reason()
            result = not_ready or self._check(expectation)
            # During a reload the daemon still reports its previous settings, so such a result is not final.
            may_be_final = self.method.restarts or not self.method.applies or not_ready is not None
            final = result.final and (may_be_final or _only_unmet(result))
            if not result.problems or final or time.monotonic() >= end:
                return result
            time.sleep(PROBE_INTERVAL)

    def _confirm_stable(
        self, expectation: restart_health.Expectation, first: restart_health.ProbeResult
    ) -> restart_health.ProbeResult:
        """Probe again after STABLE_AFTER seconds, because some daemons exit just after they report that they are ready.

        ``first`` is the healthy result of the previous probe.
        """
        time.sleep(STABLE_AFTER)
        second = self.method.not_ready_reason() or self._check(expectation)
        if second.problems or second.pid == first.pid:
            return second
        problem = "it exited soon after its start, and systemd started it again"
        return restart_health.ProbeResult(second.pid, (problem,), retry=True)

    def _check(self, expectation: restart_health.Expectation) -> restart_health.ProbeResult:
        return self.probe.check_applied(expectation, self.version, fresh=self.method.restarts)


def _only_unmet(result: restart_health.ProbeResult) -> bool:
    """Return whether the daemon runs with its files, and the only problems are unmet expectations."""
    return bool(result.unmet) and result.problems == result.unmet
