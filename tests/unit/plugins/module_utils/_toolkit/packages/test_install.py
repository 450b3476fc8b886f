# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import PACKAGES as OWNER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import load_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import PACKAGES, Package, Preview
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers as systemd_gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE, PACKAGE_CACHE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.install import Installation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages.packages import InstallOptions
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import (
    ANYTHING,
    APT_SOURCE,
    FORMER_ENTRY,
    FORMER_LIST,
    ORIGIN,
    FakePackageManager,
    four,
)

if t.TYPE_CHECKING:
    from pathlib import Path

OUR_SOURCE = "URIs: https://mirror.example.com/nvidia\nSuites: /\n"


@pytest.fixture
def gpu_containers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = ["docker/0123456789ab"]
    monkeypatch.setattr(systemd_gpu_containers, "legacy_gpu_containers", lambda _host: list(found))
    return found


def versions(result: dict[str, t.Any]) -> set[str]:
    return {package["version"] for package in result["packages"].values()}


# -- unchanged hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("version", [None, "1.19.1", "1.19.1-1"])
def test_unchanged_host_needs_no_calls(
    manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch, check_mode: bool, version: str | None
) -> None:
    def locked(*_arguments: t.Any) -> None:
        raise AssertionError("no lock for a host that is as it should be")

    monkeypatch.setattr(lock, "host_lock", locked)
    manager.have(four("1.19.1-1", held=True))
    before = manager.snapshot()
    result = manager.execute(check_mode, version=version)
    assert (result["changed"], result["version"], result["origin"]) == (False, "1.19.1", None)
    (diff,) = result["diff"]
    assert diff["before"] == diff["after"]
    assert manager.calls == []
    assert manager.snapshot() == before


def test_tests_a_changed_source(manager: FakePackageManager) -> None:
    manager.have(four("1.19.1-1"))
    assert not manager.execute(pending=True)["changed"]
    assert manager.calls == ["refresh"]
    assert not manager.execute(check_mode=True, pending=True)["changed"]
    assert manager.calls == ["refresh"]
    manager.failures["refresh"] = "E: not signed"
    with pytest.raises(HostError, match="not signed"):
        manager.execute(pending=True)


# -- installing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "version", "after"),
    [
        ({}, None, "1.20.0-1"),
        ({}, "1.19.1", "1.19.1-2"),
        ({}, "1.19.1-1", "1.19.1-1"),
        (four("1.18.2-1"), "1.19.10", "1.19.10-1"),
        (four("1.20.0-1"), "1.18.2", "1.18.2-1"),
        ({**four("1.19.1-1"), PACKAGES[0]: Package("1.18.2-1")}, None, "1.20.0-1"),
        ({PACKAGES[0]: Package("1.18.2-1")}, None, "1.20.0-1"),
    ],
)
def test_installs_all_packages_in_one_transaction(
    manager: FakePackageManager, before: dict[str, Package], version: str | None, after: str
) -> None:
    manager.have(before)
    predicted = manager.execute(check_mode=True, version=version, **ANYTHING)
    assert manager.packages == before
    assert manager.changes == []
    result = manager.execute(version=version, **ANYTHING)
    assert manager.packages == four(after)
    assert [dict(change.install) for change in manager.changes] == [dict.fromkeys(PACKAGES, after)]
    assert (result["changed"], result["version"], result["origin"]) == (True, after.split("-", maxsplit=1)[0], ORIGIN)
    assert predicted["changed"]
    assert (predicted["diff"], predicted["packages"]) == (result["diff"], result["packages"])
    # Later tasks in check mode get what a real run would install.
    toolkit = predicted["predicted"]
    assert (toolkit["version"], result["predicted"]) == (result["version"], None)
    assert {"/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime.cdi"} < set(toolkit["programs"])
    assert manager.execute(check_mode=True, version=version, **ANYTHING)["predicted"] is None
    again = manager.execute(version=version, **ANYTHING)
    assert not again["changed"]


def test_order_of_steps(manager: FakePackageManager) -> None:
    manager.have(four("1.18.2-1"))
    manager.execute(version="1.20.0", pending=True, hold=True)
    assert manager.calls == ["refresh", "candidates", "preview", "apply", "hold"]


