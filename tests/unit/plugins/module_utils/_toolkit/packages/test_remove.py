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
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import World, four

if t.TYPE_CHECKING:
    from pathlib import Path


def host_of(world: World) -> HostFS:
    return HostFS(str(world.root), live=True)


def test_nothing_to_remove(world: World) -> None:
    assert not world.execute(state="absent", package_cache=PACKAGE_CACHE)["changed"]
    assert world.calls == []


def test_installation_and_removal(world: World) -> None:
    world.write("/etc/hostname", "x\n")
    world.write("/usr/bin/true")
    world.write("/run/other")
    world.path("/etc/apt").mkdir()
    before = world.snapshot()
    world.execute(hold=True)
    standing = world.snapshot()
    predicted = world.execute(check_mode=True, state="absent")
    assert world.snapshot() == standing
    world.calls.clear()
    result = world.execute(state="absent")
    assert world.calls == ["preview", "unhold", "apply"]
    assert result["diff"] == predicted["diff"]
    assert (result["changed"], predicted["changed"], result["packages"]) == (True, True, {})
    (backup,) = result["backup_files"]
    assert (backup["path"], backup["checksum"]) == (CONFIG_FILE, "absent")
    assert world.path(backup["backup"]).read_text() == "disable-require = false\n"
    left = {path: content for path, content in world.snapshot().items() if "backups" not in path}
    assert left == {**before, "var": None, "var/lib": None, "var/lib/gpufleet-nvidia": None}
    assert not world.execute(state="absent")["changed"]


def test_purges_leftover_configuration(world: World) -> None:
    world.configured_only = [PACKAGES[0]]
    assert world.execute(state="absent")["changed"]
    assert [change.remove for change in world.changes] == [(PACKAGES[0],)]
    assert not world.execute(state="absent")["changed"]


def test_keeps_former_packages(world: World) -> None:
    world.have({"nvidia-docker2": Package("2.13.0-1")})
    assert not world.execute(state="absent")["changed"]
    assert "nvidia-docker2" in world.packages


@pytest.mark.parametrize("check_mode", [True, False])
def test_refuses_to_remove_other_packages(world: World, check_mode: bool) -> None:
    world.have(four("1.20.0-1", held=True))
    world.side_effects = Preview(remove=("gpufleet-bystander",))
    with pytest.raises(HostError, match="would also remove gpufleet-bystander"):
        world.execute(check_mode, state="absent")
    assert world.packages == four("1.20.0-1", held=True)


@pytest.mark.parametrize("check_mode", [True, False])
def test_running_gpu_containers(world: World, monkeypatch: pytest.MonkeyPatch, check_mode: bool) -> None:
    monkeypatch.setattr(gpu_containers, "legacy_gpu_containers", lambda _host: ["docker/0123"])
    assert not world.execute(check_mode, state="absent")["changed"]
    world.have(four("1.20.0-1"))
    with pytest.raises(HostError, match="docker/0123"):
        world.execute(check_mode, state="absent")
    assert world.calls == []


