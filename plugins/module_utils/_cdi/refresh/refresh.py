# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write and enable the units that refresh the specification, run the service, and check what it wrote.

`plan.py` decides which files and links a host needs.
"""

from __future__ import annotations

import json
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import modes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    plan as refresh_plan,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    systemd as refresh_systemd,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    units as refresh_units,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    apply,
    bundled,
    errors,
    lock,
    record_store,
    trusted_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers, systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The key in the record of a file. Only this collection writes these files.
_CONTENT = ("content",)
# Contains a digest of the unit files with which the service last wrote a valid specification. It shows whether the
# service must run, even if this task changes nothing: an earlier task may not have started the service, or failed, or
# been killed. The name does not end in .json, because this file is not a record.
_LAST_RUN = f"{core_records.STATE_DIR}/cdi.refresh.ran"
_NVML = "nvml"
# The time limit of a command in seconds. It is longer than that of the service (TimeoutStartSec in units.py),
# which may wait for the driver.
LIMIT = 150


class Changes(t.NamedTuple):
    """The changes on the disk.

    ``files`` are files to write, and ``restored`` are files to remove or restore. ``purged_backups`` are the backups to
    remove. No unit has used ``unused_records`` yet. ``obsolete_state`` is whether the state directory has other files
    although no service remains.
    """

    plan: refresh_units.RefreshPlan | None
    warnings: tuple[str, ...]
    files: tuple[core_plan.PlannedFile, ...]
    restored: tuple[core_plan.PlannedFile, ...]
    created_links: tuple[refresh_units.Link, ...]
    removed_links: tuple[refresh_units.Link, ...]
    unused_records: tuple[core_records.OriginalFile, ...] = ()
    purged_backups: tuple[str, ...] = ()
    obsolete_state: bool = False

    @property
    def changed_files(self) -> list[core_plan.PlannedFile]:
        return [file for file in (*self.files, *self.restored) if file.changed]

    @property
    def changed(self) -> bool:
        # A file is restored without a change if an earlier removal failed before it removed the record.
        links = (*self.created_links, *self.removed_links)
        others = (self.restored, links, self.unused_records, self.purged_backups, self.obsolete_state)
        return bool(self.changed_files) or any(others)


class CdiRefresh:
    """The units that refresh the specification of ``options``, on one host."""

    def __init__(
        self, options: refresh_plan.RefreshOptions, host: hostfs.HostFS, runners: refresh_plan.Runners
    ) -> None:
        self._options = options
        self._host = host
        self._runners = runners

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Apply the options to the host, except in ``check_mode``, and return the module's result as documented.

        ``files`` in the result are the PlannedFiles that changed. Raises NvidiaError.
        """
        changes = self._plan_changes()
        backups: list[dict[str, str | None]] = []
        booted = systemctl.Systemctl.booted(self._host)
        if (changes.changed or self._is_unrecorded(changes.plan)) and not check_mode:
            if changes.plan is not None and booted:
                self._require_yaml()
            changes, backups = self._apply()
        service, problems = refresh_systemd.ServiceResult(), []
        if changes.plan is not None and booted:
            try:
                service = self._run_service(changes, changes.plan, check_mode)
            except errors.HostError as error:
                error.details = {"changed": changes.changed and not check_mode}
                raise
            if service.started:
                problems = specification_problems(changes.plan.output, self._options.cdi, self._host)
            if service.complete and not problems:
                self._record_last_run(_digest_of(changes))
        replaced = self._replaced_file(changes.plan, bool(service.reasons) and check_mode)
        if replaced is not None and not problems and not check_mode:
            backups += self._remove_replaced_file(replaced)
        result = self._result(changes, service, backups, replaced)
        if problems:
            raise _invalid_specification(problems, result)
        return result

    # -- planning ------------------------------------------------------------------------------------------------------

    def _plan_changes(self) -> Changes:
        host = self._host
        plan, warnings = (
            (None, ()) if self._options.state == "absent" else refresh_plan.plan_of(self._options, host, self._runners)
        )
        if plan is not None and host.live and not systemctl.Systemctl.booted(host):
            warning = f"systemd does not run on this host, so {refresh_units.OWN_SERVICE} writes nothing here."
            warnings += (f"{warning} Run this task again after each change of the driver.",)
        files = () if plan is None else tuple(self._planned_files(plan))
        kept = {file.path for file in files}
        records = core_records.load_records(host, refresh_plan.CDI_REFRESH)
        return Changes(
            plan=plan,
            warnings=warnings,
            files=files,
            restored=tuple(self._restored_file(record) for record in records if record.path not in kept),
            created_links=() if plan is None else plan.links,
            removed_links=_existing_links(host) if plan is None else (),
            unused_records=tuple(cdi_records.unused_unit_records(host)) if plan is None else (),
            purged_backups=self._purged_backups(),
            obsolete_state=plan is None and self._has_obsolete_state(),
        )

    def _has_obsolete_state(self) -> bool:
        """Return whether the state directory has files that are not needed without a service."""
        return self._host.lexists(_LAST_RUN) or record_store.has_leftovers(self._host)

    def _purged_backups(self) -> tuple[str, ...]:
        if not self._is_purge():
            return ()

        paths = map(self._host.resolve, refresh_plan.own_paths())
        return tuple(backup for path in paths for backup in apply.backups_of(self._host, self._backup_dir(), path))

    def _is_purge(self) -> bool:
        return self._options.state == "absent" and self._options.cdi.purge_backups

    def _backup_dir(self) -> str:
        return self._host.check_path("backup_dir", self._options.cdi.backup_dir or core_records.BACKUP_DIR)

    def _planned_files(self, plan: refresh_units.RefreshPlan) -> t.Iterator[core_plan.PlannedFile]:
        for path, content in plan.contents.items():
            real = refresh_plan.own_file_path(self._host, path)
            yield core_plan.PlannedFile(real, self._host.read(real), content, {_CONTENT: core_records.digest(content)})

    def _restored_file(self, record: core_records.OriginalFile) -> core_plan.PlannedFile:
        """Return the restored content of a file that is no longer needed."""
        path = refresh_plan.own_file_path(self._host, record.path)
        return core_plan.PlannedFile(path, self._host.read(path), record.original)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _apply(self) -> tuple[Changes, list[dict[str, str | None]]]:
        host, backup_dir = self._host, self._backup_dir()
        trusted_paths.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
        with lock.host_lock(host):
            # Another run may have changed the host, so everything is read again under the lock.
            changes = self._plan_changes()
            self._stop_path_unit(changes)
            self._record_originals(changes.plan)
            if changes.plan is None:
                refresh_systemd.remove_links(host, changes.removed_links)
            for backup in changes.purged_backups:
                apply.remove_backup(host, backup)
            backups = []
            # Files are removed last. By then the records of the remaining files also list the directories that the
            # removed records list, so these directories are not forgotten.
            for files, removal in ((changes.files, False), (changes.restored, True)):
                for file in files:
                    writer = apply.ChangeWriter(
                        host, refresh_plan.CDI_REFRESH, file.path, backup_dir, removal=removal, purge=self._is_purge()
                    )
                    backups += writer.apply([file]) if writer.has_work([file]) else []
            refresh_systemd.create_links(host, changes.created_links)
            if changes.obsolete_state or changes.purged_backups:
                record_store.remove_state(host, _LAST_RUN)
            self._unload_removed_units(changes)
        return changes, backups

    def _is_unrecorded(self, plan: refresh_units.RefreshPlan | None) -> bool:
        """Return whether a unit of this collection would write a specification that has no record yet."""
        return plan is not None and not cdi_records.is_recorded(self._host, self._host.resolve(plan.output))

    def _record_originals(self, plan: refresh_units.RefreshPlan | None) -> None:
        """Record the files that exist before a unit of this collection writes its first specifications."""
        host, cdi = self._host, self._options.cdi
        unused = cdi_records.unused_unit_records(host)
        if plan is not None:
            path = host.resolve(plan.output)
            variants = cdi_options.VARIANTS if cdi_options.COHERENCE in cdi.request.feature_flags else ()
            variant_kinds = {cdi_records.variant_path(path, variant): f"{cdi.kind}.{variant}" for variant in variants}
            unused = [record for record in unused if record.path not in {path, *variant_kinds}]
            if self._is_unrecorded(plan):
                existing = refresh_units.own_refresh(host)
                is_own = existing is not None and host.resolve(existing.output) == path
                cdi_records.record_for_unit(host, path, cdi.kind, None if is_own else host.read(path))
            for variant_path, kind in variant_kinds.items():
                if not cdi_records.is_recorded(host, variant_path):
                    cdi_records.record_for_unit(host, variant_path, kind, host.read(variant_path), cdi.kind)
        for record in unused:
            record_store.drop(host, record)

    def _stop_path_unit(self, changes: Changes) -> None:
        names = {posixpath.basename(link.path) for link in changes.removed_links}
        name = refresh_units.OWN_PATH_UNIT
        if name in names and systemctl.Systemctl.booted(self._host):
            systemctl.Systemctl(self._host, self._runners.run, name).stop()

    def _unload_removed_units(self, changes: Changes) -> None:
        """Reload systemd so that it unloads removed units, unless a container would lose its GPUs by that."""
        paths = [file.path for file in changes.restored if file.changed]
        paths = [path for path in paths if path.startswith(refresh_units.UNIT_DIR + "/")]
        if not paths or not systemctl.Systemctl.booted(self._host):
            return

        if not gpu_containers.legacy_gpu_containers(self._host):
            name = systemd_units.unit_name(posixpath.basename(paths[0]))
            systemctl.Systemctl(self._host, self._runners.run, name).daemon_reload()

    def _replaced_file(self, plan: refresh_units.RefreshPlan | None, will_run: bool) -> core_plan.PlannedFile | None:
        """Return the removal of the toolkit's file; None as long as there is no specification in its place."""
        if plan is None or plan.replaced is None or not (will_run or self._host.exists(plan.output)):
            return None
        keys = cdi_records.moved_file_entries(self._options.cdi.kind)
        return core_plan.PlannedFile(plan.replaced, self._host.read(plan.replaced), None, keys)

    def _remove_replaced_file(self, file: core_plan.PlannedFile) -> list[dict[str, str | None]]:
        """Remove the toolkit's file, with a record from which nvidia_cdi_spec restores it."""
        with lock.host_lock(self._host):
            writer = apply.ChangeWriter(
                self._host, cdi_records.OWNER, file.path, self._backup_dir(), removal=False, purge=False
            )
            return writer.apply([file])

    # -- running the service -------------------------------------------------------------------------------------------

    def _require_yaml(self) -> None:
        """Raise MissingPackageError if PyYAML, which reads the service's output, is missing.

        This is called before a change, because the action plugin then sends PyYAML and runs the module again.
        """
        if self._options.start:
            bundled.import_bundled("yaml")

    def _run_service(
        self, changes: Changes, plan: refresh_units.RefreshPlan, check_mode: bool
    ) -> refresh_systemd.ServiceResult:
        def before_start() -> None:
            self._require_yaml()
            # The service may fail, or this run may be killed, so the recorded last run is no longer valid.
            self._record_last_run(None)

        # With start: false a change is reported once, in the run that makes it.
        changed = any(file.changed for file in changes.files) or bool(changes.restored and changes.changed)
        if self._options.start:
            changed = self._host.read_text(_LAST_RUN).strip() != _digest_of(changes)
        service = refresh_systemd.RefreshService(plan.output, self._host, self._runners.run, before_start)
        return service.run_if_needed(changed, self._options.start, check_mode)

    def _record_last_run(self, digest: str | None) -> None:
        """Record that the service ran with files of this digest, or remove the record (None)."""
        with lock.host_lock(self._host):
            if digest is None:
                record_store.remove_state(self._host, _LAST_RUN)
            else:
                record_store.write_state(self._host, _LAST_RUN, f"{digest}\n".encode())

    def _result(
        self,
        changes: Changes,
        service: refresh_systemd.ServiceResult,
        backups: list[dict[str, str | None]],
        replaced: core_plan.PlannedFile | None,
    ) -> dict[str, t.Any]:
        plan, host = changes.plan, self._host
        files = [*changes.changed_files, *([] if replaced is None else [replaced])]
        service_name, path_unit = (refresh_units.OWN_SERVICE, refresh_units.OWN_PATH_UNIT) if plan else (None, None)
        return {
            "changed": changes.changed or service.changed or replaced is not None,
            "files": files,
            "service": service_name,
            "path_unit": path_unit,
            "enabled": plan is not None
            and (bool(plan.links) or systemd_units.is_enabled(host, refresh_units.OWN_SERVICE)),
            "specification": None if plan is None else plan.output,
            "present": plan is not None and host.exists(plan.output),
            "changed_files": [file.path for file in files],
            "links_created": [link.path for link in changes.created_links],
            "links_removed": [link.path for link in changes.removed_links],
            "reasons": list(service.reasons),
            "started": service.started,
            "backup_files": backups,
            "warnings": [*changes.warnings, *service.warnings],
        }