def test_fetches_lists_only_if_necessary(manager: FakePackageManager) -> None:
    manager.execute(version="1.20.0")
    assert "refresh" not in manager.calls
    manager.calls.clear()
    manager.published = ["1.21.0-1", *manager.published]
    manager.execute(version="1.21.0")
    assert manager.calls == ["candidates", "refresh", "candidates", "preview", "apply"]
    manager.calls.clear()
    manager.elsewhere = ["1.22.0-1"]
    manager.execute(version="1.22.0")
    assert manager.calls == [
        "candidates", "refresh", "candidates", "refresh everything", "candidates", "preview", "apply",
    ]  # fmt: skip


def test_rejects_unknown_version(manager: FakePackageManager) -> None:
    manager.failures["refresh everything"] = "E: another source is broken"
    with pytest.raises(HostError) as caught:
        manager.execute(version="1.19")
    assert "No package source offers version 1.19 of all 4 packages" in str(caught.value)
    assert f"1.19.10-1 ({ORIGIN})" in str(caught.value)
    assert manager.changes == []


def test_fetch_failure(manager: FakePackageManager) -> None:
    manager.failures["refresh"] = "E: Could not connect"
    with pytest.raises(HostError, match="Could not connect"):
        manager.execute(version="1.21.0")
    with pytest.raises(HostError, match="Could not connect"):
        manager.execute(version="1.20.0", pending=True)
    assert manager.packages == {}
    assert manager.path("/var/lib/gpufleet-nvidia").exists() is False


def test_check_mode_fetches_nothing(manager: FakePackageManager) -> None:
    result = manager.execute(check_mode=True, version="1.21.0")
    assert versions(result) == {"1.21.0"}
    assert len(result["warnings"]) == 1
    assert manager.calls == ["candidates offline"]


def test_check_mode_says_why_files_cannot_be_installed(manager: FakePackageManager) -> None:
    manager.failures["preview"] = "nothing provides libtirpc.so.3"
    (warning,) = manager.execute(check_mode=True, source="files", files=tuple(manager.four_files("1.20.0-1")))[
        "warnings"
    ]
    assert "nothing provides libtirpc.so.3" in warning
    assert "lists" not in warning


def test_check_mode_with_pending_source(manager: FakePackageManager) -> None:
    manager.listed = []
    requested = manager.execute(check_mode=True, version="1.19.1", pending=True)
    assert (requested["changed"], requested["version"], versions(requested)) == (True, "1.19.1", {"1.19.1"})
    unknown = manager.execute(check_mode=True, pending=True)
    assert (unknown["changed"], unknown["version"], unknown["known_cves"]) == (True, None, None)
    assert unknown["predicted"]["version"] is None
    assert [text for text in unknown["warnings"] if "predicts later tasks for the newest release" in text]
    assert not [text for text in requested["warnings"] if "newest release" in text]
    assert list(unknown["packages"]) == list(PACKAGES)
    assert manager.calls == []


def test_names_settings_that_hide_versions(manager: FakePackageManager) -> None:
    manager.listed = manager.published = []
    manager.settings = ["/etc/dnf/dnf.conf, line 5 (exclude=*nvidia*)"]
    with pytest.raises(HostError, match=r"may hide versions: /etc/dnf/dnf\.conf, line 5 \(exclude=\*nvidia\*\)\."):
        manager.execute(version="1.19.1")
    (warning, *_unknown) = manager.execute(check_mode=True)["warnings"]
    assert "/etc/dnf/dnf.conf, line 5" in warning


# -- this collection's source ------------------------------------------------------------------------------------------


def test_uses_only_own_source(manager: FakePackageManager) -> None:
    manager.execute(version="1.18.2", **ANYTHING)
    manager.write(APT_SOURCE, OUR_SOURCE)
    manager.execute(check_mode=True, version="1.19.1", **ANYTHING)
    manager.execute(version="1.19.1", **ANYTHING)
    assert manager.asked_own == [False, True, True]
    assert [change.own for change in manager.changes] == [False, True]
    manager.calls.clear()
    # The lists of other sources are of no use.
    with pytest.raises(HostError, match=rf"^{APT_SOURCE}, the only source .* does not offer version 1\.22\.0 of all 4"):
        manager.execute(version="1.22.0")
    assert manager.calls == ["candidates", "refresh", "candidates"]


