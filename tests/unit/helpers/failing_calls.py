# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let one of the calls fail with which a run changes a tree, or let all later calls fail too."""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kills import Killed

if t.TYPE_CHECKING:
    import pytest
    from typing_extensions import Self

# The functions of os that change files. write() stands for the methods of streams, which tests cannot replace.
NAMES = (
    "mkdir", "rmdir", "unlink", "replace", "rename", "link", "symlink", "chmod", "chown", "fchmod", "fchown", "fsync",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FailingCalls:
    """Counts the calls that change files, and raises an error in the call with the number ``step``, 0 for none.

    ``error`` is an errno, or None to kill the run. ``lasting``: all later calls fail too, as on a read-only file
    system. ``calls`` are the names of the calls so far.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.step = 0
        self.error: int | None = None
        self.lasting = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in NAMES:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))
        real_open = os.open

        def failing_open(path: t.Any, flags: int, *args: t.Any, **more: t.Any) -> int:
            if flags & _WRITES:
                self.count("open")
            return real_open(path, flags, *args, **more)

        monkeypatch.setattr(os, "open", failing_open)
        real_fdopen = os.fdopen

        def failing_fdopen(handle: int, mode: str = "r", *args: t.Any, **more: t.Any) -> t.Any:
            stream = real_fdopen(handle, mode, *args, **more)
            return _Stream(stream, self) if "w" in mode else stream

        monkeypatch.setattr(os, "fdopen", failing_fdopen)

    def _failing(self, name: str, function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def call(*args: t.Any, **more: t.Any) -> t.Any:
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            self.count("fsync of a directory" if is_folder else name)
            # Nothing has to survive a crash of this system.
            return None if name == "fsync" else function(*args, **more)

        return call

    def count(self, name: str) -> None:
        self.calls.append(name)
        number = len(self.calls)
        if self.step and (number == self.step or (self.lasting and number > self.step)):
            if self.error is None:
                raise Killed
            raise OSError(self.error, os.strerror(self.error))


def chosen_steps(calls: t.Sequence[str]) -> list[int]:
    """Return the numbers of the first and of the last call of each name."""
    last = {name: number for number, name in enumerate(calls, 1)}
    first = {name: number for number, name in reversed(list(enumerate(calls, 1)))}
    return sorted({*last.values(), *first.values()})


class _Stream:
    """A stream whose write() is one of the calls."""

    def __init__(self, stream: t.Any, calls: FailingCalls) -> None:
        self._stream = stream
        self._calls = calls

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)

    def write(self, content: bytes) -> int:
        self._calls.count("write")
        return int(self._stream.write(content))

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._stream, name)
