# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The manifest of a toolkit version: each file with digest, mode, owner, size, times and inode.

This file also has the functions that compare files with the manifest and that create files and directories.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data

NAME = ".manifest.json"


class Identity(t.NamedTuple):
    """Status fields of a file. If its content changes, at least one of them changes too.

    ``ctime`` and ``mtime`` are in nanoseconds.
    """

    size: int
    mtime: int
    ctime: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class FileDigest(t.NamedTuple):
    """A file whose content was read once: its SHA-256, and its identity at that time."""

    sha256: str
    identity: Identity


class ManifestEntry(t.NamedTuple):
    """A file or link to create in the directory of a version: a copy of ``part``, ``text``, or a link to ``target``."""

    mode: int
    sha256: str = ""
    part: str = ""
    text: bytes = b""
    target: str = ""


class Installed(t.NamedTuple):
    """A file or link that was created, as the manifest lists it. A link has a ``target``, and ``known`` is None."""

    mode: int
    uid: int
    gid: int
    known: FileDigest | None
    target: str = ""


class PartDigest(t.NamedTuple):
    """One file of the toolkit in the source, that is the directory or the packages to install from.

    ``size`` is in bytes, and ``machine`` is the e_machine of the ELF header. ``soname`` is the name of
    the link to a library that programs load, such as libx.so.1; empty if the library itself has this name.
    """

    name: str
    sha256: str
    mode: int
    size: int
    machine: int = 0
    soname: str = ""