def test_keeps_a_newer_version_of_another_source(manager: FakePackageManager) -> None:
    manager.write(APT_SOURCE, OUR_SOURCE)
    manager.have(four("1.21.0-1"))
    for check_mode in (False, True):
        result = manager.execute(check_mode, version="latest")
        assert (result["changed"], result["version"]) == (False, "1.21.0")
        (warning,) = result["warnings"]
        assert f"1.21.0-1 stays, because {APT_SOURCE}" in warning
    # Without the version, nothing is read.
    manager.calls.clear()
    assert manager.execute()["warnings"] == manager.calls == []
    # Other packages may be removed meanwhile.
    manager.have({"nvidia-docker2": Package("2.13.0-1")})
    manager.execute()
    assert [change.own for change in manager.changes] == [False]
    manager.execute(version="1.20.0")
    assert manager.packages == four("1.20.0-1")
    assert manager.changes[-1].own


# -- latest ----------------------------------------------------------------------------------------------------------


def test_latest_always_fetches(manager: FakePackageManager) -> None:
    manager.have(four("1.20.0-1"))
    assert not manager.execute(version="latest")["changed"]
    assert manager.calls == ["refresh", "candidates"]
    assert not manager.execute(check_mode=True, version="latest")["changed"]
    manager.published = ["1.21.0-1", *manager.published]
    assert manager.execute(version="latest")["version"] == "1.21.0"


def test_latest_checks_containers_only_for_newer_versions(
    manager: FakePackageManager, gpu_containers: list[str]
) -> None:
    manager.have(four("1.20.0-1"))
    assert manager.execute(version="latest")["gpu_containers"] == []
    manager.published = ["1.21.0-1"]
    with pytest.raises(HostError, match=gpu_containers[0]):
        manager.execute(version="latest")
    assert manager.changes == []


# -- holds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.18.2-1", "1.20.0-0.1.rc.1"])
def test_refuses_to_change_held_packages(manager: FakePackageManager, version: str) -> None:
    manager.have({**four(version), PACKAGES[1]: Package(version, held=True)})
    for check_mode in (True, False):
        with pytest.raises(HostError, match=rf": {PACKAGES[1]}\. Set hold: true"):
            manager.execute(check_mode, version="1.20.0")
        with pytest.raises(HostError, match="Held packages"):
            manager.execute(check_mode, version="latest")
    assert manager.changes == []


@pytest.mark.parametrize("hold", [True, False])
def test_hold_option_changes_held_packages(manager: FakePackageManager, hold: bool) -> None:
    manager.have(four("1.18.2-1", held=True))
    manager.execute(version="1.20.0", hold=hold)
    assert manager.packages == four("1.20.0-1", held=hold)


@pytest.mark.parametrize("hold", [True, False])
def test_changes_holds_only(manager: FakePackageManager, gpu_containers: list[str], hold: bool) -> None:
    assert gpu_containers
    manager.have({**four("1.20.0-1"), PACKAGES[0]: Package("1.20.0-1", held=True)})
    predicted = manager.execute(check_mode=True, hold=hold)
    result = manager.execute(hold=hold)
    assert manager.packages == four("1.20.0-1", held=hold)
    assert manager.calls == ["hold" if hold else "unhold"]
    assert result["changed"]
    assert result["diff"] == predicted["diff"]
    assert not manager.execute(hold=hold)["changed"]


# -- other packages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side_effects", "message"),
    [
        (Preview(remove=("gpufleet-bystander",)), "would also remove gpufleet-bystander"),
        (Preview(remove=("nvidia-docker2:i386", "x")), "would also remove nvidia-docker2:i386, x"),
        (Preview(downgrade=(*PACKAGES, "libc6")), "would also downgrade libc6"),
    ],
)
def test_refuses_to_change_other_packages(manager: FakePackageManager, side_effects: Preview, message: str) -> None:
    manager.side_effects = side_effects
    for check_mode in (True, False):
        with pytest.raises(HostError, match=message):
            manager.execute(check_mode, version="1.20.0")
    assert manager.changes == []
    assert not manager.path(CONFIG_FILE).exists()


