# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake systemctl, journalctl and dockerd for the unit that fake_docker.py writes.

The fake daemon reports the settings that daemon.json had when the daemon was started or reloaded last.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import CONTROL_GROUP, PID

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import FakeDocker

FILE = "/etc/docker/daemon.json"
BUILT_IN = {"runc": {"path": "runc"}}


class FakeSystemd:
    """The fake. ``ends`` maps the text of daemon.json to the result of a start or reload with it.

    The results are "active", "failed", "auto-restart", "hangs" (until the process is killed; then ``ends`` is called
    again for the next start), and "no effect" (of a reload).
    """

    def __init__(self, docker: FakeDocker) -> None:
        self.docker = docker
        self.ends: t.Callable[[str], str] = lambda _text: "active"
        self.validates: t.Callable[[str], str] = lambda _text: ""
        self.journal: list[str] = []
        self.commands: list[str] = []
        self.refused = ""
        self.needs_reload = False
        self.loaded = True
        self.active, self.detail, self.invocation, self.job = "active", "running", 1, False
        self._killed = False
        # The number of `systemctl show` calls before an accepted request changes the status.
        self.hesitates = 0
        # The number of `systemctl show` calls for which a unit is still stopping, unless it is killed.
        self.slow_stops = 0
        self.started: t.Callable[[], t.Any] = lambda: None
        self.name, self.kill_mode, self.dependent_units = "docker.service", "process", ""
        self.file, self.control_group, self.main_pid = FILE, CONTROL_GROUP, PID
        # For a user's systemd: the words before each command, and the option between systemctl and its verb.
        self.prefix, self.option = "", ""
        self.reloadable = True
        self._pending: t.Callable[[], None] | None = None
        docker.path("/run/systemd/system").mkdir(parents=True)
        docker.runs()
        docker.write("/usr/bin/nvidia-container-runtime", mode=0o755)

    @property
    def text(self) -> str:
        path = self.docker.path(self.file)
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def done(self, *words: str) -> list[str]:
        """Return the recorded commands that begin with ``words``."""
        return [command for command in self.commands if command.startswith(" ".join(words))]

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[0] == "chroot"
        words = argv[2:]
        self.commands.append(" ".join(words))
        prefix = self.prefix.split()
        if prefix and words[0] == prefix[0]:
            assert (words[: len(prefix)], words[len(prefix) + 1]) == (prefix, self.option)
            words = [words[len(prefix)], *words[len(prefix) + 2 :]]
        assert words[0] != "systemctl" or bool(prefix) == self.commands[-1].startswith("env")
        if words[0] == "journalctl":
            return 0, "\n".join(self.journal), ""
        if words[0] == "systemctl":
            return self._systemctl(words[1], words)
        if "--validate" in words:
            complaint = self.validates(self.text)
            return int(bool(complaint)), "", complaint
        return 0, "Docker version 26.1.5, build 411e817\n", ""

    def _systemctl(self, verb: str, words: list[str]) -> tuple[int, str, str]:
        if verb == "show" and "--value" in words:
            return 0, self.kill_mode if "--property=KillMode" in words else self.dependent_units, ""
        if verb == "show":
            return 0, self._show(), ""
        if verb == self.refused:
            return 1, "", "Access denied"
        if verb == "restart":
            self._pending = self._start
        elif verb == "reload":
            self._apply_file(self.ends(self.text) == "active")
        elif verb == "daemon-reload":
            self.needs_reload = False
        elif verb == "kill":
            self.slow_stops, self._killed = 0, True
            self._start()
        return 0, "", ""

    def _show(self) -> str:
        if self._pending is not None and self.hesitates:
            self.hesitates -= 1
        elif self._pending is not None and self.slow_stops and self.active == "active":
            self.slow_stops -= 1
            return self._show_output("deactivating", "stop-sigterm", job=True)
        elif self._pending is not None:
            work, self._pending = self._pending, None
            work()
        return self._show_output(self.active, self.detail, self.job)

    def _show_output(self, active: str, detail: str, job: bool) -> str:
        return (
            f"Id={self.name}\nLoadState={'loaded' if self.loaded else 'not-found'}\n"
            f"ActiveState={active}\nSubState={detail}\n"
            f"MainPID={self.main_pid if self.active == 'active' else 0}\nInvocationID={self.invocation:032x}\n"
            f"NeedDaemonReload={'yes' if self.needs_reload else 'no'}\nJob={7 if job else 0}\n"
            f"CanReload={'yes' if self.reloadable else 'no'}\n"
        )

    def _start(self) -> None:
        end = self.ends(self.text)
        if self.job and not self._killed:
            # A start that hangs is merged with the next, and waits for the old process to end.
            return
        self.invocation += 1
        self._killed = False
        self.job = end == "hangs"
        self.active, self.detail = {
            "active": ("active", "running"),
            "failed": ("failed", "failed"),
            "auto-restart": ("activating", "auto-restart"),
            "hangs": ("activating", "start"),
        }[end]
        running = end == "active"
        self.docker.write(self.control_group, f"{PID}\n" if running else "")
        self._apply_file(running, start=True)
        if running:
            self.started()

    def _apply_file(self, succeeds: bool, start: bool = False) -> None:
        """Make the daemon report the settings of the file. A reload keeps settings that the file does not have."""
        if not succeeds:
            return
        settings = json.loads(self.text or "{}")
        if start or settings.get("runtimes"):
            self.docker.info["Runtimes"] = {**BUILT_IN, **settings.get("runtimes", {})}
        if start or settings.get("default-runtime"):
            self.docker.info["DefaultRuntime"] = settings.get("default-runtime", "runc")
