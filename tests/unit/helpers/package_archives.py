# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of packages: cpio and tar, with any field set to any value."""

from __future__ import annotations

import os
import tarfile
import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

REGULAR, DIRECTORY, LINK, PIPE = 0o100000, 0o040000, 0o120000, 0o010000
BLOCK = 512


class Item(t.NamedTuple):
    """An entry of an archive. All names of one file have the same ``inode``, and ``links`` is their number."""

    name: str
    content: bytes = b""
    mode: int = REGULAR | 0o644
    inode: int = 0
    links: int = 1


def newc(*items: Item, magic: str = "070701", end: bool = True) -> bytes:
    """Return a cpio archive. With ``magic`` 070702 it has checksums."""
    archive = b""
    for item in (*items, *([Item("TRAILER!!!", mode=0)] if end else [])):
        name = item.name.encode() + b"\0"
        total = sum(item.content) if magic == "070702" else 0
        numbers = [item.inode, item.mode, 0, 0, item.links, 0, len(item.content), 8, 1, 0, 0, len(name), total]
        archive += magic.encode() + b"".join(b"%08X" % number for number in numbers) + name
        archive += bytes(-len(archive) % 4) + item.content
        archive += bytes(-len(archive) % 4)
    return archive


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: t.Any) -> bytes:
    """Return one member of a tar archive. ``fields`` are those of TarInfo."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    header = info.tobuf(tarfile.PAX_FORMAT) if info.pax_headers else info.tobuf(tarfile.GNU_FORMAT)
    return header + content + bytes(-len(content) % BLOCK)


def tar(*members: bytes) -> bytes:
    return b"".join(members) + bytes(2 * BLOCK)


def with_size(header: bytes, size: bytes) -> bytes:
    """Return the header with another size and a correct checksum."""
    header = header[:124] + size + header[136:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header[:BLOCK]) + header[156:]


def content_of(folder: Path) -> dict[str, bytes | str | None]:
    """Return by name: a file's content, a link's target, None for a directory."""
    found: dict[str, bytes | str | None] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(str(path))
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found