def test_removes_former_packages(manager: FakePackageManager) -> None:
    manager.have({**four("1.20.0-1"), "nvidia-docker2": Package("2.13.0-1")})
    predicted = manager.execute(check_mode=True)
    result = manager.execute()
    assert manager.packages == four("1.20.0-1")
    assert [change.remove for change in manager.changes] == [("nvidia-docker2",)]
    assert result["diff"] == predicted["diff"]
    assert (result["changed"], result["origin"]) == (True, None)


def test_keeps_former_packages_without_remove_conflicts(manager: FakePackageManager) -> None:
    manager.have({**four("1.20.0-1"), "nvidia-docker2": Package("2.13.0-1")})
    result = manager.execute(remove_conflicts=False)
    assert not result["changed"]
    assert result["packages"]["nvidia-docker2"] == {"version": "2.13.0-1", "held": False}


def test_refuses_to_remove_held_former_packages(manager: FakePackageManager) -> None:
    manager.have({**four("1.20.0-1"), "nvidia-docker2": Package("2.13.0-1", held=True)})
    with pytest.raises(HostError, match="Held packages must change: nvidia-docker2"):
        manager.execute()
    manager.execute(hold=False)
    assert manager.packages == four("1.20.0-1")


# -- sources ---------------------------------------------------------------------------------------------------------


def test_removes_conflicting_sources_first(manager: FakePackageManager) -> None:
    manager.write(APT_SOURCE, OUR_SOURCE)
    manager.write(FORMER_LIST, FORMER_ENTRY).chmod(0o640)
    predicted = manager.execute(check_mode=True, version="1.20.0")
    assert manager.calls == []
    assert manager.path(FORMER_LIST).exists()
    result = manager.execute(version="1.20.0")
    assert manager.calls[0] == "refresh"
    assert not manager.path(FORMER_LIST).exists()
    assert result["removed_sources"] == predicted["removed_sources"] == [FORMER_LIST]
    (backup,) = result["backup_files"]
    assert manager.path(backup["backup"]).read_text() == FORMER_ENTRY
    assert not manager.execute()["changed"]


@pytest.mark.parametrize("failing", ["refresh", "preview", "apply"])
def test_restores_sources_if_nothing_was_installed(manager: FakePackageManager, failing: str) -> None:
    manager.write(APT_SOURCE, OUR_SOURCE)
    manager.write(FORMER_LIST, FORMER_ENTRY).chmod(0o640)
    manager.failures[failing] = "E: no"
    with pytest.raises(HostError, match="E: no"):
        manager.execute(version="1.20.0")
    assert manager.path(FORMER_LIST).read_text() == FORMER_ENTRY
    assert manager.path(FORMER_LIST).stat().st_mode & 0o777 == 0o640
    assert not manager.path("/var/lib/gpufleet-nvidia").exists()


def test_keeps_the_only_source(manager: FakePackageManager) -> None:
    manager.write(FORMER_LIST, FORMER_ENTRY)
    assert manager.execute(version="1.20.0")["removed_sources"] == []
    assert manager.path(FORMER_LIST).exists()


