# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the files of the package repository: key, source, pin, proxy. Restore them after a failed transaction.

install.py fetches the lists and decides whether the change has failed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    apply,
    atomic_write,
    errors,
    json_data,
    record_store,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect as packages_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base


PROXY = "@PROXY@"
_MODE = re.compile(r"0[0-7]{3}")
# Characters that would end the value in apt.conf(5), dnf.conf(5) or a repository file of zypper.
_NOT_IN_A_PROXY = re.compile(r"[\s\"'\\;{}]")
# The diff shows this for a key that is not fetched yet.
_NOT_FETCHED = b"(not fetched yet)\n"
# Exists from before the first change until the new sources are tested or the change is undone.
MARKER = f"{core_records.STATE_DIR}/unproven-repository"


class RepositoryFile(t.NamedTuple):
    """A requested file, with its ``content`` or with the ``source`` on the host that it is a copy of."""

    path: str
    content: str | None = None
    source: str | None = None
    mode: str = "0644"

    @property
    def is_fetched_key(self) -> bool:
        """Whether the source is a key that was fetched for this file and can be fetched again."""
        return self.source is not None and fnmatch.fnmatchcase(self.source, packages_sources.STAGED_KEYS)


class RepositoryPlan(t.NamedTuple):
    """The required changes.

    ``files`` are written, and the original content of the files in ``restored`` is restored. ``modes`` are the present
    and the requested mode of files whose mode changes. ``unused_keys`` are fetched keys that are no longer needed.
    ``untested`` says that an earlier run wrote the files and was interrupted before it tested them.
    """

    files: tuple[core_plan.PlannedFile, ...] = ()
    restored: tuple[core_plan.PlannedFile, ...] = ()
    modes: t.Mapping[str, tuple[int, int]] = types.MappingProxyType({})
    unused_keys: tuple[str, ...] = ()
    untested: bool = False

    @property
    def changed_files(self) -> tuple[core_plan.PlannedFile, ...]:
        return (*self.files, *self.restored)

    @property
    def needs_test(self) -> bool:
        return bool(self.changed_files) or self.untested

    @property
    def has_changes(self) -> bool:
        return bool(self.changed_files or self.unused_keys)

    def diff(self) -> list[dict[str, str]]:
        """Return the diff of each file, with masked secrets."""
        return [
            {
                "before_header": self._heading(file.path, file.before, 0),
                "after_header": self._heading(file.path, file.after, 1),
                "before": _readable(file.before),
                "after": _readable(file.after),
            }
            for file in self.changed_files
        ]

    def _heading(self, path: str, content: bytes | None, which: int) -> str:
        if content is None:
            return f"{path} (absent)"
        return f"{path} (mode {self.modes[path][which]:04o})" if path in self.modes else path


# -- Requested files ---------------------------------------------------------------------------------------------------


def check_files(files: t.Iterable[RepositoryFile], proxy: str | None) -> tuple[RepositoryFile, ...]:
    """Return ``files`` with normalized paths. Raises NvidiaError for invalid files."""
    if proxy and _NOT_IN_A_PROXY.search(proxy):
        # The message does not quote the proxy, since it may contain a password.
        raise errors.NvidiaError(
            f"{errors.option:proxy} contains a space, quote, backslash, semicolon or brace. Percent-encode it, for"
            " example as %20."
        )
    found: dict[str, RepositoryFile] = {}
    for file in files:
        path = posixpath.normpath(file.path)
        if not is_own_file(path):
            raise errors.NvidiaError(
                f"{errors.option:repository_files}: Path {path} is not allowed. Allowed paths are"
                f" {', '.join(packages_sources.repository_files())}, and keys that have 16 digits of their"
                " fingerprints in their names."
            )
        if path in found:
            raise errors.NvidiaError(f"{errors.option:repository_files}: {path} is listed twice. Remove one entry.")
        _check(file, path, proxy)
        source = None if file.source is None else posixpath.normpath(file.source)
        found[path] = file._replace(path=path, source=source)
    return tuple(found.values())


