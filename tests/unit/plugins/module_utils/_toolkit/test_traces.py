# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE, PACKAGE_CACHE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    check_cache,
    remove_sources,
    stale_files,
    track_config,
    untrack_config,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    return HostFS(str(tmp_path), live=True)


def test_sources_go(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "here.list").write_bytes(b"deb x\xff\n")
    (tmp_path / "here.list").chmod(0o600)
    # One that somebody else has removed meanwhile is no concern.
    (backup,) = remove_sources(host, ["/here.list", "/gone.list"], BACKUP_DIR)
    assert (backup["path"], backup["checksum"]) == ("/here.list", "absent")
    assert host.read(str(backup["backup"])) == b"deb x\xff\n"
    assert not (tmp_path / "here.list").exists()


def test_a_note_is_made_once_and_taken_back(host: HostFS, tmp_path: Path) -> None:
    record = track_config(host)
    assert record is not None
    assert track_config(host) is None
    untrack_config(host, None)
    assert any(tmp_path.iterdir())
    untrack_config(host, record)
    assert not (tmp_path / "var/lib/gpufleet-nvidia").exists()
    assert not (tmp_path / CONFIG_FILE[1:]).exists()


def test_a_link_that_leads_nowhere_is_a_config_file_of_others(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE[1:]).parent.mkdir(parents=True)
    (tmp_path / CONFIG_FILE[1:]).symlink_to("/srv/config.toml")
    assert track_config(host) is None


@pytest.mark.parametrize("path", [PACKAGE_CACHE, PACKAGE_CACHE + "/", "/srv/gpufleet-nvidia/packages"])
def test_folders_that_are_ours(host: HostFS, path: str) -> None:
    assert check_cache(host, path) == path.rstrip("/")


@pytest.mark.parametrize(
    "path", ["/", "/srv", "/srv/gpufleet-nvidia", "/srv/my-gpufleet-nvidia/x", PACKAGE_CACHE + "/../.."]
)
def test_folders_that_may_be_somebody_elses(host: HostFS, path: str) -> None:
    with pytest.raises(NvidiaError, match="is emptied by this module"):
        check_cache(host, path)


def test_what_is_stale_in_the_cache(host: HostFS, tmp_path: Path) -> None:
    assert stale_files(host, None, ()) == stale_files(host, "/c", ()) == []
    (tmp_path / "c/folder").mkdir(parents=True)
    for name in ("a.deb", "b.deb"):
        (tmp_path / "c" / name).write_text("")
    (tmp_path / "link").symlink_to("/c")
    assert stale_files(host, "/c", ["/link/a.deb"]) == ["/c/b.deb"]
