# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove the specifications that this collection wrote, and restore the files from before.

Those are the original files at the same paths, and the files that ``exclusive`` moved away.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import units as refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import undescribed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    apply,
    atomic_write,
    errors,
    lock,
    trusted_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The files in this directory are lost at a reboot.
_VOLATILE_DIR = "/run/"


class RemovalPlan(t.NamedTuple):
    """The files to remove and to restore. ``restored`` are the records of files that get their original content."""

    path: str
    files: tuple[core_plan.PlannedFile, ...]
    restored: tuple[core_records.OriginalFile, ...]
    warnings: tuple[str, ...]


def remove_specifications(
    options: cdi_options.CdiOptions, host: hostfs.HostFS, check_mode: bool, *, with_units: bool = False
) -> dict[str, t.Any]:
    """Remove the files that were written for the kind, or only those of the path if it is set.

    A file that another program has changed since is removed too if it describes the same kind; a backup is kept. Files
    that this collection never wrote stay. Returns the module's result. Raises NvidiaError.

    with_units: the same task removes the refresh units first. Check mode then ignores what that would remove. Those of
    the toolkit are used again after that, but did not write the file.
    """
    backup_dir = host.check_path("backup_dir", options.backup_dir or core_records.BACKUP_DIR)
    trusted_paths.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
    removed = cdi_records.unused_unit_records(host) if with_units and check_mode else ()
    toolkit = None if with_units else refresh_units.toolkit_refresh(host)
    plan = _plan(options, host, toolkit, {record.path for record in removed})
    writer = apply.ChangeWriter(
        host, cdi_records.OWNER, host.resolve(plan.path), backup_dir, removal=True, purge=options.purge_backups
    )
    changed = writer.has_work(plan.files)
    backups: list[dict[str, str | None]] = []
    if changed and not check_mode:
        with lock.host_lock(host):
            # Another run may have changed the host, so everything is read again under the lock.
            plan = _plan(options, host, toolkit)
            changed = writer.has_work(plan.files)
            for record in plan.restored:
                # A write keeps the mode of an existing file, so the recorded mode is set first.
                if host.exists(record.path):
                    atomic_write.set_access(host, record.path, record.mode, (record.uid, record.gid))
            backups = writer.apply(plan.files) if changed else []
    return {
        **undescribed.without_specification(options, None),
        "changed": changed,
        "files": [file for file in plan.files if file.changed],
        "path": plan.path,
        "removed_files": [file.path for file in plan.files if file.changed and file.after is None],
        "restored_files": [record.path for record in plan.restored],
        "backup_files": backups,
        "warnings": list(plan.warnings),
    }


def _plan(
    options: cdi_options.CdiOptions,
    host: hostfs.HostFS,
    toolkit: refresh_units.RefreshUnits | None,
    without_records: t.Container[str] = (),
) -> RemovalPlan:
    named = options._replace(format=None, exclusive=False)
    location = cdi_records.location_of(named, host, toolkit)
    main_path = host.resolve(location.path)
    own_records = cdi_records.own_records(host)
    all_records = {record.path: record for record in own_records if record.path not in without_records}
    records = [spec_record for spec_record in all_records.values() if spec_record.kind == options.kind]
    spec_records = [spec_record for spec_record in records if spec_record.document is not None]
    paths = {
        main_path,
        *(host.resolve(cdi_records.variant_path(location.path, variant)) for variant in cdi_options.VARIANTS),
    }
    removed = [spec_record for spec_record in spec_records if options.path is None or spec_record.path in paths]
    planner = _Planner(host)
    for spec_record in removed:
        planner.remove(spec_record)
    # Backups of variants that an earlier run removed may still exist.
    unused = [path for path in paths if path != main_path and path not in all_records and host.read(path) is None]
    planner.files += [core_plan.PlannedFile(path, None, None) for path in unused]
    if main_path not in all_records:
        planner.keep(main_path)
    elif options.path is not None and not removed:
        planner.explain_kept(all_records[main_path])
    if len(removed) == len(spec_records) and (removed or options.path is None):
        for spec_record in records:
            if spec_record.document is None:
                planner.restore(spec_record)
    return RemovalPlan(location.path, tuple(planner.files), tuple(planner.restored), tuple(planner.warnings))


class _Planner:
    """The planned changes of the files of one kind."""

    def __init__(self, host: hostfs.HostFS) -> None:
        self._host = host
        self.files: list[core_plan.PlannedFile] = []
        self.restored: list[core_records.OriginalFile] = []
        self.warnings: list[str] = []

    def remove(self, spec_record: cdi_records.SpecRecord) -> None:
        """Plan the removal of a file of this collection, whether or not it has changed since."""
        record, content = spec_record.record, self._host.read(spec_record.path)
        after = record.original
        if content is None:
            after = after if self._is_from_this_boot(spec_record) else None
        elif content != after and core_records.digest(content) not in record.written:
            after = self._after_foreign_change(spec_record, content)
        self._plan(record, content, after)

    def _after_foreign_change(self, spec_record: cdi_records.SpecRecord, content: bytes) -> bytes | None:
        """Return the new content for a file that another program has overwritten. A backup of its content is kept."""
        if spec_record.path.startswith(_VOLATILE_DIR):
            self.warnings.append(f"Another program has changed {spec_record.path} since, so it is not removed.")
            return content
        kind = (spec_record.document or {}).get("kind")
        if spec_record.record.original is None and not self._is_removable(spec_record.path, content, kind):
            self.warnings.append(f"{spec_record.path} no longer describes {kind}, so it is not removed.")
            return content
        return spec_record.record.original

    def keep(self, path: str) -> None:
        """Keep a file without a record. It may have backups of this collection."""
        content = self._host.read(path)
        if content is not None:
            self.warnings.append(f"This module did not write {path}, so it is not removed.")
        self.files.append(core_plan.PlannedFile(path, content, content))

    def explain_kept(self, spec_record: cdi_records.SpecRecord) -> None:
        """Add a warning with the reason why a recorded file that the task names is not changed."""
        self.warnings.append(
            f"{spec_record.path} is not changed, because it belongs to {spec_record.kind}. Remove that kind without"
            f" {errors.option:path}."
        )

    def restore(self, spec_record: cdi_records.SpecRecord) -> None:
        """Plan the restoration of a file that was moved away."""
        content, after = self._host.read(spec_record.path), spec_record.record.original
        if content is not None and content != after:
            self.warnings.append(
                f"{spec_record.path} was moved away, but exists again, so it is not restored. Its previous content is"
                " in the backup directory."
            )
            after = content
        elif content is None and not self._is_from_this_boot(spec_record):
            after = None
        self._plan(spec_record.record, content, after)

    def _plan(self, record: core_records.OriginalFile, before: bytes | None, after: bytes | None) -> None:
        self.files.append(core_plan.PlannedFile(record.path, before, after))
        if after is not None and after == record.original:
            self.restored.append(record)

    def _is_removable(self, path: str, content: bytes, kind: t.Any) -> bool:
        """Return whether a file describes ``kind`` or cannot be parsed."""
        try:
            return bool(cdi_validate.validate(yaml_document.parse(path, content)).document.get("kind", kind) == kind)
        except errors.ConfigurationError:
            return True

    def _is_from_this_boot(self, spec_record: cdi_records.SpecRecord) -> bool:
        """Return whether recorded content may be restored. Content of /run from before the last boot is out of date."""
        boot = self._host.read_text(core_constants.BOOT_ID).strip()
        return not spec_record.path.startswith(_VOLATILE_DIR) or spec_record.record.boot == boot
