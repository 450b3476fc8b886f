# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The callback progress: it prints which hosts a long task is waiting for."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Print which hosts a long task is waiting for
version_added: 1.0.0
description:
  - Prints one line for each task that runs longer than O(interval), and again after each further O(interval). The line
    has the time since the task started, the number of hosts that have completed it, and the names of at most five hosts
    that have not.
  - A package transaction, or a restart of an engine with its verification, can take minutes. Ansible itself prints
    nothing until the task ends on a host.
  - It works for all tasks of a playbook, with every strategy. It prints nothing if all tasks are short.
  - After the playbook C(gpufleet.nvidia.rolling) it also prints which hosts are done, which have failed or were
    unreachable, which were not started, and the C(--limit) with which to continue, if not all hosts are done. The
    playbook itself cannot do so if all hosts of a batch are unreachable, or if tasks of your own before a restart fail.
author:
  - gpufleet.nvidia maintainers (@gpufleet)
requirements:
  - Enable it with C(callbacks_enabled = gpufleet.nvidia.progress) in the section C([defaults]) of C(ansible.cfg), or
    with E(ANSIBLE_CALLBACKS_ENABLED).
options:
  interval:
    description: Seconds between two lines about a task.
    type: int
    default: 15
    ini:
      - section: callback_gpufleet_nvidia_progress
        key: interval
    env:
      - name: GPUFLEET_NVIDIA_PROGRESS_INTERVAL
"""

import threading
import time
import typing as t

from ansible.plugins.callback import CallbackBase

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _batches, _reports

if t.TYPE_CHECKING:
    from ansible.inventory.host import Host
    from ansible.playbook.play import Play
    from ansible.playbook.task import Task

# Host names in one line.
_MOST_NAMES = 5
# The last task of the playbook on a host that is done.
_LAST_ACTION = "gpufleet.nvidia.nvidia_host_summary"


class _Running:
    """A task that at least one host has not completed."""

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.started = now
        self.printed = now
        self.hosts: list[str] = []
        self.completed = 0


class CallbackModule(CallbackBase):
    """Counts the hosts of each task. A thread prints the tasks that take long."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpufleet.nvidia.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: t.Any, **options: t.Any) -> None:
        super().__init__(*arguments, **options)
        self._tasks: dict[str, _Running] = {}
        # Ansible calls the methods below from several threads.
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # The hosts of a play in batches, in their order, those of the batches that have begun, and those that are done.
        self._hosts: list[str] = []
        self._begun: set[str] = set()
        self._done: set[str] = set()

    def v2_playbook_on_start(self, playbook: object) -> None:
        """Start the thread."""
        threading.Thread(target=self._print_until_the_end, daemon=True).start()

    def v2_playbook_on_stats(self, stats: object) -> None:
        """End the thread, and report a play in batches that has not come to its end."""
        self._ended.set()
        left = [host for host in self._hosts if host not in self._done]
        if left:
            unreachable = tuple(host for host in left if host in getattr(stats, "dark", {}))
            failed = tuple(host for host in left if host in self._begun and host not in unreachable)
            waiting = tuple(host for host in left if host not in self._begun)
            done = tuple(host for host in self._hosts if host in self._done)
            found = _batches.Progress(done, failed, unreachable, not_started=waiting)
            self._display.display(f"progress: {_batches.summary(found, ended=True)}", color="bright gray")

    def v2_runner_on_start(self, host: Host, task: Task) -> None:
        """Add a host to its task."""
        with self._lock:
            running = self._tasks.setdefault(str(task._uuid), _Running(task.get_name(), time.monotonic()))
            running.hosts.append(host.get_name())

    def _complete(self, result: t.Any) -> None:
        """Remove a host from its task."""
        # ansible-core 2.19 gave these attributes public names.
        task = getattr(result, "task", None) or result._task
        host = getattr(result, "host", None) or result._host
        with self._lock:
            running = self._tasks.get(str(task._uuid))
            if running is None or host.get_name() not in running.hosts:
                return
            running.hosts.remove(host.get_name())
            running.completed += 1

    def v2_runner_on_ok(self, result: t.Any) -> None:
        """Remove a host from its task. After the last task of a play in batches, the host is done."""
        self._complete(result)
        task = getattr(result, "task", None) or result._task
        host = getattr(result, "host", None) or result._host
        if task.action == _LAST_ACTION and not task.args.get("of_batch"):
            self._done.add(host.get_name())

    # With fewer forks than hosts a task without running hosts may start on others, so it stays until the play ends.
    def v2_playbook_on_play_start(self, play: Play) -> None:
        """Remove the tasks of the previous play, and remember the hosts of a batch."""
        with self._lock:
            self._tasks.clear()
        if play.get_vars().get(_reports.PLAY) == _reports.ROLLING:
            inventory = play.get_variable_manager()._inventory
            every = inventory.get_hosts(pattern=play.hosts, ignore_restrictions=True, order=play.order)
            self._hosts = [host.get_name() for host in every]
            self._begun.update(host.get_name() for host in inventory.get_hosts(pattern=play.hosts, order=play.order))

    v2_runner_on_skipped = v2_runner_on_unreachable = _complete

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        """Remove a host from its task."""
        self._complete(result)

    def _print_until_the_end(self) -> None:
        interval = max(int(self.get_option("interval")), 1)  # type: ignore[no-untyped-call]
        while not self._ended.wait(interval / 5):
            for line in self._due_lines(time.monotonic(), interval):
                self._display.display(line, color="bright gray")

    def _due_lines(self, now: float, interval: int) -> list[str]:
        """Return a line for each task whose last line, or start, is older than the interval."""
        lines = []
        with self._lock:
            for running in self._tasks.values():
                if not running.hosts or now - running.printed < interval:
                    continue
                running.printed = now
                names = ", ".join(running.hosts[:_MOST_NAMES])
                more = f" and {len(running.hosts) - _MOST_NAMES} more" if len(running.hosts) > _MOST_NAMES else ""
                lines.append(
                    f"progress: {now - running.started:.0f} s, {running.completed} completed: {running.name}: "
                    f"waiting for {names}{more}"
                )
        return lines
