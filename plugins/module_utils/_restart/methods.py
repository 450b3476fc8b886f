# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply changed files to a running engine: by restart, reload or signal."""

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


# Seconds that a daemon gets to stop which never came up, before it is killed.
PATIENCE = 5.0
# Seconds after which systemd has begun with a restart, or will not: one that it refuses it accepts without a word.
_HESITATION = 2.0


class RestartMethod:
    """Nothing at all is done: what every means has, and all that mode none has."""

    mode = "none"
    acts = False
    restarts = False

    def act(self, _patience: float | None = None) -> None:
        """Have the daemon take its files over; whether it did is for others to find out.  Raises HostError.

        One that does not stop within that many seconds is killed, if they are given.
        """

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        """Why the daemon need not be asked yet; None if it may be.  Raises HostError."""

    def up(self) -> bool:
        """Whether the daemon is up as far as can be told without asking it.  Raises HostError."""
        return True

    def prepare(self) -> bool:
        """Have systemd read this unit again if it has to; whether it had.  Raises HostError."""
        return False

    def cut_off(self) -> list[str]:
        """The running containers that prepare() cuts off from their GPUs."""
        return []

    def dragged(self) -> list[str]:
        """The other units that are restarted along."""
        return []

    def container_pids_killed(self) -> list[int]:
        """The processes of containers that end with the daemon."""
        return []

    def last_words(self, _since: float) -> list[str]:
        """What the daemon logged since that moment (seconds since 1970)."""
        return []

    def fallback(self) -> RestartMethod:
        """The means that also works where this one did not; itself if there is none."""
        return self


class _ByUnit(RestartMethod):
    """systemd does something with the engine's unit."""

    mode = "systemd"
    acts = True

    def __init__(self, systemctl: systemd_systemctl.Systemctl) -> None:
        self.systemctl = systemctl

    def up(self) -> bool:
        return self.systemctl.status().active in systemd_systemctl.UP

    def last_words(self, since: float) -> list[str]:
        return self.systemctl.last_words(since)


class SystemdRestart(_ByUnit):
    """systemd stops the unit and starts it again."""

    restarts = True

    def __init__(self, systemctl: systemd_systemctl.Systemctl) -> None:
        super().__init__(systemctl)
        self._former = ""
        self._asked = 0.0
        self._patience: float | None = None

    def act(self, _patience: float | None = None) -> None:
        before = self.systemctl.status()
        self._former = before.invocation
        # An orderly stop takes its time; one that hangs while it starts has nothing to put in order.
        self._patience = _patience
        if _patience is not None and before.active != "active":
            self._patience = min(_patience, PATIENCE)
        self.systemctl.restart()
        self._asked = time.monotonic()

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        status = self.systemctl.status()
        unit, waited = self.systemctl.unit, time.monotonic() - self._asked
        # Until systemd has begun with what it was told, the unit is as it was.
        begun = status.invocation != self._former
        if status.failed and (begun or waited > _HESITATION):
            return restart_health.ProbeResult(
                None, (f"{unit} is {status.active} ({status.detail})",), settled=True, again=True
            )
        if status.runs and begun:
            return None
        if self._patience is not None and not begun and waited > self._patience:
            self._patience = None
            self.systemctl.kill()
        return restart_health.ProbeResult(None, (f"{unit} is still {status.active} ({status.detail})",))

    def prepare(self) -> bool:
        if not self.systemctl.status().needs_reload:
            return False
        self.systemctl.daemon_reload()
        return True

    def cut_off(self) -> list[str]:
        return self.systemctl.cut_off_by_reload() if self.systemctl.status().needs_reload else []

    def dragged(self) -> list[str]:
        return self.systemctl.dependent_units()

    def container_pids_killed(self) -> list[int]:
        return self.systemctl.container_pids_killed()


class ByReload(_ByUnit):
    """systemd runs what the unit has for a reload."""

    def act(self, _patience: float | None = None) -> None:
        self.systemctl.reload()

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        status = self.systemctl.status()
        if status.runs:
            return None
        words = f"{self.systemctl.unit} is {status.active} ({status.detail})"
        return restart_health.ProbeResult(None, (words,), settled=status.failed)

    def fallback(self) -> RestartMethod:
        return SystemdRestart(self.systemctl)


