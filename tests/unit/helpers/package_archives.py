# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tar archives as in packages, with any field set to any value."""

from __future__ import annotations

import os
import tarfile
import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

REGULAR, DIRECTORY, LINK, PIPE = 0o100000, 0o040000, 0o120000, 0o010000
BLOCK = 512


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
