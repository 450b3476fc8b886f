# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe how far a play in batches has come, and for which hosts to repeat it. This file imports nothing of Ansible.

Private to this collection.
"""

from __future__ import annotations

import shlex
import typing as t


class Progress(t.NamedTuple):
    """The hosts of a play, each in one list, in the order of the play."""

    done: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()

    @property
    def remaining(self) -> tuple[str, ...]:
        """The hosts that are not done."""
        return (*self.failed, *self.unreachable, *self.unfinished, *self.not_started)

    @property
    def ends(self) -> bool:
        """Whether no other batch begins. The playbook goes on after an unreachable host, but not after a failed one."""
        return bool(self.failed or self.unfinished or not self.not_started)


def progress(
    hosts: t.Sequence[str], alive: t.Collection[str], batch: t.Collection[str], failed: t.Collection[str],
    unfinished: t.Collection[str] = (),
) -> Progress:  # fmt: skip
    """Find out how far a play has come.

    Args:
        hosts: All hosts of the play, in their order (ansible_play_hosts_all).
        alive: The hosts without those that are lost (ansible_play_hosts). They were unreachable, or an earlier play of
            the run lost them. The play ends when a host fails, so none of an earlier batch has failed.
        batch: The hosts of the present batch that are alive (ansible_play_batch).
        failed: The hosts that fail now.
        unfinished: The hosts of the batch that the failure of another one ends.

    Returns:
        The hosts.
    """
    # A lost host says nothing about the hosts before it, because an earlier play may have lost it.
    end = max((place for place, host in enumerate(hosts) if host in batch), default=-1) + 1
    lost = [host for host in hosts if host not in alive and host not in failed]
    left = [host for host in hosts if host in unfinished and host not in failed and host not in lost]
    done = [host for host in hosts[:end] if host not in (*failed, *lost, *left)]
    bad = [host for host in hosts if host in failed]
    waiting = [host for host in hosts[end:] if host not in lost]
    return Progress(tuple(done), tuple(bad), tuple(lost), tuple(left), tuple(waiting))


def summary(found: Progress, *, ended: bool = False) -> str:
    """Describe the progress in one line. If hosts are left after a failure, it has the option that selects them.

    Args:
        found: The hosts.
        ended: Whether the run has ended. Otherwise it may begin other batches.
    """
    total = len(found.done) + len(found.remaining)
    if not found.remaining:
        return f"All {total} hosts are done." if total > 1 else "The host is done."
    if not (ended or found.ends):
        lost = f" Unreachable: {', '.join(found.unreachable)}." if found.unreachable else ""
        return f"Done: {len(found.done)} of {total} hosts.{lost} Not started: {len(found.not_started)}."
    lists = {"Failed": found.failed, "Unreachable": found.unreachable, "Not finished": found.unfinished}
    named = [f"{title}: {', '.join(hosts)}." for title, hosts in lists.items() if hosts]
    done, waiting = (", ".join(hosts) or "none" for hosts in (found.done, found.not_started))
    limit = f"--limit {shlex.quote(','.join(found.remaining))}"
    return f"Done: {done}. {' '.join(named)} Not started: {waiting}. Correct the cause, then continue with {limit}"