class BySignal(RestartMethod):
    """The daemon's own process gets the signal, with systemd or without."""

    mode = "signal"
    acts = True

    def __init__(self, witness: restart_health.HealthProbe, systemctl: systemd_systemctl.Systemctl | None) -> None:
        self.witness = witness
        self.systemctl = systemctl

    def act(self, _patience: float | None = None) -> None:
        engine, host = self.witness.engine, self.witness.host
        for pid in self._candidates():
            if processes.is_program(host, pid, engine.program):
                processes.send_sighup(host, pid, engine.program)
                return
        raise errors.HostError(
            f"No process is known to be {engine.name}, so none gets a signal: neither its unit's main process nor the"
            f" one that answers on {self.witness.inspect().socket} is {engine.program}. Use mode: systemd, or give its"
            " socket."
        )

    def _candidates(self) -> t.Iterator[int]:
        installation = self.witness.inspect()
        if installation.user is not None:
            # The main process of such a unit is RootlessKit's, which only starts the daemon.
            yield installation.pid or 0
            return
        if self.systemctl is not None:
            yield self.systemctl.status().pid
        # systemd may not know of it, or know only the shell around it.
        socket_path = self.witness.host.real_path(installation.socket)
        yield processes.peer_pid(socket_path, self.witness.engine.ping_request) or 0

    def last_words(self, since: float) -> list[str]:
        return self.systemctl.last_words(since) if self.systemctl is not None else []


def means_of(
    mode: str,
    action: str,
    witness: restart_health.HealthProbe,
    installation: engines_base.Installation,
    run: core_plan.Runner,
) -> RestartMethod:
    """The means for ``action``; ``mode`` auto is systemd where it runs the engine, else a signal where one will do.

    Raises NvidiaError where there is none.
    """
    engine, host = witness.engine, witness.host
    if mode == "none":
        return RestartMethod()
    reload = action == "reload"
    if reload and engine.no_reload:
        raise errors.NvidiaError(f"{engine.no_reload}, so it was left as it runs. Use action: restart.")
    if mode == "signal" and not reload:
        raise errors.NvidiaError(f"A signal cannot restart {engine.name}. Use mode: systemd, or action: reload.")
    if reload and installation.pid is None:
        raise errors.NvidiaError(
            f"{engine.name} does not run as {installation.service}, so there is nothing to reload: it reads its files"
            " when it starts."
        )
    systemctl = _systemctl_of(witness, installation, run)
    if systemctl is not None and mode != "signal":
        if not reload:
            return SystemdRestart(systemctl)
        # A unit need not have a reload: those that snapd makes have none.
        if mode == "systemd" or systemctl.status().reloadable:
            return ByReload(systemctl)
    if mode != "systemd" and reload:
        return BySignal(witness, systemctl)
    user = installation.user
    if user is not None and systemctl is None and not systemd_systemctl.Systemctl.booted(host, user):
        raise errors.NvidiaError(
            f"The systemd of the user {user.name} does not run, so {installation.service} cannot be restarted. Run"
            f" `loginctl enable-linger {user.name}` as root, then run this again."
        )
    raise errors.NvidiaError(
        f"{installation.service} is not a unit that systemd runs on {host.root}, so {engine.name} cannot be restarted."
        " Name its unit with service, or restart it yourself."
    )


def _systemctl_of(
    witness: restart_health.HealthProbe, installation: engines_base.Installation, run: core_plan.Runner
) -> systemd_systemctl.Systemctl | None:
    """systemd as far as it runs the engine; a daemon started by hand would only get a second one beside it."""
    user = installation.user
    if not systemd_systemctl.Systemctl.booted(witness.host, user):
        return None
    systemctl = systemd_systemctl.Systemctl(witness.host, run, installation.service, witness.engine.companions, user)
    status = systemctl.status()
    if not status.loaded:
        return None
    if installation.unit is None or status.name != installation.service:
        raise errors.NvidiaError(
            f"{installation.service} is another name of {status.name}, or made from a template, and its process cannot"
            " be found by it. Give the name of a unit that has a file of its own as service."
        )
    # One that is just ending, or starting, is gone or known at the second look.
    stranger = installation.pid is not None and not status.pid and not status.busy
    return None if stranger and witness.inspect().pid is not None else systemctl