class Manifest(t.NamedTuple):
    """The manifest of one installed version.

    ``sources`` are the files that the version was made from, by path. ``components`` are the requested components
    (None: all). ``replaces`` is the name of the previous version. ``version`` is None if the programs could not
    report it.
    """

    name: str
    version: str | None
    replaces: str | None
    components: tuple[str, ...] | None
    parts: tuple[PartDigest, ...]
    sources: t.Mapping[str, FileDigest]
    files: t.Mapping[str, Installed]

    def refreshed(self, identities: t.Mapping[str, Identity], sources: t.Mapping[str, FileDigest]) -> Manifest:
        """Return the manifest with new ``identities`` of files, by name, and new ``sources``."""
        files = {
            name: entry._replace(known=entry.known._replace(identity=identities[name]))
            if entry.known is not None and name in identities
            else entry
            for name, entry in self.files.items()
        }
        return self._replace(files=files, sources=sources)

    def to_bytes(self) -> bytes:
        fields = {
            "name": self.name,
            "version": self.version,
            "replaces": self.replaces,
            "components": self.components,
            "parts": [part._asdict() for part in self.parts],
            "sources": {path: _digest_fields(digest) for path, digest in sorted(self.sources.items())},
            "files": {
                name: {
                    **entry._asdict(),
                    "known": None if entry.known is None else _digest_fields(entry.known),
                }
                for name, entry in sorted(self.files.items())
            },
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest | None:
        """Return the manifest, or None if the content is not a manifest."""
        try:
            fields = json_data.load(content)
            return cls(
                _text(fields["name"]),
                None if fields["version"] is None else _text(fields["version"]),
                None if fields["replaces"] is None else _text(fields["replaces"]),
                None if fields["components"] is None else tuple(map(_text, fields["components"])),
                tuple(PartDigest(**part) for part in fields["parts"]),
                {path: _digest_from_fields(digest) for path, digest in fields["sources"].items()},
                {name: _installed(entry) for name, entry in fields["files"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def _text(value: t.Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _digest_fields(digest: FileDigest) -> dict[str, t.Any]:
    return {"sha256": digest.sha256, "identity": list(digest.identity)}


def _digest_from_fields(fields: t.Mapping[str, t.Any]) -> FileDigest:
    return FileDigest(_text(fields["sha256"]), Identity(*(json_data.check(value, int) for value in fields["identity"])))


def _installed(fields: t.Mapping[str, t.Any]) -> Installed:
    digest = fields["known"]
    return Installed(
        json_data.number(fields["mode"], 0o7777),
        json_data.number(fields["uid"], json_data.MAX_ID),
        json_data.number(fields["gid"], json_data.MAX_ID),
        None if digest is None else _digest_from_fields(digest),
        _text(fields["target"]),
    )


_CHUNK = 1 << 20
_FOLDER_MODE = 0o755
# mountinfo contains blanks, tabs, newlines and backslashes as octal numbers (proc(5)).
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def walk(folder: str) -> list[str]:
    """Return the relative names of all entries below ``folder``, sorted, directories before their entries.

    Links are not followed.
    """
    found: list[str] = []
    # No recursion, since a tree can have more levels than Python has calls.
    waiting = _entries(folder, "")
    while waiting:
        name, is_directory = waiting.pop()
        found.append(name)
        if is_directory:
            waiting += _entries(f"{folder}/{name}", f"{name}/")
    return found


def _entries(folder: str, prefix: str) -> list[tuple[str, bool]]:
    """Return the names in ``folder`` after ``prefix``, the last one first, and whether each is a directory."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        found = [(prefix + entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        return sorted(found, reverse=True)
    return []


def folders_above(name: str) -> list[str]:
    """Return the parent directories of the relative ``name``, outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def is_folder(path: str) -> bool:
    """Return whether ``path`` itself is a directory and not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def make_folder(path: str) -> None:
    """Create a directory with mode 0755, independent of the umask. An existing directory gets this mode too."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    os.chmod(path, _FOLDER_MODE)


def is_mount_point(path: str) -> bool:
    """Return whether ``path`` is a mount point, also that of a bind mount within one file system (proc(5))."""
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            points = [line.split(b" ")[4] for line in stream.read().splitlines()]
    except OSError:
        return os.path.ismount(path)
    return os.fsencode(real) in [_ESCAPED.sub(lambda found: bytes([int(found.group(1), 8)]), point) for point in points]


def has_folder_mode(path: str, owner: tuple[int, int] | None = None) -> bool:
    """Return whether ``path`` is a directory with the mode of make_folder(), and owned by ``owner``.

    ``owner`` is (uid, gid). None accepts every owner.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if owner is not None and (status.st_uid, status.st_gid) != owner:
        return False
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == _FOLDER_MODE


def create(path: str, mode: int, chunks: t.Iterable[bytes]) -> str:
    """Write a new file and sync it to the disk. Returns the SHA-256 of its content."""
    digest = hashlib.sha256()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        for chunk in chunks:
            digest.update(chunk)
            stream.write(chunk)
        stream.flush()
        os.fchmod(handle, mode)
        os.fsync(handle)
    return digest.hexdigest()


def read_chunks(path: str) -> t.Iterator[bytes]:
    """Yield the content of a file in chunks."""
    with open(path, "rb") as stream:
        yield from iter(lambda: stream.read(_CHUNK), b"")


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    for chunk in read_chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def digest_file(path: str, before: FileDigest | None, thorough: bool) -> FileDigest:
    """Return the digest and identity of a file.

    The content is read if ``thorough`` is true or if the identity differs from that of ``before``.
    """
    identity = Identity.of(os.stat(path))
    if before is not None and before.identity == identity and not thorough:
        return before
    return FileDigest(sha256_of(path), identity)


def installed_entry(path: str, entry: ManifestEntry) -> Installed:
    """Return the manifest entry of a file or link that was written for ``entry``."""
    status = os.lstat(path)
    content = None if entry.target else FileDigest(entry.sha256, Identity.of(status))
    return Installed(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, content, entry.target)


def verify_entry(path: str, entry: Installed, thorough: bool) -> Identity | None:
    """Return the identity of the file at ``path``, or None if it differs from ``entry``.

    The content is read under the same conditions as in digest_file().
    """
    try:
        status = os.lstat(path)
        if entry.known is None:
            same = stat.S_ISLNK(status.st_mode) and os.readlink(path) == entry.target
            return Identity.of(status) if same else None
        found = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        if not stat.S_ISREG(status.st_mode) or found != (entry.mode, entry.uid, entry.gid):
            return None
        content = digest_file(path, entry.known, thorough)
    except FileNotFoundError:
        return None
    return content.identity if content.sha256 == entry.known.sha256 else None


def unlink(path: str) -> None:
    """Remove a file or a link if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
