# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: from what a task asks for to units that keep a CDI specification fresh, and back.  On a
# running host it also checks the specification that the service has written: engines skip a faulty one without a word.

from __future__ import annotations

import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import (
    Required,
    check_host,
    required_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_placement import variant_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_records import (
    forget,
    is_recorded,
    record_for_unit,
    unused_unit_records,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_plan import (
    CDI_REFRESH,
    COLLECTION,
    RefreshOptions,
    RefreshPlan,
    Runners,
    own_file_path,
    own_paths,
    plan_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_systemd import (
    Link,
    RefreshService,
    ServiceOutcome,
    change_links,
    our_links,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_texts import UNITS, without_our_lines
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import (
    OWN_PATH,
    PATH,
    is_enabled,
    own_refresh,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import COHERENCE, VARIANTS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    ConfigurationError,
    GpufleetError,
    HostError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    BACKUP_DIR,
    STATE_DIR,
    FileRecord,
    digest,
    load_records,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemctl import Systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# A file of this collection is recorded with this key; records of another file have the keys of its lines.
_CONTENT = ("content",)
# A digest of the files with which the service last ran and wrote a valid specification.  Whether files changed in this
# run does not show that: an earlier one did not start the service, failed, or was killed in between.  It is no record
# of a file, and its name does not end like one.
_LAST_RUN = f"{STATE_DIR}/cdi.refresh.ran"
_NVML = "nvml"


class Work(t.NamedTuple):
    """What changes on the disk: files that stay, files that are removed or restored, links made and removed.

    ``purged`` are copies of files that earlier runs wrote and have removed already.  ``noted`` is whether a note on the
    service's last run is left where no service is any more.
    """

    plan: RefreshPlan | None
    warnings: tuple[str, ...]
    files: tuple[PlannedFile, ...]
    leaving: tuple[PlannedFile, ...]
    made: tuple[Link, ...]
    removed: tuple[Link, ...]
    purged: tuple[str, ...] = ()
    noted: bool = False

    @property
    def changed_files(self) -> list[PlannedFile]:
        return [file for file in (*self.files, *self.leaving) if file.changed]

    @property
    def changed(self) -> bool:
        return bool(self.changed_files or self.made or self.removed or self.purged or self.noted)


class CdiRefresh:
    """What keeps the specification of ``options`` fresh, on one host."""

    def __init__(self, options: RefreshOptions, host: HostRoot, runners: Runners) -> None:
        self._options = options
        self._host = host
        self._runners = runners

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Bring the host to what is asked for, unless ``check_mode``; the module's result as documented.

        ``files`` in it are the PlannedFiles that changed.  Raises GpufleetError.
        """
        work = self._work()
        backups: list[dict[str, str | None]] = []
        booted = Systemctl.booted(self._host)
        if (work.changed or self._unrecorded(work.plan)) and not check_mode:
            if work.plan is not None and booted:
                self._require_reader()
            work, backups = self._apply()
        outcome, problems = ServiceOutcome(), []
        if work.plan is not None and booted:
            try:
                outcome = self._settle(work, work.plan, check_mode)
            except HostError as error:
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

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _work(self) -> Work:
        host = self._host
        plan, warnings = (None, ()) if self._options.state == "absent" else plan_of(self._options, host, self._runners)
        files = () if plan is None else tuple(self._files(plan))
        staying = {file.path for file in files}
        records = [record for record in load_records(host, CDI_REFRESH) if record.path not in staying]
        return Work(
            plan=plan,
            warnings=warnings,
            files=files,
            leaving=tuple(map(self._restored, records)),
            made=() if plan is None else plan.links,
            removed=tuple(link for link in our_links(host) if not self._is_wanted(plan, link)),
            purged=self._purged(),
            noted=plan is None and host.is_there(_LAST_RUN),
        )

    def _purged(self) -> tuple[str, ...]:
        """The backups that a purge removes."""
        if self._options.state != "absent" or not self._options.cdi.purge_backups:
            return ()
        # Only a purge needs this.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups  # noqa: PLC0415

        folder = self._host.check_path("backup_dir", self._options.cdi.backup_dir or BACKUP_DIR)
        paths = map(self._host.resolve, own_paths())
        return tuple(backup for path in paths for backup in _backups.backups_of(self._host, folder, path))

    def _files(self, plan: RefreshPlan) -> t.Iterator[PlannedFile]:
        for path, content in plan.contents.items():
            real = own_file_path(self._host, path)
            yield PlannedFile(real, self._host.read(real), content, {_CONTENT: digest(content)})

    def _restored(self, record: FileRecord) -> PlannedFile:
        """A file that is not needed any more, as it was before: one of others only loses this collection's lines."""
        path = own_file_path(self._host, record.path)
        content = self._host.read(path)
        whole = _CONTENT in (record.keys or {})
        return PlannedFile(path, content, record.original if whole else without_our_lines(content, record))

    def _is_wanted(self, plan: RefreshPlan | None, link: Link) -> bool:
        if plan is None:
            return False
        return posixpath.basename(link.path) in (plan.service, plan.watcher) or link.target in plan.contents

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _apply(self) -> tuple[Work, list[dict[str, str | None]]]:
        # An unchanged host need not wait for these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import (  # noqa: PLC0415
            PARSED_FOLDERS,
        )
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import PlanWriter  # noqa: PLC0415

        host, cdi = self._host, self._options.cdi
        backup_dir = host.check_path("backup_dir", cdi.backup_dir or BACKUP_DIR)
        _backups.check_backup_dir(host, backup_dir, PARSED_FOLDERS)
        purge = self._options.state == "absent" and cdi.purge_backups
        with host_lock(host):
            # Another run may have written since; only what is read under the lock counts.
            work = self._work()
            self._stop(work)
            self._record_specification(work.plan)
            if work.noted:
                self._forget_last_run()
            change_links(host, (), work.removed)
            self._purge(work)
            backups = []
            # What leaves goes last, for only then do the records of what stays know of all folders that were made.
            for files, removal in ((work.files, False), (work.leaving, True)):
                for file in files:
                    writer = PlanWriter(host, CDI_REFRESH, file.path, backup_dir, removal=removal, purge=purge)
                    backups += writer.carry_out([file]) if writer.has_work([file]) else []
            change_links(host, work.made, ())
            self._unload(work)
        return work, backups

    def _unrecorded(self, plan: RefreshPlan | None) -> bool:
        """Whether a unit of this collection is to write a specification that has no record yet."""
        return plan is not None and plan.owner == COLLECTION and not is_recorded(self._host, self._real_output(plan))

    def _real_output(self, plan: RefreshPlan) -> str:
        return self._host.resolve(plan.output)

    def _record_specification(self, plan: RefreshPlan | None) -> None:
        """Record what was there before the first specification of a unit of this collection."""
        unused = unused_unit_records(self._host)
        if plan is not None and plan.owner == COLLECTION:
            path, kind = self._real_output(plan), self._options.cdi.kind
            variants = VARIANTS if COHERENCE in self._options.cdi.request.feature_flags else ()
            beside = {variant_path(path, variant): f"{kind}.{variant}" for variant in variants}
            unused = [record for record in unused if record.path not in {path, *beside}]
            if self._unrecorded(plan):
                former = own_refresh(self._host)
                own = former is not None and self._host.resolve(former.output) == path
                record_for_unit(self._host, path, kind, None if own else self._host.read(path))
            for place in [place for place in beside if not is_recorded(self._host, place)]:
                record_for_unit(self._host, place, beside[place], self._host.read(place), kind)
        forget(self._host, unused)

    def _purge(self, work: Work) -> None:
        """Remove the copies, and their folder before the records that say what else was made for it."""
        if not work.purged:
            return
        # Only a purge needs these.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
            remove_empty_directories,
        )

        for backup in work.purged:
            _backups.remove(self._host, backup)
        remove_empty_directories(self._host, [posixpath.dirname(BACKUP_DIR), BACKUP_DIR])

    def _stop(self, work: Work) -> None:
        """No unit may be waiting for changes whose file goes."""
        going = {posixpath.basename(link.path) for link in work.removed}
        for name in (OWN_PATH, PATH):
            if name in going and Systemctl.booted(self._host):
                Systemctl(self._host, self._runners.run, name).stop()

    def _unload(self, work: Work) -> None:
        """Have systemd unload the removed units, unless a container would lose its GPUs by that."""
        gone = [file.path for file in work.leaving if file.changed and file.path.startswith(UNITS + "/")]
        if not gone or not Systemctl.booted(self._host):
            return
        # Only a removal needs this.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import (  # noqa: PLC0415
            running,
        )

        if not running(self._host):
            Systemctl(self._host, self._runners.run, unit_name(posixpath.basename(gone[0]))).daemon_reload()

    def _require_reader(self) -> None:
        """Raises MissingPackageError if what the service will write could not be read; then nothing has changed yet."""
        if self._options.start:
            # A task that starts nothing need not wait for this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._shipped import load  # noqa: PLC0415

            load("yaml")

    def _settle(self, work: Work, plan: RefreshPlan, check_mode: bool) -> ServiceOutcome:
        def ready() -> None:
            self._require_reader()
            # The service may fail now, or this run may end: the state of the last run no longer counts.
            self._record_last_run(None)

        # With start: false a change is reported once, in the run that makes it.
        changed = any(file.changed for file in work.files) or bool(work.leaving and work.changed)
        if self._options.start:
            changed = self._host.read_text(_LAST_RUN).strip() != _state_of(work)
        service = RefreshService(plan, self._host, self._runners.run, ready)
        return service.settle(changed, self._options.start, check_mode)

    def _record_last_run(self, state: str | None) -> None:
        """Record that the service has run in this state, or forget the recorded one (None)."""
        # A task that starts nothing need not wait for these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
            make_directories,
            replace_file,
        )

        with host_lock(self._host):
            if state is None:
                self._forget_last_run()
            else:
                make_directories(self._host, STATE_DIR, 0o700)
                replace_file(self._host, _LAST_RUN, f"{state}\n".encode(), 0o600)

    def _forget_last_run(self) -> None:
        """Remove the note; the host's lock is held."""
        if not self._host.is_there(_LAST_RUN):
            return
        # A task that starts nothing need not wait for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
            remove_empty_directories,
            remove_file,
        )

        remove_file(self._host, _LAST_RUN)
        remove_empty_directories(self._host, [posixpath.dirname(STATE_DIR), STATE_DIR])

    def _result(self, work: Work, outcome: ServiceOutcome, backups: list[dict[str, str | None]]) -> dict[str, t.Any]:
        plan, host = work.plan, self._host
        refresh = toolkit_refresh(host)
        return {
            "changed": work.changed or outcome.changed,
            "files": work.changed_files,
            "owner": None if plan is None else plan.owner,
            "service": None if plan is None else plan.service,
            "path_unit": None if plan is None else plan.watcher,
            "enabled": plan is not None and (bool(plan.links) or is_enabled(host, plan.service)),
            "toolkit_enabled": refresh is not None and refresh.enabled,
            # Not "path": with that, Ansible replaces "owner" by the owner of the file.
            "specification": None if plan is None else plan.output,
            "present": plan is not None and host.exists(plan.output),
            "variables": {} if plan is None else dict(plan.variables),
            "changed_files": [file.path for file in work.changed_files],
            "links_made": [link.path for link in work.made],
            "links_removed": [link.path for link in work.removed],
            "reasons": list(outcome.reasons),
            "started": outcome.started,
            "backup_files": backups,
            "warnings": [*work.warnings, *outcome.warnings],
        }