def test_keeps_new_sources_if_packages_changed(manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.write(APT_SOURCE, OUR_SOURCE)
    manager.write(FORMER_LIST, FORMER_ENTRY)
    manager.break_off(monkeypatch)
    with pytest.raises(HostError):
        manager.execute(version="1.20.0")
    assert not manager.path(FORMER_LIST).exists()


def test_rejects_mixed_source_files(manager: FakePackageManager) -> None:
    manager.write(APT_SOURCE, OUR_SOURCE)
    manager.have(four("1.20.0-1"))
    manager.write("/etc/apt/sources.list", "deb http://debian.example.com/debian trixie main\n" + FORMER_ENTRY)
    with pytest.raises(
        ConfigurationError, match=r"^/etc/apt/sources.list, line 2: the source .*remove_conflicts: false"
    ):
        manager.execute()
    assert not manager.execute(remove_conflicts=False)["changed"]


# -- containers ------------------------------------------------------------------------------------------------------


def test_running_gpu_containers(manager: FakePackageManager, gpu_containers: list[str]) -> None:
    manager.have(four("1.18.2-1"))
    for check_mode in (True, False):
        with pytest.raises(HostError, match=rf"{gpu_containers[0]} .*running_gpu_containers: warn"):
            manager.execute(check_mode, version="1.20.0")
    assert manager.calls == []
    warned = manager.execute(check_mode=True, version="1.20.0", running_gpu_containers="warn")
    assert (len(warned["warnings"]), warned["gpu_containers"]) == (1, gpu_containers)
    ignored = manager.execute(version="1.20.0", running_gpu_containers="ignore")
    assert (ignored["warnings"], ignored["gpu_containers"]) == ([], gpu_containers)


# -- versions with known vulnerabilities -----------------------------------------------------------------------------


def test_minimum_version(manager: FakePackageManager) -> None:
    for check_mode in (True, False):
        with pytest.raises(NvidiaError, match=r"Version 1.18.2 .*older than 1.19.1.*CVE-2026-24260"):
            manager.execute(check_mode, version="1.18.2", minimum_version_policy="fail")
    assert manager.calls == []
    warned = manager.execute(version="1.18.2")
    assert len(warned["warnings"]) == 1
    assert [entry["name"] for entry in warned["known_cves"]] == ["CVE-2026-24260"]
    with pytest.raises(NvidiaError, match="CVE-2026-24260"):
        manager.execute(minimum_version_policy="fail")
    assert manager.execute(minimum_version="1.18.0", minimum_version_policy="fail")["warnings"] == []
    assert manager.execute(version="1.20.0", minimum_version_policy="fail")["known_cves"] == []


def test_minimum_version_of_preferred_version(manager: FakePackageManager) -> None:
    manager.listed = manager.published = ["1.18.2-1"]
    with pytest.raises(NvidiaError, match="CVE-2026-24260"):
        manager.execute(minimum_version_policy="fail")
    assert manager.changes == []


# -- files -----------------------------------------------------------------------------------------------------------


def test_installs_files(manager: FakePackageManager) -> None:
    files = manager.four_files("1.19.1-1")
    predicted = manager.execute(check_mode=True, source="files", files=tuple(files))
    result = manager.execute(source="files", files=tuple(files))
    assert manager.packages == four("1.19.1-1")
    assert result["diff"] == predicted["diff"]
    assert result["origin"] == predicted["origin"] == "files"
    assert set(manager.calls) == {"preview", "apply"}
    assert not manager.execute(source="files", files=tuple(files))["changed"]


def test_check_mode_with_pending_files(manager: FakePackageManager) -> None:
    files = tuple(f"/srv/{name}.deb" for name in PACKAGES)
    manager.have(four("1.19.1-1"))
    requested: dict[str, t.Any] = {"check_mode": True, "source": "files", "files": files, "pending": True}
    assert manager.execute(**requested)["changed"]
    assert not manager.execute(version="1.19.1", **requested)["changed"]
    assert manager.execute(version="1.20.0", **requested)["version"] == "1.20.0"


def test_files_keep_sources(manager: FakePackageManager) -> None:
    manager.write(FORMER_LIST, FORMER_ENTRY)
    manager.execute(source="files", files=tuple(manager.four_files("1.19.1-1")))
    assert manager.path(FORMER_LIST).exists()


def test_cleans_the_cache(manager: FakePackageManager) -> None:
    files = tuple(manager.file(f"{PACKAGE_CACHE}/{name}.deb", name, "1.19.1-1") for name in PACKAGES)
    old = manager.write(f"{PACKAGE_CACHE}/old.deb")
    options: dict[str, t.Any] = {"source": "files", "files": files, "package_cache": PACKAGE_CACHE}
    assert manager.execute(check_mode=True, **options)["changed"]
    assert old.exists()
    manager.execute(**options)
    assert not old.exists()
    assert all(manager.path(path).exists() for path in files)
    assert not manager.execute(**options)["changed"]
    # Packages from another source need no cache.
    assert manager.execute(package_cache=PACKAGE_CACHE)["changed"]
    assert not manager.path("/var/cache/gpufleet-nvidia").exists()


# -- existing ----------------------------------------------------------------------------------------------------------


def test_existing_without_package_manager(manager: FakePackageManager, tmp_path: Path) -> None:
    options = InstallOptions(source="existing")
    task = Installation(options, HostFS(str(tmp_path), live=True), None, manager.run)
    with pytest.raises(HostError, match=r"the NVIDIA Container Toolkit is not installed on this host"):
        task.execute(check_mode=False)
    assert not task.execute(check_mode=True).changed
    manager.have(four("1.20.0-1"))
    assert not task.execute(check_mode=False).changed


@pytest.mark.parametrize(
    ("requested", "accepted"),
    [
        ("1.19.1", True),
        ("1.19.1-1", True),
        ("1.19.1-2", False),
        ("1.19", False),
        ("1.20.0", False),
        ("nonsense", False),
        ("latest", True),
        (None, True),
    ],
)
def test_existing_and_requested_version(manager: FakePackageManager, requested: str | None, accepted: bool) -> None:
    manager.have(four("1.19.1-1"))
    if accepted:
        assert not manager.execute(source="existing", version=requested)["changed"]
    else:
        with pytest.raises(HostError, match=rf"is 1\.19\.1(-1)?, not {requested}\. Change one"):
            manager.execute(source="existing", version=requested)
    assert len(manager.execute(check_mode=True, source="existing", version=requested)["warnings"]) == int(not accepted)


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({}, True),
        ({"version": "latest"}, True),
        ({"version": "1.20.0"}, False),
        ({"minimum_version_policy": "fail"}, False),
    ],
)
def test_existing_with_unknown_version(manager: FakePackageManager, options: dict[str, t.Any], accepted: bool) -> None:
    # Programs of an offline tree are not run.
    manager.live = False
    manager.have(four("1.20.0-1"))
    manager.packages.clear()
    if not accepted:
        with pytest.raises(HostError, match=r"the version of the installed toolkit is unknown"):
            manager.execute(source="existing", **options)
    else:
        assert not manager.execute(source="existing", **options)["changed"]
    assert len(manager.execute(check_mode=True, source="existing", **options)["warnings"]) == int(not accepted)


