# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python interpreters of this machine, each tried before it counts."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

_PROBE = (
    "import os, sys, venv, ensurepip; "
    "print(sys.version_info[1], os.path.realpath(getattr(sys, '_base_executable', sys.executable)))"
)


class Python(t.NamedTuple):
    """A working interpreter that can make virtual environments."""

    minor: int
    path: str

    @property
    def name(self) -> str:
        """Such as 3.12."""
        return f"3.{self.minor}"


def _candidates(minor: int) -> t.Iterator[Path]:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield Path(directory, f"python3.{minor}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3"), reverse=True)


def _probe(candidate: Path, minor: int) -> Python | None:
    if not os.access(candidate, os.X_OK):
        return None
    done = subprocess.run([candidate, "-c", _PROBE], capture_output=True, text=True, check=False)
    found, _blank, path = done.stdout.strip().partition(" ")
    # A pyenv shim exists for versions that do not answer.
    return Python(minor, path) if done.returncode == 0 and found == str(minor) else None


def find(oldest: int, newest: int) -> dict[int, Python]:
    """One interpreter for every minor version of Python 3 in the range that this machine has."""
    found = {}
    for minor in range(oldest, newest + 1):
        for candidate in _candidates(minor):
            python = _probe(candidate, minor)
            if python:
                found[minor] = python
                break
    return found


def running() -> Python:
    """The interpreter below the one that runs this."""
    return Python(sys.version_info[1], os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