def _existing_links(host: hostfs.HostFS) -> tuple[refresh_units.Link, ...]:
    return tuple(link for link in refresh_units.OWN_LINKS if os.path.islink(host.real_path(link.path, last=False)))


def _digest_of(changes: Changes) -> str:
    digests = {file.path: core_records.digest(file.after) for file in changes.files}
    return core_records.digest(json.dumps(digests, sort_keys=True).encode("utf-8"))


def _invalid_specification(problems: t.Sequence[str], result: t.Mapping[str, t.Any]) -> errors.HostError:
    error = errors.HostError(
        f"{result['service']} ran, but engines cannot use {result['specification']}. {' '.join(problems)} The refresh"
        " units stay installed. Read the service's log with journalctl, then run this task again."
    )
    error.details = {"changed": result["changed"]}
    return error


# -- checking the specification that the service wrote -----------------------------------------------------------------


def specification_problems(path: str, options: cdi_options.CdiOptions, host: hostfs.HostFS) -> list[str]:
    """Return the problems of the specification in ``path`` as messages.

    Without a loaded driver, a missing file is not a problem.
    Raises MissingPackageError if reading it needs PyYAML and PyYAML is missing.
    """
    content = host.read(path)
    if content is None and procfs.loaded_driver(host) is None:
        return []
    if content is None:
        return [f"{path} does not exist, although the driver is loaded."]
    # Without a start, this import is not needed.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document  # noqa: PLC0415

    try:
        result = cdi_validate.validate(yaml_document.parse(path, content))
    except errors.ConfigurationError as error:
        return [str(error)]
    if result.errors:
        return list(map(str, result.errors))
    return list(host_check.check_host(result.document, host, _required(options, host)).errors)


def _required(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> host_check.Required | None:
    all_selected = cdi_edits.selects_all(options.request.device_ids)
    if not options.require_devices or options.mode not in (cdi_options.AUTO, _NVML) or not all_selected:
        return None

    request = options.request
    try:
        found = inventory.read_inventory(host, request.driver_root, options.use_nvml, request.library_search_paths)
        return modes.required_of(found, inventory.mig_nodes(host, found))
    except errors.NvidiaError:
        return None