def _check(file: RepositoryFile, path: str, proxy: str | None) -> None:
    if (file.content is None) is (file.source is None):
        raise errors.NvidiaError(f"{errors.option:repository_files}: {path} requires either content or src.")
    if file.source is not None and not posixpath.isabs(file.source):
        raise errors.NvidiaError(
            f"{errors.option:repository_files}: src {file.source!r} of {path} is not absolute. Use an absolute path of"
            " the host."
        )
    if not _MODE.fullmatch(file.mode):
        raise errors.NvidiaError(
            f"{errors.option:repository_files}: Invalid mode {file.mode!r} of {path}. Use a quoted octal mode such as"
            " '0644'."
        )
    if file.content is not None and PROXY in file.content and not proxy:
        raise errors.NvidiaError(
            f"{errors.option:repository_files}: {path} contains {PROXY}, but {errors.option:proxy} is not set. Set"
            f" {errors.option:proxy}."
        )


def is_own_file(path: str) -> bool:
    """Return whether only this collection writes files with this name."""
    return path in packages_sources.repository_files() or any(
        fnmatch.fnmatchcase(path, pattern) for pattern in packages_sources.key_patterns()
    )


# -- Plan --------------------------------------------------------------------------------------------------------------


def plan_files(
    host: hostfs.HostFS, files: t.Sequence[RepositoryFile] | None, proxy: str | None, *, predicted: bool
) -> RepositoryPlan:
    """Return the plan that leaves exactly ``files`` of this collection on the host. None changes no files.

    ``predicted`` is for check mode, in which the source of a copy may not exist yet. Raises HostError.
    """
    untested = is_untested(host)
    if files is None:
        return RepositoryPlan(untested=untested)
    planned: list[core_plan.PlannedFile] = []
    modes: dict[str, tuple[int, int]] = {}
    # Sources come last, since a package manager refuses a source whose key does not exist yet.
    sources = [repository.source for repository in packages_detect.repositories()]
    for file in sorted(files, key=lambda file: file.path in sources):
        path = host.resolve(file.path)
        before, after = host.read(path), _content(host, file, proxy, predicted)
        requested, mode = int(file.mode, 8), _mode(host, path)
        if mode is not None and mode != requested:
            modes[path] = (mode, requested)
        if before != after or path in modes:
            planned.append(
                core_plan.PlannedFile(path, before, after, {("content",): core_records.digest(after)}, mode=requested)
            )
    kept = [host.resolve(file.path) for file in files]
    unused = set(host.glob(packages_sources.STAGED_KEYS)) - {file.source for file in files}
    return RepositoryPlan(tuple(planned), _restored_files(host, kept), modes, tuple(sorted(unused)), untested)


def plan_removal(host: hostfs.HostFS) -> RepositoryPlan:
    """Return the plan that removes all files of this collection. Raises HostError."""
    return plan_files(host, (), None, predicted=False)


def address_of(
    host: hostfs.HostFS, files: t.Sequence[RepositoryFile] | None, repository: packages_base.Repository
) -> str | None:
    """Return the address of this collection's repository, as requested or as written on the host, or None."""
    path = repository.source
    if files is None:
        text = host.read_text(path)
    else:
        contents = (_content(host, file, None, predicted=True) for file in files if file.path == path)
        text = next(contents, b"").decode("utf-8", "replace")
    return next((entry.address for entry in repository.entries(path, text)), None)


def _restored_files(host: hostfs.HostFS, kept: t.Collection[str]) -> tuple[core_plan.PlannedFile, ...]:
    records = [record for record in core_records.load_records(host, core_records.REPOSITORY) if record.path not in kept]
    records.sort(
        key=lambda record: (
            posixpath.basename(record.path) not in map(posixpath.basename, packages_sources.repository_files())
        )
    )
    return tuple(
        core_plan.PlannedFile(record.path, host.read(record.path), record.original, mode=record.mode)
        for record in records
    )


def _content(host: hostfs.HostFS, file: RepositoryFile, proxy: str | None, predicted: bool) -> bytes:
    if file.source is None:
        return (file.content or "").replace(PROXY, proxy or "").encode("utf-8")
    content = host.read(file.source)
    if content is None and not predicted:
        raise errors.HostError(
            f"{errors.option:repository_files}: The src {file.source} of {file.path} does not exist. Create it first."
        )
    if content is None:
        # The name of a key's file contains its fingerprint, so a fetched key has the content of an installed one.
        content = host.read(file.path)
    # An empty file is not a missing one.
    return _NOT_FETCHED if content is None else content


def _mode(host: hostfs.HostFS, path: str) -> int | None:
    return os.stat(host.real_path(path)).st_mode & 0o7777 if host.exists(path) else None


def _readable(content: bytes | None) -> str:
    return masking.mask_urls((content or b"").decode("utf-8", "replace"))


# -- Write -------------------------------------------------------------------------------------------------------------


def write_files(host: hostfs.HostFS, plan: RepositoryPlan, backup_dir: str) -> list[dict[str, str | None]]:
    """Write the planned files. Returns the backups. The caller holds the host's lock."""
    backups: list[dict[str, str | None]] = []
    for files, removal in ((plan.files, False), (plan.restored, True)):
        # No file is passed as the main one, so the writer keeps temporary files out of the directories of all of them.
        writer = apply.ChangeWriter(host, core_records.REPOSITORY, "", backup_dir, removal=removal, purge=False)
        backups += writer.apply(files)
        for file in files:
            if file.after is not None and file.mode is not None:
                atomic_write.set_access(host, file.path, file.mode)
    return backups


def remove_unused_keys(host: hostfs.HostFS, plan: RepositoryPlan) -> None:
    """Remove the fetched keys that are no longer needed.

    The caller tests the repository first, since a failed change is undone and needs the keys again.
    """
    for path in plan.unused_keys:
        atomic_write.remove_file(host, path)


def remove_fetched_keys(host: hostfs.HostFS, files: t.Iterable[RepositoryFile]) -> None:
    """Remove the fetched keys that ``files`` are copies of, so that the next run fetches them again."""
    for file in files:
        if file.is_fetched_key and file.source is not None:
            atomic_write.remove_file(host, file.source)


# -- Undo a failed change --------------------------------------------------------------------------------------------


class SavedFile(t.NamedTuple):
    """The previous state of a file.

    ``content`` and ``record`` are None if they did not exist. ``own`` is true if only this collection writes the
    file.
    """

    path: str
    own: bool
    content: bytes | None
    mode: int
    owner: tuple[int, int]
    record: bytes | None


def is_untested(host: hostfs.HostFS) -> bool:
    """Return whether a run was interrupted between changing the sources and testing them."""
    return host.lexists(MARKER)


def remove_marker(host: hostfs.HostFS) -> None:
    """Remove the marker. The changed files stay."""
    record_store.remove_state(host, MARKER)


