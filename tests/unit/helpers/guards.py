# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run code under test with a time limit, or in another root directory.

The limit makes a test fail that would otherwise block the whole run. No test measures times with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError

if t.TYPE_CHECKING:
    from pathlib import Path


class HungError(BaseException):
    """The code under test did not return."""


@contextlib.contextmanager
def within(seconds: float) -> t.Iterator[None]:
    """Raise HungError if the block takes longer. Only the main thread may call this."""

    def end(_number: int, _frame: object) -> t.NoReturn:
        raise HungError(f"not finished after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def chrooted(root: Path, work: t.Callable[[], str], uid: int = 0) -> str:
    """Run ``work`` in a child process with the root directory ``root``. Return its result, or the text of HostError."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chroot(root)
            os.chdir("/")
            if uid:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            os.write(writer, work().encode())
        except HostError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer
