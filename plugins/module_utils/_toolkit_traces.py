# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the files that go or come with the toolkit's packages, but belong to none of them:
# sources that are in the way, config.toml, which package scripts make and leave behind, the list of packages that
# this collection installed, and packages that the controller sent.

from __future__ import annotations

import json
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load, strings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import PACKAGES as OWNER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import REPOSITORY, TOOLKIT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    STATE_DIR,
    FileRecord,
    digest,
    load_record,
    load_records,
    record_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import CONFIG_FILE, PACKAGE_CACHE, PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_undoing import is_unproven
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    missing_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_OUR_FOLDER = "gpufleet-nvidia"
# The list of packages that runs of this collection installed.  No owner of records has a name that it begins with.
INSTALLED = f"{STATE_DIR}/installed-packages.json"


def remove_sources(host: HostRoot, paths: t.Iterable[str], backup_dir: str) -> list[dict[str, str | None]]:
    """Remove source files, each after a backup; returns where their content is kept."""
    backups: list[dict[str, str | None]] = []
    for path in paths:
        content = host.read(path)
        if content is None:
            continue
        # Under the name of what is removed, be it reached by a link.
        backup = _backups.save(host, backup_dir, host.resolve(path), content)
        backups.append({"path": path, "backup": backup, "checksum": digest(None)})
        remove_file(host, path)
    return backups


# -- config.toml -----------------------------------------------------------------------------------------------------


def note_config(host: HostRoot) -> FileRecord | None:
    """Record that config.toml is not there before package scripts make it; None if it is, or was noted before."""
    path = host.resolve(CONFIG_FILE)
    if host.is_there(CONFIG_FILE) or load_record(host, OWNER, path) is not None:
        return None
    folders = (posixpath.dirname(path), STATE_DIR)
    made = [folder for wanted in folders for folder in missing_directories(host, wanted)]
    record = FileRecord(
        OWNER,
        path,
        None,
        os.geteuid(),
        os.getegid(),
        0o644,
        created_directories=tuple(dict.fromkeys(made)),
        written=(digest(None),),
        created=True,
        main=path,
    )
    make_directories(host, STATE_DIR, 0o700)
    replace_file(host, record_path(OWNER, path), record.to_bytes(), 0o600)
    return record


def forget_config(host: HostRoot, record: FileRecord | None) -> None:
    """Take note_config() back where the packages did not come to make the file."""
    if record is not None and not host.is_there(CONFIG_FILE):
        _drop(host, record)


def noted_config(host: HostRoot) -> FileRecord | None:
    """The record of a config.toml that the packages made, None if they did not or it is none of theirs any more."""
    path = host.resolve(CONFIG_FILE)
    return load_record(host, OWNER, path)


def settings_are_written(host: HostRoot) -> bool:
    """Whether nvidia_toolkit_config has settings in config.toml, and will want to give back what it found."""
    return load_record(host, TOOLKIT, host.resolve(CONFIG_FILE)) is not None


def remove_config(host: HostRoot, record: FileRecord, backup_dir: str) -> list[dict[str, str | None]]:
    """Remove what the packages made, after a backup; the record goes last, so that a crash in between can be healed."""
    backups: list[dict[str, str | None]] = []
    content = host.read(record.path)
    if content is not None:
        backup = _backups.save(host, backup_dir, record.path, content, record.to_bytes())
        backups.append({"path": record.path, "backup": backup, "checksum": digest(None)})
        remove_file(host, record.path)
    _drop(host, record)
    return backups


def _drop(host: HostRoot, record: FileRecord) -> None:
    remove_file(host, record_path(record.engine, record.path))
    ours = [posixpath.dirname(STATE_DIR), STATE_DIR]
    remove_empty_directories(host, sorted({*record.created_directories, *ours}, key=len))


# -- packages that this collection installed -------------------------------------------------------------------------


def recorded_packages(host: HostRoot) -> tuple[str, ...]:
    """The packages that runs of this collection installed.  Raises HostError for a damaged list.

    Earlier releases kept no list: their packages are known by the records of the repository, unless a run was
    interrupted before it used that, or of config.toml.
    """
    content = host.read(INSTALLED)
    if content is not None:
        try:
            return strings(load(content), "packages")
        except ValueError as error:
            raise HostError(
                f"{INSTALLED} is damaged: {error}. Move it away, then set unrecorded: remove to remove the packages."
            ) from error
    known = noted_config(host) is not None or (load_records(host, REPOSITORY) and not is_unproven(host))
    return PACKAGES if known else ()


def record_packages(host: HostRoot, names: t.Collection[str]) -> bytes | None:
    """Record ``names`` before a change installs them; returns the list as it was, for restore_packages()."""
    before = host.read(INSTALLED)
    restore_packages(host, (json.dumps({"packages": sorted(names)}) + "\n").encode("ascii"))
    return before


def restore_packages(host: HostRoot, content: bytes | None) -> None:
    """Write the list, or remove it if ``content`` is None."""
    if content is None:
        remove_file(host, INSTALLED)
        remove_empty_directories(host, [posixpath.dirname(STATE_DIR), STATE_DIR])
    elif content != host.read(INSTALLED):
        make_directories(host, STATE_DIR, 0o700)
        replace_file(host, INSTALLED, content, 0o600)


# -- packages that the controller sent -------------------------------------------------------------------------------


def check_cache(host: HostRoot, path: str) -> str:
    """``path`` normalised; raises GpufleetError if it could be somebody else's folder."""
    normal = host.check_path("package_cache", path)
    if normal != PACKAGE_CACHE and _OUR_FOLDER not in posixpath.dirname(normal).split("/"):
        raise GpufleetError(
            f"package_cache {path!r} is emptied by this module, so it must be {PACKAGE_CACHE} or lie in a folder that"
            f" is named {_OUR_FOLDER}."
        )
    return normal


def stale_files(host: HostRoot, cache: str | None, keep: t.Collection[str]) -> list[str]:
    """The files in the cache that are not to be kept."""
    if cache is None:
        return []
    kept = {host.resolve(path, last=False) for path in keep}
    paths = [f"{cache}/{name}" for name in host.entries(cache)]
    files = [path for path in paths if not os.path.isdir(host.outer(path, last=False))]
    return [path for path in files if host.resolve(path, last=False) not in kept]


def clean_cache(host: HostRoot, cache: str, files: t.Iterable[str]) -> None:
    """Remove ``files`` of the cache, and what of its folders is empty then."""
    for path in files:
        remove_file(host, path)
    remove_empty_directories(host, [posixpath.dirname(cache), cache])
