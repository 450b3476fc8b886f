# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: archives in tar's format, which dpkg-deb gives of a package's files.

from __future__ import annotations

import io
import os
import stat
import tarfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._archive_entries import Entry, check_number, damaged

# deb(5): old tar, ustar, and of GNU's extensions long names; neither sparse files nor pax headers.
_KINDS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.AREGTYPE: stat.S_IFREG,
    tarfile.CONTTYPE: stat.S_IFREG,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}
# What tarfile raises, beside its own errors, for numbers that nobody would write and for chains of headers.
_ERRORS = (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError, RecursionError)


def read_tar(archive: bytes, label: str) -> list[Entry]:
    """The entries of an archive that is not compressed, each with its content; no owner is read.

    A hard link gets what the name has that it stands for.  ``label`` is what messages call the archive.  Raises
    GpufleetError where it is damaged, or in a form that no Debian package may have.
    """
    entries: list[Entry] = []
    # By name, without "./": what a hard link may stand for.
    files: dict[str, Entry] = {}
    for member in _members(archive, label):
        entry = _linked(member, files, label) if member.islnk() else _entry(archive, member, label)
        entries.append(entry)
        check_number(entries, label)
        if not stat.S_ISDIR(entry.mode):
            files[os.path.normpath(entry.name)] = entry
    return entries


def _members(archive: bytes, label: str) -> t.Iterator[tarfile.TarInfo]:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                # Below zero, some versions of tarfile would read the same for ever.
                size = member.size if member.isreg() and not member.issparse() else 0
                if member.size < 0 or member.offset_data + size > len(archive):
                    raise damaged(label, "it ends too early")
                yield member
            # Where tarfile stops; for it, a header that is cut or damaged ends the archive, too.
            last = archive[tar.offset : tar.offset + tarfile.BLOCKSIZE]
    except _ERRORS as error:
        raise damaged(label, f"its content is no whole tar archive ({error})") from error
    if len(last) < tarfile.BLOCKSIZE:
        raise damaged(label, "it ends too early")
    if last.strip(b"\0"):
        raise damaged(label, "its content has a header that cannot be read")


def _entry(archive: bytes, member: tarfile.TarInfo, label: str) -> Entry:
    kind = _KINDS.get(member.type)
    if kind is None or member.pax_headers:
        raise damaged(label, f"it holds {member.name!r} in a form that dpkg does not install either")
    content = b""
    if kind == stat.S_IFREG:
        content = archive[member.offset_data : member.offset_data + member.size]
    elif kind == stat.S_IFLNK:
        content = os.fsencode(member.linkname)
    return Entry(member.name, kind | stat.S_IMODE(member.mode), content)


def _linked(member: tarfile.TarInfo, files: t.Mapping[str, Entry], label: str) -> Entry:
    """A hard link, as a file of its own."""
    original = files.get(os.path.normpath(member.linkname))
    if original is None:
        raise damaged(label, f"it holds {member.name!r} as another name of {member.linkname!r}, which is not before it")
    return original._replace(name=member.name)
