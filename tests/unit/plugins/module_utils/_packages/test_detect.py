# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.detect import (
    FAMILIES,
    detect_package_manager,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.os_release import distribution_of
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import write_file

if t.TYPE_CHECKING:
    from pathlib import Path


def run(_argv: list[str]) -> tuple[int, str, str]:
    raise AssertionError("nothing is run to find the package manager")


def tree(root: Path, os_release: str, programs: t.Iterable[str] = (), path: str = "etc/os-release") -> HostFS:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(os_release)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    for name in programs:
        (root / "usr/bin" / name).write_text("")
        (root / "usr/bin" / name).chmod(0o755)
    return HostFS(str(root), live=True)


EVERY_PROGRAM = [program for family in FAMILIES for program in family.programs]


@pytest.mark.parametrize(
    ("os_release", "name"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n', "apt"),
        ("ID=ubuntu\nID_LIKE=debian\n", "apt"),
        ('ID=pop\nID_LIKE="ubuntu debian"\n', "apt"),
        ("ID=linuxmint\nID_LIKE=ubuntu\n", "apt"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf"),
        ("ID='fedora'\n", "dnf"),
        ('ID="amzn"\nID_LIKE="fedora"\n', "dnf"),
        ("ID=RHEL\n", "dnf"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "zypper"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', "zypper"),
        ('ID="sles"\nID_LIKE="suse"\n', "zypper"),
        ('ID="sl-micro"\nID_LIKE="suse"\n', "zypper"),
        ("ID=arch\n", None),
        ("", None),
        ("# ID=debian\nnothing\n", None),
    ],
)
def test_package_manager_of_distribution(tmp_path: Path, os_release: str, name: str | None) -> None:
    found = detect_package_manager(tree(tmp_path, os_release, EVERY_PROGRAM), run)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    "os_release",
    ['ID="openEuler"\nVERSION_ID="22.03"\n', "ID=azurelinux\n", 'ID="kylin"\nVERSION_ID="V10"\n', "ID=mariner\n", ""],
)
def test_unknown_distribution_has_the_manager_that_is_installed(tmp_path: Path, os_release: str) -> None:
    host = tree(tmp_path, os_release, EVERY_PROGRAM[: -len(FAMILIES[-1].programs)])
    # A tool, and not what manages this host.
    assert detect_package_manager(host, run) is None
    write_file(tmp_path, "/var/lib/dpkg/status", "")
    write_file(tmp_path, "/var/lib/rpm/rpmdb.sqlite", "")
    found = detect_package_manager(host, run)
    assert found is not None
    assert found.name == "dnf"


def test_unknown_distribution_with_dpkg(tmp_path: Path) -> None:
    write_file(tmp_path, "/var/lib/dpkg/info/dpkg.list", "/usr/bin/dpkg\n")
    found = detect_package_manager(tree(tmp_path, "ID=kylin\n", EVERY_PROGRAM), run)
    assert found is not None
    assert found.name == "apt"


def test_unknown_distribution_with_several_managers_or_none(tmp_path: Path) -> None:
    write_file(tmp_path, "/var/lib/rpm/rpmdb.sqlite", "")
    assert detect_package_manager(tree(tmp_path, "ID=openEuler\n", ["apt-get"]), run) is None
    assert detect_package_manager(tree(tmp_path, "ID=openEuler\n", ["dnf", "rpm", "zypper"]), run) is None


def test_known_distribution_may_have_the_tools_of_others(tmp_path: Path) -> None:
    found = detect_package_manager(tree(tmp_path, "ID=debian\n", EVERY_PROGRAM), run)
    assert found is not None
    assert found.name == "apt"


def test_other_path_of_os_release(tmp_path: Path) -> None:
    found = detect_package_manager(tree(tmp_path, "ID=debian\n", EVERY_PROGRAM, "usr/lib/os-release"), run)
    assert found is not None
    assert distribution_of(HostFS(str(tmp_path), live=True)) == ["debian"]


def test_missing_programs(tmp_path: Path) -> None:
    host = tree(tmp_path, "ID=debian\n", [name for name in EVERY_PROGRAM if name not in ("apt-mark", "dpkg")])
    with pytest.raises(HostError, match="This host runs debian, but lacks apt-mark, dpkg"):
        detect_package_manager(host, run)
    # An offline tree needs no programs.
    assert detect_package_manager(host._replace(live=False), run) is not None


def test_lock_timeout(tmp_path: Path) -> None:
    found: t.Any = detect_package_manager(tree(tmp_path, "ID=debian\n", EVERY_PROGRAM), run, 7)
    assert found.lock_timeout == 7
