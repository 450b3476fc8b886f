# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe how far a play in batches has come, and the command that continues it. This file imports nothing of Ansible.

Private to this collection.
"""

from __future__ import annotations

import os
import re
import shlex
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking

PROGRAM, PLAYBOOK = "ansible-playbook", "gpufleet.nvidia.rolling"
# A value on the command line that looks like a secret is not printed again.
_SECRET = re.compile(r"pass|secret|token|credential|private|api_?key|://[^/\s]*@", re.IGNORECASE)
_HIDDEN = "..."
_EXTRA = ("-e", "--extra-vars")
_LIMIT = ("-l", "--limit")


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


def summary(found: Progress, argv: t.Sequence[str], *, ended: bool = False) -> str:
    """Describe the progress in one line. If hosts are left after a failure, it has the command that continues.

    Args:
        found: The hosts.
        argv: The command line of this run.
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
    command = continuation(argv, found.remaining)
    return f"Done: {done}. {' '.join(named)} Not started: {waiting}. Correct the cause, then continue with: {command}"


def continuation(argv: t.Sequence[str], hosts: t.Sequence[str]) -> str:
    """Return the command line of this run for these hosts only.

    Extra variables that look like secrets are replaced by dots.
    """
    words = list(argv[1:])
    if not argv or not os.path.basename(argv[0]).startswith(PROGRAM):
        # Another program has started Ansible. Its command line is unknown.
        words = [PLAYBOOK]
    kept: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        following = words[index + 1 : index + 2]
        name, equal, value = word.partition("=")
        if word in _LIMIT:
            index += 2
        elif (name.startswith("--lim") and equal) or (word.startswith("-l") and word[2:]):
            index += 1
        elif word in _EXTRA and following:
            kept += [word, _shown(following[0])]
            index += 2
        elif name == _EXTRA[1] and equal:
            kept.append(f"{name}={_shown(value)}")
            index += 1
        elif word.startswith(_EXTRA[0]) and word[2:]:
            kept.append(f"{_EXTRA[0]}{_shown(word[2:])}")
            index += 1
        else:
            kept.append(word)
            index += 1
    return shlex.join([PROGRAM, *kept, f"--limit={','.join(hosts)}"])


def _shown(variables: str) -> str:
    if variables.startswith("@"):
        return variables
    is_secret = _SECRET.search(variables) or masking.mask_urls_in_string(variables) != variables
    return _HIDDEN if is_secret else variables
