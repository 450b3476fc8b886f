# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far a play in batches has come, and for which hosts to repeat it."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _batches
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._batches import Progress

HOSTS = ("a", "b", "c", "d", "e")
CONTINUE = "Correct the cause, then continue with"


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
         f"Done: a. Unreachable: b. Not started: none. {CONTINUE} --limit b"),
        (Progress(("a",), ("b c",)), f"Done: a. Failed: b c. Not started: none. {CONTINUE} --limit 'b c'"),
        (Progress((), ("a", "b"), (), ("c",), ("d",)),
         f"Done: none. Failed: a, b. Not finished: c. Not started: d. {CONTINUE} --limit a,b,c,d"),
    ],
)  # fmt: skip
def test_summary(found: Progress, expected: str) -> None:
    assert _batches.summary(found) == expected
