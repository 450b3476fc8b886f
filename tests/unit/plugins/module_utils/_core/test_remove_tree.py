# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import resource
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.remove_tree import (
    remove_tree,
    remove_tree_if_possible,
)

if t.TYPE_CHECKING:
    from pathlib import Path


def make_deep(folder: Path, levels: int, name: str = "d") -> None:
    """Create directories inside each other, whose path no system call would accept."""
    handle = os.open(folder, os.O_RDONLY)
    for _level in range(levels):
        os.mkdir(name, dir_fd=handle)
        below = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=below))
        os.close(handle)
        handle = below
    os.close(handle)


@pytest.fixture
def few_files() -> t.Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 100), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("levels", [0, 1, 2, 1800])
def test_any_depth(levels: int, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    make_deep(folder, levels)
    # These are the names that the code itself gives to directories that it moves.
    (folder / "0").write_text("")
    (folder / "1").mkdir()
    (folder / "1/0").mkdir()
    remove_tree(str(folder))
    assert os.listdir(tmp_path) == []


def test_modes_and_links(tmp_path: Path) -> None:
    """A user without privileges can remove own directories whatever their mode is."""
    folder, kept = tmp_path / "tree", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/link").symlink_to(kept)
    (folder / "link").symlink_to(kept / "file")
    os.mkfifo(folder / "a/fifo")
    for name in ("a/b/c", "a/b", "a", ""):
        (folder / name).chmod(0)
    remove_tree(str(folder))
    assert os.listdir(tmp_path) == ["kept"]
    assert (kept / "file").read_text() == "x"


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(str(tmp_path / "missing"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        remove_tree(str(tmp_path / "file"))
    remove_tree_if_possible(str(tmp_path / "file"))
    remove_tree_if_possible(str(tmp_path / "missing"))
    assert (tmp_path / "file").read_text() == "x"


def test_other_file_systems_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "tree/mounted"
    mounted.mkdir(parents=True)
    (mounted / "file").write_text("x")
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        found = real(path)
        fields = list(found)
        fields[2] += str(path) == str(mounted)
        return os.stat_result(fields)

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(OSError, match="another file system"):
        remove_tree(str(tmp_path / "tree"))
    assert (mounted / "file").read_text() == "x"
