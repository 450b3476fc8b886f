# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Set up the units that refresh the specification, and check the specification that they write."""

from __future__ import annotations

import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import (
    host_check,
    refresh_plan,
    refresh_systemd,
    refresh_units,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The key in the record of a file of this collection. Records of other files have the keys of their lines instead.
_CONTENT = ("content",)
# Contains a digest of the files with which the service last ran and wrote a valid specification. The changes of this
# run do not show that: an earlier run may not have started the service, or failed, or been killed. The file is not a
# record, so its name does not end like one.
_LAST_RUN = f"{core_records.STATE_DIR}/cdi.refresh.ran"
_NVML = "nvml"


class Work(t.NamedTuple):
    """The changes on the disk.

    ``files`` are files to write, ``leaving`` are files to remove or restore, ``made`` and ``removed`` are links.
    ``purged`` are backups of files that earlier runs wrote and removed. ``noted`` is whether the file with the last run
    exists although no service remains.
    """

    plan: refresh_units.RefreshPlan | None
    warnings: tuple[str, ...]
    files: tuple[core_plan.PlannedFile, ...]
    leaving: tuple[core_plan.PlannedFile, ...]
    made: tuple[refresh_units.Link, ...]
    removed: tuple[refresh_units.Link, ...]
    purged: tuple[str, ...] = ()
    noted: bool = False

    @property
    def changed_files(self) -> list[core_plan.PlannedFile]:
        return [file for file in (*self.files, *self.leaving) if file.changed]

    @property
    def changed(self) -> bool:
        return bool(self.changed_files or self.made or self.removed or self.purged or self.noted)


class CdiRefresh:
    """The units that refresh the specification of ``options``, on one host."""

    def __init__(
        self, options: refresh_plan.RefreshOptions, host: hostfs.HostFS, runners: refresh_plan.Runners
    ) -> None:
        self._options = options
        self._host = host
        self._runners = runners

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Apply the options to the host, unless ``check_mode``, and return the module's result as documented.

        ``files`` in the result are the PlannedFiles that changed. Raises NvidiaError.
        """
        work = self._work()
        backups: list[dict[str, str | None]] = []
        booted = systemctl.Systemctl.booted(self._host)
        if (work.changed or self._unrecorded(work.plan)) and not check_mode:
            if work.plan is not None and booted:
                self._require_reader()
            work, backups = self._apply()
        outcome, problems = refresh_systemd.ServiceOutcome(), []
        if work.plan is not None and booted:
            try:
                outcome = self._settle(work, work.plan, check_mode)
            except errors.HostError as error:
                error.details = {"changed": work.changed and not check_mode}
                raise
            if outcome.started:
                problems = specification_problems(work.plan.output, self._options.cdi, self._host)
            if outcome.settled and not problems:
                self._record_last_run(_state_of(work))
        result = self._result(work, outcome, backups)
        if problems:
            raise _invalid(problems, result)
        return result

    # -- planning ------------------------------------------------------------------------------------------------------

    def _work(self) -> Work:
        host = self._host
        plan, warnings = (
            (None, ()) if self._options.state == "absent" else refresh_plan.plan_of(self._options, host, self._runners)
        )
        files = () if plan is None else tuple(self._files(plan))
        staying = {file.path for file in files}
        records = [
            record for record in core_records.load_records(host, refresh_plan.CDI_REFRESH) if record.path not in staying
        ]
        return Work(
            plan=plan,
            warnings=warnings,
            files=files,
            leaving=tuple(map(self._restored, records)),
            made=() if plan is None else plan.links,
            removed=tuple(link for link in refresh_systemd.our_links(host) if not self._is_wanted(plan, link)),
            purged=self._purged(),
            noted=plan is None and host.lexists(_LAST_RUN),
        )

    def _purged(self) -> tuple[str, ...]:
        """Return the backups that a purge removes."""
        if self._options.state != "absent" or not self._options.cdi.purge_backups:
            return ()
        # Only a purge needs this.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply  # noqa: PLC0415

        folder = self._host.check_path("backup_dir", self._options.cdi.backup_dir or core_records.BACKUP_DIR)
        paths = map(self._host.resolve, refresh_plan.own_paths())
        return tuple(backup for path in paths for backup in apply.backups_of(self._host, folder, path))

    def _files(self, plan: refresh_units.RefreshPlan) -> t.Iterator[core_plan.PlannedFile]:
        for path, content in plan.contents.items():
            real = refresh_plan.own_file_path(self._host, path)
            yield core_plan.PlannedFile(real, self._host.read(real), content, {_CONTENT: core_records.digest(content)})

    def _restored(self, record: core_records.OriginalFile) -> core_plan.PlannedFile:
        """Return how a file that is no longer needed is restored. Foreign files only lose this collection's lines."""
        path = refresh_plan.own_file_path(self._host, record.path)
        content = self._host.read(path)
        whole = _CONTENT in (record.keys or {})
        return core_plan.PlannedFile(
            path, content, record.original if whole else refresh_units.without_our_lines(content, record)
        )

    def _is_wanted(self, plan: refresh_units.RefreshPlan | None, link: refresh_units.Link) -> bool:
        if plan is None:
            return False
        return posixpath.basename(link.path) in (plan.service, plan.watcher) or link.target in plan.contents

    # -- writing -------------------------------------------------------------------------------------------------------

    def _apply(self) -> tuple[Work, list[dict[str, str | None]]]:
        # An unchanged host does not need these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            apply,
            lock,
        )
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            constants as core_constants,
        )

        host, cdi = self._host, self._options.cdi
        backup_dir = host.check_path("backup_dir", cdi.backup_dir or core_records.BACKUP_DIR)
        apply.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
        purge = self._options.state == "absent" and cdi.purge_backups
        with lock.host_lock(host):
            # Another run may have changed the host, so everything is read again under the lock.
            work = self._work()
            self._stop(work)
            self._record_specification(work.plan)
            if work.noted:
                self._forget_last_run()
            refresh_systemd.change_links(host, (), work.removed)
            self._purge(work)
            backups = []
            # Removals come last, when the records of the remaining files have all directories that were created.
            for files, removal in ((work.files, False), (work.leaving, True)):
                for file in files:
                    writer = apply.ChangeWriter(
                        host, refresh_plan.CDI_REFRESH, file.path, backup_dir, removal=removal, purge=purge
                    )
                    backups += writer.apply([file]) if writer.has_work([file]) else []
            refresh_systemd.change_links(host, work.made, ())
            self._unload(work)
        return work, backups

    def _unrecorded(self, plan: refresh_units.RefreshPlan | None) -> bool:
        """Return whether a unit of this collection would write a specification that has no record yet."""
        return (
            plan is not None
            and plan.owner == refresh_plan.COLLECTION
            and not cdi_records.is_recorded(self._host, self._real_output(plan))
        )

    def _real_output(self, plan: refresh_units.RefreshPlan) -> str:
        return self._host.resolve(plan.output)

    def _record_specification(self, plan: refresh_units.RefreshPlan | None) -> None:
        """Record the file that exists before a unit of this collection writes its first specification."""
        unused = cdi_records.unused_unit_records(self._host)
        if plan is not None and plan.owner == refresh_plan.COLLECTION:
            path, kind = self._real_output(plan), self._options.cdi.kind
            variants = cdi_options.VARIANTS if cdi_options.COHERENCE in self._options.cdi.request.feature_flags else ()
            beside = {cdi_records.variant_path(path, variant): f"{kind}.{variant}" for variant in variants}
            unused = [record for record in unused if record.path not in {path, *beside}]
            if self._unrecorded(plan):
                former = refresh_units.own_refresh(self._host)
                own = former is not None and self._host.resolve(former.output) == path
                cdi_records.record_for_unit(self._host, path, kind, None if own else self._host.read(path))
            for place in [place for place in beside if not cdi_records.is_recorded(self._host, place)]:
                cdi_records.record_for_unit(self._host, place, beside[place], self._host.read(place), kind)
        cdi_records.forget(self._host, unused)

    def _purge(self, work: Work) -> None:
        """Remove the backups, and their directory before the records that list the other created directories."""
        if not work.purged:
            return
        # Only a purge needs these.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            apply,
            atomic_write,
        )

        for backup in work.purged:
            apply.remove_backup(self._host, backup)
        atomic_write.remove_empty_directories(
            self._host, [posixpath.dirname(core_records.BACKUP_DIR), core_records.BACKUP_DIR]
        )

    def _stop(self, work: Work) -> None:
        """Stop path units whose files this run removes."""
        going = {posixpath.basename(link.path) for link in work.removed}
        for name in (refresh_units.OWN_PATH, refresh_units.PATH):
            if name in going and systemctl.Systemctl.booted(self._host):
                systemctl.Systemctl(self._host, self._runners.run, name).stop()

    def _unload(self, work: Work) -> None:
        """Reload systemd so that it unloads removed units, unless a container would lose its GPUs by that."""
        gone = [file.path for file in work.leaving if file.changed and file.path.startswith(refresh_units.UNITS + "/")]
        if not gone or not systemctl.Systemctl.booted(self._host):
            return
        # Only a removal needs this.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import (  # noqa: PLC0415
            gpu_containers,
        )

        if not gpu_containers.legacy_gpu_containers(self._host):
            systemctl.Systemctl(
                self._host, self._runners.run, systemd_units.unit_name(posixpath.basename(gone[0]))
            ).daemon_reload()

    def _require_reader(self) -> None:
        """Raise MissingPackageError if PyYAML, which reads the service's output, is missing. Nothing changes before."""
        if self._options.start:
            # Without a start, this import is not needed.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled  # noqa: PLC0415

            bundled.import_bundled("yaml")

    def _settle(self, work: Work, plan: refresh_units.RefreshPlan, check_mode: bool) -> refresh_systemd.ServiceOutcome:
        def ready() -> None:
            self._require_reader()
            # The service may fail, or this run may be killed, so the recorded last run is no longer valid.
            self._record_last_run(None)

        # With start: false a change is reported once, in the run that makes it.
        changed = any(file.changed for file in work.files) or bool(work.leaving and work.changed)
        if self._options.start:
            changed = self._host.read_text(_LAST_RUN).strip() != _state_of(work)
        service = refresh_systemd.RefreshService(plan, self._host, self._runners.run, ready)
        return service.settle(changed, self._options.start, check_mode)

    def _record_last_run(self, state: str | None) -> None:
        """Record that the service ran with this state, or remove the recorded state (None)."""
        # Without a start, these imports are not needed.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            atomic_write,
            lock,
        )

        with lock.host_lock(self._host):
            if state is None:
                self._forget_last_run()
            else:
                atomic_write.make_directories(self._host, core_records.STATE_DIR, 0o700)
                atomic_write.replace_file(self._host, _LAST_RUN, f"{state}\n".encode(), 0o600)

    def _forget_last_run(self) -> None:
        """Remove the file with the last run. The caller holds the host's lock."""
        if not self._host.lexists(_LAST_RUN):
            return
        # Without a start, this import is not needed.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write  # noqa: PLC0415

        atomic_write.remove_file(self._host, _LAST_RUN)
        atomic_write.remove_empty_directories(
            self._host, [posixpath.dirname(core_records.STATE_DIR), core_records.STATE_DIR]
        )

    def _result(
        self, work: Work, outcome: refresh_systemd.ServiceOutcome, backups: list[dict[str, str | None]]
    ) -> dict[str, t.Any]:
        plan, host = work.plan, self._host
        refresh = refresh_units.toolkit_refresh(host)
        return {
            "changed": work.changed or outcome.changed,
            "files": work.changed_files,
            "owner": None if plan is None else plan.owner,
            "service": None if plan is None else plan.service,
            "path_unit": None if plan is None else plan.watcher,
            "enabled": plan is not None and (bool(plan.links) or refresh_units.is_enabled(host, plan.service)),
            "toolkit_enabled": refresh is not None and refresh.enabled,
            # The key is not "path": with that key, Ansible replaces "owner" by the owner of the file.
            "specification": None if plan is None else plan.output,
            "present": plan is not None and host.exists(plan.output),
            "variables": {} if plan is None else dict(plan.variables),
            "changed_files": [file.path for file in work.changed_files],
            "links_created": [link.path for link in work.made],
            "links_removed": [link.path for link in work.removed],
            "reasons": list(outcome.reasons),
            "started": outcome.started,
            "backup_files": backups,
            "warnings": [*work.warnings, *outcome.warnings],
        }


