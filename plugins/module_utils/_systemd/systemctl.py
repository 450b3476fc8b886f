# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run systemctl: start, stop, restart and reload units, and read their journal."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers, processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# This directory exists while systemd is the init system of the host (sd_booted(3)).
_BOOTED = "/run/systemd/system"
# The socket of a user's systemd in the user's runtime directory. systemctl tries it before the bus.
_USER_SOCKET = "/systemd/private"
# States of a unit whose daemon has started.
RUNNING_STATES = ("active", "reloading")
_PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "MainPID", "InvocationID", "NeedDaemonReload", "Job", "CanReload",
)  # fmt: skip
# Values of KillMode (systemd.kill(5)) that end all processes of a unit, and the processes that containers run under.
_ENDS_ALL = ("control-group", "mixed")
_SHIM = ("containerd-shim", "conmon")
# The only command here that changes nothing.
_SHOW = "show"
_LINES_READ = 200
_JOURNAL_LINES = 15
# The level of log lines that are not problems (logrus, in all three engines).
_INFORMATION = re.compile(r"\blevel=(info|debug|trace)\b")


class UnitStatus(t.NamedTuple):
    """The status of a unit.

    ``busy`` is true while a job of the unit is queued or runs. ``invocation`` identifies the last start. ``reloadable``
    is true if the unit supports a reload.
    """

    name: str
    loaded: bool
    active: str
    detail: str
    pid: int
    invocation: str
    needs_reload: bool
    busy: bool
    reloadable: bool = True

    @property
    def runs(self) -> bool:
        return self.active in RUNNING_STATES and not self.busy

    @property
    def failed(self) -> bool:
        """Whether the last start failed, even if systemd will try again automatically."""
        return not self.busy and (
            self.active in ("failed", "inactive") or (self.active, self.detail[:12]) == ("activating", "auto-restart")
        )


class Systemctl(t.NamedTuple):
    """One unit of a host, and ``companions``, the units that are started with it.

    With ``user``, it is a unit of that user's systemd, and the task runs as that user.
    """

    host: hostfs.HostFS
    run: core_plan.Runner
    unit: str
    companions: tuple[str, ...] = ()
    user: accounts.Account | None = None

    @classmethod
    def booted(cls, host: hostfs.HostFS, user: accounts.Account | None = None) -> bool:
        """Return whether systemd runs on the host.

        The systemd of a user runs only while the user is logged in or lingering is enabled (loginctl(1)).
        """
        return host.live and host.exists(_BOOTED) and (user is None or host.exists(user.runtime_dir + _USER_SOCKET))

    def status(self) -> UnitStatus:
        """Return the status of the unit.

        Raises HostError if systemctl fails.
        """
        shown = self._checked(_SHOW, *(f"--property={name}" for name in _PROPERTIES), "--", self.unit)
        values = dict(line.partition("=")[::2] for line in shown.splitlines())
        pid = values.get("MainPID", "0")
        return UnitStatus(
            name=values.get("Id", ""),
            loaded=values.get("LoadState") == "loaded",
            active=values.get("ActiveState", ""),
            detail=values.get("SubState", ""),
            pid=int(pid) if pid.isdigit() else 0,
            invocation=values.get("InvocationID", ""),
            needs_reload=values.get("NeedDaemonReload") == "yes",
            busy=values.get("Job", "0") not in ("", "0"),
            reloadable=values.get("CanReload", "yes") != "no",
        )

    def dependent_units(self) -> list[str]:
        """Return the units of the host that a restart of this one also restarts or stops (systemd.unit(5))."""
        if self.user is not None:
            return []
        properties = ("RequiredBy", "BoundBy", "ConsistsOf")
        shown = self._checked(_SHOW, "--value", *(f"--property={name}" for name in properties), "--", self.unit)
        return shown.split()

    def container_pids_killed(self) -> list[int]:
        """Return the processes of containers that end with this unit.

        The list is empty unless the unit ends more than its main process. It is always empty for a rootless engine.
        Containers always end with a rootless engine, and the engine itself lists their names.
        """
        if self.user is not None:
            return []
        mode = self._checked(_SHOW, "--value", "--property=KillMode", "--", self.unit).strip()
        return (
            processes.find_processes(self.host, systemd_units.load_unit(self.host, self.unit), _SHIM)
            if mode in _ENDS_ALL
            else []
        )

    def restart(self) -> None:
        """Restart the unit without waiting, and reset its start limit.

        It does not wait for the start, because a daemon may hang while it starts, and some units wait for their daemon
        without limit.
        """
        self._run("reset-failed", "--", self.unit, *self.companions)
        self._checked("restart", "--no-block", "--", self.unit)

    def start_oneshot(self) -> None:
        """Start a oneshot unit, even if its last start failed, and wait until it ends."""
        self._run("reset-failed", "--", self.unit)
        self._checked("restart", "--", self.unit)

    def start(self) -> None:
        self._checked("start", "--", self.unit)

    def stop(self) -> None:
        """Stop the unit if it runs. For a unit without a file that does not run, systemctl stop fails."""
        if self.status().active not in ("inactive", "failed"):
            self._checked("stop", "--", self.unit)

    def reload(self) -> None:
        self._checked("reload", "--no-block", "--", self.unit)

    def daemon_reload(self) -> None:
        self._checked("daemon-reload")

    def cut_off_by_reload(self) -> list[str]:
        """Return the running containers that daemon_reload() cuts off from the GPUs that the legacy hook gave them."""
        # A user's systemd does not manage the devices of containers.
        return [] if self.user is not None else gpu_containers.legacy_gpu_containers(self.host)

    def kill(self) -> None:
        """Kill the unit's main process with SIGKILL; its child processes keep running."""
        # The newer name of the option is --kill-whom: first 252, last without it 251. systemd 262 still knows this one.
        self._run("kill", "--kill-who=main", "--signal=KILL", "--", self.unit)

    def journal_tail(self, since: float) -> list[str]:
        """Return the unit's last journal lines since ``since`` (seconds since 1970); empty if they cannot be read.

        Lines of level info or lower, and lines in which systemd names the unit, are included only if there are no
        others.
        """
        argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"--lines={_LINES_READ}"]
        unit = [f"--unit={self.unit}" if self.user is None else f"--user-unit={self.unit}"]
        status, output, _errors = self.run(self.host.argv([*argv, f"--since=@{int(since)}", *unit]))
        lines = output.splitlines() if not status else []
        problems = [line for line in lines if not _INFORMATION.search(line)]
        own = [line for line in problems if self.unit not in line]
        return (own or problems or lines)[-_JOURNAL_LINES:]

    def _run(self, *arguments: str) -> tuple[int, str, str]:
        if arguments[0] != _SHOW:
            changes.before_change()
        argv = ["systemctl", *arguments] if self.user is None else self.user.argv(["systemctl", "--user", *arguments])
        return self.run(self.host.argv(argv))

    def _checked(self, *arguments: str) -> str:
        status, output, errors = self._run(*arguments)
        if status:
            reason = (errors.strip() or output.strip() or f"exit status {status}").rstrip(".")
            systemctl = "systemctl" if self.user is None else "systemctl --user"
            problem = f"{systemctl} {arguments[0]} {self.unit} failed: {reason}."
            advice = f"Run `{systemctl} status {self.unit}` to see why."
            raise core_errors.with_advice(core_errors.HostError, problem, advice)
        return output
