# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import errno
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import directory_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory_store import rename_exchange

if t.TYPE_CHECKING:
    from pathlib import Path


def test_a_directory_and_a_link(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir(0o750)
    (folder / "file").write_text("x")
    link.symlink_to("nowhere")
    inode = folder.stat().st_ino
    rename_exchange(str(folder), str(link))
    assert os.readlink(str(folder)) == "nowhere"
    assert link.stat().st_ino == inode
    assert (link / "file").read_text() == "x"


@pytest.mark.parametrize("missing", ["one", "other"])
def test_both_have_to_be_there(missing: str, tmp_path: Path) -> None:
    for name in {"one", "other"} - {missing}:
        (tmp_path / name).write_text(name)
    with pytest.raises(OSError) as caught:
        rename_exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert caught.value.errno == errno.ENOENT
    assert [path.name for path in tmp_path.iterdir()] == list({"one", "other"} - {missing})


class OldLibrary:
    """A C library from before renameat2."""

    def __init__(self, library: t.Any) -> None:
        self.syscall = library.syscall


def test_a_c_library_without_a_function_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "other").write_text("2")
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: OldLibrary(load(name, use_errno=use_errno)))
    rename_exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert [(tmp_path / name).read_text() for name in ("one", "other")] == ["2", "1"]
    with pytest.raises(FileNotFoundError):
        rename_exchange(str(tmp_path / "one"), str(tmp_path / "nothing"))


def test_a_machine_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: OldLibrary(load(name, use_errno=use_errno)))
    monkeypatch.setattr(directory_store, "_SYSCALL_NUMBERS", {})
    with pytest.raises(OSError) as caught:
        rename_exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert caught.value.errno == errno.ENOSYS