def _state_of(work: Work) -> str:
    """Return a digest of all planned files that affect the service."""
    found = {file.path: core_records.digest(file.after) for file in work.files}
    service = None if work.plan is None else work.plan.service
    return core_records.digest(json.dumps([service, found], sort_keys=True).encode("utf-8"))


def _invalid(problems: t.Sequence[str], result: t.Mapping[str, t.Any]) -> errors.HostError:
    error = errors.HostError(
        f"{result['service']} ran, but {result['specification']} is of no use. {' '.join(problems)} What keeps it fresh"
        " is in place; read the service's log with journalctl, then run this again."
    )
    error.details = {"changed": result["changed"]}
    return error


# -- checking the specification that the service wrote -----------------------------------------------------------------


def specification_problems(path: str, options: cdi_options.CdiOptions, host: hostfs.HostFS) -> list[str]:
    """Return the problems of the specification in ``path`` as messages. Without a loaded driver it may be missing.

    Raises MissingPackageError if reading it needs PyYAML and PyYAML is missing.
    """
    content = host.read(path)
    if content is None and gpu_detect.loaded_driver(host) is None:
        return []
    if content is None:
        return [f"{path} is not there, though the driver is loaded. Read the service's log with journalctl."]
    # Without a start, this import is not needed.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
        yaml_document,
    )

    try:
        judgement = cdi_validate.validate(yaml_document.parse(path, content))
    except errors.ConfigurationError as error:
        return [str(error)]
    if judgement.errors:
        return list(map(str, judgement.errors))
    return list(host_check.check_host(judgement.document, host, _required(options, host)).errors)


def _required(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> host_check.Required | None:
    """Return what the specification must contain, or None if that is unknown or not required."""
    if not options.require_devices or options.mode not in (cdi_options.AUTO, _NVML) or options.request.device_ids:
        return None
    # Other modes do not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory  # noqa: PLC0415

    request = options.request
    try:
        found = inventory.machine(host, request.driver_root, options.use_nvml, request.library_search_paths)
        return host_check.required_of(found, inventory.mig_nodes(host, found))
    except errors.NvidiaError:
        return None
