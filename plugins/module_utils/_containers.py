# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a container that is started only to see whether it can be, whatever the engine.

from __future__ import annotations

import contextlib
import signal
import time
import typing as t

# What all that is made here is called, and the label by which leftovers of a killed run are found again.
NAME = "gpufleet-verify"
LABEL = "gpufleet.nvidia.verify"
# Characters of a container's output that are kept, the last ones.
OUTPUT_LIMIT = 4000

# Seconds for the removal, which comes after all else has had its time.
REMOVAL = 30.0

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Seconds between two looks at a container, the first and the longest.
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# Seconds that an answer gets even when all time is spent: what is asked then is how it ended, and what it said.
_LEAST = 2.0


class Order(t.NamedTuple):
    """A container of the local image ``image`` that runs ``command`` and nothing else, without a network."""

    image: str
    command: tuple[str, ...]
    runtime: str
    environment: t.Mapping[str, str]
    timeout: float


class End(t.NamedTuple):
    """How a container ended: its exit status, and what it said."""

    status: int
    output: str


class NotRunError(Exception):
    """Why there is no end of a container to tell of, what to do about it if that is known, and what it has said.

    ``tried`` says whether the engine was told to start anything at all.
    """

    def __init__(self, problem: str, advice: str = "", output: str = "", *, tried: bool = True) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice
        self.output = output
        self.tried = tried


def not_ended(order: Order, output: str) -> NotRunError:
    """Why nothing can be told of a container that goes on and on."""
    problem = f"It did not end within {order.timeout:g} seconds"
    return NotRunError(problem, "Give it more with timeout, or a command that ends by itself.", output)


class Containers(t.Protocol):
    """What starts containers; afterwards ``left_behind`` says why something of them is still there, if it is."""

    left_behind: str

    def run(self, order: Order) -> End:
        """Start the container, wait for its end, and remove it whatever happens.  Raises NotRunError."""


class Deadline:
    """A moment by which everything has to be done."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that an answer may take."""
        return max(self._end - time.monotonic(), _LEAST)

    def ended(self, ask: t.Callable[[], int | None]) -> int | None:
        """The exit status that ``ask`` tells at last, None if it does not in time."""
        pause = _PAUSE
        while True:
            status = ask()
            if status is not None:
                return status
            left = self._end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)


@contextlib.contextmanager
def interruptible() -> t.Iterator[None]:
    """Turns the signals that end a process into an exception, so that what was started is removed."""

    def end(number: int, _frame: object) -> t.NoReturn:
        # Once is enough: what is being removed must not be interrupted.
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # What somebody has set to be ignored, as nohup does, stays ignored.
    for number in [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None is one that nobody in Python has set.
            if handler is not None:
                signal.signal(number, handler)


def shortened(output: str) -> str:
    """The end of what a container said."""
    output = output.strip()
    return output if len(output) <= OUTPUT_LIMIT else "[...] " + output[-OUTPUT_LIMIT:]
