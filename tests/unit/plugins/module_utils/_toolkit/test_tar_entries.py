# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import io
import stat
import tarfile
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.unpack import Entry, read_tar
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils._toolkit.test_archive_entries import (
    DIRECTORY,
    LINK,
    REGULAR,
)

BLOCK = 512
LONG = "./usr/" + "long/" * 50 + "name"


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: t.Any) -> bytes:
    """One member as it stands in an archive; ``fields`` as those of TarInfo."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    header = info.tobuf(tarfile.PAX_FORMAT) if info.pax_headers else info.tobuf(tarfile.GNU_FORMAT)
    return header + content + bytes(-len(content) % BLOCK)


def tar(*members: bytes) -> bytes:
    return b"".join(members) + bytes(2 * BLOCK)


def with_size(header: bytes, size: bytes) -> bytes:
    """A header that says another size, with the checksum that belongs to it."""
    header = header[:124] + size + header[136:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header[:BLOCK]) + header[156:]


def refusal(archive: bytes) -> str:
    with pytest.raises(NvidiaError) as caught:
        read_tar(archive, "a.deb")
    said = str(caught.value)
    start, end = "a.deb cannot be unpacked: ", ". Fetch the package again."
    assert said.startswith(start)
    assert said.endswith(end)
    return said[len(start) : -len(end)]


# -- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_entries(form: int) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for name, kind, mode, content in (
            ("./", tarfile.DIRTYPE, 0o777, b""),
            ("./usr/tool", tarfile.REGTYPE, 0o4755, b"\0\xff" * 1001),
            ("./usr/empty", tarfile.AREGTYPE, 0o600, b""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.size, info.uid, info.gid = kind, mode, len(content), 1000, 1000
            archive.addfile(info, io.BytesIO(content))
    assert read_tar(stream.getvalue(), "a.deb") == [
        Entry(".", DIRECTORY | 0o777, b""),
        Entry("./usr/tool", REGULAR | 0o4755, b"\0\xff" * 1001),
        Entry("./usr/empty", REGULAR | 0o600, b""),
    ]


def test_links() -> None:
    archive = tar(
        member("./usr/tool", b"content", mode=0o755),
        member("./usr/link", kind=tarfile.SYMTYPE, linkname="../tool", mode=0o777),
        member("./usr/again", kind=tarfile.LNKTYPE, linkname="./usr/tool"),
        member("./usr/once-more", kind=tarfile.LNKTYPE, linkname="usr/again"),
        member("./usr/tool", b"later"),
        member("./usr/last", kind=tarfile.LNKTYPE, linkname="./usr/tool"),
        member("./usr/same-link", kind=tarfile.LNKTYPE, linkname="./usr/link"),
    )
    assert read_tar(archive, "a.deb") == [
        Entry("./usr/tool", REGULAR | 0o755, b"content"),
        Entry("./usr/link", LINK | 0o777, b"../tool"),
        Entry("./usr/again", REGULAR | 0o755, b"content"),
        Entry("./usr/once-more", REGULAR | 0o755, b"content"),
        Entry("./usr/tool", REGULAR | 0o644, b"later"),
        Entry("./usr/last", REGULAR | 0o644, b"later"),
        Entry("./usr/same-link", LINK | 0o777, b"../tool"),
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(tarfile.FIFOTYPE, stat.S_IFIFO), (tarfile.CHRTYPE, stat.S_IFCHR), (tarfile.BLKTYPE, stat.S_IFBLK)],
)
def test_devices_are_told_from_files(kind: bytes, expected: int) -> None:
    archive = tar(member("dev", kind=kind), member("again", kind=tarfile.LNKTYPE, linkname="dev"))
    assert [stat.S_IFMT(entry.mode) for entry in read_tar(archive, "a.deb")] == [expected] * 2


def test_long_names_and_any_bytes() -> None:
    archive = tar(member(LONG, b"x"), member("link", kind=tarfile.SYMTYPE, linkname=LONG), member("\udcff", b"y"))
    assert [(entry.name, entry.content) for entry in read_tar(archive, "a.deb")] == [
        (LONG, b"x"),
        ("link", LONG.encode()),
        ("\udcff", b"y"),
    ]


def test_nothing_inside() -> None:
    assert read_tar(tar(), "a.deb") == []


# -- what is refused -------------------------------------------------------------------------------------------------

TOOL, OTHER = member("usr/bin/tool", b"content"), member("usr/bin/other", b"more")
WHOLE = tar(TOOL, OTHER)
TOO_EARLY, NO_HEADER = "it ends too early", "its content has a header that cannot be read"


@pytest.mark.parametrize("length", [513, 1000, 1024, 1025, 1536, 1537, 2048, 2049, 2559])
def test_an_archive_that_is_cut(length: int) -> None:
    # At a block's end, too, where tarfile sees nothing wrong.
    assert refusal(WHOLE[:length]).startswith((TOO_EARLY, "its content is no whole tar archive ("))


@pytest.mark.parametrize(
    ("archive", "problem"),
    [
        (b"", "its content is no whole tar archive ("),
        (b"\x28\xb5\x2f\xfd" + bytes(2000), "its content is no whole tar archive ("),
        (TOOL + OTHER.replace(b"other", b"othex") + bytes(1024), NO_HEADER),
        (TOOL + OTHER, TOO_EARLY),
        (tar(TOOL, with_size(OTHER, b"77777777777\0")), TOO_EARLY),
        # Below zero: Python 3.11.2 refuses the header, others would begin anew. And more than any file can have.
        (tar(TOOL, with_size(OTHER, b"\xff" * 10 + b"\xfc\x00")), (TOO_EARLY, NO_HEADER)),
        (tar(with_size(OTHER, b"\x80" + b"\xff" * 11)), TOO_EARLY),
        (tar(with_size(member("x", kind=tarfile.DIRTYPE), b"\xff" * 12)), TOO_EARLY),
        (tar(with_size(member(LONG), b"\x80" + b"\xff" * 11)), "its content is no whole tar archive ("),
        (member(LONG)[:1024] * 3000, "its content is no whole tar archive ("),
    ],
)
def test_an_archive_that_is_damaged(archive: bytes, problem: str | tuple[str, ...]) -> None:
    assert refusal(archive).startswith(problem)


@pytest.mark.parametrize(
    "other",
    [
        member("other", kind=tarfile.GNUTYPE_SPARSE),
        member("other", kind=b"V"),
        member("other", b"x", pax_headers={"comment": "x"}),
        member("other", b"x", pax_headers={"path": "/etc/passwd"}),
    ],
)
def test_what_no_debian_package_has(other: bytes) -> None:
    assert refusal(tar(TOOL, other)).endswith(" in a form that dpkg does not install either")


def test_an_archive_with_too_many_entries() -> None:
    # Reading stops there: the damage behind them is not reached.
    assert refusal(member("a") * 10_001 + b"x" * 2 * BLOCK) == "it holds more than 10000 entries"


@pytest.mark.parametrize("target", ["usr/bin/other", "/etc/shadow", "../../etc/shadow", "usr", ""])
def test_a_hard_link_to_what_is_not_inside(target: str) -> None:
    folder = member("usr", kind=tarfile.DIRTYPE)
    found = refusal(tar(folder, TOOL, member("link", kind=tarfile.LNKTYPE, linkname=target), OTHER))
    assert found == f"it holds 'link' as another name of {target!r}, which is not before it"


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_any_damage_is_read_or_refused(place: int, byte: int) -> None:
    # Any other exception fails.
    with contextlib.suppress(NvidiaError):
        assert len(read_tar(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :], "a.deb")) <= 2


KINDS = st.sampled_from([bytes([kind]) for kind in b"xgLKSV0125"])


@given(st.lists(st.tuples(KINDS, st.binary(max_size=80))))
def test_any_content_of_headers_is_read_or_refused(parts: t.Sequence[tuple[bytes, bytes]]) -> None:
    with contextlib.suppress(NvidiaError):
        read_tar(tar(*(member("x", content, kind) for kind, content in parts)), "a.deb")
