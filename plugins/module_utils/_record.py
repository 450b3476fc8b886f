# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a file was before this collection first changed it, kept until it is given back.

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

STATE_DIR = "/var/lib/gpufleet-nvidia/state"
# Here, for who has nothing to write need not wait for the import of _backups.
BACKUP_DIR = "/var/lib/gpufleet-nvidia/backups"

_SCHEMA = 1
_SNAPS = "/var/snap/"
_SNAP_REVISION = re.compile(r"\A(/var/snap/[^/]+)/x?[0-9]+/")
_Kind = t.TypeVar("_Kind")


class FileRecord(t.NamedTuple):
    """The record of one file.

    ``original`` (None: there was no file), ``uid``, ``gid`` and ``mode`` are from before the first change.
    ``written`` holds the digests of what we wrote last and just before, so that a run killed between record and file
    is understood.  ``exact`` says that nobody else changed the file between our writes: only then may removal put
    ``original`` back as a whole.  ``keys`` are the entries that are ours, with our values.  ``main`` is
    the main file of the configuration that the file belongs to.
    """

    engine: str
    path: str
    original: bytes | None
    uid: int
    gid: int
    mode: int
    created_directories: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    exact: bool = True
    created: bool = False
    keys: t.Mapping[tuple[str, ...], t.Any] | None = None
    main: str = ""

    def owns(self, path: tuple[str, ...], value: t.Any) -> bool:
        """Whether ``value`` at ``path`` is what we put there."""
        keys = self.keys or {}
        return path in keys and json.dumps(keys[path], default=str) == json.dumps(value, default=str)

    def restorable(self, content: bytes | None) -> bool:
        """Whether ``content`` is our own work on ``original`` and nothing else."""
        return self.exact and digest(content) in self.written

    def after_write(
        self, before: bytes | None, after: bytes | None, keys: t.Mapping[tuple[str, ...], t.Any]
    ) -> FileRecord:
        """The record to keep before ``before`` is replaced by ``after``."""
        undisturbed = before == self.original or digest(before) in self.written
        return self._replace(
            written=tuple(dict.fromkeys([digest(before), digest(after)]))
            if before != self.original
            else (digest(after),),
            exact=self.exact and undisturbed,
            created=self.created or before is None,
            keys=dict(keys),
        )

    def to_bytes(self) -> bytes:
        fields = {
            "schema": _SCHEMA,
            "engine": self.engine,
            "path": lasting(self.path),
            "main": lasting(self.main),
            "original": None if self.original is None else base64.b64encode(self.original).decode("ascii"),
            "sha256": digest(self.original),
            "uid": self.uid,
            "gid": self.gid,
            "mode": f"{self.mode:04o}",
            "created_directories": list(self.created_directories),
            "written": list(self.written),
            "exact": self.exact,
            "created": self.created,
            "keys": [{"path": list(path), "value": value} for path, value in (self.keys or {}).items()],
        }
        return (json.dumps(fields, indent=2, default=str) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, path: str, content: bytes) -> FileRecord:
        """Raises HostError for a record that another version wrote or that was damaged."""
        try:
            fields = json.loads(content.decode("utf-8"))
            if fields["schema"] != _SCHEMA:
                raise HostError(f"{path} was written by another version of this collection. Use that version.")
            return cls(
                engine=_of_type(str, fields["engine"]),
                path=_of_type(str, fields["path"]),
                original=_original(fields),
                uid=_of_type(int, fields["uid"]),
                gid=_of_type(int, fields["gid"]),
                mode=int(_of_type(str, fields["mode"]), 8),
                created_directories=tuple(_of_type(list, fields["created_directories"])),
                written=tuple(_of_type(str, word) for word in _of_type(list, fields["written"])),
                exact=_of_type(bool, fields["exact"]),
                created=_of_type(bool, fields["created"]),
                main=_of_type(str, fields["main"]),
                keys={tuple(_of_type(list, key["path"])): key["value"] for key in _of_type(list, fields["keys"])},
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise HostError(
                f"{path} is damaged: it is not a record of this collection. Restore it from a backup, or move it"
                " away; removal then takes out the NVIDIA entries only."
            ) from error


def _of_type(kind: type[_Kind], value: t.Any) -> _Kind:
    # For isinstance true is an integer.
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise TypeError(kind.__name__)
    return value


def _original(fields: dict[str, t.Any]) -> bytes | None:
    """Raises ValueError if the content is not the one that was recorded; records of earlier versions have no digest."""
    encoded = fields["original"]
    original = None if encoded is None else base64.b64decode(encoded, validate=True)
    if fields.get("sha256", digest(original)) != digest(original):
        raise ValueError("sha256")
    return original


def digest(content: bytes | None) -> str:
    """The SHA-256 of a file's content; of no file, the word absent."""
    return "absent" if content is None else hashlib.sha256(content).hexdigest()


def lasting(path: str) -> str:
    """``path`` (links resolved) as it is called for good.

    Every refresh of a snap copies its data into a folder of the new revision, to which the link ``current`` then leads.
    """
    return _SNAP_REVISION.sub(r"\1/current/", path)


def record_path(engine: str, path: str) -> str:
    """Where the record of ``path`` (links resolved) is kept."""
    path = lasting(path)
    return f"{STATE_DIR}/{engine}-{posixpath.basename(path)}-{hashlib.sha256(path.encode()).hexdigest()[:12]}.json"


def restart_note(engine: str) -> str:
    """Where it is noted that a restart is under way (_notes.py)."""
    return f"{STATE_DIR}/restart-{engine}.json"


def load_record(host: HostRoot, engine: str, path: str) -> FileRecord | None:
    """The record of ``path``, None where there is none."""
    where = record_path(engine, path)
    content = host.read(where)
    return None if content is None else _loaded(host, where, content)


def load_records(host: HostRoot, engine: str) -> list[FileRecord]:
    """All records of one engine."""
    places = [where for where in _records(host) if posixpath.basename(where).startswith(engine + "-")]
    contents = [(where, host.read(where)) for where in places]
    found = [_loaded(host, where, content) for where, content in contents if content is not None]
    # A name may begin with another one.
    return [record for record in found if record.engine == engine]


def load_readable_records(host: HostRoot) -> list[FileRecord]:
    """All records that there are; a damaged one is for the run that it belongs to to complain of."""
    found = []
    for where in _records(host):
        with contextlib.suppress(HostError):
            found.append(_loaded(host, where, host.read(where) or b""))
    return found


def _loaded(host: HostRoot, where: str, content: bytes) -> FileRecord:
    record = FileRecord.from_bytes(where, content)
    if not record.path.startswith(_SNAPS):
        return record
    return record._replace(path=host.resolve(record.path), main=host.resolve(record.main))


def _records(host: HostRoot) -> list[str]:
    return [f"{STATE_DIR}/{name}" for name in host.entries(STATE_DIR) if name.endswith(".json")]
