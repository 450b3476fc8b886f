# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import CONFIG_FILE, PACKAGE_CACHE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_traces import (
    check_cache,
    forget_config,
    note_config,
    remove_sources,
    stale_files,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> HostRoot:
    return HostRoot(str(tmp_path), live=True)


def test_sources_go(host: HostRoot, tmp_path: Path) -> None:
    (tmp_path / "here.list").write_bytes(b"deb x\xff\n")
    (tmp_path / "here.list").chmod(0o600)
    # One that somebody else has removed meanwhile is no concern.
    (backup,) = remove_sources(host, ["/here.list", "/gone.list"], BACKUP_DIR)
    assert (backup["path"], backup["checksum"]) == ("/here.list", "absent")
    assert host.read(str(backup["backup"])) == b"deb x\xff\n"
    assert not (tmp_path / "here.list").exists()


def test_a_note_is_made_once_and_taken_back(host: HostRoot, tmp_path: Path) -> None:
    record = note_config(host)
    assert record is not None
    assert note_config(host) is None
    forget_config(host, None)
    assert any(tmp_path.iterdir())
    forget_config(host, record)
    assert not (tmp_path / "var/lib/gpufleet-nvidia").exists()
    assert not (tmp_path / CONFIG_FILE[1:]).exists()


def test_a_link_that_leads_nowhere_is_a_config_file_of_others(host: HostRoot, tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE[1:]).parent.mkdir(parents=True)
    (tmp_path / CONFIG_FILE[1:]).symlink_to("/srv/config.toml")
    assert note_config(host) is None


@pytest.mark.parametrize("path", [PACKAGE_CACHE, PACKAGE_CACHE + "/", "/srv/gpufleet-nvidia/packages"])
def test_folders_that_are_ours(host: HostRoot, path: str) -> None:
    assert check_cache(host, path) == path.rstrip("/")


@pytest.mark.parametrize(
    "path", ["/", "/srv", "/srv/gpufleet-nvidia", "/srv/my-gpufleet-nvidia/x", PACKAGE_CACHE + "/../.."]
)
def test_folders_that_may_be_somebody_elses(host: HostRoot, path: str) -> None:
    with pytest.raises(GpufleetError, match="is emptied by this module"):
        check_cache(host, path)


def test_what_is_stale_in_the_cache(host: HostRoot, tmp_path: Path) -> None:
    assert stale_files(host, None, ()) == stale_files(host, "/c", ()) == []
    (tmp_path / "c/folder").mkdir(parents=True)
    for name in ("a.deb", "b.deb"):
        (tmp_path / "c" / name).write_text("")
    (tmp_path / "link").symlink_to("/c")
    assert stale_files(host, "/c", ["/link/a.deb"]) == ["/c/b.deb"]
