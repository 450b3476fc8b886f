# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: archives in cpio's "newc" format, which rpm2cpio gives.  cpio itself is not on every
# host.

from __future__ import annotations

import os
import re
import stat

from ansible_collections.gpufleet.nvidia.plugins.module_utils._archive_entries import Entry, check_number, damaged

# cpio(5): six characters, then thirteen numbers of eight hexadecimal digits each: inode, mode, owner, group, links,
# time, size, its device (two), the device that it is (two), size of the name with its null, sum of the content's bytes.
_PLAIN, _SUMMED = b"070701", b"070702"
_HEADER = 6 + 13 * 8
# int() would take signs, too.
_DIGITS = re.compile(rb"[0-9A-Fa-f]+\Z")
_END = b"TRAILER!!!"


def read_newc(archive: bytes, label: str) -> list[Entry]:
    """The entries of an archive, each with its content.

    ``label`` is what messages call the archive.  Raises GpufleetError where it is damaged.
    """
    entries: list[Entry] = []
    # Of several names of one file, only the last has the content: what file each entry is, and what that holds.
    files: list[tuple[int, int, int] | None] = []
    contents: dict[tuple[int, int, int], bytes] = {}
    place = 0
    while True:
        numbers = _numbers(archive[place : place + _HEADER], label)
        (inode, mode), links, (size, major, minor), (name_size, total) = (
            numbers[:2],
            numbers[4],
            numbers[6:9],
            numbers[11:],
        )
        start = _padded(place + _HEADER + name_size)
        end = start + size
        if end > len(archive) or not name_size:
            raise damaged(label, "it ends too early")
        name = archive[place + _HEADER : place + _HEADER + name_size].rstrip(b"\0")
        if name == _END:
            return [
                entry if file is None else entry._replace(content=contents.get(file, b""))
                for entry, file in zip(entries, files)
            ]
        content = archive[start:end]
        if archive[place : place + 6] == _SUMMED and content and sum(content) & 0xFFFFFFFF != total:
            raise damaged(label, "a checksum is wrong")
        file = (major, minor, inode) if links > 1 and stat.S_ISREG(mode) else None
        if file is not None and content:
            contents[file] = content
        files.append(file)
        entries.append(Entry(os.fsdecode(name), mode, content))
        check_number(entries, label)
        place = _padded(end)


def _numbers(header: bytes, label: str) -> list[int]:
    if len(header) < _HEADER:
        raise damaged(label, "it ends too early")
    if header[:6] not in {_PLAIN, _SUMMED}:
        raise damaged(label, "its content is no cpio archive in the format newc")
    if not _DIGITS.match(header, 6):
        raise damaged(label, "its content has a header that cannot be read")
    return [int(header[place : place + 8], 16) for place in range(6, _HEADER, 8)]


def _padded(place: int) -> int:
    """Everything begins at a multiple of four bytes."""
    return place + -place % 4
