# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, record_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import PACKAGES as OWNER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import (
    TOOLKIT,
    OriginalFile,
    load_record,
    record_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES, Package, Preview
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE, PACKAGE_CACHE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.packages import InstallOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.remove import Removal
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePackageManager, four

if t.TYPE_CHECKING:
    from pathlib import Path


def test_nothing_to_remove(manager: FakePackageManager) -> None:
    assert not manager.execute(state="absent", package_cache=PACKAGE_CACHE)["changed"]
    assert manager.calls == []


def test_installation_and_removal(manager: FakePackageManager) -> None:
    manager.write("/etc/hostname", "x\n")
    manager.write("/usr/bin/true")
    manager.write("/run/other")
    manager.path("/etc/apt").mkdir()
    before = manager.snapshot()
    manager.execute(hold=True)
    standing = manager.snapshot()
    predicted = manager.execute(check_mode=True, state="absent")
    assert manager.snapshot() == standing
    manager.calls.clear()
    result = manager.execute(state="absent")
    assert manager.calls == ["preview", "unhold", "apply"]
    assert result["diff"] == predicted["diff"]
    assert (result["changed"], predicted["changed"], result["packages"]) == (True, True, {})
    (backup,) = result["backup_files"]
    assert (backup["path"], backup["checksum"]) == (CONFIG_FILE, "absent")
    assert manager.path(backup["backup"]).read_text() == "disable-require = false\n"
    left = {path: content for path, content in manager.snapshot().items() if "backups" not in path}
    assert left == {**before, "var": None, "var/lib": None, "var/lib/gpufleet-nvidia": None}
    assert not manager.execute(state="absent")["changed"]


def test_purges_leftover_configuration(manager: FakePackageManager) -> None:
    manager.configured_only = list(PACKAGES[:2])
    toolkit_packages.record_packages(manager.host, PACKAGES[:1], renew=False)
    assert manager.execute(state="absent")["changed"]
    assert [change.remove for change in manager.changes] == [(PACKAGES[0],)]
    assert not manager.execute(state="absent")["changed"]


def test_keeps_former_packages(manager: FakePackageManager) -> None:
    manager.have({"nvidia-docker2": Package("2.13.0-1")})
    assert not manager.execute(state="absent")["changed"]
    assert "nvidia-docker2" in manager.packages


@pytest.mark.parametrize("check_mode", [True, False])
def test_refuses_to_remove_other_packages(manager: FakePackageManager, check_mode: bool) -> None:
    manager.have_installed(four("1.20.0-1", held=True))
    manager.side_effects = Preview(remove=("gpufleet-bystander",))
    with pytest.raises(HostError, match="would also remove gpufleet-bystander"):
        manager.execute(check_mode, state="absent")
    assert manager.packages == four("1.20.0-1", held=True)


@pytest.mark.parametrize("check_mode", [True, False])
def test_running_gpu_containers(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch, check_mode: bool) -> None:
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: ["docker/0123"])
    assert not manager.execute(check_mode, state="absent")["changed"]
    manager.have_installed(four("1.20.0-1"))
    with pytest.raises(HostError, match="docker/0123"):
        manager.execute(check_mode, state="absent")
    assert manager.calls == []


