# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read ELF files: machine, minimum size, soname, loader and needed libraries. It does not load or run a file."""

from __future__ import annotations

import struct
import typing as t

X86_64, AARCH64 = 62, 183
# The values of e_machine that a supported host may have, with their names.
MACHINE_NAMES = {3: "80386", 21: "PowerPC64", 22: "S390", 40: "ARM", X86_64: "x86-64", AARCH64: "AArch64"}

# The number of bytes that read_elf and minimum_size need from the start of a file, which contain its headers.
HEADER_BYTES = 4096
_SHORTEST = 20
_HEADER_64 = 64
_LOADED, _DYNAMIC_SEGMENT, _LOADER_SEGMENT = 1, 2, 3
_END, _NEEDED, _STRING_TABLE, _SONAME = 0, 1, 5, 14
# A program header and an entry of the dynamic section of a 64-bit file, in bytes.
_SEGMENT, _TAG = 56, 16
# Limits that no real library reaches, so that a corrupt file does not take long.
_MAX_HEADERS, _MAX_TAGS, _MAX_NAME = 4096, 4096, 4096


class Elf(t.NamedTuple):
    """The values of an ELF header: bits (32 or 64), e_machine, and e_type (2: executable, 3: shared)."""

    bits: int
    machine: int
    kind: int


def read_elf(head: bytes) -> Elf | None:
    """Return the ELF header of ``head``, of which 20 bytes suffice; None if there is none."""
    order = _byte_order(head)
    if order is None or len(head) < _SHORTEST or head[4] not in {1, 2}:
        return None
    kind, machine = struct.unpack_from(f"{order}HH", head, 16)
    return Elf(32 * head[4], machine, kind)


def minimum_size(head: bytes) -> int:
    """Return the minimum size in bytes of a 64-bit ELF file according to its headers; 0 if it is unknown.

    A shorter file was not copied completely.
    """
    order = _byte_order(head)
    if order is None or len(head) < _HEADER_64 or head[4] != 2:
        return 0
    segments, sections = struct.unpack_from(f"{order}QQ", head, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from(f"{order}4H", head, 54)
    ends = [segments + segment_size * segment_count, sections + section_size * section_count]
    for number in range(segment_count):
        start = segments + segment_size * number
        if start + 40 > len(head):
            break
        if struct.unpack_from(f"{order}I", head, start)[0] == _LOADED:
            offset, _address, _physical, length = struct.unpack_from(f"{order}4Q", head, start + 8)
            ends.append(offset + length)
    return int(max(ends))


class Links(t.NamedTuple):
    """What the kernel and the loader need: the path of the loader, and the sonames of libraries (DT_NEEDED, DT_SONAME).

    ``loader`` is None for a library and for a program without a loader. ``soname`` is that of the file itself, if any.
    """

    loader: str | None
    needed: tuple[str, ...]
    soname: str | None = None


def read_links(file: t.BinaryIO) -> Links | None:
    """Return the links of a program or a library; None if it is not 64-bit ELF, truncated or corrupt.

    Only the necessary parts are read, because such a file can have a hundred megabytes.
    """
    try:
        head = _read(file, 0, _HEADER_64)
        order = _byte_order(head)
        if order is None or len(head) < _HEADER_64 or head[4] != 2:
            return None
        segments = _segments(file, head, order)
        loader = None if segments.loader is None else _name(file, segments.loader)
        tags = [] if segments.dynamic is None else _tags(file, order, *segments.dynamic)
        # The dynamic section has the string table's address in memory, which is converted to an offset in the file.
        strings = next((segments.offset(value) for tag, value in tags if tag == _STRING_TABLE), None)
        names = [
            (tag, _name(file, strings + value)) for tag, value in tags if strings is not None and tag != _STRING_TABLE
        ]
        needed = tuple(name for tag, name in names if tag == _NEEDED and name is not None)
        return Links(loader, needed, next((name for tag, name in names if tag == _SONAME), None))
    except (struct.error, OverflowError):
        return None


def read_soname(library: t.BinaryIO) -> str | None:
    """Return the soname of a 64-bit library; None if it has none or is not a library."""
    links = read_links(library)
    return None if links is None else links.soname


def machine_name(machine: int) -> str:
    """Return the name of an e_machine for messages."""
    return MACHINE_NAMES.get(machine, f"machine {machine}")


def _byte_order(head: bytes) -> str | None:
    """Return the byte order as the prefix of a struct format."""
    return {1: "<", 2: ">"}.get(head[5]) if head[:4] == b"\x7fELF" and len(head) > 5 else None


class _Segments(t.NamedTuple):
    """The parts of a file in memory (address, offset, length), and where its dynamic section and loader's path are."""

    loaded: tuple[tuple[int, int, int], ...]
    dynamic: tuple[int, int] | None
    loader: int | None

    def offset(self, address: int) -> int | None:
        """Return the offset in the file of an address in memory."""
        parts = (part for part in self.loaded if part[0] <= address < part[0] + part[2])
        return next((address - start + offset for start, offset, _length in parts), None)


def _segments(library: t.BinaryIO, head: bytes, order: str) -> _Segments:
    (table,) = struct.unpack_from(f"{order}Q", head, 32)
    count = struct.unpack_from(f"{order}H", head, 56)[0]
    loaded: list[tuple[int, int, int]] = []
    # Of several segments of one kind, the first is used.
    others: dict[int, tuple[int, int]] = {}
    for header in _headers(library, table, count):
        kind, _flags, offset, address, _physical, length = struct.unpack_from(f"{order}2I4Q", header)
        if kind == _LOADED:
            loaded.append((address, offset, length))
        else:
            others.setdefault(kind, (offset, length))
    loader = others.get(_LOADER_SEGMENT)
    return _Segments(tuple(loaded), others.get(_DYNAMIC_SEGMENT), None if loader is None else loader[0])


def _headers(library: t.BinaryIO, table: int, count: int) -> list[bytes]:
    """Return the program headers."""
    content = _read(library, table, min(count, _MAX_HEADERS) * _SEGMENT) if table else b""
    return [content[start : start + _SEGMENT] for start in range(0, len(content) - _SEGMENT + 1, _SEGMENT)]


def _tags(library: t.BinaryIO, order: str, offset: int, length: int) -> list[tuple[int, int]]:
    """Return the entries of the dynamic section that are used here."""
    found: list[tuple[int, int]] = []
    content = _read(library, offset, min(length, _MAX_TAGS * _TAG))
    for start in range(0, len(content) - _TAG + 1, _TAG):
        tag, value = struct.unpack_from(f"{order}qQ", content, start)
        if tag == _END:
            break
        if tag in {_NEEDED, _STRING_TABLE, _SONAME}:
            found.append((tag, value))
    return found


def _name(library: t.BinaryIO, offset: int) -> str | None:
    name, end, _rest = _read(library, offset, _MAX_NAME).partition(b"\0")
    return name.decode("utf-8", "surrogateescape") if name and end else None


def _read(library: t.BinaryIO, offset: int, length: int) -> bytes:
    try:
        library.seek(offset)
    except (OSError, OverflowError, ValueError):
        # The offset is greater than the file system or the machine supports.
        return b""
    return library.read(length)
