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

PROGRAM, PLAYBOOK = "ansible-playbook", "gpufleet.nvidia.rolling"
_HIDDEN = "..."
# The kinds of options: without a value, with a value that is no secret, and those below. Another value is not printed.
_PLAIN, _SAFE, _EXTRA, _LIMIT, _OTHER = "plain", "safe", "extra", "limit", "other"
# The options of ansible-playbook of ansible-core 2.16 to 2.21.
_OPTIONS = {
    _PLAIN: (
        "-b -C -D -h -J -k -K -v --ask-become-pass --ask-pass --ask-vault-pass --ask-vault-password --become --check"
        " --diff --flush-cache --force-handlers --help --list-hosts --list-tags --list-tasks --step --syntax-check"
        " --verbose --version"
    ),
    _SAFE: (
        "-c -f -i -M -t -T -u --become-method --become-pass-file --become-password-file --become-user"
        " --conn-pass-file --connection --connection-password-file --forks --inventory --inventory-file --key-file"
        " --module-path --private-key --skip-tags --start-at-task --tags --timeout --user --vault-id"
        " --vault-pass-file --vault-password-file"
    ),
    _EXTRA: "-e --extra-vars",
    _LIMIT: "-l --limit",
    _OTHER: "--scp-extra-args --sftp-extra-args --ssh-common-args --ssh-extra-args",
}
_KINDS = {name: kind for kind, names in _OPTIONS.items() for name in names.split()}
_PLAYBOOK = re.compile(r"[\w./~+][\w./~ +-]*")
# Variables of this collection with a simple value, which may still have a name or a value that looks like a secret.
_VARIABLE = re.compile(r"nvidia_\w+=[\w.,:/%+-]*")
_SECRET = re.compile(r"pass|secret|token|credential|private|api_?key|://", re.IGNORECASE)


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

    Logs keep it, so words that are not known to be harmless are replaced by dots.
    """
    words = list(argv[1:])
    if not argv or not os.path.basename(argv[0]).startswith(PROGRAM):
        # Another program has started Ansible. Its command line is unknown.
        words = [PLAYBOOK]
    kept: list[str] = []
    while words:
        word = words.pop(0)
        if not _is_option(word):
            kept.append(word if _PLAYBOOK.fullmatch(word) else _HIDDEN)
        elif word != "--":
            start, kind, value = _option(word)
            separate = value is None and kind != _PLAIN and words and not _is_option(words[0])
            shown = [_shown(kind, words.pop(0))] if separate else []
            if kind == _LIMIT:
                # Options without a value may precede it in the same word.
                kept += [start[:-1]] if start[2:] and not start.startswith("--") else []
            else:
                kept += [start + ("" if value is None else _shown(kind, value)), *shown]
    return shlex.join([PROGRAM, *kept, f"--limit={','.join(hosts)}"])


def _is_option(word: str) -> bool:
    # As for argparse, an option has no space before its value.
    return word.startswith("-") and " " not in word.partition("=")[0]


def _option(word: str) -> tuple[str, str, str | None]:
    """Return the part of a word before the value, the kind of its option, and the value, if it is in the same word."""
    if word.startswith("--"):
        name, equal, value = word.partition("=")
        # argparse also accepts the beginning of a name.
        kinds = {kind for option, kind in _KINDS.items() if option.startswith(name)}
        kind = _KINDS.get(name) or (kinds.pop() if len(kinds) == 1 else _OTHER)
        return name + equal, kind, value if equal else None
    for end, letter in enumerate(word[1:], 2):
        kind = _KINDS.get(f"-{letter}", _OTHER)
        if kind != _PLAIN:
            return word[:end], kind, word[end:] or None
    return word, _PLAIN, None


def _shown(kind: str, value: str) -> str:
    if kind == _SAFE:
        is_harmless = "://" not in value
    else:
        variables = value.split() if kind == _EXTRA else []
        simple = all(_VARIABLE.fullmatch(word) and not _SECRET.search(word) for word in variables)
        is_harmless = bool(variables) and (value.startswith("@") or simple)
    return value if is_harmless else _HIDDEN
