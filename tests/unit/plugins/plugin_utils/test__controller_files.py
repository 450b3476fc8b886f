# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import stat
import tempfile
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._controller_files import prepare, write_private

if t.TYPE_CHECKING:
    from pathlib import Path


def state(path: Path) -> tuple[str, int]:
    return path.read_text(encoding="utf-8"), stat.S_IMODE(path.stat().st_mode)


def test_new_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "report"
    before = os.umask(0)
    try:
        assert write_private(str(path), "Text \u20ac\n", check_mode=False)
    finally:
        os.umask(before)
    assert state(path) == ("Text \u20ac\n", 0o600)
    assert os.listdir(tmp_path) == ["report"]


def test_same_text_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "report"
    write_private(str(path), "Text", check_mode=False)
    before = path.stat().st_ino
    assert not write_private(str(path), "Text", check_mode=False)
    assert path.stat().st_ino == before


@pytest.mark.parametrize(("text", "mode"), [("Text", 0o644), ("Tex", 0o600), ("Test", 0o600)])
def test_different_file_is_replaced(tmp_path: Path, text: str, mode: int) -> None:
    path = tmp_path / "report"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    with path.open(encoding="utf-8") as previous:
        assert write_private(str(path), "Text", check_mode=True)
        assert state(path) == (text, mode)
        assert write_private(str(path), "Text", check_mode=False)
        # The file is replaced, not overwritten.
        assert previous.read() == text
    assert state(path) == ("Text", 0o600)


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    assert write_private(str(tmp_path / "report"), "Text", check_mode=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_only_regular_files_are_replaced(tmp_path: Path, make: t.Callable[[str], None], check_mode: bool) -> None:
    path = str(tmp_path / "report")
    make(path)
    before = os.lstat(path).st_ino
    with pytest.raises(OSError, match="not a regular file"):
        write_private(path, "Text", check_mode)
    assert os.lstat(path).st_ino == before


@pytest.mark.parametrize("check_mode", [False, True])
def test_prepare_creates_the_directory(tmp_path: Path, check_mode: bool) -> None:
    path = tmp_path / "reports/today/report"
    assert prepare(str(path), check_mode)
    assert path.parent.exists() is not check_mode
    assert write_private(str(path), "Text", check_mode)
    assert path.exists() is not check_mode
    if not check_mode:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert not prepare(str(path), check_mode)
        assert os.listdir(path.parent) == ["report"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("path", ["report", "reports/report", "file/report"])
def test_prepare_rejects_unwritable_paths(tmp_path: Path, path: str, check_mode: bool) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    try:
        os.seteuid(65534)
        with pytest.raises(OSError, match=r"Permission denied|Not a directory|File exists"):
            prepare(str(tmp_path / path), check_mode)
    finally:
        os.seteuid(0)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize(
    ("mode", "owner", "file_owner", "replaceable"),
    [
        (0o1777, 0, 0, False),
        (0o1777, 0, 65533, False),
        (0o1777, 0, 65534, True),
        (0o1777, 65534, 0, True),
        (0o777, 0, 0, True),
    ],
)
def test_prepare_knows_which_files_can_be_replaced(
    mode: int, owner: int, file_owner: int, replaceable: bool, check_mode: bool
) -> None:
    results = []
    # Other users cannot enter the directory of pytest.
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/report"
        write_private(path, "Text", check_mode=False)
        os.chown(path, file_owner, 0)
        os.chown(folder, owner, 0)
        os.chmod(folder, mode)
        try:
            os.seteuid(65534)
            for write, arguments in ((prepare, (path, check_mode)), (write_private, (path, "New", False))):
                try:
                    write(*arguments)
                    results.append(True)
                except PermissionError:
                    results.append(False)
        finally:
            os.seteuid(0)
    assert results == [replaceable, replaceable]


def test_failure_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_paths: str) -> t.NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_private(str(tmp_path / "report"), "Text", check_mode=False)
    assert os.listdir(tmp_path) == []


def test_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    write_private(str(tmp_path / "report"), "\ud83d", check_mode=False)
    assert state(tmp_path / "report") == ("?", 0o600)
