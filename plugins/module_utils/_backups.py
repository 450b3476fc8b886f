# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: copies of files from before each change, outside every folder that a daemon reads.

from __future__ import annotations

import datetime as dt
import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord, digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._trusted_paths import require_trusted_folder
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

KEPT = 5
# What was recorded of a file when it was backed up stands beside the backup, under its name with this behind it.
RECORD_SUFFIX = ".record"
_SUFFIX = ".backup"
# Bytes of a name before the moment.  The rest, with the digest and both suffixes, has 102; NAME_MAX is 255.
_STEM_LIMIT = 153
_DIGEST = re.compile(r"\.([0-9a-f]{64})\.backup\Z")


def check_backup_dir(host: HostRoot, directory: str, parsed: t.Iterable[str]) -> None:
    """Raises GpufleetError if ``directory`` is one that an engine reads as configuration, or that others can change."""
    real = host.resolve(directory)
    for folder in parsed:
        if (real + "/").startswith(host.resolve(folder) + "/"):
            raise GpufleetError(
                f"backup_dir {directory!r} lies in {folder}, where every file is configuration."
                " Choose a directory outside it."
            )
    require_trusted_folder(host, "backup_dir", directory)


def save(host: HostRoot, directory: str, path: str, content: bytes, record: bytes | None = None) -> str:
    """Keep ``content`` of ``path``, and what was recorded of it, in ``directory`` (0600 in 0700); returns the backup.

    The record goes into a file of its own beside the backup, so that going back to this content goes back to it too.
    """
    make_directories(host, directory, 0o700)
    moment = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = f"{directory}/{_stem(path)}{moment}.{digest(content)}{_SUFFIX}"
    if record is not None:
        replace_file(host, backup + RECORD_SUFFIX, record, 0o600)
    replace_file(host, backup, content, 0o600)
    # The new one stays whatever the clock said when the others were made.
    others = [other for other in backups_of(host, directory, path) if other != backup]
    for old in others[: -(KEPT - 1)]:
        remove(host, old)
    return backup


def load(host: HostRoot, backup: str) -> tuple[bytes, bytes | None] | None:
    """The content of a backup, and the record that goes with it; None if there is no backup.

    Raises HostError if the content is not the one that was saved: its SHA-256 is part of the name.  A backup of an
    earlier version has none, and is read as it is.
    """
    content = host.read(backup)
    if content is None:
        return None
    found = _DIGEST.search(backup)
    if found is not None and found.group(1) != digest(content):
        raise HostError(
            f"{backup} is damaged: its SHA-256 is not the one in its name. Nothing is restored from it. Remove it, and"
            " restore the file from another backup."
        )
    record = host.read(backup + RECORD_SUFFIX)
    if record is not None:
        FileRecord.from_bytes(backup + RECORD_SUFFIX, record)
    return content, record


def remove(host: HostRoot, backup: str) -> None:
    """Remove a backup and the record that goes with it."""
    remove_file(host, backup)
    remove_file(host, backup + RECORD_SUFFIX)


def backups_of(host: HostRoot, directory: str, path: str) -> list[str]:
    """The backups of ``path``, oldest first."""
    stem = _stem(path)
    names = [name for name in host.entries(directory) if name.startswith(stem) and name.endswith(_SUFFIX)]
    return [f"{directory}/{name}" for name in names if "~" not in name[len(stem) :]]


def _stem(path: str) -> str:
    """What the names of a path's backups begin with; no two paths share it.

    That is the path with ``~`` for ``/``, or the digest of a long path after a ``~``, with which no path begins.
    """
    plain = os.path.normpath(path).lstrip("/")
    stem = plain.replace("%", "%25").replace("~", "%7E").replace("/", "~") + "~"
    return stem if len(os.fsencode(stem)) <= _STEM_LIMIT else f"~{digest(os.fsencode(plain))}~"
