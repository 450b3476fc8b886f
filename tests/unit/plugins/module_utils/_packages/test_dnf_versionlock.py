# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.dnf_versionlock import (
    PLUGIN_CONFIG,
    LockList,
    is_locked,
    names_package,
    parse_locks,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import write_file

if t.TYPE_CHECKING:
    from pathlib import Path

# A list of the plugin of dnf 4.10.
LOCKED = """\

# Added lock on Sat Nov 21 20:06:16 2026
nvidia-container-toolkit-0:1.18.2-1.*
nvidia-container-toolkit-base-0:1.18.2-1.*

# Added exclude on Sat Nov 21 20:07:16 2026
!libnvidia-container1-1:1.18.2-1.el9.*
"""

LIST = "/etc/dnf/plugins/versionlock.list"
FOUR = "nvidia-container-toolkit-0:1.18.2-1.*"


def test_parses_lists() -> None:
    assert parse_locks(LOCKED) == [FOUR, "nvidia-container-toolkit-base-0:1.18.2-1.*"]
    assert parse_locks("") == []


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (f"[main]\nenabled = 1\nlocklist = {LIST}\n", LIST),
        (f"[main]\nlocklist={LIST}\n", LIST),
        ("[main]\nlocklist=/srv/locks\n", "/srv/locks"),
        (f"[main]\nenabled = 0\nlocklist = {LIST}\n", None),
        ("[main]\nlocklist=/nowhere\n", None),
        ("[main]\nenabled = 1\n", None),
        (f"locklist = {LIST}\n", None),
        # The plugin needs its configuration.
        (None, None),
    ],
)
def test_path_of_the_list(tmp_path: Path, config: str | None, found: str | None) -> None:
    write_file(tmp_path, LIST, LOCKED)
    write_file(tmp_path, "/srv/locks", LOCKED)
    if config is not None:
        write_file(tmp_path, PLUGIN_CONFIG, config)
    locks = LockList(HostFS(str(tmp_path), live=True))
    assert locks.path == found
    names = ["nvidia-container-toolkit", "bash"]
    assert locks.delete_arguments(names) == locks.patterns()[:1] == [FOUR] * (found is not None)
    assert [file.path for file in locks.snapshot()] == [found] * (found is not None)


@pytest.mark.parametrize(
    ("lock", "own"),
    [
        ("toolkit-0:1.18.2-1.*", True),
        ("toolkit-1.18.*", True),
        ("toolkit", True),
        ("toolkit-base-0:1.18.2-1.*", False),
        ("toolkit-*", False),
        ("tool*-1.18.2", False),
    ],
)
def test_lock_names_package(lock: str, own: bool) -> None:
    assert names_package(lock, "toolkit") is own


@pytest.mark.parametrize(
    ("lock", "locked"),
    [
        ("toolkit-0:1.18.2-1.*", True),
        ("toolkit-1.18.2-1.x86_64", True),
        ("toolkit-1.18.2", True),
        ("toolkit-1.18.*", True),
        ("toolkit-0:1.18.2-1", True),
        # Locked at another version, so dnf will change it.
        ("toolkit-0:1.19.1-1.*", False),
        ("toolkit-1:1.18.2-1.*", False),
        ("toolkit-base-0:1.18.2-1.*", False),
        ("toolkit", False),
    ],
)
def test_lock_holds_one_version(lock: str, locked: bool) -> None:
    assert is_locked(("toolkit", "0", "1.18.2-1", "x86_64"), ["other-1", lock]) is locked
