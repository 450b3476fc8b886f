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


# Containers of unprivileged users read the specification too.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o555


class CdiPlan(t.NamedTuple):
    """The present files and the planned ones. The first of ``files`` is the specification.

    ``reasons`` say why the file is replaced. ``rebased`` are files whose records describe a previous file at the path.
    ``folder`` is a directory that not all users may read, with the mode that it gets.
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
    """The specification that ``options`` describe, on one host."""

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
        """Apply the options to the host, unless ``check_mode``, and return the module's result as documented.

        ``files`` in the result are the PlannedFiles that changed. Raises NvidiaError.
        """
        if self.options.state == "absent":
            # Only state: absent needs this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import (  # noqa: PLC0415
                remove as cdi_remove,
            )

            return cdi_remove.remove_specifications(self.options, self.host, check_mode)
        plan = self._plan(check_mode)
        backups: list[dict[str, str | None]] = []
        if plan.changed and not check_mode:
            plan, backups = self._write()
        return self._result(plan, backups)

    # -- planning ------------------------------------------------------------------------------------------------------

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
            # The new file is written first. Old files in another directory stay usable until then, and old files in the
            # same directory conflict with it only until they are removed.
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
        """Return the file at ``place``, which contains ``data`` now, and the reasons to write it."""
        content = self.host.read(place.path)
        reasons = [*self._reasons(content, data, place, document), *self._private(place.path)]
        file = core_plan.PlannedFile(self.host.resolve(place.path), content, content)
        return (file._replace(after=_rendered(document, place.format)) if reasons else file), reasons

    def _unused_variants(
        self, records: t.Mapping[str, cdi_records.OwnRecord], written: t.Sequence[core_plan.PlannedFile]
    ) -> list[str]:
        """Return the files of variants that an earlier run wrote and that this run does not need."""
        wanted = {file.path for file in written}
        former = [own.path for own in records.values() if own.variant_of == self.options.kind]
        return [path for path in former if path not in wanted and self.host.read(path) is not None]

    def _is_former(
        self, records: t.Mapping[str, cdi_records.OwnRecord], rival: cdi_registry.ConflictingSpec, mode: str
    ) -> bool:
        """Return whether an earlier run wrote the file to another path, even if it has changed since.

        Raises NvidiaError if it was written for another mode. Both tasks would replace each other's devices each time.
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
        """Return all of ``others``. Raises HostError for a link, since its target may be used elsewhere."""
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
        """Return the files to remove, and the paths of those that have changed since they were recorded."""
        files, rebased = [], []
        for path in dict.fromkeys(leaving):
            content, own = self.host.read(path), records.get(path)
            unchanged = own is not None and (own.by_unit or core_records.digest(content) in own.record.written)
            if own is not None and not unchanged:
                rebased.append(path)
            # A file that only this collection wrote need not be restored later.
            needless = unchanged and own is not None and own.record.original is None
            files.append(
                core_plan.PlannedFile(
                    path, content, None, {} if needless else cdi_records.entries_of_room(self.options.kind)
                )
            )
        return files, tuple(rebased)

    def _own_path(self, rival: cdi_registry.ConflictingSpec) -> str:
        """Return the path under which a file is recorded, unless it is a link."""
        return self.host.resolve(rival.path, last=False)

    def _reasons(
        self, content: bytes | None, data: t.Any, place: cdi_records.SpecLocation, document: t.Mapping[str, t.Any]
    ) -> list[str]:
        """Return the reasons to write the file as messages; none if it has the same content already."""
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
        """Return what is wrong with the file's mode and owner. All users may read it, and only root may change it."""
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
        """Return the file's directory and its new mode if engines read it and not all users may access it."""
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

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> tuple[CdiPlan, list[dict[str, str | None]]]:
        # An unchanged host does not need these imports.
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
            # Another run may have changed the host, so everything is read again under the lock.
            plan = self._plan(check_mode=False)
            main = plan.files[0].path
            writer = apply.ChangeWriter(host, cdi_records.OWNER, main, backup_dir, removal=False, purge=False)
            for path in plan.rebased:
                # The file that is removed now is the one to restore later.
                atomic_write.remove_file(host, core_records.record_path(cdi_records.OWNER, path))
            backups = writer.apply(plan.files) if plan.changed else []
            for file in plan.files if plan.changed and cdi_registry.is_loaded_path(plan.place.path) else ():
                if file.after is not None:
                    atomic_write.set_access(host, file.path, _FILE_MODE, (os.geteuid(), os.getegid()))
            for folder, mode in plan.folder.items():
                atomic_write.set_access(host, folder, mode)
        return plan, backups

    def _result(self, plan: CdiPlan, backups: list[dict[str, str | None]]) -> dict[str, t.Any]:
        generated = plan.generated
        document = generated.document
        # These messages were reported when the file was written.
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
    # A file that is not written does not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
        yaml_document,
    )

    return yaml_document.render(document, form)
