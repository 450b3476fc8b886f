# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what is recorded of CDI specifications that were written, and of those that made room.

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    STATE_DIR,
    FileRecord,
    load_record,
    load_records,
    record_path,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# In whose name records are kept.
OWNER = "cdi"
# Among the entries of a record: the document in a file, the mode in which it was made, the devices that it was limited
# to, for which kind a file had to go, and for which kind a file beside the specification was written.
_DOCUMENT, _MODE, _DEVICES, _MADE_ROOM = ("document",), ("mode",), ("device_ids",), ("made room for",)
_VARIANT_OF = ("variant of",)


class OwnRecord(t.NamedTuple):
    """A file of this collection (``document``), or one that was moved away for such a file (None).

    ``variant_of`` is the kind whose specification the file belongs to, None where it is that specification.
    """

    record: FileRecord
    document: t.Mapping[str, t.Any] | None
    mode: str
    device_ids: t.Sequence[str]
    made_room_for: str | None
    variant_of: str | None = None

    @property
    def path(self) -> str:
        """Of the file, links resolved."""
        return self.record.path

    @property
    def by_unit(self) -> bool:
        """Whether no task has written the file yet, only a unit of this collection."""
        return self.document is not None and not self.record.written

    @property
    def kind(self) -> t.Any:
        """The kind that a task names to write or to remove the file."""
        if self.variant_of is not None:
            return self.variant_of
        return self.made_room_for if self.document is None else self.document.get("kind")


def own_records(host: HostRoot) -> list[OwnRecord]:
    """What is recorded.  Raises HostError for a damaged record."""
    return [_own(record) for record in load_records(host, OWNER)]


def entries_of(
    document: t.Mapping[str, t.Any], mode: str, device_ids: t.Iterable[str], variant_of: str | None = None
) -> dict[tuple[str, ...], t.Any]:
    """What to record with a file of ours."""
    entries: dict[tuple[str, ...], t.Any] = {_DOCUMENT: document, _MODE: mode, _DEVICES: [*device_ids]}
    return entries if variant_of is None else {**entries, _VARIANT_OF: variant_of}


def entries_of_room(kind: str) -> dict[tuple[str, ...], t.Any]:
    """What to record with a file that makes room for one that describes ``kind``."""
    return {_MADE_ROOM: kind}


def known_documents(records: t.Iterable[OwnRecord]) -> dict[str, t.Any]:
    """The documents that we wrote, by the digests of their files: what is unchanged need not be parsed."""
    return {own.record.written[-1]: own.document for own in records if own.document is not None and own.record.written}


def _own(record: FileRecord) -> OwnRecord:
    keys = record.keys or {}
    document, mode, kind = keys.get(_DOCUMENT), keys.get(_MODE), keys.get(_MADE_ROOM)
    devices, variant_of = keys.get(_DEVICES), keys.get(_VARIANT_OF)
    return OwnRecord(
        record,
        document if isinstance(document, dict) else None,
        mode if isinstance(mode, str) else "",
        devices if isinstance(devices, list) else [],
        kind if isinstance(kind, str) else None,
        variant_of if isinstance(variant_of, str) else None,
    )


# -- files that a unit of this collection writes -----------------------------------------------------------------------


def record_for_unit(
    host: HostRoot, path: str, kind: str, original: bytes | None, variant_of: str | None = None
) -> None:
    """Record what was at ``path`` before a unit of this collection writes a specification of ``kind`` there.

    ``variant_of`` is as in OwnRecord.
    So state: absent of nvidia_cdi_spec removes the unit's file too.  The host's lock is held.
    """
    # Only a new unit needs these.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
        make_directories,
        missing_directories,
        replace_file,
    )

    uid, gid, mode = os.geteuid(), os.getegid(), 0o644
    if original is not None:
        status = os.stat(host.outer(path))
        uid, gid, mode = status.st_uid, status.st_gid, status.st_mode & 0o7777
    made = [folder for place in (posixpath.dirname(path), STATE_DIR) for folder in missing_directories(host, place)]
    record = FileRecord(OWNER, path, original, uid, gid, mode, tuple(dict.fromkeys(made)), main=path)
    make_directories(host, STATE_DIR, 0o700)
    keys = entries_of({"kind": kind}, "", (), variant_of)
    replace_file(host, record_path(OWNER, path), record._replace(keys=keys).to_bytes(), 0o600)


def is_recorded(host: HostRoot, path: str) -> bool:
    return load_record(host, OWNER, path) is not None


def unused_unit_records(host: HostRoot) -> list[FileRecord]:
    """The records of record_for_unit() whose files are as they were: no unit has written them."""
    records = [own.record for own in own_records(host) if own.by_unit]
    return [record for record in records if host.read(record.path) == record.original]


def forget(host: HostRoot, records: t.Iterable[FileRecord]) -> None:
    """Remove records, and the directories that were made for them where nothing is left in them; the lock is held."""
    # Only a removal needs these.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
        remove_empty_directories,
        remove_file,
    )

    for record in records:
        remove_file(host, record_path(OWNER, record.path))
        made = {*record.created_directories, posixpath.dirname(STATE_DIR), STATE_DIR}
        remove_empty_directories(host, sorted(made, key=len))
