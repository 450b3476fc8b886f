# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply changed files to a running engine: by restart, reload or signal.

It does not check the engine's health and does not restore files.
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


# Seconds to wait before killing a daemon that failed to start.
PATIENCE = 5.0
# Seconds within which systemd begins a restart. systemd can accept a restart without an error and then not do it.
_HESITATION = 2.0


class RestartMethod:
    """The base of all restart methods, and the method of mode none, which does nothing."""

    mode = "none"
    acts = False
    restarts = False

    def act(self, _patience: float | None = None) -> None:
        """Make the daemon apply its files. It does not check whether the daemon did so.

        Args:
            _patience: Seconds after which a daemon that does not stop is killed; None for no limit.

        Raises:
            HostError: The restart, reload or signal failed.
        """

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        """Return why the probe must wait, or None if the daemon can be probed now. Raises HostError."""

    def up(self) -> bool:
        """Return whether the daemon is up, as far as is known without connecting to it. Raises HostError."""
        return True

    def prepare(self) -> bool:
        """Make systemd read its units again if this unit has changed; return whether it did. Raises HostError."""
        return False

    def cut_off(self) -> list[str]:
        """Return the running containers that lose their GPUs because of prepare()."""
        return []

    def dragged(self) -> list[str]:
        """Return the dependent units, which systemd restarts together with this one."""
        return []

    def container_pids_killed(self) -> list[int]:
        """Return the container processes that are killed by the restart."""
        return []

    def journal_tail(self, _since: float) -> list[str]:
        """Return what the daemon logged since that time (seconds since 1970)."""
        return []

    def fallback(self) -> RestartMethod:
        """Return the method to try if this one fails; the method itself if there is no other."""
        return self


class _ByUnit(RestartMethod):
    """A method in which systemd acts on the engine's unit."""

    mode = "systemd"
    acts = True

    def __init__(self, systemctl: systemd_systemctl.Systemctl) -> None:
        self.systemctl = systemctl

    def up(self) -> bool:
        return self.systemctl.status().active in systemd_systemctl.RUNNING_STATES

    def journal_tail(self, since: float) -> list[str]:
        return self.systemctl.journal_tail(since)


class SystemdRestart(_ByUnit):
    """The method in which systemd stops the unit and starts it again."""

    restarts = True

    def __init__(self, systemctl: systemd_systemctl.Systemctl) -> None:
        super().__init__(systemctl)
        self._former = ""
        self._asked = 0.0
        self._patience: float | None = None

    def act(self, _patience: float | None = None) -> None:
        before = self.systemctl.status()
        self._former = before.invocation
        # An active daemon needs its time for an orderly stop. A daemon that hangs while it starts has no state to save.
        self._patience = _patience
        if _patience is not None and before.active != "active":
            self._patience = min(_patience, PATIENCE)
        self.systemctl.restart()
        self._asked = time.monotonic()

    def not_ready_reason(self) -> restart_health.ProbeResult | None:
        status = self.systemctl.status()
        unit, waited = self.systemctl.unit, time.monotonic() - self._asked
        # Until systemd begins the restart, the status is that of the previous invocation.
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
    """The method in which systemd runs the unit's reload command."""

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
    """The method that sends SIGHUP to the daemon's process, with or without systemd."""

    mode = "signal"
    acts = True

    def __init__(self, witness: restart_health.HealthProbe, systemctl: systemd_systemctl.Systemctl | None) -> None:
        self.witness = witness
        self.systemctl = systemctl

    def act(self, _patience: float | None = None) -> None:
        engine, host = self.witness.engine, self.witness.host
        for pid in self._candidates():
            if processes.runs_program(host, pid, engine.program):
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
            # The main process of a rootless unit is RootlessKit, which only starts the daemon.
            yield installation.pid or 0
            return
        if self.systemctl is not None:
            yield self.systemctl.status().pid
        # systemd may not know the daemon, or may know only the shell that wraps it.
        socket_path = self.witness.host.real_path(installation.socket)
        yield processes.peer_pid(socket_path, self.witness.engine.ping_request) or 0

    def journal_tail(self, since: float) -> list[str]:
        return self.systemctl.journal_tail(since) if self.systemctl is not None else []


def means_of(
    mode: str,
    action: str,
    witness: restart_health.HealthProbe,
    installation: engines_base.Installation,
    run: core_plan.Runner,
) -> RestartMethod:
    """Return the restart method for ``action``.

    ``mode`` auto selects systemd if it runs the engine, and otherwise a signal if ``action`` is a reload.

    Raises:
        NvidiaError: No method is available.
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
        # Not every unit has a reload command: the units that snapd writes have none.
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
    """Return the systemctl of the engine's unit, or None if systemd does not run the engine.

    Starting the unit of a daemon that was started by hand would only add a second daemon.
    """
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
    # A process that is ending is gone at the second check, and systemd knows one that is starting by then.
    stranger = installation.pid is not None and not status.pid and not status.busy
    return None if stranger and witness.inspect().pid is not None else systemctl
