# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import stat
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.unpack import Entry, write_entries

REGULAR, DIRECTORY, LINK, PIPE = 0o100000, 0o040000, 0o120000, 0o010000


def entry(name: str, content: bytes = b"", mode: int = REGULAR | 0o644) -> Entry:
    return Entry(name, mode, content)


def write(folder: Path, *entries: Entry) -> None:
    write_entries(entries, str(folder), "a.rpm")


def refusal(folder: Path, *entries: Entry) -> str:
    with pytest.raises(NvidiaError) as caught:
        write(folder, *entries)
    return str(caught.value)


def content_of(folder: Path) -> dict[str, bytes | str | None]:
    """By name: a file's content, a link's target, None for a directory."""
    found: dict[str, bytes | str | None] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(str(path))
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


# -- what is written -------------------------------------------------------------------------------------------------


def test_files_directories_and_links(tmp_path: Path) -> None:
    write(
        tmp_path,
        entry("./usr/lib64", mode=DIRECTORY | 0o700),
        entry("./usr/lib64/lib.so.1.2", b"a library", REGULAR | 0o755),
        entry("./usr/lib64/lib.so.1", b"lib.so.1.2", LINK | 0o777),
        entry("./usr/bin/empty"),
    )
    assert content_of(tmp_path) == {
        "usr": None,
        "usr/lib64": None,
        "usr/lib64/lib.so.1.2": b"a library",
        "usr/lib64/lib.so.1": "lib.so.1.2",
        "usr/bin": None,
        "usr/bin/empty": b"",
    }


@pytest.mark.parametrize(("mode", "kept"), [(0o755, 0o755), (0o4777, 0o755), (0o664, 0o644), (0o600, 0o600)])
def test_modes(tmp_path: Path, mode: int, kept: int) -> None:
    write(tmp_path, entry("tool", b"x", REGULAR | mode))
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == kept


def test_a_directory_that_must_not_be_written_to_can_be_written_to(tmp_path: Path) -> None:
    write(tmp_path, entry("usr", mode=DIRECTORY | 0o555), entry("usr/tool", b"x"))
    assert (tmp_path / "usr").stat().st_mode & 0o700 == 0o700


@pytest.mark.parametrize("mode", [DIRECTORY | 0o777, REGULAR | 0o777, LINK | 0o777])
@pytest.mark.parametrize("name", [".", "./", "././", ""])
def test_the_folder_itself_stays_as_it_is(tmp_path: Path, name: str, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    before = folder.stat()
    write(folder, entry(name, b"/etc", mode), entry("tool", b"x"))
    assert content_of(tmp_path) == {"folder": None, "folder/tool": b"x"}
    assert folder.stat().st_mode == before.st_mode


def test_what_is_neither_file_nor_link_is_left_out(tmp_path: Path) -> None:
    devices = [entry(f"dev/{kind:o}", mode=kind | 0o644) for kind in (PIPE, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)]
    write(tmp_path, *devices, entry("tool", b"x"))
    assert content_of(tmp_path) == {"dev": None, "tool": b"x"}


def test_a_later_package_replaces_files(tmp_path: Path) -> None:
    write(tmp_path, entry("usr/tool", b"old", REGULAR | 0o444), entry("usr/link", b"old", LINK))
    write(tmp_path, entry("usr", mode=DIRECTORY), entry("usr/tool", b"new"), entry("usr/link", b"new", LINK))
    assert content_of(tmp_path) == {"usr": None, "usr/tool": b"new", "usr/link": "new"}


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, blacklist_characters="/."), min_size=1, max_size=9)


@given(files=st.dictionaries(NAMES, st.binary(max_size=50)))
def test_any_files_come_back(files: t.Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), *(entry(name, content) for name, content in files.items()))
        assert content_of(Path(folder)) == files


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "usr/../../outside", "usr/bin/..", "a\0b"])
def test_names_that_lead_away(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    said = refusal(folder, entry("usr/bin/tool", b"x"), entry(name, b"x"))
    assert said.startswith(f"a.rpm holds {name!r}, which leads out of the directory that it is unpacked into; nothing ")
    assert content_of(tmp_path) == {"folder": None}


@pytest.mark.parametrize("target", ["/", "..", "outside", "../outside"])
def test_nothing_is_written_through_links(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "folder"
    for name in ("outside", "folder/outside"):
        (tmp_path / name).mkdir(parents=True)
    link = entry("usr/lib", target.encode(), LINK | 0o777)
    # The link, and what stands below it, in one archive or in two.
    said = refusal(folder, link, entry("usr/lib/written", b"x"))
    assert said.startswith("a.rpm has files below 'lib', which is a link or a file in what was ")
    assert refusal(folder, entry("usr/lib/written", b"x")) == said
    assert "below 'lib'" in refusal(folder, link, entry("usr/lib", mode=DIRECTORY | 0o700))
    assert not list(tmp_path.rglob("written"))
    # A file of that name takes the link's place.
    outside = tmp_path / "outside/file"
    outside.write_text("theirs")
    write(folder, entry("link", bytes(outside), LINK), entry("link", b"ours"))
    assert outside.read_text() == "theirs"
    assert (folder / "link").read_bytes() == b"ours"


def test_files_and_directories_in_each_others_places(tmp_path: Path) -> None:
    assert "below 'usr', which is a link or a file" in refusal(tmp_path, entry("usr", b"x"), entry("usr/tool", b"x"))
    (tmp_path / "bin").mkdir()
    assert refusal(tmp_path, entry("bin", b"x")).startswith("a.rpm has a file 'bin' where what was unpacked before ")


@pytest.mark.parametrize("target", [b"", b"a\0b"])
def test_a_link_to_no_name(tmp_path: Path, target: bytes) -> None:
    assert refusal(tmp_path, entry("tool", b"x"), entry("link", target, LINK)) == (
        "a.rpm cannot be unpacked: its link 'link' has no target that a link can have. Fetch the package again."
    )
    assert content_of(tmp_path) == {}


def test_an_archive_that_holds_too_much(tmp_path: Path) -> None:
    # In an archive, many names may share one content.
    entries = [entry(str(number), b"x" * (1 << 20)) for number in (1, 2)] * 150
    assert refusal(tmp_path, *entries).startswith("a.rpm cannot be unpacked: it holds more than ")
    assert content_of(tmp_path) == {}


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"/aaaa[^ ]* cannot be written: File name too long\. Check the file system\."):
        write(tmp_path, entry("a" * 300, b"x"))
