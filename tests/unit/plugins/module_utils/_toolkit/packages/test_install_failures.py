# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES, Package
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import World, four

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS


# -- failed and interrupted transactions -------------------------------------------------------------------------------


def test_transaction_that_changes_nothing(world: World) -> None:
    world.failures["apply"] = "E: no space"
    with pytest.raises(HostError, match=r"E: no space. The packages are unchanged"):
        world.execute(version="1.20.0")
    # No record remains if nothing was installed.
    assert not world.path("/var/lib/gpufleet-nvidia").exists()


def test_next_run_completes_a_failed_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        world.break_off(patch)
        with pytest.raises(
            HostError, match=rf"{PACKAGES[1]} 1.20.0-1 \(half installed\).*The next run completes"
        ) as half:
            world.execute(version="1.20.0")
    assert half.value.details == {"changed": True}
    world.calls.clear()
    predicted = world.execute(check_mode=True, version="1.20.0")
    assert predicted["changed"]
    assert "repair" not in world.calls
    result = world.execute(version="1.20.0")
    assert world.packages == four("1.20.0-1")
    assert result["changed"]
    assert "repair" in world.calls
    assert not world.execute(version="1.20.0")["changed"]


def test_completes_own_interrupted_transaction_first(world: World) -> None:
    world.have({**four("1.20.0-1"), PACKAGES[0]: Package("1.20.0-1", complete=False)})
    world.cut_off = True
    assert world.execute(check_mode=True)["changed"]
    assert world.execute(version="1.20.0")["changed"]
    assert world.calls == ["repair", "candidates"]


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize("options", [{"version": "1.20.0"}, {"state": "absent"}])
def test_packages_that_cannot_change(world: World, check_mode: bool, options: dict[str, str]) -> None:
    world.have(four("1.19.1-1"))
    world.can_change = False
    before = world.snapshot()
    with pytest.raises(HostError, match="cannot change"):
        world.execute(check_mode, **options)
    assert (world.snapshot(), world.calls) == (before, [])
    # The installed packages can still be used.
    assert not world.execute(check_mode, source="existing")["changed"]


def test_reads_state_again_under_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    take = lock.host_lock

    def late(host: HostFS) -> t.Any:
        world.have(four("1.20.0-1"))
        return take(host)

    monkeypatch.setattr(lock, "host_lock", late)
    assert not world.execute(version="1.20.0")["changed"]
    assert world.changes == []


def test_checks_containers_again_under_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: list(found))

    take = lock.host_lock

    def late(host: HostFS) -> t.Any:
        found[:] = ["docker/0123"]
        return take(host)

    monkeypatch.setattr(lock, "host_lock", late)
    with pytest.raises(HostError, match="docker/0123"):
        world.execute(version="1.20.0")
    assert world.calls == []
    warned = world.execute(version="1.20.0", running_gpu_containers="warn")
    assert len(warned["warnings"]) == 1


def test_rejects_version_mismatch_after_installation(world: World) -> None:
    world.program_versions["nvidia-ctk"] = "1.17.0"
    with pytest.raises(HostError, match=r"nvidia-ctk has version 1\.17\.0"):
        world.execute(version="1.20.0")
    assert world.packages == four("1.20.0-1")


def test_rejects_version_mismatch(world: World) -> None:
    world.have(four("1.20.0-1"))
    world.program_versions["nvidia-ctk"] = "1.17.0"
    with pytest.raises(HostError, match=r"have other versions: /usr/bin/nvidia-ctk has version 1\.17\.0"):
        world.execute()
    with pytest.raises(
        HostError, match=r"incomplete or has several versions: /usr/bin/nvidia-ctk has version 1\.17\.0"
    ):
        world.execute(source="existing")
    # In check mode, earlier tasks of the play have not fixed the problem yet.
    assert len(world.execute(check_mode=True, source="existing")["warnings"]) == 1


# -- outdated package lists --------------------------------------------------------------------------------------------

GONE = "E: Failed to fetch https://x/nvidia-container-toolkit_1.20.0-1_amd64.deb  404  Not Found"


