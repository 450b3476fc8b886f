# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Records of original files: the content, owner and mode before the first change, and the entries of this collection.

A later release must read the records of this one, so directories and keys do not change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, errors, json_data

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


STATE_DIR = "/var/lib/gpufleet-nvidia/state"
# BACKUP_DIR is defined here and not in `apply.py`, because a task that writes nothing does not import that file.
BACKUP_DIR = "/var/lib/gpufleet-nvidia/backups"
# The list of packages that this collection installed, and the moment of the last installation of a missing one.
INSTALLED_PACKAGES = f"{STATE_DIR}/installed-packages.json"
# Owners of records, beside the engines and CDI, which defines its own: config.toml of the toolkit, the files of its
# packages, and the package repository.
TOOLKIT, PACKAGES, REPOSITORY = "toolkit", "packages", "repository"

_SNAPS = "/var/snap/"
_SNAP_REVISION = re.compile(r"\A(/var/snap/[^/]+)/x?[0-9]+/")
_DIGEST = re.compile(r"\A(?:absent|[0-9a-f]{64})\Z")
_MAX_MODE = 0o7777
# The name of a record contains at most this many bytes of the file's name. NAME_MAX is 255.
_NAME_LIMIT = 150
_CHECKSUM = "checksum"
# The limit for nested lists and objects. The parsers of configuration files allow 100 levels (MAX_DEPTH in
# `_documents`), and a value of a file lies some levels deep in a record.
_MAX_DEPTH = 120
_MISSING: t.Any = object()


class OriginalFile(t.NamedTuple):
    """The record of one file.

    ``original`` (None: there was no file), ``uid``, ``gid`` and ``mode`` are from before the first change. ``created``
    says whether this collection created the file, and ``created_directories`` are the directories that it created for
    the file. ``written`` contains the digests of the last content that this collection wrote, and of the content before
    that unless it was ``original``. Both are needed, because a run can be killed after it wrote the record and before
    it wrote the file. ``exact`` is true if no other program changed the file between the writes of this collection.
    Only then may removal restore ``original`` as a whole. ``keys`` are the entries of this collection with their
    values. ``main`` is the main file of the configuration that the file belongs to. ``boot`` is the ID of the boot in
    which the record was made, empty if it is unknown.
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
    boot: str = ""

    def owns(self, path: tuple[str, ...], value: t.Any) -> bool:
        """Return whether ``value`` at ``path`` is the one that this collection wrote."""
        keys = self.keys or {}
        return path in keys and equal(keys[path], value)

    def restorable(self, content: bytes | None) -> bool:
        """Return whether ``content`` is ``original`` with only the changes of this collection."""
        return self.exact and digest(content) in self.written

    def after_write(
        self, before: bytes | None, after: bytes | None, keys: t.Mapping[tuple[str, ...], t.Any]
    ) -> OriginalFile:
        """Return the record of a change from ``before`` to ``after``. It is written before the file."""
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
            "engine": self.engine,
            "path": stable_snap_path(self.path),
            "main": stable_snap_path(self.main),
            "original": json_data.encode_bytes(self.original),
            "uid": self.uid,
            "gid": self.gid,
            "mode": f"{self.mode:04o}",
            "created_directories": list(self.created_directories),
            "written": list(self.written),
            "exact": self.exact,
            "created": self.created,
            "keys": [{"path": list(path), "value": value} for path, value in (self.keys or {}).items()],
            "boot": self.boot,
        }
        # The checksum is computed from the values as they are read back. A time, for example, is read back as text.
        fields = json_data.load(json.dumps(fields, default=str))
        return (json.dumps({**fields, _CHECKSUM: _checksum(fields)}, indent=2) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, path: str, content: bytes) -> OriginalFile:
        """Return the record in ``content``.

        Raises HostError for a damaged record. ``path`` is the record's own path.
        """
        try:
            return _checked(json_data.check(json_data.load(content, _MAX_DEPTH), dict))
        except ValueError as error:
            advice = (
                "Restore it from a backup, or move it away. Without it, a removal deletes only the NVIDIA entries and"
                " does not restore the original file."
            )
            raise errors.with_advice(errors.HostError, f"{path} is damaged.", advice) from error


def _checked(fields: t.Any) -> OriginalFile:
    """Return the record in ``fields``.

    Raises ValueError if a field is missing or has a value that no record can have.
    """
    if fields.pop(_CHECKSUM, None) != _checksum(fields):
        raise ValueError("it was changed")
    keys = {json_data.strings(key, "path"): key.get("value", _MISSING) for key in json_data.field(fields, "keys", list)}
    record = OriginalFile(
        engine=json_data.field(fields, "engine", str),
        path=json_data.field(fields, "path", str),
        original=json_data.bytes_field(fields, "original"),
        uid=json_data.number(json_data.field(fields, "uid", int), json_data.MAX_ID),
        gid=json_data.number(json_data.field(fields, "gid", int), json_data.MAX_ID),
        mode=int(json_data.field(fields, "mode", str), 8),
        created_directories=json_data.strings(fields, "created_directories"),
        written=json_data.strings(fields, "written"),
        exact=json_data.field(fields, "exact", bool),
        created=json_data.field(fields, "created", bool),
        main=json_data.field(fields, "main", str),
        keys=keys,
        boot=json_data.field(fields, "boot", str),
    )
    paths = [record.path, *record.created_directories, *([record.main] if record.main else [])]
    if not all(_is_normal(path) for path in paths) or not 0 <= record.mode <= _MAX_MODE:
        raise ValueError("a path or the mode is invalid")
    if () in keys or _MISSING in keys.values() or not all(map(_DIGEST.match, record.written)):
        raise ValueError("a key is empty, a value is missing, or a digest is invalid")
    # Half of a surrogate pair cannot be encoded, so no file can have it in its name or as a key.
    "".join([*paths, record.engine, *(name for key in keys for name in key)]).encode("utf-8")
    return record


def _is_normal(path: str) -> bool:
    return path.startswith("/") and posixpath.normpath(path) == path and "\0" not in path


def _checksum(fields: t.Mapping[str, t.Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True).encode("ascii"))


def equal(one: t.Any, other: t.Any) -> bool:
    """Return whether two values have the same JSON text. In contrast to Python, true differs from 1."""
    return json.dumps(one, default=str) == json.dumps(other, default=str)


def digest(content: bytes | None) -> str:
    """Return the SHA-256 of a file's content, or "absent" if there is no file."""
    return "absent" if content is None else hashlib.sha256(content).hexdigest()


