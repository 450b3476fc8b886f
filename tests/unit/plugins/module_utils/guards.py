# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Ends what would hang: a test of it fails instead of blocking the whole run.  No test measures a time with it.

from __future__ import annotations

import contextlib
import signal
import typing as t


class HungError(BaseException):
    """The code under test did not return."""


@contextlib.contextmanager
def within(seconds: float) -> t.Iterator[None]:
    """Raise HungError if the block takes longer; it is called in the main thread."""

    def end(_number: int, _frame: object) -> t.NoReturn:
        raise HungError(f"not finished after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
