# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove specifications, and restore files that were moved away for them."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, atomic_write, errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Files in this directory do not survive a reboot.
_VOLATILE = "/run/"
# The boot time in seconds since the epoch.
_STARTED = re.compile(r"^btime ([0-9]+)$", re.MULTILINE)


class RemovalPlan(t.NamedTuple):
    """The files to remove and to restore. ``restored`` are the records of files that get their original content."""

    path: str
    files: tuple[core_plan.PlannedFile, ...]
    restored: tuple[core_records.OriginalFile, ...]
    warnings: tuple[str, ...]


def remove_specifications(options: cdi_options.CdiOptions, host: hostfs.HostFS, check_mode: bool) -> dict[str, t.Any]:
    """Remove what was written for the kind, or for the path if one is named, and return the module's result.

    A file that another program has changed since is removed too if it describes the same kind; a backup is kept. Files
    that this collection never wrote stay. Raises NvidiaError.
    """
    backup_dir = host.check_path("backup_dir", options.backup_dir or core_records.BACKUP_DIR)
    apply.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
    plan = _plan(options, host)
    writer = apply.ChangeWriter(
        host, cdi_records.OWNER, host.resolve(plan.path), backup_dir, removal=True, purge=options.purge_backups
    )
    changed = writer.has_work(plan.files)
    backups: list[dict[str, str | None]] = []
    if changed and not check_mode:
        with lock.host_lock(host):
            # Another run may have changed the host, so everything is read again under the lock.
            plan = _plan(options, host)
            changed = writer.has_work(plan.files)
            for record in plan.restored:
                # A write keeps the mode of an existing file, so the recorded mode is set first.
                if host.exists(record.path):
                    atomic_write.set_access(host, record.path, record.mode, (record.uid, record.gid))
            backups = writer.apply(plan.files) if changed else []
    return {
        "changed": changed,
        "files": [file for file in plan.files if file.changed],
        "path": plan.path,
        "kind": options.kind,
        "cdi_version": None,
        "devices": [],
        "format": None,
        "mode": None,
        "backend": None,
        "driver_version": None,
        "reasons": [],
        "engines": [],
        "limits": [],
        "conflicts": [],
        "removed_files": [file.path for file in plan.files if file.changed and file.after is None],
        "restored_files": [record.path for record in plan.restored],
        "backup_files": backups,
        "warnings": list(plan.warnings),
    }


def _plan(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> RemovalPlan:
    place = cdi_records.place_of(options._replace(format=None), host, refresh_units.toolkit_refresh(host))
    real = host.resolve(place.path)
    everything = {own.path: own for own in cdi_records.own_records(host)}
    records = [own for own in everything.values() if own.kind == options.kind]
    mine = [own for own in records if own.document is not None]
    named = {real, *(host.resolve(cdi_records.variant_path(place.path, variant)) for variant in cdi_options.VARIANTS)}
    gone = [own for own in mine if options.path is None or own.path in named]
    planning = _Planning(host)
    for own in gone:
        planning.take_back(own)
    # Backups of variants that an earlier run removed may still exist.
    unused = [path for path in named if path != real and path not in everything and host.read(path) is None]
    planning.files += [core_plan.PlannedFile(path, None, None) for path in unused]
    if real not in everything:
        planning.leave(real)
    elif options.path is not None and not gone:
        planning.explain(everything[real])
    if len(gone) == len(mine) and (gone or options.path is None):
        for own in records:
            if own.document is None:
                planning.bring_back(own)
    return RemovalPlan(place.path, tuple(planning.files), tuple(planning.restored), tuple(planning.warnings))


class _Planning:
    """The planned changes of the files of one kind."""

    def __init__(self, host: hostfs.HostFS) -> None:
        self._host = host
        self.files: list[core_plan.PlannedFile] = []
        self.restored: list[core_records.OriginalFile] = []
        self.warnings: list[str] = []

    def take_back(self, own: cdi_records.OwnRecord) -> None:
        """Plan the removal of a file of this collection, whether or not it has changed since."""
        record, content = own.record, self._host.read(own.path)
        after = record.original
        if content is None:
            after = after if self._of_this_boot(own) else None
        elif content != after and core_records.digest(content) not in record.written:
            after = self._instead_of_foreign_files(own, content)
        self._plan(record, content, after)

    def _instead_of_foreign_files(self, own: cdi_records.OwnRecord, content: bytes) -> bytes | None:
        """Return the new content for a file that another program has overwritten. A backup of its content is kept."""
        if own.path.startswith(_VOLATILE):
            self.warnings.append(f"{own.path} was written by somebody else since, and stays.")
            return content
        kind = (own.document or {}).get("kind")
        if own.record.original is None and not self._may_go(own.path, content, kind):
            self.warnings.append(f"{own.path} no longer describes {kind}: another program wrote it, so it stays.")
            return content
        return own.record.original

    def leave(self, path: str) -> None:
        """Keep a file that this collection does not own, or owns no more. It may have backups of this collection."""
        content = self._host.read(path)
        if content is not None:
            self.warnings.append(f"{path} was not written by this module, and stays.")
        self.files.append(core_plan.PlannedFile(path, content, content))

    def explain(self, own: cdi_records.OwnRecord) -> None:
        """Add a warning that says why a file of this collection stays although the task names it."""
        if own.document is None:
            said = f"it made room for a specification of {own.kind}, and comes back with that one, without path"
        else:
            said = f"it describes {own.kind}: say so by vendor and class"
        self.warnings.append(f"{own.path} stays as it is; {said}.")

    def bring_back(self, own: cdi_records.OwnRecord) -> None:
        """Plan the restoration of a file that was moved away."""
        content, after = self._host.read(own.path), own.record.original
        if content is not None and content != after:
            self.warnings.append(
                f"{own.path}, which had to make room, is there again; its former content is in the backups."
            )
            after = content
        elif content is None and not self._of_this_boot(own):
            after = None
        self._plan(own.record, content, after)

    def _plan(self, record: core_records.OriginalFile, before: bytes | None, after: bytes | None) -> None:
        self.files.append(core_plan.PlannedFile(record.path, before, after))
        if after is not None and after == record.original:
            self.restored.append(record)

    def _may_go(self, path: str, content: bytes, kind: t.Any) -> bool:
        """Return whether a file describes ``kind`` or cannot be parsed."""
        try:
            return bool(cdi_validate.validate(yaml_document.parse(path, content)).document.get("kind", kind) == kind)
        except errors.ConfigurationError:
            return True

    def _of_this_boot(self, own: cdi_records.OwnRecord) -> bool:
        """Return whether recorded content may be restored. Content of /run from before the last boot is out of date."""
        started = _STARTED.search(self._host.read_text("/proc/stat"))
        if not own.path.startswith(_VOLATILE) or started is None:
            return True
        return self._host.mtime(core_records.record_path(cdi_records.OWNER, own.path)) >= float(started.group(1))
