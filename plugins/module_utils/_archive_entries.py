# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what packages hold, written into a folder and nowhere else.  Programs that unpack follow
# links which an earlier package has left, and give the folder itself the mode and the owner that an archive says.

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import explain

# Bytes and entries of a package.  The largest of the toolkit's has less than 80 MiB, and about 20 entries.
MAX_SIZE = 256 << 20
MAX_ENTRIES = 10_000


class Entry(t.NamedTuple):
    """One name in an archive; ``mode`` with the kind of file; ``content`` of a link is its target."""

    name: str
    mode: int
    content: bytes


def damaged(label: str, problem: str) -> GpufleetError:
    """What to raise for an archive that cannot be read; ``label`` is what messages call it."""
    return GpufleetError(f"{label} cannot be unpacked: {problem}. Fetch the package again.")


def check_number(entries: t.Sized, label: str) -> None:
    """Raises GpufleetError for more than MAX_ENTRIES; to be called while they are read, since there may be millions."""
    if len(entries) > MAX_ENTRIES:
        raise damaged(label, f"it holds more than {MAX_ENTRIES} entries")


def write_entries(entries: t.Sequence[Entry], folder: str, label: str) -> None:
    """Write the regular files, directories and symbolic links of an archive below ``folder``, which exists.

    ``folder`` itself stays as it is, owners are not taken over, and of modes no more than 0755.  ``label`` is what
    messages call the archive.  Raises GpufleetError for one that would write outside ``folder``, before anything is
    written as far as names tell; HostError if something cannot be written.
    """
    # A file with many names is written once for each of them.
    if sum(len(entry.content) for entry in entries) > MAX_SIZE:
        raise damaged(label, f"it holds more than {MAX_SIZE} bytes")
    placed = [(_parts(entry.name, label), entry) for entry in entries]
    for entry in entries:
        if stat.S_ISLNK(entry.mode) and (not entry.content or b"\0" in entry.content):
            raise damaged(label, f"its link {entry.name!r} has no target that a link can have")
    for names, entry in placed:
        if names:
            _write(folder, names, entry, label)


def _parts(name: str, label: str) -> list[str]:
    """The components of an entry's name, none for the folder itself.  Raises GpufleetError for one that leads away."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise GpufleetError(
            f"{label} holds {name!r}, which leads out of the directory that it is unpacked into; nothing of it was"
            " unpacked. Fetch the package again, from NVIDIA's repository."
        )
    return parts


def _write(folder: str, names: t.Sequence[str], entry: Entry, label: str) -> None:
    """Write one entry; what is neither file, directory nor link (no package of the toolkit has such) is left out."""
    try:
        above = _make_folders(folder, names[:-1], label)
        path = os.path.join(above, names[-1])
        if stat.S_ISDIR(entry.mode):
            _make_folders(above, names[-1:], label)
        elif stat.S_ISLNK(entry.mode):
            _make_way(path, label)
            os.symlink(os.fsdecode(entry.content), path)
        elif stat.S_ISREG(entry.mode):
            _make_way(path, label)
            _write_file(path, entry.content, entry.mode)
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
