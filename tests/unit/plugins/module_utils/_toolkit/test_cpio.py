# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.unpack import Entry, read_newc
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils._toolkit.test_archive_entries import (
    DIRECTORY,
    LINK,
    PIPE,
    REGULAR,
)


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


def refusal(archive: bytes) -> str:
    with pytest.raises(NvidiaError) as caught:
        read_newc(archive, "a.rpm")
    return str(caught.value)


# -- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", ["070701", "070702"])
def test_entries(magic: str) -> None:
    items = [
        Item(".", mode=DIRECTORY | 0o755),
        Item("./usr/lib64/lib.so.1.2", b"a library", REGULAR | 0o4755),
        Item("./usr/lib64/lib.so.1", b"lib.so.1.2", LINK | 0o777),
        Item("./usr/bin/tool", b"\0\xff" * 1001),
        Item("./usr/bin/empty"),
        Item("./dev/pipe", mode=PIPE | 0o644),
    ]
    entries = read_newc(newc(*items, magic=magic), "a.rpm")
    assert entries == [Entry(item.name, item.mode, item.content) for item in items]


def test_several_names_of_one_file() -> None:
    archive = newc(
        Item("one", inode=7, links=2),
        Item("other", inode=8, links=2),
        Item("two", b"content", inode=7, links=2),
        Item("another", b"else", inode=8, links=2),
        Item("nothing", inode=9, links=2),
        # Directories have several links, too.
        Item("usr", mode=DIRECTORY | 0o755, inode=7, links=2),
    )
    assert [(entry.name, entry.content) for entry in read_newc(archive, "a.rpm")] == [
        ("one", b"content"),
        ("other", b"else"),
        ("two", b"content"),
        ("another", b"else"),
        ("nothing", b""),
        ("usr", b""),
    ]


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=9)


@given(files=st.dictionaries(NAMES, st.binary(max_size=50)), magic=st.sampled_from(["070701", "070702"]))
def test_any_files_are_read(files: t.Mapping[str, bytes], magic: str) -> None:
    archive = newc(*(Item(name, content) for name, content in files.items()), magic=magic)
    assert {entry.name: entry.content for entry in read_newc(archive, "a.rpm")} == files


# -- what is refused -------------------------------------------------------------------------------------------------


WHOLE = newc(Item("usr/bin/tool", b"content"), Item("usr/bin/other", b"more"), magic="070702")


@pytest.mark.parametrize("length", [0, 3, 50, 110, 115, 130, len(WHOLE) - 124, len(WHOLE) - 14])
def test_an_archive_that_is_cut(length: int) -> None:
    assert refusal(WHOLE[:length]) == "a.rpm cannot be unpacked: it ends too early. Fetch the package again."


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
def test_an_archive_that_is_damaged(archive: bytes, problem: str) -> None:
    assert refusal(archive) == f"a.rpm cannot be unpacked: {problem}. Fetch the package again."


def test_an_archive_with_too_many_entries() -> None:
    # Reading stops there: the damage behind them is not reached.
    archive = newc(Item("a"), end=False) * 10_001 + b"x" * 200
    assert refusal(archive) == "a.rpm cannot be unpacked: it holds more than 10000 entries. Fetch the package again."


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_any_damage_is_read_or_refused(place: int, byte: int) -> None:
    # Any other exception fails.
    with contextlib.suppress(NvidiaError):
        names = [entry.name for entry in read_newc(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :], "a.rpm")]
        assert len(names) <= 2
