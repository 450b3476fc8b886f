# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write a specification if it is missing, different or stale."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import engine_support, host_check, refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import generate as cdi_generate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Containers of users without privileges read it too.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o555


class CdiPlan(t.NamedTuple):
    """What is there and what it becomes; the first of ``files`` is the specification.

    ``reasons`` say why the file is replaced.  ``rebased`` are files whose records are of former files at their paths.
    ``folder`` is one that not everybody may read, and the mode that it gets.
    """

    place: cdi_records.SpecLocation
    files: tuple[core_plan.PlannedFile, ...]
    generated: cdi_generate.Generated
    reasons: tuple[str, ...]
    conflicts: tuple[cdi_registry.ConflictingSpec, ...]
    folder: t.Mapping[str, int]
    warnings: tuple[str, ...]
    rebased: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.reasons) or any(file.changed for file in self.files)


class SpecWriter:
    """The specification that ``options`` ask for, on one host."""

    def __init__(
        self,
        options: cdi_options.CdiOptions,
        host: hostfs.HostFS,
        run: core_plan.Runner,
        run_pinned: cdi_generate.PinnedRunner,
    ) -> None:
        self.options = options
        self.host = host
        self._generation = cdi_generate.Generation(options, host, run, run_pinned)

    def execute(self, check_mode: bool) -> dict[str, t.Any]:
        """Bring the host to what is asked for, unless ``check_mode``; the module's result as documented.

        ``files`` in it are the PlannedFiles that changed.  Raises NvidiaError.
        """
        if self.options.state == "absent":
            # Who has a specification made need not wait for this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import (  # noqa: PLC0415
                remove as cdi_remove,
            )

            return cdi_remove.remove_specifications(self.options, self.host, check_mode)
        plan = self._plan(check_mode)
        backups: list[dict[str, str | None]] = []
        if plan.changed and not check_mode:
            plan, backups = self._write()
        return self._result(plan, backups)

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _plan(self, check_mode: bool) -> CdiPlan:
        host = self.host
        place = cdi_records.place_of(
            self.options, host, refresh_units.toolkit_refresh(host), refresh_units.own_refresh(host)
        )
        records = {own.path: own for own in cdi_records.own_records(host)}
        generated = self._generation.execute(place.owned, hooks_may_come=check_mode)
        known = cdi_records.known_documents(records.values())
        files = cdi_registry.read_specifications(host, known)
        made = {"": generated.document, **generated.variants}
        paths = {name: cdi_records.variant_path(place.path, name) if name else place.path for name in made}
        others = [rival for name in made for rival in cdi_registry.conflicting_specs(files, paths[name], made[name])]
        former = [rival for rival in others if self._is_former(records, rival, generated.mode)]
        leaving = self._without_links(others) if self.options.exclusive else former
        written, reasons = [], []
        for name, document in made.items():
            path, variant_of = paths[name], self.options.kind if name else None
            data = files[path] if path in files else cdi_registry.read_specification(host, path, known)
            entries = cdi_records.entries_of(document, generated.mode, self.options.request.device_ids, variant_of)
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
                *(
                    engine_support.unreached(generated.engines, os.path.dirname(place.path))
                    if cdi_registry.is_loaded_path(place.path)
                    else ()
                ),
                *(f"{path}, which this module wrote earlier, goes." for path in [*_paths(former), *unused]),
                *self._warnings(place, files, [rival for rival in others if rival not in leaving]),
            ),
        )

    def _planned(
        self, place: cdi_records.SpecLocation, data: t.Any, document: dict[str, t.Any]
    ) -> tuple[core_plan.PlannedFile, list[str]]:
        """The file at ``place``, which has ``data`` now, and why it has to be written."""
        content = self.host.read(place.path)
        reasons = [*self._reasons(content, data, place, document), *self._private(place.path)]
        file = core_plan.PlannedFile(self.host.resolve(place.path), content, content)
        return (file._replace(after=_rendered(document, place.format)) if reasons else file), reasons

    def _unused_variants(
        self, records: t.Mapping[str, cdi_records.OwnRecord], written: t.Sequence[core_plan.PlannedFile]
    ) -> list[str]:
        """The files of variants that an earlier run wrote, and that this one does not want."""
        wanted = {file.path for file in written}
        former = [own.path for own in records.values() if own.variant_of == self.options.kind]
        return [path for path in former if path not in wanted and self.host.read(path) is not None]

    def _is_former(
        self, records: t.Mapping[str, cdi_records.OwnRecord], rival: cdi_registry.ConflictingSpec, mode: str
    ) -> bool:
        """Whether a file is our own of an earlier run that wrote to another path, whatever has become of it since.

        Raises NvidiaError where it is about something else, for both would fight for their devices with each run.
        """
        own = records.get(self._own_path(rival))
        if own is None or own.document is None or not rival.devices:
            return False
        if not own.by_unit and own.mode != mode:
            raise errors.NvidiaError(
                f"{rival.path} describes {own.kind} by mode {own.mode}, and has devices of the same names. Give mode"
                f" {mode} a class of its own, as in class: {mode}, or take that file back first (state: absent)."
            )
        return True

    def _without_links(self, others: t.Sequence[cdi_registry.ConflictingSpec]) -> list[cdi_registry.ConflictingSpec]:
        """All of ``others``; raises HostError for a link: what it leads to may be of use elsewhere."""
        for rival in others:
            if os.path.islink(self.host.real_path(rival.path, last=False)):
                raise errors.HostError(
                    f"{rival.path} is a link to another specification of {self.options.kind}. Remove the link, or leave"
                    " out exclusive. Nothing was written."
                )
        return list(others)

    def _leaving(
        self, leaving: t.Iterable[str], records: t.Mapping[str, cdi_records.OwnRecord]
    ) -> tuple[list[core_plan.PlannedFile], tuple[str, ...]]:
        """Files that go, and which of them have become other files since they were recorded."""
        files, rebased = [], []
        for path in dict.fromkeys(leaving):
            content, own = self.host.read(path), records.get(path)
            unchanged = own is not None and (own.by_unit or core_records.digest(content) in own.record.written)
            if own is not None and not unchanged:
                rebased.append(path)
            # What we made ourselves needs no way back.
            needless = unchanged and own is not None and own.record.original is None
            files.append(
                core_plan.PlannedFile(
                    path, content, None, {} if needless else cdi_records.entries_of_room(self.options.kind)
                )
            )
        return files, tuple(rebased)

    def _own_path(self, rival: cdi_registry.ConflictingSpec) -> str:
        """The path under which a file is recorded, if it is no link to another."""
        return self.host.resolve(rival.path, last=False)

    def _reasons(
        self, content: bytes | None, data: t.Any, place: cdi_records.SpecLocation, document: t.Mapping[str, t.Any]
    ) -> list[str]:
        """Why the file has to be written, in sentences; none if it says the same already."""
        if content is None:
            return ["It is not there."]
        if isinstance(data, errors.NvidiaError):
            return [f"Engines skip it. {data}"]
        judgement = cdi_validate.validate(data)
        if judgement.errors:
            return [f"Engines skip it. {' '.join(map(str, judgement.errors))}"]
        reasons = host_check.staleness(judgement.document, document, self.host)
        if content.lstrip().startswith(b"{") is not (place.format == cdi_options.JSON):
            reasons.append(f"It is not {place.format}.")
        return reasons

    def _private(self, path: str) -> list[str]:
        """Why the file is no good for everybody, in sentences: engines' users read it, and only root may change it."""
        status = _status(self.host, path) if cdi_registry.is_loaded_path(path) else None
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
        status = _status(self.host, folder) if cdi_registry.is_loaded_path(path) else None
        mode = 0 if status is None else status.st_mode & 0o7777
        return {} if status is None or mode | _FOLDER_MODE == mode else {folder: mode | _FOLDER_MODE}

    def _warnings(
        self,
        place: cdi_records.SpecLocation,
        files: t.Mapping[str, t.Any],
        staying: t.Sequence[cdi_registry.ConflictingSpec],
    ) -> t.Iterator[str]:
        if not cdi_registry.is_loaded_path(place.path):
            yield f"Engines read no specification from {os.path.dirname(place.path)} unless they are told to."
        for path, data in files.items():
            if isinstance(data, errors.NvidiaError) and path != place.path:
                yield f"Engines skip {path}. {data}"
        for rival in staying:
            if rival.effect in cdi_registry.HARMFUL:
                yield f"{rival.sentence} exclusive: true removes it, and keeps a copy."

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _write(self) -> tuple[CdiPlan, list[dict[str, str | None]]]:
        # An unchanged host need not wait for these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            apply,
            atomic_write,
            lock,
        )
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            constants as core_constants,
        )

        host = self.host
        backup_dir = host.check_path("backup_dir", self.options.backup_dir or core_records.BACKUP_DIR)
        apply.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
        with lock.host_lock(host):
            # Another run may have written since; only what is read under the lock counts.
            plan = self._plan(check_mode=False)
            main = plan.files[0].path
            writer = apply.ChangeWriter(host, cdi_records.OWNER, main, backup_dir, removal=False, purge=False)
            for path in plan.rebased:
                # What comes back one day is what goes now.
                atomic_write.remove_file(host, core_records.record_path(cdi_records.OWNER, path))
            backups = writer.carry_out(plan.files) if plan.changed else []
            for file in plan.files if plan.changed and cdi_registry.is_loaded_path(plan.place.path) else ():
                if file.after is not None:
                    atomic_write.set_access(host, file.path, _FILE_MODE, (os.geteuid(), os.getegid()))
            for folder, mode in plan.folder.items():
                atomic_write.set_access(host, folder, mode)
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


def _paths(found: t.Iterable[cdi_registry.ConflictingSpec]) -> list[str]:
    return [rival.path for rival in found]


def _status(host: hostfs.HostFS, path: str) -> os.stat_result | None:
    try:
        return os.stat(host.real_path(path))
    except OSError:
        return None


def _rendered(document: t.Mapping[str, t.Any], form: str) -> bytes:
    # What is not written need not be rendered.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
        yaml_document,
    )

    return yaml_document.render(document, form)