@pytest.mark.parametrize("check_mode", [True, False])
def test_containers_with_a_runtime_of_the_toolkit(
    manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    monkeypatch.setattr(gpu_containers, "toolkit_runtime_containers", lambda _host: ["docker/4567"])
    assert not manager.execute(check_mode, state="absent")["changed"]
    manager.have_installed(four("1.20.0-1"))
    with pytest.raises(HostError, match="docker/4567 run with a runtime of the toolkit"):
        manager.execute(check_mode, state="absent")
    assert manager.calls == []
    warned = manager.execute(check_mode, state="absent", running_gpu_containers="warn")
    assert (warned["changed"], len(warned["warnings"])) == (True, 1)


def test_failed_removal_restores_holds(manager: FakePackageManager) -> None:
    manager.have_installed(four("1.20.0-1", held=True))
    manager.failures["apply"] = "E: prerm fails"
    with pytest.raises(HostError, match=r"E: prerm fails\. The packages are unchanged"):
        manager.execute(state="absent")
    assert manager.packages == four("1.20.0-1", held=True)


def test_completes_interrupted_removal(manager: FakePackageManager) -> None:
    manager.have_installed({**four("1.20.0-1"), PACKAGES[1]: Package("1.20.0-1", complete=False)})
    manager.cut_off = True
    assert manager.execute(check_mode=True, state="absent")["changed"]
    manager.execute(state="absent")
    assert manager.calls == ["repair", "preview", "apply"]


def test_existing_removes_no_packages(manager: FakePackageManager) -> None:
    manager.have(four("1.20.0-1"))
    manager.live = False
    assert not manager.execute(state="absent", source="existing")["changed"]
    assert manager.packages == four("1.20.0-1")


# -- config.toml -----------------------------------------------------------------------------------------------------


def test_keeps_foreign_config_file(manager: FakePackageManager) -> None:
    manager.write(CONFIG_FILE, "# mine\n")
    manager.execute()
    manager.execute(state="absent")
    assert manager.path(CONFIG_FILE).read_text() == "# mine\n"


def test_keeps_config_file_with_settings(manager: FakePackageManager) -> None:
    manager.execute()
    settings = manager.write(record_path(TOOLKIT, CONFIG_FILE), _record_of_settings())
    result = manager.execute(state="absent")
    assert manager.packages == {}
    assert manager.path(CONFIG_FILE).exists()
    assert len(result["warnings"]) == 1
    assert "nvidia_toolkit_config" in result["warnings"][0]
    settings.unlink()
    # The packages are removed already, and the config file is removed now.
    assert manager.execute(state="absent")["changed"]
    assert not manager.path("/etc/nvidia-container-runtime").exists()


@pytest.mark.parametrize("restored", [False, True])
def test_check_mode_predicts_a_config_file_without_settings(manager: FakePackageManager, restored: bool) -> None:
    """In check mode, an earlier task of the play has not removed the settings."""
    manager.execute()
    manager.write(record_path(TOOLKIT, CONFIG_FILE), _record_of_settings())
    task = manager.task(state="absent", config_restored=restored)
    found = task.execute(check_mode=True)
    assert (CONFIG_FILE in found.removed_files, bool(task.module_result(found)["warnings"])) == (restored, not restored)
    # A real run reads what the earlier task has left.
    assert manager.execute(state="absent", config_restored=restored)["warnings"]
    assert manager.path(CONFIG_FILE).exists()


def _record_of_settings() -> str:
    record = OriginalFile(TOOLKIT, CONFIG_FILE, b"", 0, 0, 0o644)
    return record.to_bytes().decode()


@pytest.mark.parametrize("failing", ["remove_file", "drop"])
def test_completes_killed_removal(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    manager.execute()

    def killed(*_arguments: t.Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic_write if failing == "remove_file" else record_store, failing, killed)
        with pytest.raises(KeyboardInterrupt):
            manager.execute(state="absent")
    assert load_record(manager.host, OWNER, CONFIG_FILE) is not None
    assert manager.execute(state="absent")["changed"]
    assert not manager.path("/etc/nvidia-container-runtime").exists()
    assert load_record(manager.host, OWNER, CONFIG_FILE) is None
    assert not manager.execute(state="absent")["changed"]


# -- the cache -------------------------------------------------------------------------------------------------------


def test_removes_the_cache(manager: FakePackageManager) -> None:
    manager.write(f"{PACKAGE_CACHE}/a.deb")
    manager.write("/var/cache/other")
    assert manager.execute(check_mode=True, state="absent", package_cache=PACKAGE_CACHE)["changed"]
    assert manager.path(f"{PACKAGE_CACHE}/a.deb").exists()
    result = manager.execute(state="absent", package_cache=PACKAGE_CACHE)
    assert f"{PACKAGE_CACHE}/a.deb" in result["diff"][0]["before"]
    assert not manager.path("/var/cache/gpufleet-nvidia").exists()
    assert manager.path("/var/cache/other").exists()


# -- an unknown package manager, and a failure -------------------------------------------------------------------------


def test_unknown_package_manager(manager: FakePackageManager, tmp_path: Path) -> None:
    manager.write(f"{PACKAGE_CACHE}/a.deb")
    options = InstallOptions(state="absent", package_cache=PACKAGE_CACHE)
    task = Removal(options, HostFS(str(tmp_path), live=True), None, manager.run)
    assert task.execute(check_mode=False).changed
    assert not manager.path(PACKAGE_CACHE).exists()
    assert not task.execute(check_mode=False).changed


def test_failure_after_the_packages(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.have_installed(four("1.20.0-1"))
    manager.write(f"{PACKAGE_CACHE}/a.deb")

    def failing(*_arguments: t.Any) -> None:
        raise HostError("No.")

    monkeypatch.setattr(toolkit_packages, "clean_cache", failing)
    with pytest.raises(HostError) as caught:
        manager.execute(state="absent", package_cache=PACKAGE_CACHE)
    assert (caught.value.details, manager.packages) == ({"changed": True}, {})


# -- packages that were not recorded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [True, False])
def test_keeps_unrecorded_packages(manager: FakePackageManager, check_mode: bool) -> None:
    # Their holds stay, too.
    manager.have(four("1.20.0-1", held=True))
    before = manager.snapshot()
    result = manager.execute(check_mode, state="absent")
    assert (result["changed"], result["unrecorded"]) == (False, list(PACKAGES))
    assert (manager.snapshot(), manager.calls) == (before, [])


def test_removes_recorded_packages(manager: FakePackageManager) -> None:
    manager.path("/usr/bin").mkdir(parents=True)
    manager.path("/etc").mkdir()
    before = manager.snapshot()
    manager.execute()
    result = manager.execute(state="absent")
    assert (result["changed"], result["unrecorded"], manager.packages) == (True, [], {})
    left = {path: content for path, content in manager.snapshot().items() if "backups" not in path}
    assert left == {**before, "var": None, "var/lib": None, "var/lib/gpufleet-nvidia": None}
    assert not manager.execute(state="absent")["changed"]


def test_keeps_upgraded_packages(manager: FakePackageManager) -> None:
    manager.have(four("1.19.0-1"))
    manager.execute(version="1.20.0", remove_conflicts=False)
    assert manager.packages == four("1.20.0-1")
    result = manager.execute(state="absent")
    assert result["unrecorded"] == list(PACKAGES)
    assert manager.packages == four("1.20.0-1")
    assert not manager.path("/var/lib/gpufleet-nvidia/state").exists()


def test_refuses_to_remove_dependent_unrecorded_packages(manager: FakePackageManager) -> None:
    manager.have({PACKAGES[0]: Package("1.20.0-1")})
    manager.execute()
    manager.side_effects = Preview(remove=(PACKAGES[0],))
    with pytest.raises(HostError, match=f"would also remove {PACKAGES[0]}"):
        manager.execute(state="absent")
    manager.side_effects = Preview()
    assert manager.execute(state="absent")["unrecorded"] == [PACKAGES[0]]
    assert list(manager.packages) == [PACKAGES[0]]


def test_failed_run_records_nothing(manager: FakePackageManager) -> None:
    manager.failures["apply"] = "E: no space"
    with pytest.raises(HostError):
        manager.execute()
    assert not manager.path("/var/lib/gpufleet-nvidia/state").exists()


def test_rejects_damaged_list_of_packages(manager: FakePackageManager) -> None:
    manager.have(four("1.20.0-1"))
    manager.write(toolkit_packages.INSTALLED, "{")
    with pytest.raises(HostError, match=f"{toolkit_packages.INSTALLED} is damaged.*Rename this file"):
        manager.execute(state="absent")
