# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh_units import toolkit_refresh
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import (
    ENVIRONMENT,
    LOCAL,
    OUTPUT,
    PATH,
    SERVICE,
    VENDOR,
    WANTS,
    RefreshTree,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> RefreshTree:
    return RefreshTree(tmp_path)


def test_none_there(tree: RefreshTree) -> None:
    assert toolkit_refresh(tree.host()) is None


@pytest.mark.parametrize("folder", [VENDOR, LOCAL], ids=["rpm", "deb-until-1.19.1"])
def test_installed_and_not_enabled(tree: RefreshTree, folder: str) -> None:
    tree.toolkit(folder=folder)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert (found.service, found.path) == (f"{folder}/{SERVICE}", f"{folder}/{PATH}")
    assert not found.enabled
    assert not found.masked
    assert found.output == OUTPUT


@pytest.mark.parametrize(
    ("link", "at_boot", "on_change"),
    [
        (f"{WANTS}/{SERVICE}", True, False),
        (f"{LOCAL}/docker.service.requires/{SERVICE}", True, False),
        (f"{VENDOR}/multi-user.target.wants/{SERVICE}", True, False),
        (f"{WANTS}/{PATH}", False, True),
        (f"{WANTS}/other.service", False, False),
    ],
)
def test_enabled_by_links(tree: RefreshTree, link: str, at_boot: bool, on_change: bool) -> None:
    tree.toolkit()
    tree.link(link, f"{VENDOR}/{link.rpartition('/')[2]}".replace("other.service", SERVICE))
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert (found.at_boot, found.on_change, found.enabled) == (at_boot, on_change, at_boot or on_change)


def test_masked(tree: RefreshTree) -> None:
    tree.toolkit()
    for name in (SERVICE, PATH):
        tree.link(f"{WANTS}/{name}", f"{VENDOR}/{name}")
    tree.link(f"{LOCAL}/{SERVICE}", "/dev/null")
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.masked
    assert not found.enabled


@pytest.mark.parametrize(
    ("environment", "output"),
    [
        ("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n", "/etc/cdi/nvidia.yaml"),
        ('NVIDIA_CTK_CDI_OUTPUT_FILE_PATH="/etc/cdi/a b.yaml"\n', "/etc/cdi/a b.yaml"),
        ("#NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n", OUTPUT),
        ("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=\n", ""),
    ],
)
def test_environment_file_counts_before_the_unit(tree: RefreshTree, environment: str, output: str) -> None:
    tree.toolkit()
    tree.write(ENVIRONMENT, environment)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.output == output


def test_flag_counts_before_the_environment(tree: RefreshTree) -> None:
    tree.toolkit()
    text = tree.text(f"{VENDOR}/{SERVICE}").replace("cdi generate", "cdi generate --output=/var/run/cdi/flag.yaml")
    tree.write(f"{VENDOR}/{SERVICE}", text)
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.output == "/var/run/cdi/flag.yaml"


def test_without_a_path_unit(tree: RefreshTree) -> None:
    tree.toolkit()
    (tree.path / f"{VENDOR}/{PATH}".lstrip("/")).unlink()
    found = toolkit_refresh(tree.host())
    assert found is not None
    assert found.path is None
    assert not found.on_change
