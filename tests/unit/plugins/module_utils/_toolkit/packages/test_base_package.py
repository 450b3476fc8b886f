# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installs only the base package, removes the other packages, and keeps them while NVIDIA's hook is in use."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES, Package, Preview
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers as systemd_gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import Moment
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE
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

DAEMON_JSON = "/etc/docker/daemon.json"
LEGACY_MODE = '[nvidia-container-runtime]\nmode = "legacy"\n'


def execute(manager: FakePackageManager, check_mode: bool = False, **options: t.Any) -> dict[str, t.Any]:
    return manager.execute(check_mode, packages="base", **{**ANYTHING, **options})


def use_hook(manager: FakePackageManager, program: str = "/usr/bin/nvidia-container-runtime.legacy") -> None:
    """Register a runtime with Docker. By default it always needs the hook."""
    manager.write(DAEMON_JSON, json.dumps({"runtimes": {"nvidia-legacy": {"path": program}}}))


@pytest.mark.parametrize(
    ("before", "version", "after"),
    [
        ({}, None, "1.20.0-1"),
        ({}, "1.19.1", "1.19.1-2"),
        (base_package("1.18.2-1"), "1.19.10", "1.19.10-1"),
        (base_package("1.20.0-1"), "1.18.2", "1.18.2-1"),
        (four("1.18.2-1"), "1.19.1-1", "1.19.1-1"),
        (four("1.20.0-1"), "1.18.2", "1.18.2-1"),
        (four("1.19.1-1"), None, "1.19.1-1"),
        (four("1.19.1-1"), "latest", "1.20.0-1"),
        ({**four("1.19.1-1"), BASE: Package("1.19.1-1", complete=False)}, "1.19.1-1", "1.19.1-1"),
        ({PACKAGES[3]: Package("1.18.2-1")}, "1.19.1-1", "1.19.1-1"),
        # A package that is removed is not downgraded.
        ({PACKAGES[3]: Package("1.21.0-1")}, None, "1.20.0-1"),
        ({PACKAGES[3]: Package("1.21.0-1")}, "latest", "1.20.0-1"),
    ],
)
def test_only_the_base_package_is_left(
    manager: FakePackageManager, before: dict[str, Package], version: str | None, after: str
) -> None:
    manager.have(before)
    manager.cut_off = any(not package.complete for package in before.values())
    predicted = execute(manager, check_mode=True, version=version)
    assert manager.packages == before
    assert not manager.changes
    result = execute(manager, version=version)
    assert manager.packages == base_package(after)
    assert [(dict(c.install), set(c.remove)) for c in manager.changes] == [({BASE: after}, {*before} & {*OTHERS})]
    assert (result["changed"], result["version"]) == (True, after.split("-", maxsplit=1)[0])
    assert set(result["programs"]) == {"nvidia-container-runtime", "nvidia-ctk"}
    assert predicted["changed"]
    if not manager.calls.count("repair"):
        assert (predicted["diff"], predicted["packages"]) == (result["diff"], result["packages"])
        assert predicted["predicted"]["version"] == result["version"]
    assert result["kept_packages"] == predicted["kept_packages"] == result["warnings"] == []
    again = execute(manager, version=version)
    assert not again["changed"]
    assert again["programs"] == result["programs"]


def test_predicted_programs_are_those_of_the_base_package(manager: FakePackageManager) -> None:
    programs = execute(manager, check_mode=True)["predicted"]["programs"]
    assert "/usr/bin/nvidia-cdi-hook" in programs
    assert not {"/usr/bin/nvidia-container-cli", "/usr/bin/nvidia-container-runtime-hook"} & {*programs}


def test_an_unchanged_host_needs_no_calls(manager: FakePackageManager) -> None:
    manager.have(base_package("1.19.1-1", held=True))
    use_hook(manager)
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
    assert (result["changed"], result["origin"], result["kept_packages"]) == (True, ORIGIN, [])
    assert recorded_packages(manager.task().host) == tuple(sorted(OTHERS))


