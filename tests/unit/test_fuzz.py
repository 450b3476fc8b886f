# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fuzzer in tests/fuzz on the default seed: a few mutations for each format, in a nightly run 2,000."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.tests.fuzz.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
COUNT = 2_000 if os.environ.get("GPUFLEET_NIGHTLY") == "1" else 10


def fuzz(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-B", "tests/fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", [row.name for row in FORMATS])
def test_no_mutation_of_a_format_does_harm(name: str) -> None:
    status, output = fuzz("--format", name, "--count", str(COUNT))
    assert status == 0, output


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