class SavedSources:
    """The saved state of the files that one run changes, and their restoration. The caller holds the host's lock.

    ``changed`` says that the run has changed files.
    """

    def __init__(self, host: hostfs.HostFS, backup_dir: str) -> None:
        self.host = host
        self.backup_dir = backup_dir
        self.changed = False
        self.saved = False
        self._saved: dict[str, SavedFile] = {}
        self._directories: list[str] = []
        self._backups: set[str] = set()

    def save(self, own: t.Iterable[str], others: t.Iterable[str]) -> None:
        """Read and save the state of the files that are about to change. Raises HostError.

        ``own`` are the files of this collection and ``others`` the source files that it removes.
        """
        now = [self._read_file(path, own=True) for path in own]
        now += [self._read_file(self.host.resolve(path), own=False) for path in others]
        earlier, created = self._read_marker()
        self._saved = {saved.path: saved for saved in now}
        for saved in earlier:
            # A file that another program wrote in place of a removed one stays.
            if saved.own or self.host.read(saved.path) is None:
                self._saved[saved.path] = saved
        folders = [*(posixpath.dirname(path) for path in self._saved), self.backup_dir, core_records.STATE_DIR]
        missing = [path for folder in folders for path in atomic_write.missing_directories(self.host, folder)]
        self._directories = list(dict.fromkeys([*created, *missing]))
        self._backups = set(self._all_backups())
        record_store.write_state(self.host, MARKER, self._to_bytes())
        self.saved = True
        self.changed = bool(now)

    def discard(self) -> None:
        """Delete the saved state and keep the changed files."""
        if self.saved:
            remove_marker(self.host)

    def restore(self) -> None:
        """Undo the changes of this run, and of an earlier run that was interrupted. Raises HostError."""
        if not self.saved:
            return
        for saved in self._saved.values():
            self._restore(saved)
        for backup in set(self._all_backups()) - self._backups:
            apply.remove_backup(self.host, backup)
        record_store.remove_state(self.host, MARKER, self._directories)
        self.changed = False

    def _read_file(self, path: str, *, own: bool) -> SavedFile:
        record = self.host.read(core_records.record_path(core_records.REPOSITORY, path))
        content = self.host.read(path)
        if content is None:
            return SavedFile(path, own, None, 0, (0, 0), record)
        status = os.stat(self.host.real_path(path))
        return SavedFile(path, own, content, status.st_mode & 0o7777, (status.st_uid, status.st_gid), record)

    def _restore(self, saved: SavedFile) -> None:
        now = self.host.read(saved.path)
        if not saved.own and now is not None:
            # This run has not removed it, or another program has written it since.
            return
        if saved.content is None:
            atomic_write.remove_file(self.host, saved.path)
        else:
            self._write(saved, saved.content, changed=now != saved.content)
        where = core_records.record_path(core_records.REPOSITORY, saved.path)
        if saved.record is None:
            atomic_write.remove_file(self.host, where)
        else:
            atomic_write.replace_file(self.host, where, saved.record, 0o600)

    def _write(self, saved: SavedFile, content: bytes, *, changed: bool) -> None:
        folder = posixpath.dirname(saved.path)
        mode, owner = saved.mode, saved.owner
        if changed:
            atomic_write.make_directories(self.host, folder, 0o755)
            # At no moment may users read a file that they could not read before.
            atomic_write.replace_file(self.host, saved.path, content, mode, owner, config_dirs=(folder,), max_mode=mode)
        atomic_write.set_access(self.host, saved.path, mode, owner)

    def _all_backups(self) -> list[str]:
        return [backup for path in self._saved for backup in apply.backups_of(self.host, self.backup_dir, path)]

    # -- Saved state ---------------------------------------------------------------------------------------------------

    def _to_bytes(self) -> bytes:
        files = [
            {
                "path": saved.path,
                "ours": saved.own,
                "content": json_data.encode_bytes(saved.content),
                "mode": saved.mode,
                "owner": saved.owner,
                "record": json_data.encode_bytes(saved.record),
            }
            for saved in self._saved.values()
        ]
        return (json.dumps({"files": files, "directories": self._directories}, indent=2) + "\n").encode("utf-8")

    def _read_marker(self) -> tuple[list[SavedFile], list[str]]:
        content = self.host.read(MARKER)
        if content is None:
            return [], []
        try:
            fields = json_data.load(content)
            return [_saved(entry) for entry in json_data.field(fields, "files", list)], [
                *json_data.strings(fields, "directories")
            ]
        except ValueError as error:
            raise errors.HostError(
                f"{MARKER} is damaged, so the package sources from before an interrupted run are unknown: {error}."
                " Check the package sources of the host, remove this file, and run the task again."
            ) from error


def _saved(entry: t.Mapping[str, t.Any]) -> SavedFile:
    uid, gid = json_data.field(entry, "owner", list)
    return SavedFile(
        json_data.field(entry, "path", str),
        json_data.field(entry, "ours", bool),
        json_data.bytes_field(entry, "content"),
        json_data.number(json_data.field(entry, "mode", int), 0o7777),
        (json_data.number(uid, json_data.MAX_ID), json_data.number(gid, json_data.MAX_ID)),
        json_data.bytes_field(entry, "record"),
    )
