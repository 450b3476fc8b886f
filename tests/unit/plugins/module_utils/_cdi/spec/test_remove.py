# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.records import record_for_unit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import BOOT_ID
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import render
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import (
    OTHER_PATH,
    OTHER_SPEC,
    OWN_FLAGS,
    OWN_SERVICE,
    SPEC_PATH,
    CdiHost,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    needs_root,
)

if t.TYPE_CHECKING:
    from pathlib import Path


pytestmark = needs_root


@pytest.fixture
def host(tmp_path: Path) -> CdiHost:
    return CdiHost(tmp_path / "host")


def test_original_is_restored(host: CdiHost) -> None:
    host.file(SPEC_PATH, OTHER_SPEC.encode(), 0o640)
    os.chown(host.path / SPEC_PATH.lstrip("/"), 1, 2)
    before = host.contents()
    host.cdi()
    assert host.mode(SPEC_PATH) == 0o644
    host.cdi(request=Request(all_device=False))
    done = host.cdi(state="absent", purge_backups=True)
    assert done["restored_files"] == [SPEC_PATH]
    assert host.contents() == before
    assert not host.cdi(state="absent")["changed"]
    assert host.contents() == before


def test_original_is_restored_after_foreign_change(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.file(SPEC_PATH, OTHER_SPEC.encode())
    host.cdi()
    host.file(SPEC_PATH, OTHER_SPEC.replace("of them", "of these").encode())
    host.cdi()
    # A removal needs no YAML parser.
    monkeypatch.setattr(yaml_document, "parse", None)
    assert host.cdi(state="absent")["restored_files"] == [SPEC_PATH]
    assert host.read(SPEC_PATH) == OTHER_SPEC.encode()


def test_foreign_change_is_backed_up(host: CdiHost) -> None:
    host.cdi()
    host.file(SPEC_PATH, OTHER_SPEC.encode())
    done = host.cdi(state="absent")
    assert (done["changed"], done["removed_files"]) == (True, [SPEC_PATH])
    assert host.read(done["backup_files"][0]["backup"]) == OTHER_SPEC.encode()
    assert not host.has(SPEC_PATH)


def test_unrecorded_file_stays(host: CdiHost) -> None:
    host.file(SPEC_PATH, OTHER_SPEC.encode())
    before = host.contents()
    done = host.cdi(state="absent")
    assert not done["changed"]
    assert any("This module did not write" in warning for warning in done["warnings"])
    assert host.contents() == before


def test_file_of_other_kind_stays(host: CdiHost) -> None:
    host.cdi()
    changed = OTHER_SPEC.replace("nvidia.com", "example.com").encode()
    host.file(SPEC_PATH, changed)
    done = host.cdi(state="absent")
    assert any("no longer describes nvidia.com/gpu" in warning for warning in done["warnings"])
    assert host.read(SPEC_PATH) == changed
    assert not host.has(STATE_DIR)


def test_files_in_run_after_reboot(host: CdiHost) -> None:
    """The files in /run are lost at a reboot, and are not restored."""
    host.folder("/run")
    host.link("/var/run", "/run")
    path = "/var/run/cdi/nvidia.yaml"
    host.cdi(path=path)
    assert host.has("/run/cdi/nvidia.yaml")
    (host.path / "run/cdi/nvidia.yaml").unlink()
    assert host.cdi(path="/run/cdi/nvidia.yaml")["changed"]
    assert not host.cdi(path=path)["changed"]
    (host.path / "run/cdi/nvidia.yaml").unlink()
    host.cdi(path=path, state="absent")
    assert not host.has(f"{STATE_DIR}")


@pytest.mark.parametrize(("boot", "restored"), [(b"one\n", True), (b"two\n", False)])
def test_a_file_of_run_is_restored_in_the_same_boot_only(host: CdiHost, boot: bytes, restored: bool) -> None:
    host.file(BOOT_ID, b"one\n")
    host.file("/proc/stat", b"btime 1700000000\n")
    host.file("/run/cdi/other.yaml", OTHER_SPEC.encode())
    host.link("/var/run", "/run")
    assert host.cdi(exclusive=True)["removed_files"] == ["/run/cdi/other.yaml"]
    host.file(BOOT_ID, boot)
    host.cdi(state="absent")
    assert host.has("/run/cdi/other.yaml") is restored
    assert not host.has(STATE_DIR)


def test_exclusive_files_are_restored(host: CdiHost) -> None:
    host.file(OTHER_PATH, OTHER_SPEC.encode(), 0o600)
    host.file("/etc/cdi/gds.yaml", OTHER_SPEC.replace("/gpu", "/gds").encode())
    before = host.contents()
    predicted = host.cdi(exclusive=True, check_mode=True)
    assert host.contents() == before
    done = host.cdi(exclusive=True)
    assert (done["changed"], done["removed_files"]) == (True, [OTHER_PATH])
    assert done["files"] == predicted["files"]
    assert not host.has(OTHER_PATH)
    assert host.has("/etc/cdi/gds.yaml")
    kept = {entry["path"]: entry["backup"] for entry in done["backup_files"]}
    assert host.read(kept[OTHER_PATH]) == OTHER_SPEC.encode()
    assert not host.cdi(exclusive=True)["changed"]

    done = host.cdi(state="absent", purge_backups=True)
    assert done["restored_files"] == [OTHER_PATH]
    assert host.contents() == before


def test_recreated_file_is_not_overwritten(host: CdiHost) -> None:
    host.file(OTHER_PATH, OTHER_SPEC.encode())
    host.cdi(exclusive=True)
    newer = OTHER_SPEC.replace("0.5.0", "0.6.0").encode()
    host.file(OTHER_PATH, newer)
    done = host.cdi(state="absent")
    assert host.read(OTHER_PATH) == newer
    assert any(OTHER_PATH in warning for warning in done["warnings"])
    assert not host.has(STATE_DIR)


def test_moved_file_is_explained(host: CdiHost) -> None:
    host.file(OTHER_PATH, OTHER_SPEC.encode())
    host.cdi(exclusive=True)
    done = host.cdi(state="absent", path=OTHER_PATH)
    assert not done["changed"]
    assert any("it belongs to nvidia.com/gpu. Remove that kind" in warning for warning in done["warnings"])
    host.cdi(state="absent")
    assert host.read(OTHER_PATH) == OTHER_SPEC.encode()


def test_wrong_kind_is_explained(host: CdiHost) -> None:
    host.file(SPEC_PATH, OTHER_SPEC.encode())
    host.cdi()
    done = host.cdi(state="absent", path=SPEC_PATH, request=Request(class_="gds"))
    assert not done["changed"]
    assert any("it belongs to nvidia.com/gpu. Remove that kind" in warning for warning in done["warnings"])
    host.cdi(state="absent")
    assert host.read(SPEC_PATH) == OTHER_SPEC.encode()


def test_moved_file_keeps_mode_and_owner(host: CdiHost) -> None:
    host.file(SPEC_PATH, OTHER_SPEC.encode(), 0o600)
    os.chown(host.path / SPEC_PATH.lstrip("/"), 7, 8)
    before = host.contents()
    host.cdi(path="/etc/cdi/gpu.yaml", exclusive=True)
    host.cdi(state="absent", purge_backups=True)
    assert host.contents() == before


@pytest.mark.parametrize("change", ["edited", "edited and rewritten", "deleted", "broken"])
def test_original_is_restored_in_any_case(host: CdiHost, change: str) -> None:
    host.file(SPEC_PATH, OTHER_SPEC.encode())
    host.cdi()
    if change == "deleted":
        (host.path / SPEC_PATH.lstrip("/")).unlink()
    else:
        host.file(SPEC_PATH, b"{" if change == "broken" else OTHER_SPEC.replace("0.5.0", "0.6.0").encode())
    if change.endswith("rewritten"):
        host.cdi()
    host.cdi(state="absent", purge_backups=True)
    assert host.read(SPEC_PATH) == OTHER_SPEC.encode()


def test_last_moved_file_is_restored(host: CdiHost) -> None:
    newer = OTHER_SPEC.replace("0.5.0", "0.6.0").encode()
    host.file(OTHER_PATH, OTHER_SPEC.encode())
    host.cdi(exclusive=True)
    host.file(OTHER_PATH, newer)
    host.cdi(exclusive=True)
    host.cdi(state="absent", purge_backups=True)
    assert host.read(OTHER_PATH) == newer


def test_specification_of_unit_is_removed(host: CdiHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task has written the file. The original is restored."""
    printed = host.enable_refresh(monkeypatch, OWN_SERVICE, OWN_FLAGS)
    for original in (None, OTHER_SPEC.encode()):
        if original is not None:
            host.file(SPEC_PATH, original)
        record_for_unit(host.host(), SPEC_PATH, "nvidia.com/gpu", original)
        host.file(SPEC_PATH, b"# the unit\n" + render(json.loads(printed), "yaml"))
        assert not host.cdi(use_nvml=False)["changed"]
        result = host.cdi(use_nvml=False, state="absent", purge_backups=True)
        assert result["changed"]
        assert (host.read(SPEC_PATH) if host.has(SPEC_PATH) else None) == original
        assert not host.cdi(use_nvml=False, state="absent")["changed"]
