# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cpio import extract, read_newc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError

REGULAR, DIRECTORY, LINK, PIPE = 0o100000, 0o040000, 0o120000, 0o010000


class Item(t.NamedTuple):
    """What goes into an archive; ``inode`` is that of all names of one file, ``links`` how many these are."""

    name: str
    content: bytes = b""
    mode: int = REGULAR | 0o644
    inode: int = 0
    links: int = 1


def newc(*items: Item, magic: str = "070701", end: bool = True) -> bytes:
    """An archive; with ``magic`` 070702 it has checksums."""
    archive = b""
    for item in (*items, *([Item("TRAILER!!!", mode=0)] if end else [])):
        name = item.name.encode() + b"\0"
        total = sum(item.content) if magic == "070702" else 0
        numbers = [item.inode, item.mode, 0, 0, item.links, 0, len(item.content), 8, 1, 0, 0, len(name), total]
        archive += magic.encode() + b"".join(b"%08X" % number for number in numbers) + name
        archive += bytes(-len(archive) % 4) + item.content
        archive += bytes(-len(archive) % 4)
    return archive


def refusal(archive: bytes, folder: Path) -> str:
    with pytest.raises(GpufleetError) as caught:
        extract(archive, str(folder), "a.rpm")
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


# -- what is unpacked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", ["070701", "070702"])
def test_files_directories_and_links(tmp_path: Path, magic: str) -> None:
    archive = newc(
        Item("./usr/lib64", mode=DIRECTORY | 0o700),
        Item("./usr/lib64/lib.so.1.2", b"a library", REGULAR | 0o755),
        Item("./usr/lib64/lib.so.1", b"lib.so.1.2", LINK | 0o777),
        Item("./usr/bin/tool", b"\0\xff" * 1001),
        Item("./usr/bin/empty"),
        magic=magic,
    )
    extract(archive, str(tmp_path), "a.rpm")
    assert content_of(tmp_path) == {
        "usr": None,
        "usr/lib64": None,
        "usr/lib64/lib.so.1.2": b"a library",
        "usr/lib64/lib.so.1": "lib.so.1.2",
        "usr/bin": None,
        "usr/bin/tool": b"\0\xff" * 1001,
        "usr/bin/empty": b"",
    }


@pytest.mark.parametrize(("mode", "kept"), [(0o755, 0o755), (0o4777, 0o755), (0o664, 0o644), (0o600, 0o600)])
def test_modes(tmp_path: Path, mode: int, kept: int) -> None:
    extract(newc(Item("tool", b"x", REGULAR | mode)), str(tmp_path), "a.rpm")
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == kept


def test_a_directory_that_must_not_be_written_to_can_be_written_to(tmp_path: Path) -> None:
    extract(newc(Item("usr", mode=DIRECTORY | 0o555), Item("usr/tool", b"x")), str(tmp_path), "a.rpm")
    assert (tmp_path / "usr").stat().st_mode & 0o700 == 0o700


@pytest.mark.parametrize("name", [".", "./", "/".join([".", "."])])
def test_the_folder_itself(tmp_path: Path, name: str) -> None:
    extract(newc(Item(name, mode=DIRECTORY | 0o755), Item("tool", b"x")), str(tmp_path), "a.rpm")
    assert content_of(tmp_path) == {"tool": b"x"}


def test_several_names_of_one_file(tmp_path: Path) -> None:
    archive = newc(
        Item("one", inode=7, links=2),
        Item("other", inode=8, links=2),
        Item("two", b"content", inode=7, links=2),
        Item("another", b"else", inode=8, links=2),
    )
    extract(archive, str(tmp_path), "a.rpm")
    assert content_of(tmp_path) == {"one": b"content", "two": b"content", "other": b"else", "another": b"else"}


def test_what_is_neither_file_nor_link_is_left_out(tmp_path: Path) -> None:
    extract(newc(Item("dev/pipe", mode=PIPE | 0o644), Item("tool", b"x")), str(tmp_path), "a.rpm")
    assert content_of(tmp_path) == {"dev": None, "tool": b"x"}


def test_a_later_package_replaces_files(tmp_path: Path) -> None:
    extract(newc(Item("usr/tool", b"old", REGULAR | 0o444), Item("usr/link", b"old", LINK)), str(tmp_path), "a.rpm")
    later = newc(Item("usr", mode=DIRECTORY | 0o755), Item("usr/tool", b"new"), Item("usr/link", b"new", LINK))
    extract(later, str(tmp_path), "b.rpm")
    assert content_of(tmp_path) == {"usr": None, "usr/tool": b"new", "usr/link": "new"}


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, blacklist_characters="/."), min_size=1, max_size=9)


