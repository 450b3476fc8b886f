# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A package manager is known in one place: one that exists only here works, and no other code names a manager."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import repository as toolkit_repository
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import names_in_code
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePackageManager

ROOT = Path(__file__).resolve().parents[5]
FOLDER = "/etc/pkg.d"
KEY = f"/etc/pkg-keys/{packages_base.REPOSITORY_NAME}-0123456789ABCDEF.key"


def source_files(host: HostFS) -> list[str]:
    return host.glob(f"{FOLDER}/*.conf")


def entries(_path: str, text: str) -> t.Iterator[packages_base.Entry]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("from "):
            yield packages_base.Entry(number, line[5:])


REPOSITORY = packages_base.Repository(
    files=(f"{FOLDER}/{packages_base.REPOSITORY_NAME}.conf",),
    key_pattern=f"/etc/pkg-keys/{packages_base.REPOSITORY_NAME}-{packages_base.SHORT_FINGERPRINT}.key",
    source_files=source_files,
    entries=entries,
)


class Pkg(FakePackageManager):
    """A manager whose keys are files, and which does not record a required reboot."""

    name = "pkg"
    repository = REPOSITORY
    records_reboot = False

    def repair_command(self, names: t.Sequence[str]) -> str:
        return f"pkg repair {' '.join(names)}"


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pkg:
    """The row of the manager in the registry, and a host of its distribution."""
    found = Pkg(tmp_path)
    found.published = ["1.20.0-1"]
    found.write("/etc/os-release", "ID=example\n")
    found.write("/usr/bin/pkg").chmod(0o755)
    row = detect.Family(("example",), ("pkg",), lambda _host, _run, _timeout: found, REPOSITORY, "/var/lib/pkg")
    monkeypatch.setattr(detect, "FAMILIES", (*detect.FAMILIES, row))
    return found


def files(address: str = "https://mirror.example/pkg") -> tuple[toolkit_repository.RepositoryFile, ...]:
    return (
        toolkit_repository.RepositoryFile(REPOSITORY.source, f"from {address}\n"),
        toolkit_repository.RepositoryFile(KEY, "a key\n"),
    )


def host_of(manager: Pkg) -> HostFS:
    return HostFS(str(manager.root), live=True)


def test_it_is_detected(manager: Pkg) -> None:
    assert detect.detect_package_manager(host_of(manager), manager.run) is manager
    manager.path("/usr/bin/pkg").unlink()
    with pytest.raises(HostError, match="lacks pkg"):
        detect.detect_package_manager(host_of(manager), manager.run)


def test_installation_and_removal_write_its_repository(manager: Pkg) -> None:
    result = manager.execute(repository_files=files())
    # The key comes before the source that needs it.
    assert result["written_files"] == [KEY, REPOSITORY.source]
    assert set(manager.packages) == set(packages_base.PACKAGES)
    assert sorted(packages_sources.own_files(host_of(manager))) == sorted([KEY, REPOSITORY.source])
    assert not manager.execute(repository_files=files())["changed"]
    manager.execute(state="absent")
    assert packages_sources.own_files(host_of(manager)) == []
    assert manager.packages == {}


def test_conflicting_source_is_removed(manager: Pkg) -> None:
    other = manager.write(f"{FOLDER}/nvidia-docker.conf", "from https://nvidia.github.io/nvidia-docker/x\n")
    kept = manager.write(f"{FOLDER}/main.conf", "from https://example.com/main\n")
    manager.execute(repository_files=files())
    assert (other.exists(), kept.exists()) == (False, True)


def test_mixed_source_is_refused_before_a_change(manager: Pkg) -> None:
    mixed = manager.write(
        f"{FOLDER}/all.conf", "from https://example.com/main\nfrom https://nvidia.github.io/nvidia-docker/x\n"
    )
    before = manager.snapshot()
    with pytest.raises(ConfigurationError) as caught:
        manager.execute(repository_files=files())
    assert (caught.value.path, caught.value.line) == (f"{FOLDER}/all.conf", 2)
    assert manager.snapshot() == before
    assert mixed.exists()


def test_a_file_of_no_manager_is_refused_before_a_change(manager: Pkg, monkeypatch: pytest.MonkeyPatch) -> None:
    before = manager.snapshot()
    monkeypatch.setattr(detect, "FAMILIES", detect.FAMILIES[:-1])
    with pytest.raises(NvidiaError, match="is not allowed"):
        manager.execute(repository_files=files())
    assert manager.snapshot() == before


def test_its_facts_reach_messages(manager: Pkg) -> None:
    assert packages_base.reboot_required(host_of(manager), manager) is None
    assert manager.repair_command(["a", "b"]) == "pkg repair a b"


# -- names of managers in other code ------------------------------------------------------------------------------

NAMES = {"apt", "dnf", "zypper", "yum", "rpm", "dpkg"}
# The files of the managers, and the files that may name a program because they run it.
ALLOWED = {
    "plugins/module_utils/_packages/apt.py",
    "plugins/module_utils/_packages/dnf.py",
    "plugins/module_utils/_packages/rpm.py",
    "plugins/module_utils/_packages/zypper.py",
    "plugins/module_utils/_toolkit/packages/rpm_keys.py",
}


@pytest.mark.parametrize("text", ['x == "apt"', '{"dnf": 1}', '("apt", "dnf")', 'x in ["zypper"]'])
def test_names_are_found(text: str) -> None:
    assert names_in_code.lines_with(NAMES, text)


@pytest.mark.one_python
def test_only_the_registry_names_managers() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "plugins/module_utils").rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in ALLOWED
        for line in names_in_code.lines_with(NAMES, path.read_text(encoding="utf-8"))
    ]
    # The programs of each family, by which detect finds out whether the manager is complete.
    assert {entry.rpartition(":")[0] for entry in found} <= {"plugins/module_utils/_packages/detect.py"}, found
