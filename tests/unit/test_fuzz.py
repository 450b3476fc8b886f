# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A failure that the fuzzer in tests/fuzz finds can be repeated. The session "fuzz" runs the fuzzer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-B", "tests/fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_case_can_be_run_again_and_its_files_be_kept(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        fuzz("--format", "docker", "--seed", "5", "--case", "40", "--keep", str(tmp_path / folder))
    one, two = (
        {
            path.relative_to(tmp_path / folder): path.read_bytes()
            for path in (tmp_path / folder).rglob("*")
            if path.is_file()
        }
        for folder in ("one", "two")
    )
    assert one == two != {}