@pytest.mark.parametrize("check_mode", [True, False])
def test_containers_with_a_runtime_of_the_toolkit(
    world: World, monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    monkeypatch.setattr(gpu_containers, "toolkit_runtime_containers", lambda _host: ["docker/4567"])
    assert not world.execute(check_mode, state="absent")["changed"]
    world.have(four("1.20.0-1"))
    with pytest.raises(HostError, match="docker/4567 run with a runtime of the toolkit"):
        world.execute(check_mode, state="absent")
    assert world.calls == []
    warned = world.execute(check_mode, state="absent", running_gpu_containers="warn")
    assert (warned["changed"], len(warned["warnings"])) == (True, 1)


def test_failed_removal_restores_holds(world: World) -> None:
    world.have(four("1.20.0-1", held=True))
    world.failures["apply"] = "E: prerm fails"
    with pytest.raises(HostError, match=r"E: prerm fails\. The packages are unchanged"):
        world.execute(state="absent")
    assert world.packages == four("1.20.0-1", held=True)


def test_completes_interrupted_removal(world: World) -> None:
    world.have({**four("1.20.0-1"), PACKAGES[1]: Package("1.20.0-1", complete=False)})
    world.cut_off = True
    assert world.execute(check_mode=True, state="absent")["changed"]
    world.execute(state="absent")
    assert world.calls == ["repair", "preview", "apply"]


def test_existing_removes_no_packages(world: World) -> None:
    world.have(four("1.20.0-1"))
    world.live = False
    assert not world.execute(state="absent", source="existing")["changed"]
    assert world.packages == four("1.20.0-1")


# -- config.toml -----------------------------------------------------------------------------------------------------


def test_keeps_foreign_config_file(world: World) -> None:
    world.write(CONFIG_FILE, "# mine\n")
    world.execute()
    world.execute(state="absent")
    assert world.path(CONFIG_FILE).read_text() == "# mine\n"


def test_keeps_config_file_with_settings(world: World) -> None:
    world.execute()
    settings = world.write(record_path(TOOLKIT, CONFIG_FILE), _record_of_settings())
    result = world.execute(state="absent")
    assert world.packages == {}
    assert world.path(CONFIG_FILE).exists()
    assert len(result["warnings"]) == 1
    assert "nvidia_toolkit_config" in result["warnings"][0]
    settings.unlink()
    # The packages are removed already, and the config file is removed now.
    assert world.execute(state="absent")["changed"]
    assert not world.path("/etc/nvidia-container-runtime").exists()


def _record_of_settings() -> str:
    record = OriginalFile(TOOLKIT, CONFIG_FILE, b"", 0, 0, 0o644)
    return record.to_bytes().decode()


@pytest.mark.parametrize("failing", ["remove_file", "drop"])
def test_completes_killed_removal(world: World, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    world.execute()

    def killed(*_arguments: t.Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic_write if failing == "remove_file" else record_store, failing, killed)
        with pytest.raises(KeyboardInterrupt):
            world.execute(state="absent")
    assert load_record(host_of(world), OWNER, CONFIG_FILE) is not None
    assert world.execute(state="absent")["changed"]
    assert not world.path("/etc/nvidia-container-runtime").exists()
    assert load_record(host_of(world), OWNER, CONFIG_FILE) is None
    assert not world.execute(state="absent")["changed"]


# -- the cache -------------------------------------------------------------------------------------------------------


def test_removes_the_cache(world: World) -> None:
    world.write(f"{PACKAGE_CACHE}/a.deb")
    world.write("/var/cache/other")
    assert world.execute(check_mode=True, state="absent", package_cache=PACKAGE_CACHE)["changed"]
    assert world.path(f"{PACKAGE_CACHE}/a.deb").exists()
    result = world.execute(state="absent", package_cache=PACKAGE_CACHE)
    assert f"{PACKAGE_CACHE}/a.deb" in result["diff"][0]["before"]
    assert not world.path("/var/cache/gpufleet-nvidia").exists()
    assert world.path("/var/cache/other").exists()


# -- existing and unknown package managers -----------------------------------------------------------------------------


def test_unknown_package_manager(world: World, tmp_path: Path) -> None:
    world.write(f"{PACKAGE_CACHE}/a.deb")
    options = InstallOptions(state="absent", package_cache=PACKAGE_CACHE)
    task = Removal(options, HostFS(str(tmp_path), live=True), None, world.run)
    assert task.execute(check_mode=False).changed
    assert not world.path(PACKAGE_CACHE).exists()
    assert not task.execute(check_mode=False).changed


def test_failure_after_the_packages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.have(four("1.20.0-1"))
    world.write(f"{PACKAGE_CACHE}/a.deb")

    def failing(*_arguments: t.Any) -> None:
        raise HostError("No.")

    monkeypatch.setattr(toolkit_packages, "clean_cache", failing)
    with pytest.raises(HostError) as caught:
        world.execute(state="absent", package_cache=PACKAGE_CACHE)
    assert (caught.value.details, world.packages) == ({"changed": True}, {})


# -- packages that were not recorded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [True, False])
def test_keeps_unrecorded_packages(world: World, check_mode: bool) -> None:
    world.have(four("1.20.0-1"))
    before = world.snapshot()
    result = world.execute(check_mode, state="absent", keep_unrecorded=True)
    assert (result["changed"], result["unrecorded"]) == (False, list(PACKAGES))
    assert (world.snapshot(), world.calls) == (before, [])
    assert world.execute(check_mode, state="absent")["unrecorded"] == []


def test_removes_recorded_packages(world: World) -> None:
    world.path("/usr/bin").mkdir(parents=True)
    world.path("/etc").mkdir()
    before = world.snapshot()
    world.execute()
    result = world.execute(state="absent", keep_unrecorded=True)
    assert (result["changed"], result["unrecorded"], world.packages) == (True, [], {})
    left = {path: content for path, content in world.snapshot().items() if "backups" not in path}
    assert left == {**before, "var": None, "var/lib": None, "var/lib/gpufleet-nvidia": None}
    assert not world.execute(state="absent", keep_unrecorded=True)["changed"]


def test_keeps_upgraded_packages(world: World) -> None:
    world.have(four("1.19.0-1"))
    world.execute(version="1.20.0", remove_conflicts=False)
    assert world.packages == four("1.20.0-1")
    result = world.execute(state="absent", keep_unrecorded=True)
    assert result["unrecorded"] == list(PACKAGES)
    assert world.packages == four("1.20.0-1")
    assert not world.path("/var/lib/gpufleet-nvidia/state").exists()


def test_refuses_to_remove_dependent_unrecorded_packages(world: World) -> None:
    world.have({PACKAGES[0]: Package("1.20.0-1")})
    world.execute()
    world.side_effects = Preview(remove=(PACKAGES[0],))
    with pytest.raises(HostError, match=f"would also remove {PACKAGES[0]}"):
        world.execute(state="absent", keep_unrecorded=True)
    world.side_effects = Preview()
    assert world.execute(state="absent", keep_unrecorded=True)["unrecorded"] == [PACKAGES[0]]
    assert list(world.packages) == [PACKAGES[0]]


def test_failed_run_records_nothing(world: World) -> None:
    world.failures["apply"] = "E: no space"
    with pytest.raises(HostError):
        world.execute()
    assert not world.path("/var/lib/gpufleet-nvidia/state").exists()


def test_rejects_damaged_list_of_packages(world: World) -> None:
    world.have(four("1.20.0-1"))
    world.write(toolkit_packages.INSTALLED, "{")
    with pytest.raises(HostError, match=f"{toolkit_packages.INSTALLED} is damaged"):
        world.execute(state="absent", keep_unrecorded=True)
