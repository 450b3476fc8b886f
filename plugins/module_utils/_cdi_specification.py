# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a CDI specification on a host, from what a task asks for to its file.  No engine has to be
# restarted: they read specifications when a container starts.

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_files import (
    read_specification,
    read_specifications,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_folders import HARMFUL, Rival, counts, rivals
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_generation import Generated, Generation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import staleness
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_limits import unreached
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import JSON, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_placement import (
    Place,
    place_of,
    variant_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_records import (
    OWNER,
    OwnRecord,
    entries_of,
    entries_of_room,
    known_documents,
    own_records,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import own_refresh, toolkit_refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import BACKUP_DIR, digest, record_path

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_reference import PinnedRunner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

# Containers of users without privileges read it too.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o555


class CdiPlan(t.NamedTuple):
    """What is there and what it becomes; the first of ``files`` is the specification.

    ``reasons`` say why the file is replaced.  ``rebased`` are files whose records are of former files at their paths.
    ``folder`` is one that not everybody may read, and the mode that it gets.
    """

    place: Place
    files: tuple[PlannedFile, ...]
    generated: Generated
    reasons: tuple[str, ...]
    conflicts: tuple[Rival, ...]
    folder: t.Mapping[str, int]
    warnings: tuple[str, ...]
    rebased: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.reasons) or any(file.changed for file in self.files)


class CdiSpecification:
    """The specification that ``options`` ask for, on one host."""

    def __init__(self, options: CdiOptions, host: HostRoot, run: Runner, run_pinned: PinnedRunner) -> None:
        self.options = options
        self.host = host
        self._generation = Generation(options, host, run, run_pinned)

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Bring the host to what is asked for, unless ``check_mode``; the module's result as documented.

        ``files`` in it are the PlannedFiles that changed.  Raises GpufleetError.
        """
        if self.options.state == "absent":
            # Who has a specification made need not wait for this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_removal import (  # noqa: PLC0415
                remove_specifications,
            )

            return remove_specifications(self.options, self.host, check_mode)
        plan = self._plan(check_mode)
        backups: list[dict[str, str | None]] = []
        if plan.changed and not check_mode:
            plan, backups = self._write()
        return self._result(plan, backups)

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _plan(self, check_mode: bool) -> CdiPlan:
        host = self.host
        place = place_of(self.options, host, toolkit_refresh(host), own_refresh(host))
        records = {own.path: own for own in own_records(host)}
        generated = self._generation.execute(place.owned, hooks_may_come=check_mode)
        known = known_documents(records.values())
        files = read_specifications(host, known)
        made = {"": generated.document, **generated.variants}
        paths = {name: variant_path(place.path, name) if name else place.path for name in made}
        others = [rival for name in made for rival in rivals(files, paths[name], made[name])]
        former = [rival for rival in others if self._is_former(records, rival, generated.mode)]
        leaving = self._without_links(others) if self.options.exclusive else former
        written, reasons = [], []
        for name, document in made.items():
            path, variant_of = paths[name], self.options.kind if name else None
            data = files[path] if path in files else read_specification(host, path, known)
            entries = entries_of(document, generated.mode, self.options.request.device_ids, variant_of)
            file, why = self._planned(place._replace(path=path), data, document)
            written.append(file._replace(keys=entries))
            reasons += [f"{paths[name]}: {reason}" if name else reason for reason in why]
        unused = self._unused_variants(records, written)
        removed, rebased = self._leaving([*map(self._own_path, leaving), *unused], records)
        folder = self._closed_folder(place.path)
        return CdiPlan(
            place=place,
            # What is in another folder is of use until then, and what is in the same one in nobody's way for longer.
            files=(*written, *removed),
            rebased=rebased,
            generated=generated,
            reasons=(*reasons, *(f"{path} is closed to users without privileges." for path in folder)),
            conflicts=tuple(others),
            folder=folder,
            warnings=(
                *(unreached(generated.engines, os.path.dirname(place.path)) if counts(place.path) else ()),
                *(f"{path}, which this module wrote earlier, goes." for path in [*_paths(former), *unused]),
                *self._warnings(place, files, [rival for rival in others if rival not in leaving]),
            ),
        )

    def _planned(self, place: Place, data: t.Any, document: dict[str, t.Any]) -> tuple[PlannedFile, list[str]]:
        """The file at ``place``, which has ``data`` now, and why it has to be written."""
        content = self.host.read(place.path)
        reasons = [*self._reasons(content, data, place, document), *self._private(place.path)]
        file = PlannedFile(self.host.resolve(place.path), content, content)
        return (file._replace(after=_rendered(document, place.format)) if reasons else file), reasons

    def _unused_variants(self, records: t.Mapping[str, OwnRecord], written: t.Sequence[PlannedFile]) -> list[str]:
        """The files of variants that an earlier run wrote, and that this one does not want."""
        wanted = {file.path for file in written}
        former = [own.path for own in records.values() if own.variant_of == self.options.kind]
        return [path for path in former if path not in wanted and self.host.read(path) is not None]

    def _is_former(self, records: t.Mapping[str, OwnRecord], rival: Rival, mode: str) -> bool:
        """Whether a file is our own of an earlier run that wrote to another path, whatever has become of it since.

        Raises GpufleetError where it is about something else, for both would fight for their devices with each run.
        """
        own = records.get(self._own_path(rival))
        if own is None or own.document is None or not rival.devices:
            return False
        if not own.by_unit and own.mode != mode:
            raise GpufleetError(
                f"{rival.path} describes {own.kind} by mode {own.mode}, and has devices of the same names. Give mode"
                f" {mode} a class of its own, as in class: {mode}, or take that file back first (state: absent)."
            )
        return True

    def _without_links(self, others: t.Sequence[Rival]) -> list[Rival]:
        """All of ``others``; raises HostError for a link: what it leads to may be of use elsewhere."""
        for rival in others:
            if os.path.islink(self.host.outer(rival.path, last=False)):
                raise HostError(
                    f"{rival.path} is a link to another specification of {self.options.kind}. Remove the link, or leave"
                    " out exclusive. Nothing was written."
                )
        return list(others)

    def _leaving(
        self, leaving: t.Iterable[str], records: t.Mapping[str, OwnRecord]
    ) -> tuple[list[PlannedFile], tuple[str, ...]]:
        """Files that go, and which of them have become other files since they were recorded."""
        files, rebased = [], []
        for path in dict.fromkeys(leaving):
            content, own = self.host.read(path), records.get(path)
            unchanged = own is not None and (own.by_unit or digest(content) in own.record.written)
            if own is not None and not unchanged:
                rebased.append(path)
            # What we made ourselves needs no way back.
            needless = unchanged and own is not None and own.record.original is None
            files.append(PlannedFile(path, content, None, {} if needless else entries_of_room(self.options.kind)))
        return files, tuple(rebased)

    def _own_path(self, rival: Rival) -> str:
        """The path under which a file is recorded, if it is no link to another."""
        return self.host.resolve(rival.path, last=False)

    def _reasons(self, content: bytes | None, data: t.Any, place: Place, document: t.Mapping[str, t.Any]) -> list[str]:
        """Why the file has to be written, in sentences; none if it says the same already."""
        if content is None:
            return ["It is not there."]
        if isinstance(data, GpufleetError):
            return [f"Engines skip it. {data}"]
        judgement = judge(data)
        if judgement.errors:
            return [f"Engines skip it. {' '.join(map(str, judgement.errors))}"]
        reasons = staleness(judgement.document, document, self.host)
        if content.lstrip().startswith(b"{") is not (place.format == JSON):
            reasons.append(f"It is not {place.format}.")
        return reasons

    def _private(self, path: str) -> list[str]:
        """Why the file is no good for everybody, in sentences: engines' users read it, and only root may change it."""
        status = _status(self.host, path) if counts(path) else None
        if status is None:
            return []
        reasons = []
        if status.st_mode & 0o7777 != _FILE_MODE:
            reasons.append(f"It has the mode {status.st_mode & 0o7777:04o}, not {_FILE_MODE:04o}.")
        if status.st_uid != os.geteuid():
            reasons.append(f"It belongs to the user {status.st_uid}.")
        return reasons

    def _closed_folder(self, path: str) -> dict[str, int]:
        """The file's folder and the mode that it is to have, if it is one of engines and not open to everybody."""
        folder = os.path.dirname(path)
        status = _status(self.host, folder) if counts(path) else None
        mode = 0 if status is None else status.st_mode & 0o7777
        return {} if status is None or mode | _FOLDER_MODE == mode else {folder: mode | _FOLDER_MODE}

    def _warnings(self, place: Place, files: t.Mapping[str, t.Any], staying: t.Sequence[Rival]) -> t.Iterator[str]:
        if not counts(place.path):
            yield f"Engines read no specification from {os.path.dirname(place.path)} unless they are told to."
        for path, data in files.items():
            if isinstance(data, GpufleetError) and path != place.path:
                yield f"Engines skip {path}. {data}"
        for rival in staying:
            if rival.effect in HARMFUL:
                yield f"{rival.sentence} exclusive: true removes it, and keeps a copy."

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _write(self) -> tuple[CdiPlan, list[dict[str, str | None]]]:
        # An unchanged host need not wait for these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import (  # noqa: PLC0415
            PARSED_FOLDERS,
        )
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import PlanWriter  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
            remove_file,
            set_access,
        )

        host = self.host
        backup_dir = host.check_path("backup_dir", self.options.backup_dir or BACKUP_DIR)
        _backups.check_backup_dir(host, backup_dir, PARSED_FOLDERS)
        with host_lock(host):
            # Another run may have written since; only what is read under the lock counts.
            plan = self._plan(check_mode=False)
            main = plan.files[0].path
            writer = PlanWriter(host, OWNER, main, backup_dir, removal=False, purge=False)
            for path in plan.rebased:
                # What comes back one day is what goes now.
                remove_file(host, record_path(OWNER, path))
            backups = writer.carry_out(plan.files) if plan.changed else []
            for file in plan.files if plan.changed and counts(plan.place.path) else ():
                if file.after is not None:
                    set_access(host, file.path, _FILE_MODE, (os.geteuid(), os.getegid()))
            for folder, mode in plan.folder.items():
                set_access(host, folder, mode)
        return plan, backups

    def _result(self, plan: CdiPlan, backups: list[dict[str, str | None]]) -> dict[str, t.Any]:
        generated = plan.generated
        document = generated.document
        # What stays as it is was said when it was written.
        said = generated.limits if plan.changed else ()
        return {
            "changed": plan.changed,
            "files": [file for file in plan.files if file.changed],
            "path": plan.place.path,
            "kind": document["kind"],
            "cdi_version": document["cdiVersion"],
            "devices": [device["name"] for device in document["devices"]],
            "format": plan.place.format,
            "mode": generated.mode,
            "backend": generated.backend,
            "driver_version": generated.driver_version,
            "reasons": list(plan.reasons),
            "engines": [
                {
                    "name": engine.name,
                    "version": engine.version,
                    "newest_cdi": engine.newest,
                    "folders": [*engine.folders],
                }
                for engine in generated.engines
            ],
            "limits": list(generated.limits),
            "conflicts": [{**rival._asdict(), "devices": [*rival.devices]} for rival in plan.conflicts],
            "removed_files": [file.path for file in plan.files if file.after is None],
            "restored_files": [],
            "backup_files": backups,
            "warnings": [*generated.warnings, *said, *plan.warnings],
        }


def _paths(found: t.Iterable[Rival]) -> list[str]:
    return [rival.path for rival in found]


def _status(host: HostRoot, path: str) -> os.stat_result | None:
    try:
        return os.stat(host.outer(path))
    except OSError:
        return None


def _rendered(document: t.Mapping[str, t.Any], form: str) -> bytes:
    # What is not written need not be rendered.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml import render  # noqa: PLC0415

    return render(document, form)
