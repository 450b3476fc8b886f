# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: from what a task asks for to units that keep a CDI specification fresh, and back.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_links import (
    Link,
    change_links,
    our_links,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_look import Look, look_at
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_places import own_place, require_file
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_plans import (
    CDI_REFRESH,
    COLLECTION,
    TOOLKIT,
    RefreshOptions,
    RefreshPlan,
    like_of,
    own_paths,
    plan_of,
    planned_environment,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_ran import (
    NOTE,
    forget_run,
    note_run,
    ran_with,
    state_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_service import (
    RefreshService,
    ServiceOutcome,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_texts import OWN_PATH, UNITS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import (
    ENVIRONMENT_FILE,
    PATH,
    is_enabled,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import BACKUP_DIR, digest, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemctl import Systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

_CONTENT = ("content",)


class Work(t.NamedTuple):
    """What changes on the disk: files that stay, files that are given back, links made and removed.

    ``purged`` are copies of files that earlier runs wrote and have given back already.  ``noted`` says that a note on
    the service's last run is left where no service is any more.
    """

    plan: RefreshPlan | None
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

    def __init__(self, options: RefreshOptions, host: HostRoot, run: Runner) -> None:
        self._options = options
        self._host = host
        self._run = run

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Bring the host to what is asked for, unless ``check_mode``; the module's result as documented.

        ``files`` in it are the PlannedFiles that changed.  Raises GpufleetError.
        """
        work = self._work()
        backups: list[dict[str, str | None]] = []
        booted = Systemctl.booted(self._host)
        if work.changed and not check_mode:
            if work.plan is not None and booted:
                self._require_sight(work.plan)
            work, backups = self._carry_out()
        outcome, look = ServiceOutcome(), None
        if work.plan is not None and booted:
            try:
                outcome = self._settle(work, work.plan, check_mode)
            except HostError as error:
                error.details = {"changed": work.changed and not check_mode}
                raise
            if outcome.started and work.plan.owner == TOOLKIT:
                # Our own program does not write what would be wrong.
                look = look_at(work.plan.output, self._options.cdi, self._host)
            if outcome.settled and (look is None or not look.problems):
                note_run(self._host, state_of(work.plan.service, work.files))
        result = self._result(work, outcome, backups)
        if look is not None and look.problems:
            raise _unfit(look, result)
        return result

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _work(self) -> Work:
        host = self._host
        plan = None if self._options.state == "absent" else self._plan()
        files = () if plan is None else tuple(self._files(plan))
        staying = {file.path for file in files}
        records = [record for record in load_records(host, CDI_REFRESH) if record.path not in staying]
        made = () if plan is None else plan.links
        return Work(
            plan=plan,
            files=files,
            leaving=tuple(self._given_back(record.path, record.original) for record in records),
            made=made,
            removed=tuple(link for link in our_links(host) if not self._is_wanted(plan, link)),
            purged=self._purged(),
            noted=plan is None and host.is_there(NOTE),
        )

    def _plan(self) -> RefreshPlan:
        try:
            return plan_of(self._options, self._host, self._run)
        except HostError:
            if self._options.owner != COLLECTION:
                # Then that is what the error is about, in less fitting words.
                require_file(self._host, ENVIRONMENT_FILE)
            raise

    def _purged(self) -> tuple[str, ...]:
        """The backups that a purge removes."""
        if self._options.state != "absent" or not self._options.cdi.purge_backups:
            return ()
        # Only a purge needs this.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups  # noqa: PLC0415

        folder = self._host.check_path("backup_dir", self._options.cdi.backup_dir or BACKUP_DIR)
        paths = map(self._host.resolve, own_paths(self._options))
        return tuple(backup for path in paths for backup in _backups.backups_of(self._host, folder, path))

    def _files(self, plan: RefreshPlan) -> t.Iterator[PlannedFile]:
        if plan.environment is not None:
            require_file(self._host, ENVIRONMENT_FILE)
            yield plan.environment
        for path, content in plan.contents.items():
            real = own_place(self._host, path)
            before = self._host.read(real)
            yield PlannedFile(real, before, content, {_CONTENT: digest(content)}, like_of(plan, path))

    def _given_back(self, path: str, original: bytes | None) -> PlannedFile:
        if path == self._host.resolve(ENVIRONMENT_FILE):
            require_file(self._host, ENVIRONMENT_FILE)
            return planned_environment(self._host, {})
        # Its name is ours, and so is whatever it says by now.
        return PlannedFile(own_place(self._host, path), self._host.read(path), original)

    def _is_wanted(self, plan: RefreshPlan | None, link: Link) -> bool:
        if plan is None:
            return False
        return posixpath.basename(link.path) in (plan.service, plan.watcher) or link.target in plan.contents

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _carry_out(self) -> tuple[Work, list[dict[str, str | None]]]:
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
            if work.noted:
                forget_run(host)
            change_links(host, (), work.removed)
            self._purge(work)
            backups = []
            # No file of ours has another beside which it is read.  What leaves goes last, for only then do the records
            # of what stays know of all folders that were made.
            for files, removal in ((work.files, False), (work.leaving, True)):
                for file in files:
                    writer = PlanWriter(host, CDI_REFRESH, file.path, backup_dir, removal=removal, purge=purge)
                    backups += writer.carry_out([file]) if writer.has_work([file]) else []
            change_links(host, work.made, ())
            self._forget(work)
        return work, backups

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
                Systemctl(self._host, self._run, name).stop()

    def _forget(self, work: Work) -> None:
        """Have systemd forget units of ours that are gone, unless that costs somebody a GPU."""
        gone = [file.path for file in work.leaving if file.changed and file.path.startswith(UNITS + "/")]
        if not gone or not Systemctl.booted(self._host):
            return
        # Only a removal needs this.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import (  # noqa: PLC0415
            running,
        )

        if not running(self._host):
            Systemctl(self._host, self._run, unit_name(posixpath.basename(gone[0]))).daemon_reload()

    def _require_sight(self, plan: RefreshPlan) -> None:
        """Raises MissingPackageError if what the service will write could not be read; then nothing has changed yet."""
        if plan.owner == TOOLKIT and self._options.start:
            # Who starts nothing need not wait for this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._shipped import load  # noqa: PLC0415

            load("yaml")

    def _settle(self, work: Work, plan: RefreshPlan, check_mode: bool) -> ServiceOutcome:
        def ready() -> None:
            self._require_sight(plan)
            # Whatever comes now, be it the end of this run, what was known of the last one no longer counts.
            note_run(self._host, None)

        told = any(file.changed for file in work.files) or bool(work.leaving and work.changed)
        if self._options.start:
            # Who has it started otherwise, at boot for one, is not told of the same again and again.
            told = not ran_with(self._host, state_of(plan.service, work.files))
        return RefreshService(plan, self._host, self._run, ready).settle(told, self._options.start, check_mode)

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
            # Not "path": to that Ansible adds the file's owner and state, in place of ours.
            "specification": None if plan is None else plan.output,
            "present": plan is not None and host.exists(plan.output),
            "variables": {} if plan is None else dict(plan.variables),
            "changed_files": [file.path for file in work.changed_files],
            "links_made": [link.path for link in work.made],
            "links_removed": [link.path for link in work.removed],
            "reasons": list(outcome.reasons),
            "started": outcome.started,
            "backup_files": backups,
            "warnings": [*(() if plan is None else plan.warnings), *outcome.warnings],
        }


def _unfit(look: Look, result: t.Mapping[str, t.Any]) -> HostError:
    error = HostError(
        f"{result['service']} ran, but {look.path} is of no use. {' '.join(look.problems)} What keeps it fresh is in"
        " place; look at the service's log with journalctl, then run this again."
    )
    error.details = {"changed": result["changed"]}
    return error
