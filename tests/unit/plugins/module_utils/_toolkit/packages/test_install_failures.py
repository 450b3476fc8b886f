# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import (
    PACKAGES,
    Change,
    CommandError,
    Package,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePackageManager, four

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS


# -- failed and interrupted transactions -------------------------------------------------------------------------------


def test_transaction_that_changes_nothing(manager: FakePackageManager) -> None:
    manager.failures["apply"] = "E: no space"
    with pytest.raises(HostError, match=r"E: no space. The packages are unchanged"):
        manager.execute(version="1.20.0")
    # No record remains if nothing was installed.
    assert not manager.path("/var/lib/gpufleet-nvidia").exists()


def test_next_run_completes_a_failed_transaction(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        manager.break_off(patch)
        with pytest.raises(
            HostError, match=rf"{PACKAGES[1]} 1.20.0-1 \(half installed\).*The next run completes"
        ) as half:
            manager.execute(version="1.20.0")
    assert half.value.details == {"changed": True}
    manager.calls.clear()
    predicted = manager.execute(check_mode=True, version="1.20.0")
    assert predicted["changed"]
    assert "repair" not in manager.calls
    result = manager.execute(version="1.20.0")
    assert manager.packages == four("1.20.0-1")
    assert result["changed"]
    assert "repair" in manager.calls
    assert not manager.execute(version="1.20.0")["changed"]


def test_completes_own_interrupted_transaction_first(manager: FakePackageManager) -> None:
    manager.have({**four("1.20.0-1"), PACKAGES[0]: Package("1.20.0-1", complete=False)})
    manager.cut_off = True
    assert manager.execute(check_mode=True)["changed"]
    assert manager.execute(version="1.20.0")["changed"]
    assert manager.calls == ["repair", "candidates"]


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize("options", [{"version": "1.20.0"}, {"state": "absent"}])
def test_packages_that_cannot_change(manager: FakePackageManager, check_mode: bool, options: dict[str, str]) -> None:
    manager.have_installed(four("1.19.1-1"))
    manager.can_change = False
    before = manager.snapshot()
    with pytest.raises(HostError, match="cannot change"):
        manager.execute(check_mode, **options)
    assert (manager.snapshot(), manager.calls) == (before, [])
    # The installed packages can still be used.
    assert not manager.execute(check_mode, source="existing")["changed"]


def test_reads_state_again_under_the_lock(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    take = lock.host_lock

    def late(host: HostFS) -> t.Any:
        manager.have(four("1.20.0-1"))
        return take(host)

    monkeypatch.setattr(lock, "host_lock", late)
    assert not manager.execute(version="1.20.0")["changed"]
    assert manager.changes == []


def test_checks_containers_again_under_the_lock(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: list(found))

    take = lock.host_lock

    def late(host: HostFS) -> t.Any:
        found[:] = ["docker/0123"]
        return take(host)

    monkeypatch.setattr(lock, "host_lock", late)
    with pytest.raises(HostError, match="docker/0123"):
        manager.execute(version="1.20.0")
    assert manager.calls == []
    warned = manager.execute(version="1.20.0", running_gpu_containers="warn")
    assert len(warned["warnings"]) == 1


def test_rejects_version_mismatch_after_installation(manager: FakePackageManager) -> None:
    manager.program_versions["nvidia-ctk"] = "1.17.0"
    with pytest.raises(HostError, match=r"nvidia-ctk has version 1\.17\.0"):
        manager.execute(version="1.20.0")
    assert manager.packages == four("1.20.0-1")


def test_rejects_version_mismatch(manager: FakePackageManager) -> None:
    manager.have(four("1.20.0-1"))
    manager.program_versions["nvidia-ctk"] = "1.17.0"
    with pytest.raises(HostError, match=r"have other versions: /usr/bin/nvidia-ctk has version 1\.17\.0"):
        manager.execute()
    with pytest.raises(
        HostError, match=r"incomplete or has several versions: /usr/bin/nvidia-ctk has version 1\.17\.0"
    ):
        manager.execute(source="existing")
    # In check mode, earlier tasks of the play have not fixed the problem yet.
    assert len(manager.execute(check_mode=True, source="existing")["warnings"]) == 1


# -- outdated package lists --------------------------------------------------------------------------------------------

GONE = "E: Failed to fetch https://x/nvidia-container-toolkit_1.20.0-1_amd64.deb  404  Not Found"


def test_fetches_lists_again_for_removed_packages(manager: FakePackageManager) -> None:
    manager.failures_once["apply"] = GONE
    manager.published = ["1.21.0-1"]
    assert manager.execute()["version"] == "1.21.0"
    first = ["candidates", "preview", "apply"]
    assert manager.calls == [*first, "refresh", *first]


def test_fetches_lists_again_once(manager: FakePackageManager) -> None:
    manager.failures["apply"] = GONE
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        manager.execute(version="1.20.0")
    assert manager.calls.count("apply") == 2
    manager.calls.clear()
    # The list of the collection's repository was fetched already.
    manager.failures["refresh everything"] = "E: another source is broken"
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        manager.execute(version="1.20.0", pending=True)
    assert manager.calls == ["refresh", "candidates", "preview", "apply", "refresh everything"]


def test_fetches_no_list_twice_in_a_row(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    def withdrawn(_change: Change) -> None:
        manager.published = []
        raise CommandError("apply", [GONE], "")

    monkeypatch.setattr(manager, "apply", withdrawn)
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        manager.execute(version="1.20.0", pending=True)
    assert manager.calls == ["refresh", "candidates", "preview", "refresh everything", "candidates"]


def test_reports_first_failure_if_packages_become_unreadable(
    manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_names: object) -> t.NoReturn:
        raise HostError("rpmdb is damaged.")

    def full(_change: Change) -> None:
        monkeypatch.setattr(manager, "installed", damaged)
        raise CommandError("apply", ["E: no space"], "")

    monkeypatch.setattr(manager, "apply", full)
    with pytest.raises(HostError, match=r"no space\. rpmdb is damaged\. The previous .* could not be restored: rpmdb"):
        manager.execute(version="1.20.0")


def test_reports_first_failure_if_new_lists_lack_the_version(manager: FakePackageManager) -> None:
    manager.failures_once["apply"] = GONE
    manager.published = []
    with pytest.raises(HostError, match=r"404 .*unchanged"):
        manager.execute(version="1.20.0")
    assert manager.calls.count("apply") == 1


@pytest.mark.parametrize("source", ["repository", "files"])
def test_does_not_retry_other_failures(manager: FakePackageManager, source: str) -> None:
    files = tuple(manager.four_files("1.20.0-1")) if source == "files" else ()
    manager.failures["apply"] = "E: no space" if source == "repository" else GONE
    with pytest.raises(HostError):
        manager.execute(source=source, files=files)
    assert manager.calls.count("apply") == 1


# -- late failures -----------------------------------------------------------------------------------------------------


def test_late_failure_reports_change(manager: FakePackageManager) -> None:
    manager.failures["hold"] = "E: apt-mark"
    with pytest.raises(HostError, match="apt-mark") as caught:
        manager.execute(version="1.20.0", hold=True)
    assert caught.value.details == {"changed": True}
    manager.have(four("1.20.0-1"))
    with pytest.raises(HostError, match="apt-mark") as caught:
        manager.execute(version="1.20.0", hold=True)
    assert caught.value.details == {"changed": False}
    manager.program_versions["nvidia-ctk"] = "1.17.0"
    with pytest.raises(HostError, match="have other versions") as caught:
        manager.execute(version="1.19.1")
    assert caught.value.details == {"changed": True}


# -- interrupted transactions of others --------------------------------------------------------------------------------


def test_ignores_interrupted_transaction_if_nothing_changes(manager: FakePackageManager) -> None:
    manager.have(four("1.20.0-1"))
    manager.cut_off = True
    for check_mode in (True, False):
        assert not manager.execute(check_mode, version="1.20.0")["changed"]
        assert not manager.execute(check_mode, version="latest")["changed"]
    assert "repair" not in manager.calls
    manager.execute(version="1.20.0", hold=True)
    assert manager.packages == four("1.20.0-1", held=True)


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("options", [{"version": "1.20.0"}, {"state": "absent"}])
def test_refuses_foreign_interrupted_transaction(
    manager: FakePackageManager, check_mode: bool, options: dict[str, t.Any]
) -> None:
    manager.have_installed(four("1.19.1-1"))
    manager.cut_off = True
    before = manager.snapshot()
    with pytest.raises(HostError, match="Other packages are pending"):
        manager.execute(check_mode, **options)
    assert (manager.calls, manager.snapshot()) == ([], before)


def test_refuses_foreign_interrupted_transaction_with_latest(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    manager.cut_off = True
    with pytest.raises(HostError, match="Other packages are pending"):
        manager.execute(version="latest")
    assert "repair" not in manager.calls
    assert manager.packages == four("1.19.1-1")


def test_completes_half_installed_former_package(manager: FakePackageManager) -> None:
    manager.have({"nvidia-docker2": Package("2.13.0-1", complete=False)})
    manager.cut_off = True
    assert manager.execute(check_mode=True, version="1.20.0")["changed"]
    assert manager.calls == []
    manager.execute(version="1.20.0")
    assert (manager.calls[0], manager.packages) == ("repair", four("1.20.0-1"))


def test_waits_for_running_package_manager(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.have({**four("1.20.0-1"), PACKAGES[0]: Package("1.20.0-1", complete=False)})

    def interrupted() -> bool:
        manager.have(four("1.20.0-1"))
        return False

    monkeypatch.setattr(manager, "interrupted", interrupted)
    assert manager.execute(version="1.20.0")["version"] == "1.20.0"
    assert (manager.changes, "repair" in manager.calls) == ([], False)
