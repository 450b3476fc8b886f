# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.saved_files import (
    restore,
    restore_missing,
    snapshot_files,
    snapshot_list,
)

if t.TYPE_CHECKING:
    from pathlib import Path

FILE = "/etc/docker/daemon.json"


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_bytes(b"{}\xff\n")
    (tmp_path / "etc/docker/daemon.json").chmod(0o600)
    return HostFS(str(tmp_path), live=True)


def test_restores_missing_file_with_its_directory(host: HostFS, tmp_path: Path) -> None:
    saved = snapshot_files(host, [FILE, "/etc/nowhere", "/etc/docker"])
    assert [file.path for file in saved] == [FILE]
    owner = (saved[0].owner, (os.geteuid(), os.getegid()))
    assert owner[0] == owner[1]
    shutil.rmtree(tmp_path / "etc/docker")
    assert restore_missing(host, saved) == [FILE]
    assert (tmp_path / "etc/docker/daemon.json").read_bytes() == b"{}\xff\n"
    assert (tmp_path / "etc/docker/daemon.json").stat().st_mode & 0o7777 == 0o600
    assert restore_missing(host, saved) == []


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [(None, b"{}\xff\n", False), (None, b"other", True), (b"{}\xff\n", b"{}\xff\n", True), (None, None, False)],
)
def test_removes_only_the_copy_of_rpm(
    host: HostFS, tmp_path: Path, before: bytes | None, after: bytes | None, left: bool
) -> None:
    copy = tmp_path / "etc/docker/daemon.json.rpmsave"
    if before is not None:
        copy.write_bytes(before)
    saved = snapshot_files(host, [FILE])
    (tmp_path / FILE[1:]).unlink()
    if after is not None:
        copy.write_bytes(after)
    assert restore_missing(host, saved) == [FILE]
    assert copy.exists() is left


def test_restores_changed_file(host: HostFS, tmp_path: Path) -> None:
    saved = snapshot_files(host, [FILE])
    (tmp_path / FILE[1:]).write_text("changed")
    assert restore_missing(host, saved) == []
    assert (tmp_path / FILE[1:]).read_text() == "changed"
    restore(host, saved)
    assert (tmp_path / FILE[1:]).read_bytes() == b"{}\xff\n"


def test_restores_link(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "etc/link").symlink_to("../nowhere")
    saved = snapshot_files(host, ["/etc/link"])
    (tmp_path / "etc/link").unlink()
    restore(host, saved)
    assert os.readlink(tmp_path / "etc/link") == "../nowhere"


@pytest.mark.parametrize("in_place", [False, True])
def test_restores_list_behind_a_link(host: HostFS, tmp_path: Path, in_place: bool) -> None:
    (tmp_path / "etc/link").symlink_to("docker/daemon.json")
    saved = snapshot_list(host, "/etc/link")
    assert saved == snapshot_list(host, "/etc/link")
    if in_place:
        (tmp_path / "etc/link").write_text("changed")
    else:
        # dnf 4 renames a new list over the link.
        (tmp_path / "etc/new").write_text("changed")
        (tmp_path / "etc/new").rename(tmp_path / "etc/link")
    assert saved != snapshot_list(host, "/etc/link")
    restore(host, saved)
    assert os.readlink(tmp_path / "etc/link") == "docker/daemon.json"
    assert (tmp_path / FILE[1:]).read_bytes() == b"{}\xff\n"