@given(files=st.dictionaries(NAMES, st.binary(max_size=50)), magic=st.sampled_from(["070701", "070702"]))
def test_any_files_come_back(files: dict[str, bytes], magic: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        extract(newc(*(Item(name, content) for name, content in files.items()), magic=magic), folder, "a.rpm")
        assert content_of(Path(folder)) == files


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "usr/../../outside", "usr/bin/..", "a\0b"])
def test_names_that_lead_away(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    said = refusal(newc(Item("usr/bin/tool", b"x"), Item(name, b"x")), folder)
    assert said.startswith(f"a.rpm holds {name!r}, which leads out of the directory that it is unpacked into; nothing ")
    assert content_of(tmp_path) == {"folder": None}


@pytest.mark.parametrize("target", ["/", "..", "outside", "../outside"])
def test_nothing_is_written_through_links(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "folder"
    for name in ("outside", "folder/outside"):
        (tmp_path / name).mkdir(parents=True)
    archive = newc(Item("usr/lib", target.encode(), LINK | 0o777), Item("usr/lib/written", b"x"))
    assert refusal(archive, folder).startswith("a.rpm has files below 'lib', which is a link or a file in what was ")
    directory = newc(Item("usr/lib", target.encode(), LINK | 0o777), Item("usr/lib", mode=DIRECTORY | 0o700))
    assert "below 'lib'" in refusal(directory, folder)
    assert not list(tmp_path.rglob("written"))
    # A file of that name takes the link's place.
    outside = tmp_path / "outside/file"
    outside.write_text("theirs")
    extract(newc(Item("link", bytes(outside), LINK), Item("link", b"ours")), str(folder), "a.rpm")
    assert outside.read_text() == "theirs"
    assert (folder / "link").read_bytes() == b"ours"


def test_files_and_directories_in_each_others_places(tmp_path: Path) -> None:
    assert "below 'usr', which is a link or a file" in refusal(
        newc(Item("usr", b"x"), Item("usr/tool", b"x")), tmp_path
    )
    (tmp_path / "bin").mkdir()
    assert refusal(newc(Item("bin", b"x")), tmp_path).startswith(
        "a.rpm has a file 'bin' where what was unpacked before "
    )


WHOLE = newc(Item("usr/bin/tool", b"content"), Item("usr/bin/other", b"more"), magic="070702")


@pytest.mark.parametrize("length", [0, 3, 50, 110, 115, 130, len(WHOLE) - 124, len(WHOLE) - 14])
def test_an_archive_that_is_cut(tmp_path: Path, length: int) -> None:
    assert refusal(WHOLE[:length], tmp_path) == "a.rpm cannot be unpacked: it ends too early. Fetch the package again."
    assert not content_of(tmp_path)


@pytest.mark.parametrize(
    ("archive", "problem"),
    [
        (b"\x28\xb5\x2f\xfd" + bytes(200), "its content is no cpio archive in the format newc"),
        (newc(Item("tool", b"x"), magic="07070X"), "its content is no cpio archive in the format newc"),
        (WHOLE.replace(b"content", b"contexx"), "a checksum is wrong"),
        (WHOLE[:6] + b"x" * 8 + WHOLE[14:], "its content has a header that cannot be read"),
        # The size of the first file; what follows would be read again, for ever.
        (WHOLE[:54] + b"-0000080" + WHOLE[62:], "its content has a header that cannot be read"),
        (WHOLE[:94] + b"00000000" + WHOLE[102:], "it ends too early"),
    ],
)
def test_an_archive_that_is_damaged(tmp_path: Path, archive: bytes, problem: str) -> None:
    assert refusal(archive, tmp_path) == f"a.rpm cannot be unpacked: {problem}. Fetch the package again."
    assert not content_of(tmp_path)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_any_damage_is_read_or_refused(place: int, byte: int) -> None:
    # Any other exception fails.
    with contextlib.suppress(GpufleetError):
        names = [entry.name for entry in read_newc(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :], "a.rpm")]
        assert len(names) <= 2


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"/aaaa[^ ]* cannot be written: File name too long\. Check the file system\."):
        extract(newc(Item("a" * 300, b"x")), str(tmp_path), "a.rpm")
