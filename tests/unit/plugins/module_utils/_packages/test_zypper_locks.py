# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.zypper_locks import (
    LOCKS,
    Lock,
    LockList,
    parse_locks,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import write_file

if t.TYPE_CHECKING:
    from pathlib import Path

# What zypper 1.14.89 wrote.
WRITTEN = """
type: package
match_type: glob
case_sensitive: on
solvable_name: libnvidia*


type: patch
match_type: glob
case_sensitive: on
solvable_name: libnvidia-container1
comment: why so


type: package
version: > 1.18
match_type: glob
case_sensitive: on
solvable_name: libnvidia-container1


repo: gpufleet-nvidia-container-toolkit
type: package
match_type: glob
case_sensitive: on
solvable_name: nvidia-container-toolkit-base
"""


def test_parses_locks() -> None:
    assert parse_locks(WRITTEN) == [
        Lock(("libnvidia*",)),
        Lock(("libnvidia-container1",)),
        Lock(("nvidia-container-toolkit-base",), repository="gpufleet-nvidia-container-toolkit"),
    ]
    assert parse_locks("solvable_name: a\nsolvable_name: b") == [Lock(("a", "b"))]
    assert parse_locks("") == parse_locks("\n\n") == parse_locks("no attribute\n# x\n\0") == []


@pytest.mark.parametrize(
    ("lock", "held"),
    [
        (Lock(("toolkit",)), True),
        (Lock(("tool*",)), True),
        (Lock(("TOOL*",)), False),
        (Lock(("other", "toolkit")), True),
        (Lock(("tool",)), False),
        # Only packages that the repository offers are locked.
        (Lock(("toolkit",), repository="x"), False),
    ],
)
def test_lock_holds_installed_package(lock: Lock, held: bool) -> None:
    assert lock.holds("toolkit") is held


def test_list_of_a_host(tmp_path: Path) -> None:
    locks = LockList(HostFS(str(tmp_path), live=True))
    assert not locks.exist()
    write_file(tmp_path, LOCKS, WRITTEN)
    assert locks.exist()
    assert locks.name_one_of(["libnvidia-container1"])
    assert not locks.name_one_of(["libnvidia-container2"])
    assert [file.path for file in locks.snapshot()] == [LOCKS]
