# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a daemon is told to take its files over, again if that may help, and asked until it has
# proven that it did or cannot do so any more.

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Evidence

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Expectation, Witness
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._taking_over import Means

# Seconds between two looks at a daemon, and those after which one that came up is looked at once more.
_PAUSE = 0.2
_STEADY = 1.0


class BringUp:
    """One engine, an engine of ``version`` if it does not tell its own, brought to what its files say by ``means``.

    ``timeout`` is in seconds, ``retries`` how many more times it may be told.  ``attempts`` counts over all calls.
    """

    def __init__(self, witness: Witness, means: Means, version: str | None, timeout: float, retries: int) -> None:
        self.witness = witness
        self.means = means
        self.version = version
        self.timeout = timeout
        self.retries = retries
        self.attempts = 0

    def carry_out(self, expectation: Expectation, patience: float | None = None) -> Evidence:
        """What is proven in the end."""
        deadline = time.monotonic() + self.timeout
        left = self.retries
        while True:
            evidence = self._once(expectation, patience, deadline, left)
            again = evidence.again or (not self.means.restarts and not _obeys(evidence))
            if not evidence.lacks or not left or not again or time.monotonic() >= deadline:
                return evidence
            left -= 1

    def _once(self, expectation: Expectation, patience: float | None, deadline: float, left: int) -> Evidence:
        # A restart may take all the time there is; a signal that has no effect is sent again.
        share = 1 if self.means.restarts else left + 1
        now = time.monotonic()
        end = now + (deadline - now) / share
        try:
            self.means.act(patience)
            self.attempts += 1
            evidence = self.await_proof(expectation, end)
            if self.means.restarts and not evidence.lacks:
                evidence = self._second_look(expectation, evidence)
        except HostError as error:
            # It may be as it should be for all that.
            evidence = self.witness.examine(expectation, self.version)
            return evidence if not evidence.lacks else Evidence(evidence.pid, (str(error).rstrip("."),))
        return evidence

    def await_proof(self, expectation: Expectation, end: float) -> Evidence:
        """The evidence as soon as it is complete, or cannot become so any more, or at ``end`` (monotonic)."""
        while True:
            obstacle = self.means.obstacle()
            evidence = self._examine(expectation) if obstacle is None else obstacle
            # A daemon that reloads answers meanwhile as before.
            at_once = self.means.restarts or not self.means.acts or obstacle is not None
            settled = evidence.settled and (at_once or _obeys(evidence))
            if not evidence.lacks or settled or time.monotonic() >= end:
                return evidence
            time.sleep(_PAUSE)

    def _second_look(self, expectation: Expectation, first: Evidence) -> Evidence:
        """Some daemons fall over just after they said that they stand."""
        time.sleep(_STEADY)
        second = self.means.obstacle() or self._examine(expectation)
        if second.lacks or second.pid == first.pid:
            return second
        return Evidence(second.pid, ("it ended just after its start, and was started again",), again=True)

    def _examine(self, expectation: Expectation) -> Evidence:
        return self.witness.examine(expectation, self.version, fresh=self.means.restarts)


def _obeys(evidence: Evidence) -> bool:
    """Whether the daemon does what its files say, so that only the files can disappoint an expectation."""
    return bool(evidence.unmet) and evidence.lacks == evidence.unmet
