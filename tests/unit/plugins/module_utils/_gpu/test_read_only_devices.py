# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml

# Other runs of the tests have others.
MADE = f"/dev/gpufleet-test-{os.getpid()}"


def in_child(work: t.Callable[[], str]) -> str:
    """What ``work`` returns in a process of its own, which the test's process must not be changed by."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said


def try_to_make() -> str:
    obstacle = nvml.make_dev_read_only()
    if obstacle:
        return obstacle
    with open(os.devnull, "wb") as stream:
        stream.write(b"can still be opened")
    try:
        os.close(os.open(MADE, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        return error.strerror or ""
    return "made"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_can_make_nothing() -> None:
    said = in_child(try_to_make)
    if said.startswith("/dev cannot be made read-only"):
        pytest.skip(said)
    assert said == "Read-only file system"
    assert not os.path.exists(MADE)
    # Nobody else is concerned.
    os.close(os.open(MADE, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(MADE)


def test_others_cannot_become_root() -> None:
    def told() -> str:
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        return nvml.make_dev_read_only() + Path("/proc/self/status").read_text()

    assert "NoNewPrivs:\t1\n" in in_child(told)


def test_what_cannot_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def prctl(*_arguments: object) -> int:
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: Refusing)
    assert nvml.make_dev_read_only() == "/dev cannot be made read-only (Operation not permitted)"
    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: object())
    assert nvml.make_dev_read_only() == "/dev cannot be made read-only (this Python lacks ctypes)"
