# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installs only the base package, and removes none of the others."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES, Package
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import Moment
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.packages import (
    INSTALLED,
    recorded_packages,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import (
    ANYTHING,
    BASE,
    ORIGIN,
    OTHERS,
    FakePackageManager,
    base_package,
    four,
)


def execute(manager: FakePackageManager, check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
    return manager.execute(check_mode, packages="base", **{**ANYTHING, **options})


@pytest.mark.parametrize(
    ("before", "version", "after"),
    [
        ({}, None, "1.20.0-1"),
        ({}, "1.19.1", "1.19.1-2"),
        (base_package("1.18.2-1"), "1.19.10", "1.19.10-1"),
        (base_package("1.20.0-1"), "1.18.2", "1.18.2-1"),
        (four("1.18.2-1"), "1.19.1-1", "1.19.1-1"),
        (four("1.20.0-1"), "1.18.2", "1.18.2-1"),
        (four("1.19.1-1"), "latest", "1.20.0-1"),
        ({**four("1.19.1-1"), BASE: Package("1.19.1-1", complete=False)}, "1.19.1-1", "1.19.1-1"),
        ({PACKAGES[3]: Package("1.18.2-1")}, "1.19.1-1", "1.19.1-1"),
        ({**four("1.19.1-1"), BASE: Package("1.18.2-1")}, None, "1.20.0-1"),
    ],
)
def test_installed_packages_stay_and_get_one_version(
    manager: FakePackageManager, before: dict[str, Package], version: str | None, after: str
) -> None:
    manager.have(before)
    manager.cut_off = any(not package.complete for package in before.values())
    predicted = execute(manager, check_mode=True, version=version)
    assert manager.packages == before
    assert not manager.changes
    result = execute(manager, version=version)
    wanted = dict.fromkeys({BASE, *before}, after)
    assert manager.packages == {name: Package(after) for name in wanted}
    assert all(not change.remove for change in manager.changes)
    if not manager.calls.count("repair"):
        assert [dict(change.install) for change in manager.changes] == [wanted]
    assert (result["changed"], result["version"]) == (True, after.split("-", maxsplit=1)[0])
    assert recorded_packages(manager.task().host) == (() if BASE in before else (BASE,))
    assert predicted["changed"]
    if not manager.calls.count("repair"):
        assert (predicted["diff"], predicted["packages"]) == (result["diff"], result["packages"])
        assert predicted["predicted"]["version"] == result["version"]
    assert result["warnings"] == []
    again = execute(manager, version=version)
    assert not again["changed"]
    assert again["programs"] == result["programs"]


def test_predicted_programs_are_those_of_the_base_package(manager: FakePackageManager) -> None:
    programs = execute(manager, check_mode=True)["predicted"]["programs"]
    assert "/usr/bin/nvidia-cdi-hook" in programs
    assert not {"/usr/bin/nvidia-container-cli", "/usr/bin/nvidia-container-runtime-hook"} & {*programs}


@pytest.mark.parametrize("present", [base_package("1.19.1-1", held=True), four("1.19.1-1", held=True)])
def test_an_unchanged_host_needs_no_calls(manager: FakePackageManager, present: dict[str, Package]) -> None:
    manager.have(present)
    before = manager.snapshot()
    for check_mode in (False, True):
        result = execute(manager, check_mode, version="1.19.1")
        assert (result["changed"], result["version"], result["origin"]) == (False, "1.19.1", None)
    assert manager.calls == []
    assert manager.snapshot() == before


def test_all_packages_come_back(manager: FakePackageManager) -> None:
    manager.have(base_package("1.19.1-1"))
    result = manager.execute(version="1.19.1-1", **ANYTHING)
    assert manager.packages == four("1.19.1-1")
    assert (result["changed"], result["origin"]) == (True, ORIGIN)
    assert recorded_packages(manager.task().host) == tuple(sorted(OTHERS))


def test_removal_of_recorded_packages(manager: FakePackageManager) -> None:
    """Packages that an earlier run installed are removed, also after a run with the base package only."""
    manager.execute(version="1.19.1", **ANYTHING)
    assert not execute(manager, version="1.19.1")["changed"]
    assert set(recorded_packages(manager.task().host)) == {*PACKAGES}
    assert manager.execute(state="absent")["unrecorded"] == []
    assert manager.packages == {}
    manager.have({name: Package("1.19.1-2") for name in OTHERS})
    execute(manager, version="1.19.1")
    result = manager.execute(state="absent")
    assert (set(manager.packages), set(result["unrecorded"])) == ({*OTHERS}, {*OTHERS})
    assert not manager.path(INSTALLED).exists()


@pytest.mark.parametrize("packages", [base_package("1.19.1-1", held=True), four("1.19.1-1", held=True)])
def test_hold(manager: FakePackageManager, packages: dict[str, Package]) -> None:
    manager.have(packages)
    with pytest.raises(HostError, match=f"Held packages must change: .*{BASE}"):
        execute(manager, version="1.20.0")
    assert manager.packages == packages
    changed = execute(manager, version="1.20.0", hold=True)["packages"]
    assert changed == {name: {"version": "1.20.0-1", "held": True} for name in packages}
    assert not execute(manager, version="1.20.0", hold=True)["changed"]


def test_the_list_has_the_moment_of_the_last_installation(
    manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker needs a restart after an installation, but not after an upgrade."""
    moments = [Moment("boot", ticks) for ticks in (9, 8)]
    monkeypatch.setattr(processes, "now", lambda _host: moments.pop())

    def moment() -> Moment | None:
        return processes.recorded_moment(manager.task().host, INSTALLED)

    manager.execute(version="1.18.2", **ANYTHING)
    assert moment() == Moment("boot", 8)
    manager.execute(version="1.19.1", **ANYTHING)
    assert moment() == Moment("boot", 8)
    # Another program removes a package, so the list already names it.
    del manager.packages[OTHERS[0]]
    manager.execute(version="1.19.1", **ANYTHING)
    assert set(recorded_packages(manager.task().host)) == {*PACKAGES}
    assert moment() == Moment("boot", 9)


# -- other sources -----------------------------------------------------------------------------------------------------


def test_files(manager: FakePackageManager) -> None:
    files = manager.base_file("1.19.1-1")
    assert execute(manager, source="files", files=tuple(files))["origin"] == "files"
    assert manager.packages == base_package("1.19.1-1")
    assert not execute(manager, source="files", files=tuple(files))["changed"]
    with pytest.raises(NvidiaError, match="accepts only"):
        execute(manager, source="files", files=tuple(manager.four_files("1.19.1-1")))
    with pytest.raises(NvidiaError, match=f"does not contain {OTHERS[0]}"):
        manager.execute(source="files", files=tuple(manager.base_file("1.19.1-1")), **ANYTHING)
    with pytest.raises(NvidiaError, match=f"on the host, of {BASE}\\."):
        execute(manager, source="files")


@pytest.mark.parametrize("check_mode", [True, False])
def test_files_do_not_separate_installed_packages(manager: FakePackageManager, check_mode: bool) -> None:
    manager.have(four("1.18.2-1"))
    with pytest.raises(HostError, match=f"{', '.join(OTHERS)} must have the same version"):
        execute(manager, check_mode, source="files", files=tuple(manager.base_file("1.19.1-1")))
    assert manager.changes == []
    result = execute(manager, check_mode, source="files", files=tuple(manager.base_file("1.18.2-1")))
    assert (result["changed"], manager.packages) == (False, four("1.18.2-1"))


@pytest.mark.parametrize("present", [base_package("1.19.1-1"), four("1.19.1-1")])
def test_existing(manager: FakePackageManager, present: dict[str, Package]) -> None:
    manager.have(present)
    result = execute(manager, source="existing", version="1.19.1")
    assert (result["changed"], result["version"], result["warnings"]) == (False, "1.19.1", [])
    assert manager.calls == []


def test_existing_lacks_packages(manager: FakePackageManager) -> None:
    manager.have(base_package("1.19.1-1"))
    with pytest.raises(HostError, match=f"The packages {', '.join(OTHERS)} are not installed"):
        manager.execute(source="existing")
    manager.packages = {name: Package("1.19.1-1") for name in OTHERS}
    with pytest.raises(HostError, match=f"The package {BASE} is not installed"):
        execute(manager, source="existing")
    manager.packages = {**base_package("1.19.1-1"), OTHERS[0]: Package("1.18.2-1")}
    with pytest.raises(HostError, match="different versions"):
        execute(manager, source="existing")
