# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _commands
from ansible_collections.gpufleet.nvidia.plugins.module_utils._commands import run

if TYPE_CHECKING:
    import pytest

_TELL = "import os, sys; print(os.environ['LC_ALL'], os.environ['KEPT']); print('x', file=sys.stderr); sys.exit(3)"


def test_a_command_speaks_english_and_is_told_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run([sys.executable, "-c", _TELL]) == (3, "C.UTF-8 kept\n", "x\n")


def test_a_program_that_is_not_there_is_a_failure_like_any() -> None:
    status, output, errors = run(["/nowhere/program"])
    assert (status, output) == (127, "")
    assert "/nowhere/program cannot be run: No such file" in errors


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_commands, "TIMEOUT", 0.2)
    assert run(["sleep", "60"])[0] == 124


def test_nobody_is_asked_and_any_byte_is_taken() -> None:
    told = "import sys; assert not sys.stdin.read(); sys.stdout.buffer.write(bytes([255, 65]))"
    assert run([sys.executable, "-c", told]) == (0, "\ufffdA", "")