def test_fetches_lists_again_for_removed_packages(world: World) -> None:
    world.failures_once["apply"] = GONE
    world.published = ["1.21.0-1"]
    assert world.execute()["version"] == "1.21.0"
    first = ["candidates", "preview", "apply"]
    assert world.calls == [*first, "refresh", *first]


def test_fetches_lists_again_once(world: World) -> None:
    world.failures["apply"] = GONE
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        world.execute(version="1.20.0")
    assert world.calls.count("apply") == 2
    world.calls.clear()
    # The list of the collection's repository was fetched already.
    world.failures["refresh everything"] = "E: another source is broken"
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        world.execute(version="1.20.0", pending=True)
    assert world.calls == ["refresh", "candidates", "preview", "apply", "refresh everything"]


def test_reports_first_failure_if_new_lists_lack_the_version(world: World) -> None:
    world.failures_once["apply"] = GONE
    world.published = []
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        world.execute(version="1.20.0")
    assert world.calls.count("apply") == 1


@pytest.mark.parametrize("source", ["repository", "files"])
def test_does_not_retry_other_failures(world: World, source: str) -> None:
    files = tuple(world.four_files("1.20.0-1")) if source == "files" else ()
    world.failures["apply"] = "E: no space" if source == "repository" else GONE
    with pytest.raises(HostError):
        world.execute(source=source, files=files)
    assert world.calls.count("apply") == 1


# -- late failures -----------------------------------------------------------------------------------------------------


def test_late_failure_reports_change(world: World) -> None:
    world.failures["hold"] = "E: apt-mark"
    with pytest.raises(HostError, match="apt-mark") as caught:
        world.execute(version="1.20.0", hold=True)
    assert caught.value.details == {"changed": True}
    world.have(four("1.20.0-1"))
    with pytest.raises(HostError, match="apt-mark") as caught:
        world.execute(version="1.20.0", hold=True)
    assert caught.value.details == {"changed": False}
    world.program_versions["nvidia-ctk"] = "1.17.0"
    with pytest.raises(HostError, match="have other versions") as caught:
        world.execute(version="1.19.1")
    assert caught.value.details == {"changed": True}


# -- interrupted transactions of others --------------------------------------------------------------------------------


def test_ignores_interrupted_transaction_if_nothing_changes(world: World) -> None:
    world.have(four("1.20.0-1"))
    world.cut_off = True
    for check_mode in (True, False):
        assert not world.execute(check_mode, version="1.20.0")["changed"]
        assert not world.execute(check_mode, version="latest")["changed"]
    assert "repair" not in world.calls
    world.execute(version="1.20.0", hold=True)
    assert world.packages == four("1.20.0-1", held=True)


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("options", [{"version": "1.20.0"}, {"state": "absent"}])
def test_refuses_foreign_interrupted_transaction(world: World, check_mode: bool, options: dict[str, t.Any]) -> None:
    world.have(four("1.19.1-1"))
    world.cut_off = True
    before = world.snapshot()
    with pytest.raises(HostError, match="Other packages are pending"):
        world.execute(check_mode, **options)
    assert (world.calls, world.snapshot()) == ([], before)


def test_refuses_foreign_interrupted_transaction_with_latest(world: World) -> None:
    world.have(four("1.19.1-1"))
    world.cut_off = True
    with pytest.raises(HostError, match="Other packages are pending"):
        world.execute(version="latest")
    assert "repair" not in world.calls
    assert world.packages == four("1.19.1-1")


def test_completes_half_installed_former_package(world: World) -> None:
    world.have({"nvidia-docker2": Package("2.13.0-1", complete=False)})
    world.cut_off = True
    assert world.execute(check_mode=True, version="1.20.0")["changed"]
    assert world.calls == []
    world.execute(version="1.20.0")
    assert (world.calls[0], world.packages) == ("repair", four("1.20.0-1"))


def test_waits_for_running_package_manager(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.have({**four("1.20.0-1"), PACKAGES[0]: Package("1.20.0-1", complete=False)})

    def interrupted() -> bool:
        world.have(four("1.20.0-1"))
        return False

    monkeypatch.setattr(world, "interrupted", interrupted)
    assert world.execute(version="1.20.0")["version"] == "1.20.0"
    assert (world.changes, "repair" in world.calls) == ([], False)
