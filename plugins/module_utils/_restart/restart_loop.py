# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply changed files to an engine, again if that may help, and probe it until it is healthy."""

from __future__ import annotations

import time

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import health as restart_health
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import methods as restart_methods

# Seconds between two probes of a daemon, and seconds after which a healthy daemon is probed once more.
PAUSE = 0.2
_STEADY = 1.0


class RestartLoop:
    """The loop that applies the files with the restart method ``means`` until the engine is healthy.

    ``version`` is used if the engine does not report its own. ``timeout`` is in seconds. ``retries`` is the number of
    attempts after the first. ``attempts`` is the total of all calls.
    """

    def __init__(
        self,
        witness: restart_health.HealthProbe,
        means: restart_methods.RestartMethod,
        version: str | None,
        timeout: float,
        retries: int,
    ) -> None:
        self.witness = witness
        self.means = means
        self.version = version
        self.timeout = timeout
        self.retries = retries
        self.attempts = 0

    def carry_out(
        self, expectation: restart_health.Expectation, patience: float | None = None
    ) -> restart_health.ProbeResult:
        """Apply the files and return the last probe result."""
        deadline = time.monotonic() + self.timeout
        left = self.retries
        while True:
            evidence = self._once(expectation, patience, deadline, left)
            again = evidence.again or (not self.means.restarts and not _obeys(evidence))
            if not evidence.lacks or not left or not again or time.monotonic() >= deadline:
                return evidence
            left -= 1

    def _once(
        self, expectation: restart_health.Expectation, patience: float | None, deadline: float, left: int
    ) -> restart_health.ProbeResult:
        # A restart may use the whole timeout. A signal without effect is sent again, so each one gets a share.
        share = 1 if self.means.restarts else left + 1
        now = time.monotonic()
        end = now + (deadline - now) / share
        try:
            self.means.act(patience)
            self.attempts += 1
            evidence = self.wait_until_healthy(expectation, end)
            if self.means.restarts and not evidence.lacks:
                evidence = self._confirm_stable(expectation, evidence)
        except errors.HostError as error:
            # The engine may be healthy although the command failed.
            evidence = self.witness.examine(expectation, self.version)
            return (
                evidence if not evidence.lacks else restart_health.ProbeResult(evidence.pid, (str(error).rstrip("."),))
            )
        return evidence

    def wait_until_healthy(self, expectation: restart_health.Expectation, end: float) -> restart_health.ProbeResult:
        """Return the probe result when it is healthy, when it can no longer change, or at ``end`` (monotonic)."""
        while True:
            obstacle = self.means.not_ready_reason()
            evidence = self._examine(expectation) if obstacle is None else obstacle
            # During a reload the daemon still answers with its previous state.
            at_once = self.means.restarts or not self.means.acts or obstacle is not None
            settled = evidence.settled and (at_once or _obeys(evidence))
            if not evidence.lacks or settled or time.monotonic() >= end:
                return evidence
            time.sleep(PAUSE)

    def _confirm_stable(
        self, expectation: restart_health.Expectation, first: restart_health.ProbeResult
    ) -> restart_health.ProbeResult:
        """Probe again after _STEADY seconds, because some daemons end just after they reported that they are ready."""
        time.sleep(_STEADY)
        second = self.means.not_ready_reason() or self._examine(expectation)
        if second.lacks or second.pid == first.pid:
            return second
        return restart_health.ProbeResult(
            second.pid, ("it ended just after its start, and was started again",), again=True
        )

    def _examine(self, expectation: restart_health.Expectation) -> restart_health.ProbeResult:
        return self.witness.examine(expectation, self.version, fresh=self.means.restarts)


def _obeys(evidence: restart_health.ProbeResult) -> bool:
    """Return whether the daemon runs with its files, so that unmet expectations are due to the files alone."""
    return bool(evidence.unmet) and evidence.lacks == evidence.unmet
