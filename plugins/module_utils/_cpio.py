# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: archives in cpio's "newc" format, which rpm2cpio gives, unpacked into a folder and
# nowhere else.  cpio itself is not on every host.

from __future__ import annotations

import os
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import explain

# cpio(5): six characters, then thirteen numbers of eight hexadecimal digits each: inode, mode, owner, group, links,
# time, size, its device (two), the device that it is (two), size of the name with its null, sum of the content's bytes.
_PLAIN, _SUMMED = b"070701", b"070702"
_HEADER = 6 + 13 * 8
# int() would take signs, too.
_DIGITS = re.compile(rb"[0-9A-Fa-f]+\Z")
_END = b"TRAILER!!!"


class Entry(t.NamedTuple):
    """One entry; ``mode`` with the kind of file; ``twins``: the same for all names of one file, else None."""

    name: str
    mode: int
    content: bytes
    twins: tuple[int, int, int] | None = None


def extract(archive: bytes, folder: str, label: str) -> None:
    """Unpack regular files, directories and symbolic links of ``archive`` below ``folder``, which exists.

    ``label`` is what messages call the archive.  Raises GpufleetError for a damaged one, or one that would write
    outside ``folder``, before anything is written as far as names tell; HostError if something cannot be written.
    """
    entries = [(_parts(entry.name, label), entry) for entry in read_newc(archive, label)]
    contents: dict[tuple[int, int, int], bytes] = {}
    for _names, entry in entries:
        # Of several names of one file, only the last has the content.
        if entry.twins is not None and entry.content:
            contents[entry.twins] = entry.content
    for names, entry in entries:
        content = entry.content if entry.twins is None else contents.get(entry.twins, b"")
        if names:
            _write(folder, names, entry.mode, content, label)


def read_newc(archive: bytes, label: str) -> list[Entry]:
    """The entries of an archive.  Raises GpufleetError where it is damaged."""
    entries: list[Entry] = []
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
            raise _damaged(label, "it ends too early")
        name = archive[place + _HEADER : place + _HEADER + name_size].rstrip(b"\0")
        if name == _END:
            return entries
        content = archive[start:end]
        if archive[place : place + 6] == _SUMMED and content and sum(content) & 0xFFFFFFFF != total:
            raise _damaged(label, "a checksum is wrong")
        twins = (major, minor, inode) if links > 1 and stat.S_ISREG(mode) else None
        entries.append(Entry(os.fsdecode(name), mode, content, twins))
        place = _padded(end)


def _numbers(header: bytes, label: str) -> list[int]:
    if len(header) < _HEADER:
        raise _damaged(label, "it ends too early")
    if header[:6] not in {_PLAIN, _SUMMED}:
        raise _damaged(label, "its content is no cpio archive in the format newc")
    if not _DIGITS.match(header, 6):
        raise _damaged(label, "its content has a header that cannot be read")
    return [int(header[place : place + 8], 16) for place in range(6, _HEADER, 8)]


def _padded(place: int) -> int:
    """Everything begins at a multiple of four bytes."""
    return place + -place % 4


def _parts(name: str, label: str) -> list[str]:
    """The components of an entry's name, none for the folder itself.  Raises GpufleetError for one that leads away."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise GpufleetError(
            f"{label} holds {name!r}, which leads out of the directory that it is unpacked into; nothing of it was"
            " unpacked. Fetch the package again, from NVIDIA's repository."
        )
    return parts


def _write(folder: str, names: t.Sequence[str], mode: int, content: bytes, label: str) -> None:
    """Write one entry; what is neither file, directory nor link (no package of the toolkit has such) is left out."""
    try:
        above = _make_folders(folder, names[:-1], label)
        path = os.path.join(above, names[-1])
        if stat.S_ISDIR(mode):
            _make_folders(above, names[-1:], label)
        elif stat.S_ISLNK(mode):
            _make_way(path, label)
            os.symlink(os.fsdecode(content), path)
        elif stat.S_ISREG(mode):
            _make_way(path, label)
            _write_file(path, content, mode)
    except OSError as error:
        raise explain("/".join([folder, *names]), "written", error) from error


def _make_folders(folder: str, names: t.Sequence[str], label: str) -> str:
    """``folder`` with ``names`` below it, each of them a real directory: never through a link."""
    for name in names:
        folder = os.path.join(folder, name)
        if not os.path.lexists(folder):
            # Whatever mode the archive wants: it must be possible to write into it, and to remove it.
            os.mkdir(folder)
        elif os.path.islink(folder) or not os.path.isdir(folder):
            raise GpufleetError(
                f"{label} has files below {name!r}, which is a link or a file in what was unpacked before. Give"
                " packages of one version of the toolkit, from NVIDIA's repository."
            )
    return folder


def _make_way(path: str, label: str) -> None:
    """Remove a file of that name: packages may share files."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise GpufleetError(
            f"{label} has a file {os.path.basename(path)!r} where what was unpacked before has a directory. Give"
            " packages of one version of the toolkit, from NVIDIA's repository."
        )
    if os.path.lexists(path):
        os.unlink(path)


def _write_file(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        os.fchmod(stream.fileno(), mode & 0o755)


def _damaged(label: str, problem: str) -> GpufleetError:
    return GpufleetError(f"{label} cannot be unpacked: {problem}. Fetch the package again.")
