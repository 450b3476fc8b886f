# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
import time

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import Deadline, interruptible


def interrupted(number: int, steps: list[str]) -> None:
    with interruptible():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            # A second one no longer disturbs.
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            steps.append("removed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_become_an_exception(number: int) -> None:
    # The tests themselves may run under nohup, or behind a terminal's back.
    before = signal.signal(number, signal.SIG_DFL)
    steps: list[str] = []
    try:
        with pytest.raises(SystemExit) as caught:
            interrupted(number, steps)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert steps == ["removed"]
    assert caught.value.code == 128 + number


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_end_that_comes_late() -> None:
    answers = [None, None, None, 7]
    assert Deadline(5.0).ended(lambda: answers.pop(0)) == 7
    assert answers == []


def test_an_end_that_does_not_come() -> None:
    started = time.monotonic()
    deadline = Deadline(0.2)
    assert deadline.ended(lambda: None) is None
    assert 0.2 <= time.monotonic() - started < 2
    # Even then somebody is asked how it stands.
    assert 1 <= deadline.left() <= 5
    assert 50 < Deadline(60).left() <= 60
