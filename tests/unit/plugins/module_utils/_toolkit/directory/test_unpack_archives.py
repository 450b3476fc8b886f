# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import io
import tarfile
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.unpack import (
    ArchiveEntry,
    read_tar,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.package_archives import (
    BLOCK,
    LINK,
    REGULAR,
    member,
    tar,
    with_size,
)

LONG = "./usr/" + "long/" * 50 + "name"


def tar_error(archive: bytes) -> str:
    with pytest.raises(NvidiaError) as caught:
        read_tar(archive, "a.deb")
    error = str(caught.value)
    start, end = "a.deb cannot be unpacked: ", ". Fetch the package again."
    assert error.startswith(start)
    assert error.endswith(end)
    return error[len(start) : -len(end)]


# -- entries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_entries(form: int) -> None:
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
        ArchiveEntry("./usr/tool", REGULAR | 0o4755, b"\0\xff" * 1001),
        ArchiveEntry("./usr/empty", REGULAR | 0o600, b""),
    ]


def test_tar_links() -> None:
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
        ArchiveEntry("./usr/tool", REGULAR | 0o755, b"content"),
        ArchiveEntry("./usr/link", LINK | 0o777, b"../tool"),
        ArchiveEntry("./usr/again", REGULAR | 0o755, b"content"),
        ArchiveEntry("./usr/once-more", REGULAR | 0o755, b"content"),
        ArchiveEntry("./usr/tool", REGULAR | 0o644, b"later"),
        ArchiveEntry("./usr/last", REGULAR | 0o644, b"later"),
        ArchiveEntry("./usr/same-link", LINK | 0o777, b"../tool"),
    ]


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, b"V"])
def test_tar_special_files(kind: bytes) -> None:
    assert read_tar(tar(member("dev", kind=kind)), "a.deb") == []


def test_tar_long_names() -> None:
    archive = tar(member(LONG, b"x"), member("link", kind=tarfile.SYMTYPE, linkname=LONG), member("\udcff", b"y"))
    assert [(entry.name, entry.content) for entry in read_tar(archive, "a.deb")] == [
        (LONG, b"x"),
        ("link", LONG.encode()),
        ("\udcff", b"y"),
    ]


def test_tar_pax_headers() -> None:
    archive = tar(member("x", b"x", pax_headers={"path": "./usr/é", "hdrcharset": "x"}), member("y", b"y"))
    assert [(entry.name, entry.content) for entry in read_tar(archive, "a.rpm")] == [("./usr/é", b"x"), ("y", b"y")]


def test_empty_tar() -> None:
    assert read_tar(tar(), "a.deb") == []


# -- errors ------------------------------------------------------------------------------------------------------------

TOOL, OTHER = member("usr/bin/tool", b"content"), member("usr/bin/other", b"more")
TAR = tar(TOOL, OTHER)
TOO_EARLY, NO_HEADER = "it ends too early", "its content has an invalid header"


@pytest.mark.parametrize("length", [513, 1000, 1024, 1025, 1536, 1537, 2048, 2049, 2559])
def test_truncated_tar(length: int) -> None:
    # Also at the end of a block, where tarfile reports no error.
    assert tar_error(TAR[:length]).startswith((TOO_EARLY, "its content is not a complete tar archive ("))


@pytest.mark.parametrize(
    ("archive", "problem"),
    [
        (b"", "its content is not a complete tar archive ("),
        (b"\x28\xb5\x2f\xfd" + bytes(2000), "its content is not a complete tar archive ("),
        (TOOL + OTHER.replace(b"other", b"othex") + bytes(1024), NO_HEADER),
        (TOOL + OTHER, TOO_EARLY),
        (tar(TOOL, with_size(OTHER, b"77777777777\0")), TOO_EARLY),
        # Negative sizes, which Python 3.11.2 rejects, and sizes above all limits.
        (tar(TOOL, with_size(OTHER, b"\xff" * 10 + b"\xfc\x00")), (TOO_EARLY, NO_HEADER)),
        (tar(with_size(OTHER, b"\x80" + b"\xff" * 11)), TOO_EARLY),
        (tar(with_size(member("x", kind=tarfile.DIRTYPE), b"\xff" * 12)), TOO_EARLY),
        (tar(with_size(member(LONG), b"\x80" + b"\xff" * 11)), "its content is not a complete tar archive ("),
        (member(LONG)[:1024] * 3000, "its content is not a complete tar archive ("),
        (tar(member("x", b"x", pax_headers={"size": "-1000"})), TOO_EARLY),
        (tar(member("x", b"x", pax_headers={"size": "9999999999"})), TOO_EARLY),
    ],
)
def test_damaged_tar(archive: bytes, problem: str | tuple[str, ...]) -> None:
    assert tar_error(archive).startswith(problem)


@pytest.mark.parametrize(
    "other",
    [
        member("other", kind=tarfile.GNUTYPE_SPARSE),
        member("other", b"x", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"}),
    ],
)
def test_rejects_sparse_files(other: bytes) -> None:
    assert tar_error(tar(TOOL, other)) == "it contains the sparse file 'other'"


def test_tar_with_too_many_entries() -> None:
    # Reading stops at the limit, before the damage.
    assert tar_error(member("a") * 10_001 + b"x" * 2 * BLOCK) == "it contains more than 10000 entries"


@pytest.mark.parametrize("target", ["usr/bin/other", "/etc/shadow", "../../etc/shadow", "usr", ""])
def test_rejects_hard_links_to_missing_entries(target: str) -> None:
    folder = member("usr", kind=tarfile.DIRTYPE)
    found = tar_error(tar(folder, TOOL, member("link", kind=tarfile.LNKTYPE, linkname=target), OTHER))
    assert found == f"it contains 'link', a hard link to {target!r}, which is not an earlier entry"


@given(st.integers(0, len(TAR) - 1), st.integers(0, 255))
def test_any_damaged_tar_is_read_or_refused(place: int, byte: int) -> None:
    # Any other exception fails.
    with contextlib.suppress(NvidiaError):
        assert len(read_tar(TAR[:place] + bytes([byte]) + TAR[place + 1 :], "a.deb")) <= 2


KINDS = st.sampled_from([bytes([kind]) for kind in b"xgLKSV0125"])


@given(st.lists(st.tuples(KINDS, st.binary(max_size=80))))
def test_any_tar_headers_are_read_or_refused(parts: t.Sequence[tuple[bytes, bytes]]) -> None:
    with contextlib.suppress(NvidiaError):
        read_tar(tar(*(member("x", content, kind) for kind, content in parts)), "a.deb")
