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

# The example of dnf5-versionlock(8).
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


def test_parses_lists() -> None:
    assert parse_dnf4_locks(LOCKED) == [FOUR, "nvidia-container-toolkit-base-0:1.18.2-1.*"]
    assert parse_dnf5_locks(LOCKED_5) == [FIVE, "libnvidia-container1-0:1.18.2-1"]
    assert parse_dnf4_locks("") == parse_dnf5_locks("") == []


@pytest.mark.parametrize(
    ("name", "comparator", "loose"),
    [
        ("nvidia-container-toolkit", "!=", True),
        ("nvidia-container-toolkit", ">=", True),
        ("nvidia-*", "!=", True),
        ("nvidia-container-toolkit", "=", False),
        ("nvidia-container-toolkit-base", "!=", False),
    ],
)
def test_other_entries_of_a_package_are_kept(tmp_path: Path, name: str, comparator: str, loose: bool) -> None:
    entry = f'[[packages]]\nname = "{name}"\n[[packages.conditions]]\nkey = "evr"\n'
    write_file(tmp_path, LOCKS_5, f'{LOCKED_5}\n{entry}comparator = "{comparator}"\nvalue = "1.19.0-1"\n')
    write_file(tmp_path, "/usr/bin/dnf5", "")
    (tmp_path / "usr/bin/dnf").symlink_to("dnf5")
    locks = LockList(HostFS(str(tmp_path), live=True))
    # dnf 5 would delete all entries of the package.
    assert locks.delete_arguments(["nvidia-container-toolkit"]) == ["nvidia-container-toolkit"] * (not loose)
    assert (FIVE in locks.patterns()) is not loose
    found = [f"{name} evr {comparator} 1.19.0-1"] * loose
    assert locks.loose_entries(["nvidia-container-toolkit", "other"]) == found


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
        # The plugin needs its configuration.
        (None, "dnf-3", None),
        (f"[main]\nlocklist={LIST}\n", "dnf5", LOCKS_5),
        (None, "dnf5", LOCKS_5),
    ],
)
def test_path_of_the_list(tmp_path: Path, config: str | None, program: str | None, found: str | None) -> None:
    write_file(tmp_path, LIST, LOCKED)
    write_file(tmp_path, "/srv/locks", LOCKED)
    write_file(tmp_path, LOCKS_5, LOCKED_5)
    if config is not None:
        write_file(tmp_path, PLUGIN_CONFIG, config)
    if program is not None:
        write_file(tmp_path, f"/usr/bin/{program}", "")
        (tmp_path / "usr/bin/dnf").symlink_to(program)
    locks = LockList(HostFS(str(tmp_path), live=True))
    assert locks.path == found
    names = ["nvidia-container-toolkit", "bash"]
    # dnf 5 deletes locks by the names of packages.
    arguments = {None: [], LOCKS_5: ["nvidia-container-toolkit"]}.get(found, [FOUR])
    assert locks.delete_arguments(names) == arguments
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