# -- config.toml -----------------------------------------------------------------------------------------------------


def test_records_config_file_before_scripts_create_it(
    manager: FakePackageManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostFS(str(manager.root), live=True)
    carry_out = manager.apply
    noted = []

    def looking(change: t.Any) -> None:
        noted.append(load_record(host, OWNER, CONFIG_FILE))
        carry_out(change)

    monkeypatch.setattr(manager, "apply", looking)
    manager.execute(version="1.20.0")
    (record,) = noted
    assert record is not None
    assert record.original is None
    assert "/etc/nvidia-container-runtime" in record.created_directories
    assert load_record(host, OWNER, CONFIG_FILE) == record


def test_does_not_record_existing_config_file(manager: FakePackageManager) -> None:
    manager.write(CONFIG_FILE, "# mine\n")
    manager.execute(version="1.20.0")
    assert load_record(HostFS(str(manager.root), live=True), OWNER, CONFIG_FILE) is None


# -- invalid options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "files"}, "source: files requires files"),
        ({"files": ("/x.deb",)}, "files requires source: files"),
        ({"source": "files", "files": ("x.deb",)}, "files 'x.deb' is not an absolute path"),
        ({"backup_dir": "/etc/apt/sources.list.d/x"}, "backup_dir .* is below /etc/apt/sources.list.d"),
        ({"package_cache": "/home/me"}, "package_cache '/home/me' is not allowed"),
        ({"package_cache": "/srv/gpufleet-nvidia"}, "package_cache '/srv/gpufleet-nvidia' is not allowed"),
    ],
)
def test_rejects_invalid_options(manager: FakePackageManager, options: dict[str, t.Any], message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        manager.execute(**options)


@pytest.mark.parametrize("state", ["present", "absent"])
def test_rejects_offline_trees(manager: FakePackageManager, state: str) -> None:
    manager.live = False
    with pytest.raises(HostError, match=r"offline tree.*host_root_live: true, or set source: existing"):
        manager.execute(state=state)


def test_rejects_unknown_package_manager(manager: FakePackageManager, tmp_path: Path) -> None:
    task = Installation(InstallOptions(), HostFS(str(tmp_path), live=True), None, manager.run)
    with pytest.raises(HostError, match=r"Unsupported package manager.*source: existing"):
        task.execute(check_mode=True)