def stable_snap_path(path: str) -> str:
    """Return ``path`` (links resolved) with ``current`` in place of the revision of a snap.

    Each refresh of a snap copies its data into a directory for the new revision. The link ``current`` then points to
    that directory.
    """
    return _SNAP_REVISION.sub(r"\1/current/", path)


def state_dir(host: hostfs.HostFS, engine: str) -> str:
    """Return the directory of the records of ``engine``. For a rootless engine, it is in the user's home directory."""
    return f"{_data_dir(host, engine)}/state"


def default_backup_dir(host: hostfs.HostFS, engine: str) -> str:
    """Return the directory of the backups of ``engine`` for a task that sets no other."""
    return f"{_data_dir(host, engine)}/backups"


def _data_dir(host: hostfs.HostFS, engine: str) -> str:
    if engine.startswith(accounts.ROOTLESS_PREFIX):
        account = accounts.own_account(host)
        if account is not None:
            return account.data_dir
    return posixpath.dirname(STATE_DIR)


def record_path(engine: str, path: str, folder: str = STATE_DIR) -> str:
    """Return the path of the record of ``path`` (links resolved)."""
    path = stable_snap_path(path)
    name = posixpath.basename(path).encode()[:_NAME_LIMIT].decode("utf-8", "ignore")
    return f"{folder}/{engine}-{name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}.json"


def restart_journal_path(engine: str, folder: str = STATE_DIR) -> str:
    """Return the path of the journal entry for a restart in progress (_engines/journal.py)."""
    return f"{folder}/restart-{engine}.json"


def load_record(host: hostfs.HostFS, engine: str, path: str) -> OriginalFile | None:
    """Return the record of ``path``; None if there is none."""
    record_file = record_path(engine, path, state_dir(host, engine))
    content = host.read(record_file)
    return None if content is None else _loaded(host, record_file, content)


def load_records(host: hostfs.HostFS, engine: str) -> list[OriginalFile]:
    """Return all records of one engine."""
    paths = [
        path for path in _records(host, state_dir(host, engine)) if posixpath.basename(path).startswith(engine + "-")
    ]
    contents = [(path, host.read(path)) for path in paths]
    found = [_loaded(host, path, content) for path, content in contents if content is not None]
    # The name of one engine may begin with the name of another.
    return [record for record in found if record.engine == engine]


def load_readable_records(host: hostfs.HostFS, folder: str = STATE_DIR) -> list[OriginalFile]:
    """Return all readable records in ``folder``.

    Damaged records are skipped; the task that configures their engine reports them. Other files in JSON, such as the
    journal of a restart, are skipped too.
    """
    found = []
    for path in _records(host, folder):
        with contextlib.suppress(errors.HostError):
            found.append(_loaded(host, path, host.read(path) or b""))
    return found


def _loaded(host: hostfs.HostFS, path: str, content: bytes) -> OriginalFile:
    record = OriginalFile.from_bytes(path, content)
    if path != record_path(record.engine, record.path, posixpath.dirname(path)):
        problem = f"{path} contains the record of {record.path}, but has the name of another file's record."
        raise errors.with_advice(errors.HostError, problem, "Move this file away.")
    if not record.path.startswith(_SNAPS):
        return record
    return record._replace(path=host.resolve(record.path), main=record.main and host.resolve(record.main))


def _records(host: hostfs.HostFS, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in host.entries(folder) if name.endswith(".json")]
