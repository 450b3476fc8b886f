# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far a play in batches has come, and the command that continues it."""

from __future__ import annotations

import shlex
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _batches
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._batches import Progress

HOSTS = ("a", "b", "c", "d", "e")
CONTINUE = "Correct the cause, then continue with: ansible-playbook x.yml"
ROLLING = "gpufleet.nvidia.rolling"


@pytest.mark.parametrize(
    ("lost", "batch", "failed", "unfinished", "expected"),
    [
        ("", "a", "", "", Progress(("a",), not_started=("b", "c", "d", "e"))),
        ("", "bc", "", "", Progress(("a", "b", "c"), not_started=("d", "e"))),
        ("", "de", "", "", Progress(HOSTS)),
        ("", "bc", "c", "", Progress(("a", "b"), failed=("c",), not_started=("d", "e"))),
        ("", "bc", "b", "bc", Progress(("a",), failed=("b",), unfinished=("c",), not_started=("d", "e"))),
        # An unreachable host of an earlier batch, and the last one of this batch.
        ("a", "b", "", "", Progress(("b",), unreachable=("a",), not_started=("c", "d", "e"))),
        ("c", "b", "", "", Progress(("a", "b"), unreachable=("c",), not_started=("d", "e"))),
        # An earlier play of the run has lost a host of a later batch.
        ("d", "a", "", "", Progress(("a",), unreachable=("d",), not_started=("b", "c", "e"))),
        ("e", "a", "a", "a", Progress(failed=("a",), unreachable=("e",), not_started=("b", "c", "d"))),
    ],
)
def test_progress(lost: str, batch: str, failed: str, unfinished: str, expected: Progress) -> None:
    alive = [host for host in HOSTS if host not in lost]
    assert _batches.progress(HOSTS, alive, list(batch), list(failed), list(unfinished)) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Progress(("a",)), "The host is done."),
        (Progress(HOSTS), "All 5 hosts are done."),
        (Progress(("a",), not_started=("b", "c")), "Done: 1 of 3 hosts. Not started: 2."),
        # The play goes on.
        (Progress(("a",), unreachable=("b",), not_started=("c",)),
         "Done: 1 of 3 hosts. Unreachable: b. Not started: 1."),
        (Progress(("a",), unreachable=("b",)),
         f"Done: a. Unreachable: b. Not started: none. {CONTINUE} --limit=b"),
        (Progress((), ("a", "b"), (), ("c",), ("d",)),
         f"Done: none. Failed: a, b. Not finished: c. Not started: d. {CONTINUE} --limit=a,b,c,d"),
    ],
)  # fmt: skip
def test_summary(found: Progress, expected: str) -> None:
    assert _batches.summary(found, ["ansible-playbook", "x.yml"]) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-i", "inv", "-b", ROLLING], ["-i", "inv", "-b", ROLLING]),
        # The limit of this run is replaced.
        (["-l", "gpu", ROLLING, "--limit=x", "--limit", "y", "-lz", "--limi=z"], [ROLLING]),
        (["--list-hosts", ROLLING], ["--list-hosts", ROLLING]),
        (["-e", "nvidia_serial=2", "-e@vars.yml", ROLLING], ["-e", "nvidia_serial=2", "-e@vars.yml", ROLLING]),
        (["-vbl", "gpu", "-Cl=x", "--inv=hosts", "-iinv", "--", "my play.yml"],
         ["-vb", "-C", "--inv=hosts", "-iinv", "my play.yml"]),
        # Logs keep what a task prints, so only what is known to be harmless is printed.
        (["-e", "ansible_become_password=x", ROLLING], ["-e", "...", ROLLING]),
        (["-e", "nvidia_serial=2 key=x", "-e", "nvidia_x_token=y"], ["-e", "...", "-e", "..."]),
        (["--extra-vars=api_key=x", "-etoken=y", "-e=key=z", ROLLING], ["--extra-vars=...", "-e...", "-e...", ROLLING]),
        (["-e", "nvidia_toolkit_proxy=http://me:pw@proxy", "-e", "@secrets.yml"], ["-e", "...", "-e", "@secrets.yml"]),
        (["-be", "key=x", "-bKekey=x", "--extra", "key=x", "--e=key=x", "--ex", '{"key": "x"}'],
         ["-be", "...", "-bKe...", "--extra", "...", "--e=...", "--ex", "..."]),
        (["--ssh-common-args", "-o ProxyCommand='sshpass -p x'", "--ssh-e=-p x", "-i", "http://me:pw@host", "key=x"],
         ["--ssh-common-args", "...", "--ssh-e=...", "-i", "...", "..."]),
        (["-ekey x", ROLLING], ["...", ROLLING]),
        # Options that a later release may add.
        (["--later", "x", "--later2=x", "-Zx", ROLLING], ["--later", "...", "--later2=...", "-Z...", ROLLING]),
        (["--check=x", "--later", "-b"], ["--check=...", "--later", "-b"]),
        (["--extra-vars"], ["--extra-vars"]),
    ],
)  # fmt: skip
def test_continuation(words: list[str], expected: list[str]) -> None:
    line = _batches.continuation(["/usr/bin/ansible-playbook", *words], ["a", "b c"])
    assert shlex.split(line) == ["ansible-playbook", *expected, "--limit=a,b c"]


@pytest.mark.parametrize("argv", [[], ["/usr/bin/python3", "-m", "other"]])
def test_continuation_of_another_program(argv: t.Sequence[str]) -> None:
    assert _batches.continuation(argv, ["a"]) == f"ansible-playbook {ROLLING} --limit=a"
