# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.dnf_versionlock import (
    LOCKS_5,
    PLUGIN_CONFIG,
    LockList,
    is_locked,
    names_package,
    parse_dnf4_locks,
    parse_dnf5_locks,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils._packages.test_apt import write

if t.TYPE_CHECKING:
    from pathlib import Path

# As the plugin of dnf 4.10 writes it.
LOCKED = """\

# Added lock on Sat Nov 21 20:06:16 2026
nvidia-container-toolkit-0:1.18.2-1.*
nvidia-container-toolkit-base-0:1.18.2-1.*

# Added exclude on Sat Nov 21 20:07:16 2026
!libnvidia-container1-1:1.18.2-1.el9.*
"""

# As dnf5-versionlock(8) has it.
LOCKED_5 = """\
version = "1.0"

[[packages]]
name = "nvidia-container-toolkit"
comment = "Added by 'versionlock add' command on 2026-08-21 10:00:00"
[[packages.conditions]]
key = "evr"
comparator = "="
value = "1.18.2-1"

[[packages]]
name = "bash"
[[packages.conditions]]
key = "evr"
comparator = "<"
value = "6"
[[packages.conditions]]
key = "evr"
comparator = "!="
value = "5.2-1"

[[packages]]
name = "nano"

[[packages]]
name = 'libnvidia-container1'
[[packages.conditions]]
key = "arch"
comparator = "="
value = "x86_64"
[[packages.conditions]]
key = "evr"
comparator = "="
value = "0:1.18.2-1"
"""
LIST = "/etc/dnf/plugins/versionlock.list"
FOUR = "nvidia-container-toolkit-0:1.18.2-1.*"
FIVE = "nvidia-container-toolkit-1.18.2-1"


def test_what_the_lists_say() -> None:
    assert parse_dnf4_locks(LOCKED) == [FOUR, "nvidia-container-toolkit-base-0:1.18.2-1.*"]
    assert parse_dnf5_locks(LOCKED_5) == [FIVE, "libnvidia-container1-0:1.18.2-1"]
    assert parse_dnf4_locks("") == parse_dnf5_locks("") == []


@pytest.mark.parametrize(
    ("config", "program", "found"),
    [
        (f"[main]\nenabled = 1\nlocklist = {LIST}\n", "dnf-3", LIST),
        (f"[main]\nlocklist={LIST}\n", None, LIST),
        ("[main]\nlocklist=/srv/locks\n", "dnf-3", "/srv/locks"),
        (f"[main]\nenabled = 0\nlocklist = {LIST}\n", "dnf-3", None),
        ("[main]\nlocklist=/nowhere\n", "dnf-3", None),
        ("[main]\nenabled = 1\n", "dnf-3", None),
        (f"locklist = {LIST}\n", "dnf-3", None),
        # Without its configuration there is no plugin.
        (None, "dnf-3", None),
        (f"[main]\nlocklist={LIST}\n", "dnf5", LOCKS_5),
        (None, "dnf5", LOCKS_5),
    ],
)
def test_where_the_list_lies(tmp_path: Path, config: str | None, program: str | None, found: str | None) -> None:
    write(tmp_path, LIST, LOCKED)
    write(tmp_path, "/srv/locks", LOCKED)
    write(tmp_path, LOCKS_5, LOCKED_5)
    if config is not None:
        write(tmp_path, PLUGIN_CONFIG, config)
    if program is not None:
        write(tmp_path, f"/usr/bin/{program}", "")
        (tmp_path / "usr/bin/dnf").symlink_to(program)
    locks = LockList(HostFS(str(tmp_path), live=True))
    assert locks.path == found
    names = ["nvidia-container-toolkit", "bash"]
    # dnf 5 has no other words for it than names.
    release = {None: [], LOCKS_5: ["nvidia-container-toolkit"]}.get(found, [FOUR])
    assert locks.delete_arguments(names) == release
    assert locks.patterns()[:1] == ([] if found is None else [FIVE if found == LOCKS_5 else FOUR])
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
def test_which_package_a_lock_names(lock: str, own: bool) -> None:
    assert names_package(lock, "toolkit") is own


@pytest.mark.parametrize(
    ("lock", "locked"),
    [
        ("toolkit-0:1.18.2-1.*", True),
        ("toolkit-1.18.2-1.x86_64", True),
        ("toolkit-1.18.2", True),
        ("toolkit-1.18.*", True),
        ("toolkit-0:1.18.2-1", True),
        # Locked where it is not: it is going to move.
        ("toolkit-0:1.19.1-1.*", False),
        ("toolkit-1:1.18.2-1.*", False),
        ("toolkit-base-0:1.18.2-1.*", False),
        ("toolkit", False),
    ],
)
def test_a_lock_holds_one_version(lock: str, locked: bool) -> None:
    assert is_locked(("toolkit", "0", "1.18.2-1", "x86_64"), ["other-1", lock]) is locked
