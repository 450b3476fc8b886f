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
        Lock(("libnvidia-container1",), condition="> 1.18"),
        Lock(("nvidia-container-toolkit-base",), repository="gpufleet-nvidia-container-toolkit"),
    ]
    assert parse_locks("solvable_name: a\nsolvable_name: b") == [Lock(("a", "b"), "exact")]
    assert parse_locks("") == parse_locks("\n\n") == parse_locks("no attribute\n# x\n\0") == []


@pytest.mark.parametrize(
    ("lock", "held"),
    [
        (Lock(("toolkit",)), True),
        (Lock(("tool*",)), True),
        (Lock(("TOOL*",)), False),
        (Lock(("TOOL*",), case_sensitive=False), True),
        (Lock(("other", "toolkit")), True),
        (Lock(("tool",)), False),
        (Lock(("tool",), "substring"), True),
        (Lock(("^t.*t$",), "regex"), True),
        (Lock(("(",), "regex"), False),
        (Lock(("tool*",), "exact"), False),
        (Lock(("toolkit",), condition="= 1.18.2-1"), True),
        (Lock(("toolkit",), condition="== 1.18.2"), True),
        (Lock(("toolkit",), condition="= 1.18.10"), False),
        (Lock(("toolkit",), condition="< 1.18.10"), True),
        (Lock(("toolkit",), condition="> 1.18.2"), False),
        (Lock(("toolkit",), condition=">= 1.18.2-1"), True),
        (Lock(("toolkit",), condition="!= 1.18.2-1"), False),
        # Only packages that the repository offers are locked.
        (Lock(("toolkit",), repository="x"), False),
    ],
)
def test_lock_holds_installed_package(lock: Lock, held: bool) -> None:
    assert lock.holds("toolkit", "1.18.2-1") is held


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({}, LOCKS),
        ({"/etc/zypp/zypp.conf": "[main]\n# locksfile.path = /a\nlocksfile.path = /b\n"}, "/b"),
        ({"/usr/etc/zypp/zypp.conf": "[main]\nlocksfile.path=/a\n", "/etc/zypp/zypp.conf": "[main]\n"}, LOCKS),
        ({"/usr/etc/zypp/zypp.conf": "[main]\nlocksfile.apply = no\n"}, None),
        (
            {
                "/usr/etc/zypp/zypp.conf.d/1.conf": "[main]\nlocksfile.apply = no\n",
                "/etc/zypp/zypp.conf.d/1.conf": "[main]\nlocksfile.path = /c\n",
            },
            "/c",
        ),
    ],
)
def test_path_of_the_list(tmp_path: Path, files: dict[str, str], path: str | None) -> None:
    for name, text in files.items():
        write_file(tmp_path, name, text)
    locks = LockList(HostFS(str(tmp_path), live=True))
    assert locks.path == path
    write_file(tmp_path, path or LOCKS, WRITTEN)
    assert locks.exist() is (path is not None)
    assert locks.name_one_of(["libnvidia-container1"]) is (path is not None)
    assert not locks.name_one_of(["libnvidia-container2"])
    assert [file.path for file in locks.snapshot()] == [path] * (path is not None)
