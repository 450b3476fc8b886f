# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what one version of the toolkit in a directory is, kept inside that directory, so that it
# goes wherever the directory goes.

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import MOST_ID, check, load, number

if t.TYPE_CHECKING:
    import os

NAME = ".manifest.json"
_SCHEMA = 1


class Identity(t.NamedTuple):
    """What of a file cannot stay the same when its content changes; ``ctime`` and ``mtime`` in nanoseconds."""

    size: int
    mtime: int
    ctime: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Known(t.NamedTuple):
    """A file whose content was read once: its SHA-256, and what it was then."""

    sha256: str
    identity: Identity


class Entry(t.NamedTuple):
    """One name in the directory of a version: a copy of ``part``, a text of ours, or a link to ``target``."""

    mode: int
    sha256: str = ""
    part: str = ""
    text: bytes = b""
    target: str = ""


class Installed(t.NamedTuple):
    """One name of an installation; a link has only a ``target``."""

    mode: int
    uid: int
    gid: int
    known: Known | None
    target: str = ""


class PartDigest(t.NamedTuple):
    """One file of the toolkit as its source has it; ``soname`` is for a library known by another name too.

    ``size`` in bytes, ``machine`` as in ELF headers.
    """

    name: str
    sha256: str
    mode: int
    size: int
    machine: int = 0
    soname: str = ""


class Manifest(t.NamedTuple):
    """One version.

    ``sources`` are the files that it came from, by their paths, ``components`` what of them was asked for (None: all).
    ``replaces`` is the name of the version before it.  ``version`` is None where the programs could not be asked.
    """

    name: str
    version: str | None
    replaces: str | None
    components: tuple[str, ...] | None
    parts: tuple[PartDigest, ...]
    sources: t.Mapping[str, Known]
    files: t.Mapping[str, Installed]

    def refreshed(self, identities: t.Mapping[str, Identity], sources: t.Mapping[str, Known]) -> Manifest:
        """The same with what was found out anew: identities of files by name, and the sources."""
        files = {
            name: entry._replace(known=entry.known._replace(identity=identities[name]))
            if entry.known is not None and name in identities
            else entry
            for name, entry in self.files.items()
        }
        return self._replace(files=files, sources=sources)

    def to_bytes(self) -> bytes:
        fields = {
            "schema": _SCHEMA,
            "name": self.name,
            "version": self.version,
            "replaces": self.replaces,
            "components": self.components,
            "parts": [part._asdict() for part in self.parts],
            "sources": {path: _known_fields(known) for path, known in sorted(self.sources.items())},
            "files": {
                name: {
                    **entry._asdict(),
                    "known": None if entry.known is None else _known_fields(entry.known),
                }
                for name, entry in sorted(self.files.items())
            },
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, path: str, content: bytes) -> Manifest | None:
        """None for what is no manifest; raises HostError for that of a newer collection."""
        try:
            fields = load(content)
            if fields["schema"] > _SCHEMA:
                raise HostError(
                    f"{path} was written by a newer version of this collection. Update it on the controller."
                )
            return cls(
                _text(fields["name"]),
                None if fields["version"] is None else _text(fields["version"]),
                None if fields["replaces"] is None else _text(fields["replaces"]),
                None if fields["components"] is None else tuple(map(_text, fields["components"])),
                tuple(PartDigest(**part) for part in fields["parts"]),
                {path: _known(known) for path, known in fields["sources"].items()},
                {name: _installed(entry) for name, entry in fields["files"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def _text(value: t.Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _known_fields(known: Known) -> dict[str, t.Any]:
    return {"sha256": known.sha256, "identity": list(known.identity)}


def _known(fields: t.Mapping[str, t.Any]) -> Known:
    return Known(_text(fields["sha256"]), Identity(*(check(value, int) for value in fields["identity"])))


def _installed(fields: t.Mapping[str, t.Any]) -> Installed:
    known = fields["known"]
    return Installed(
        number(fields["mode"], 0o7777),
        number(fields["uid"], MOST_ID),
        number(fields["gid"], MOST_ID),
        None if known is None else _known(known),
        _text(fields["target"]),
    )