def _state_of(work: Work) -> str:
    """A digest of all files by which the service works, as they are to be."""
    found = {file.path: digest(file.after) for file in work.files}
    service = None if work.plan is None else work.plan.service
    return digest(json.dumps([service, found], sort_keys=True).encode("utf-8"))


def _invalid(problems: t.Sequence[str], result: t.Mapping[str, t.Any]) -> HostError:
    error = HostError(
        f"{result['service']} ran, but {result['specification']} is of no use. {' '.join(problems)} What keeps it fresh"
        " is in place; read the service's log with journalctl, then run this again."
    )
    error.details = {"changed": result["changed"]}
    return error


# -- the specification that the service has written --------------------------------------------------------------------


def specification_problems(path: str, options: CdiOptions, host: HostRoot) -> list[str]:
    """What is wrong with the specification in ``path``, in sentences; it need not be there where no driver is loaded.

    Raises MissingPackageError where it takes PyYAML to read it, and there is none.
    """
    content = host.read(path)
    if content is None and loaded_driver(host) is None:
        return []
    if content is None:
        return [f"{path} is not there, though the driver is loaded. Read the service's log with journalctl."]
    # A run that starts nothing need not wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml import parse  # noqa: PLC0415

    try:
        judgement = judge(parse(path, content))
    except ConfigurationError as error:
        return [str(error)]
    if judgement.errors:
        return list(map(str, judgement.errors))
    return list(check_host(judgement.document, host, _required(options, host)).errors)


def _required(options: CdiOptions, host: HostRoot) -> Required | None:
    """What it must not lack; None where that is not known, or not asked for."""
    if not options.require_devices or options.mode not in (AUTO, _NVML) or options.request.device_ids:
        return None
    # Other modes need not wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import (  # noqa: PLC0415
        machine,
        mig_nodes,
    )

    request = options.request
    try:
        found = machine(host, request.driver_root, options.use_nvml, request.library_search_paths)
        return required_of(found, mig_nodes(host, found))
    except GpufleetError:
        return None