def test_configuration_files_of_removed_packages_are_purged(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    manager.configured_only = [OTHERS[0], "nvidia-docker2"]
    execute(manager)
    assert [change.remove for change in manager.changes] == [OTHERS, OTHERS[:1]]


def test_record(manager: FakePackageManager) -> None:
    """A package that the change removes is no longer recorded, so that a later one of the user stays."""
    manager.execute(version="1.19.1", **ANYTHING)
    assert set(recorded_packages(manager.task().host)) == {*PACKAGES}
    execute(manager, version="1.19.1")
    assert recorded_packages(manager.task().host) == (BASE,)
    manager.have(four("1.19.1-2"))
    result = manager.execute(state="absent")
    assert (set(manager.packages), set(result["unrecorded"])) == ({*OTHERS}, {*OTHERS})
    assert not manager.path(INSTALLED).exists()


def test_a_run_ahead_of_the_task_stops_before_the_change(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    with changes.refuse_changes():
        with pytest.raises(changes.ChangeRefusedError):
            execute(manager)
        use_hook(manager)
        assert execute(manager)["warnings"]
    assert manager.changes == []


# -- packages that stay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [True, False])
def test_packages_stay_while_the_hook_is_in_use(manager: FakePackageManager, check_mode: bool) -> None:
    manager.have(four("1.19.1-1"))
    use_hook(manager)
    result = execute(manager, check_mode, version="1.19.1")
    assert manager.packages == four("1.19.1-1")
    assert (manager.changes, result["changed"]) == ([], False)
    assert result["kept_packages"] == list(OTHERS)
    (warning,) = result["warnings"]
    assert "docker (nvidia-legacy)" in warning
    assert "nvidia-container-runtime-hook" in result["programs"]


def test_kept_packages_get_the_version_of_the_base_package(manager: FakePackageManager) -> None:
    manager.have(four("1.18.2-1"))
    use_hook(manager)
    predicted = execute(manager, check_mode=True, version="1.19.1-1")
    result = execute(manager, version="1.19.1-1")
    assert manager.packages == four("1.19.1-1")
    assert (result["changed"], result["kept_packages"]) == (True, list(OTHERS))
    assert len(result["warnings"]) == 1
    assert (predicted["packages"], predicted["kept_packages"]) == (result["packages"], list(OTHERS))
    assert not execute(manager, version="1.19.1-1")["changed"]


def test_packages_go_when_nothing_uses_the_hook_any_more(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    use_hook(manager)
    assert not execute(manager)["changed"]
    use_hook(manager, "/usr/bin/nvidia-container-runtime.cdi")
    assert execute(manager)["changed"]
    assert manager.packages == base_package("1.19.1-1")
    # The hook is not installed again for a later user.
    use_hook(manager)
    result = execute(manager)
    assert (result["changed"], result["kept_packages"], manager.packages) == (False, [], base_package("1.19.1-1"))


@pytest.mark.parametrize(
    ("installed", "version", "kept"),
    [
        # auto is legacy before 1.18. The version after the change decides.
        ("1.17.8-1", "1.20.0", False),
        ("1.19.1-1", "1.17.8", True),
        ("1.17.8-1", None, True),
        # The newest version is not known before, so the next run removes the packages.
        ("1.17.8-1", "latest", True),
        ("1.18.2-1", "latest", False),
    ],
)
def test_version_decides_about_mode_auto(
    manager: FakePackageManager, installed: str, version: str | None, kept: bool
) -> None:
    manager.listed = manager.published = ["1.20.0-1", "1.18.2-1", "1.17.8-1"]
    manager.have(four(installed))
    use_hook(manager, "nvidia-container-runtime")
    result = execute(manager, version=version)
    assert result["kept_packages"] == (list(OTHERS) if kept else [])
    assert set(manager.packages) == ({*PACKAGES} if kept else {BASE})
    if version == "latest":
        assert execute(manager, version=version)["kept_packages"] == []
        assert set(manager.packages) == {BASE}


def test_oldest_package_decides_if_no_version_is_requested(manager: FakePackageManager) -> None:
    manager.have({**four("1.19.1-1"), BASE: Package("1.17.8-1")})
    use_hook(manager, "nvidia-container-runtime")
    assert execute(manager)["kept_packages"] == list(OTHERS)


@pytest.mark.parametrize(
    ("present", "planned", "kept"),
    [("", "auto", False), ("", "legacy", True), (LEGACY_MODE, "auto", True), (LEGACY_MODE, None, True)],
)
def test_mode_that_the_task_writes(manager: FakePackageManager, present: str, planned: str | None, kept: bool) -> None:
    manager.have(four("1.19.1-1"))
    manager.write(CONFIG_FILE, present)
    use_hook(manager, "/usr/bin/nvidia-container-runtime")
    assert bool(execute(manager, planned_mode=planned)["kept_packages"]) is kept


def test_hold(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1", held=True))
    with pytest.raises(HostError, match=f"Held packages must change: {', '.join(OTHERS)}"):
        execute(manager)
    assert manager.packages == four("1.19.1-1", held=True)
    assert execute(manager, hold=True)["packages"] == {BASE: {"version": "1.19.1-1", "held": True}}
    assert not execute(manager, hold=True)["changed"]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_another_package_needs_the_packages(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    manager.side_effects = Preview(remove=("bystander",))
    with pytest.raises(HostError, match="would also remove bystander"):
        execute(manager)
    assert manager.packages == four("1.19.1-1")


@pytest.mark.parametrize("check_mode", [True, False])
def test_containers_of_the_hook(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch, check_mode: bool) -> None:
    monkeypatch.setattr(systemd_gpu_containers, "legacy_gpu_containers", lambda _host: ["docker/0123456789ab"])
    manager.have(four("1.19.1-1"))
    with pytest.raises(HostError, match="docker/0123456789ab"):
        execute(manager, check_mode)
    assert manager.packages == four("1.19.1-1")
    assert execute(manager, check_mode, running_gpu_containers="warn")["gpu_containers"] == ["docker/0123456789ab"]


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


def test_failed_transaction(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    manager.failures["apply"] = "E: the disk is full"
    with pytest.raises(HostError, match=r"the disk is full.*The packages are unchanged") as caught:
        execute(manager)
    assert caught.value.details["changed"] is False
    assert recorded_packages(manager.task().host) == ()


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


def test_files_remove_the_other_packages(manager: FakePackageManager) -> None:
    manager.have(four("1.18.2-1"))
    execute(manager, source="files", files=tuple(manager.base_file("1.19.1-1")))
    assert manager.packages == base_package("1.19.1-1")


@pytest.mark.parametrize("check_mode", [True, False])
def test_files_do_not_separate_kept_packages(manager: FakePackageManager, check_mode: bool) -> None:
    manager.have(four("1.18.2-1"))
    use_hook(manager)
    with pytest.raises(HostError, match=r"docker \(nvidia-legacy\)"):
        execute(manager, check_mode, source="files", files=tuple(manager.base_file("1.19.1-1")))
    assert manager.changes == []
    result = execute(manager, check_mode, source="files", files=tuple(manager.base_file("1.18.2-1")))
    assert (result["changed"], result["kept_packages"]) == (False, list(OTHERS))


@pytest.mark.parametrize("present", [base_package("1.19.1-1"), four("1.19.1-1")])
def test_existing(manager: FakePackageManager, present: dict[str, Package]) -> None:
    manager.have(present)
    use_hook(manager)
    result = execute(manager, source="existing", version="1.19.1")
    assert (result["changed"], result["version"], result["warnings"]) == (False, "1.19.1", [])
    assert (result["kept_packages"], manager.calls) == ([], [])


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


def test_removal(manager: FakePackageManager) -> None:
    execute(manager)
    assert manager.execute(state="absent")["changed"]
    assert manager.packages == {}
    manager.have_installed(four("1.19.1-1"))
    use_hook(manager)
    execute(manager, state="absent")
    assert manager.packages == {}
