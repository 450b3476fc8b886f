# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.refresh_hosts import (
    RefreshTree,
    parse_sources_once,
)

if t.TYPE_CHECKING:
    from pathlib import Path

MANAGEMENT: dict[str, t.Any] = {"cdi": {"mode": "management"}, "request": Request(vendor="management.nvidia.com")}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RefreshTree:
    parse_sources_once(monkeypatch)
    return RefreshTree(tmp_path)


def test_another_kind_is_no_work_for_the_toolkits_service(tree: RefreshTree) -> None:
    """It would write that over the specification of the GPUs."""
    tree.toolkit()
    done = tree.refresh(**MANAGEMENT)
    assert (done["owner"], done["specification"]) == ("collection", "/etc/cdi/management.nvidia.com-gpu.yaml")
    with pytest.raises(GpufleetError, match="over the specification of the GPUs"):
        tree.refresh(owner="toolkit", **MANAGEMENT)
    elsewhere = {**MANAGEMENT, "cdi": {**MANAGEMENT["cdi"], "path": "/etc/cdi/management.yaml"}}
    assert tree.refresh(owner="toolkit", **elsewhere)["specification"] == "/etc/cdi/management.yaml"


def test_our_service_has_room_for_one_kind(tree: RefreshTree) -> None:
    tree.refresh()
    before = tree.contents()
    with pytest.raises(GpufleetError, match="has room for one kind"):
        tree.refresh(**MANAGEMENT)
    assert tree.contents() == before
    tree.refresh(state="absent")
    assert tree.refresh(**MANAGEMENT)["changed"]


@pytest.mark.parametrize("folder", ["/", "/run/gpufleet", "/dev/shm/x", "/tmp", "/etc/cdi", "/etc/systemd/system"])
def test_folders_that_are_none_for_programs(tree: RefreshTree, folder: str) -> None:
    with pytest.raises(GpufleetError, match="Name a folder such as"):
        tree.refresh(owner="collection", program_dir=folder)


def test_the_path_is_told_as_it_is_compared(tree: RefreshTree) -> None:
    tree.toolkit()
    done = tree.refresh(owner="toolkit", cdi={"path": "/var/run/cdi/../../../etc/cdi/x.yaml"})
    assert done["specification"] == "/etc/cdi/x.yaml"


@pytest.mark.parametrize("cdi", [{"format": "json"}, {"format": "json", "path": "/etc/cdi/x.yaml"}])
def test_formats_that_fit_no_path(tree: RefreshTree, cdi: dict[str, str]) -> None:
    tree.toolkit()
    with pytest.raises(GpufleetError, match="format"):
        tree.refresh(owner="toolkit", cdi=cdi)
