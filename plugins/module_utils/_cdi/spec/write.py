# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write a specification if it is missing, different or stale.

The files to remove are those that an earlier run wrote to another path, and conflicting ones with ``exclusive``.
"""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate as cdi_generate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import units as refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import compare as cdi_compare
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check, undescribed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Containers of unprivileged users read the specification too.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o555


class CdiPlan(t.NamedTuple):
    """The present files and the planned ones. The first of ``files`` is the specification.

    ``service`` is the unit that writes the same file, or None. ``reasons`` say why the file is replaced.
    ``changed_records`` are removed files that have changed since they were recorded. ``folder_modes`` are the new modes
    of directories that not all users can read.
    """

    location: cdi_records.SpecLocation
    files: tuple[core_plan.PlannedFile, ...]
    generated: cdi_generate.Generated
    reasons: tuple[str, ...]
    conflicts: tuple[cdi_registry.ConflictingSpec, ...]
    folder_modes: t.Mapping[str, int]
    warnings: tuple[str, ...]
    service: str | None
    changed_records: tuple[str, ...] = ()

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
        run_pinned: core_plan.Runner,
    ) -> None:
        self.options = options
        self.host = host
        self._units: t.Mapping[str, t.Any] | None = None
        self._generator = cdi_generate.SpecGenerator(options, host, run, run_pinned)

    def execute(self, check_mode: bool, units: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Apply the options to the host, unless ``check_mode``, and return the module's result as documented.

        units: the result for the refresh units of the same task. Check mode then plans for a host with these units.

        ``files`` in the result are the PlannedFiles that changed. Raises NvidiaError.
        """
        if self.options.state == "absent":
            # Only state: absent needs this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import remove  # noqa: PLC0415

            return remove.remove_specifications(self.options, self.host, check_mode, with_units=units is not None)
        self._units = units if check_mode else None
        try:
            plan = self._plan(check_mode)
        except cdi_generate.UnpredictableError as error:
            return self._unpredictable(error)
        backups: list[dict[str, str | None]] = []
        if plan.changed and not check_mode:
            plan, backups = self._write()
        return self._result(plan, backups)

    def _unpredictable(self, error: errors.NvidiaError) -> dict[str, t.Any]:
        """Return the result in check mode for a specification that only a missing program can generate."""
        location, service = self._location()
        return {
            **undescribed.without_specification(self.options, str(error)),
            "changed": not self.host.exists(location.path),
            "refreshed_by": service,
            "warnings": [str(error)],
        }

    def read_specifications(self) -> dict[str, t.Any]:
        """Return the content of all specifications of the host.

        Raises MissingPackageError if a file needs PyYAML and PyYAML is missing.
        """
        known = cdi_records.known_documents(cdi_records.own_records(self.host))
        return cdi_registry.read_specifications(self.host, known)

    # -- planning ------------------------------------------------------------------------------------------------------

    def _plan(self, check_mode: bool) -> CdiPlan:
        host = self.host
        location, service = self._location()
        records = {spec_record.path: spec_record for spec_record in cdi_records.own_records(host)}
        generated = self._generator.execute(location.has_unit, allow_missing_hooks=check_mode)
        known = cdi_records.known_documents(records.values())
        files = cdi_registry.read_specifications(host, known)
        # Check mode ignores what the task would remove with the units.
        replaced = (self._units or {}).get("changed_files", ())
        files = {path: data for path, data in files.items() if host.resolve(path) not in replaced}
        written, conflicts, reasons = [], [], []
        for name, document in {"": generated.document, **generated.variants}.items():
            path = cdi_records.variant_path(location.path, name) if name else location.path
            conflicts += cdi_registry.conflicting_specs(files, path, document)
            data = files[path] if path in files else cdi_registry.read_specification(host, path, known)
            file, file_reasons = self._planned_file(location._replace(path=path), data, document)
            variant_of = self.options.kind if name else None
            entries = cdi_records.spec_entries(document, generated.mode, self.options.request.device_ids, variant_of)
            written.append(file._replace(keys=entries))
            reasons += [f"{path}: {reason}" if name else reason for reason in file_reasons]
        previous = [conflict for conflict in conflicts if self._is_previous_file(records, conflict, generated.mode)]
        removed = self._without_links(conflicts) if self.options.exclusive else previous
        unused = self._unused_variants(records, written)
        removals, changed_records = self._removals([*map(self._recorded_path, removed), *unused], records)
        folder_modes = self._folder_modes(location.path)
        reasons += [f"Unprivileged users cannot read the directory {folder}." for folder in folder_modes]
        obsolete = [*(conflict.path for conflict in previous), *unused]
        kept = [conflict for conflict in conflicts if conflict not in removed]
        return CdiPlan(
            location=location,
            # The new file is written first. Old files in another directory stay usable until then, and old files in the
            # same directory conflict with it only until they are removed.
            files=(*written, *removals),
            changed_records=changed_records,
            generated=generated,
            reasons=tuple(reasons),
            conflicts=tuple(conflicts),
            folder_modes=folder_modes,
            warnings=(
                *self._socket_warnings(location.path, service),
                *self._warnings(location.path, generated, files, obsolete, kept),
            ),
            service=service,
        )

    def _location(self) -> tuple[cdi_records.SpecLocation, str | None]:
        """Return where the specification is, and the refresh unit that writes the same file."""
        host = self.host
        toolkit, own = refresh_units.toolkit_refresh(host), refresh_units.own_refresh(host)
        output = (self._units or {}).get("specification")
        if output is not None:
            toolkit, own = None, refresh_units.planned_refresh(output, self.options.kind)
        location = cdi_records.location_of(self.options, host, toolkit, own)
        if not location.has_unit:
            return location, None
        by_toolkit = cdi_records.location_of(self.options, host, toolkit).has_unit
        return location, refresh_units.SERVICE if by_toolkit else refresh_units.OWN_SERVICE

    def _warnings(
        self,
        path: str,
        generated: cdi_generate.Generated,
        files: t.Mapping[str, t.Any],
        obsolete: t.Iterable[str],
        kept: t.Iterable[cdi_registry.ConflictingSpec],
    ) -> t.Iterator[str]:
        folder = os.path.dirname(path)
        if cdi_registry.is_loaded_path(path):
            yield from cdi_versions.engines_not_reading(generated.engines, folder)
        else:
            yield f"Engines do not read {folder} unless their configuration names it."
        if generated.predicted and self.host.exists(path):
            yield (
                f"Check mode cannot run the nvidia-ctk that an earlier task of this play would install, so a change of"
                f" {path} is predicted without it."
            )
        for other in obsolete:
            yield f"{other} is removed, because an earlier run of this module wrote it."
        for other, data in files.items():
            if isinstance(data, errors.NvidiaError) and other != path:
                yield f"Engines skip {other}. {data}"
        for conflict in kept:
            if conflict.effect in cdi_registry.HARMFUL:
                yield f"{conflict.message} Set {errors.option:exclusive}: true to remove it."

    def _socket_warnings(self, path: str, service: str | None) -> t.Iterator[str]:
        """Yield a warning if ``service``, which writes the same file, mounts what any user can create."""
        unit = refresh_units.toolkit_refresh(self.host) if service == refresh_units.SERVICE else None
        if unit is not None and unit.with_sockets:
            yield (
                f"{service} also writes {path}, and mounts /tmp/nvidia-mps if it exists. Any user can create it, and so"
                " choose a file of the host that containers with GPUs get. Let nvidia_cdi_refresh replace the service,"
                f" or disable it (systemctl disable {service})."
            )

    def _planned_file(
        self, location: cdi_records.SpecLocation, data: t.Any, document: dict[str, t.Any]
    ) -> tuple[core_plan.PlannedFile, list[str]]:
        content = self.host.read(location.path)
        reasons = [*self._reasons(content, data, location, document), *self._permission_reasons(location.path)]
        file = core_plan.PlannedFile(self.host.resolve(location.path), content, content)
        return (file._replace(after=_rendered(document, location.format)) if reasons else file), reasons

    def _unused_variants(
        self, records: t.Mapping[str, cdi_records.SpecRecord], written: t.Sequence[core_plan.PlannedFile]
    ) -> list[str]:
        needed = {file.path for file in written}
        previous = [spec_record.path for spec_record in records.values() if spec_record.variant_of == self.options.kind]
        return [path for path in previous if path not in needed and self.host.read(path) is not None]

    def _is_previous_file(
        self, records: t.Mapping[str, cdi_records.SpecRecord], conflict: cdi_registry.ConflictingSpec, mode: str
    ) -> bool:
        """Return whether an earlier run of this module wrote the file, even if it has changed since.

        Raises NvidiaError if it was written for another mode, because the two tasks would replace each other's devices.
        """
        spec_record = records.get(self._recorded_path(conflict))
        if spec_record is None or spec_record.document is None or not conflict.devices:
            return False
        if not spec_record.by_unit and spec_record.mode != mode:
            raise errors.NvidiaError(
                f"{conflict.path} was written with mode {spec_record.mode}, and has devices with the same names. Set"
                f" another class for mode {mode}, such as {errors.option:class}: {mode}, or remove that file first"
                f" with {errors.option:state}: absent."
            )
        return True

    def _without_links(self, conflicts: t.Sequence[cdi_registry.ConflictingSpec]) -> list[cdi_registry.ConflictingSpec]:
        """Return ``conflicts``. Raises HostError if one is a link, because its target may be used elsewhere."""
        for conflict in conflicts:
            if os.path.islink(self.host.real_path(conflict.path, last=False)):
                raise errors.HostError(
                    f"{conflict.path} is a link to a specification of {self.options.kind}. exclusive removes no links,"
                    " so the specification was not written. Remove the link, or the option exclusive."
                )
        return list(conflicts)

    def _removals(
        self, removed: t.Iterable[str], records: t.Mapping[str, cdi_records.SpecRecord]
    ) -> tuple[list[core_plan.PlannedFile], tuple[str, ...]]:
        """Return the files to remove, and the paths of those that have changed since they were recorded."""
        files, changed_records = [], []
        for path in dict.fromkeys(removed):
            content, spec_record = self.host.read(path), records.get(path)
            unchanged = spec_record is not None and (
                spec_record.by_unit or core_records.digest(content) in spec_record.record.written
            )
            if spec_record is not None and not unchanged:
                changed_records.append(path)
            # A file that only this collection wrote is not restored later.
            not_restored = unchanged and spec_record is not None and spec_record.record.original is None
            files.append(
                core_plan.PlannedFile(
                    path, content, None, {} if not_restored else cdi_records.moved_file_entries(self.options.kind)
                )
            )
        return files, tuple(changed_records)

    def _recorded_path(self, conflict: cdi_registry.ConflictingSpec) -> str:
        """Return the path under which a file is recorded, unless it is a link."""
        return self.host.resolve(conflict.path, last=False)

    def _reasons(
        self, content: bytes | None, data: t.Any, location: cdi_records.SpecLocation, document: t.Mapping[str, t.Any]
    ) -> list[str]:
        """Return the reasons to write the file as messages; none if its content has the same meaning."""
        if content is None:
            return ["It does not exist."]
        if isinstance(data, errors.NvidiaError):
            return [f"Engines skip it. {data}"]
        result = cdi_validate.validate(data)
        if result.errors:
            return [f"Engines skip it. {' '.join(map(str, result.errors))}"]
        reasons = cdi_compare.replacement_reasons(result.document, document, self.host)
        if content.lstrip().startswith(b"{") is not (location.format == cdi_options.JSON):
            reasons.append(f"Its format is not {location.format}.")
        return reasons

    def _permission_reasons(self, path: str) -> list[str]:
        """Return the reasons to change the file's mode and owner: all users may read it, only root may write it."""
        status = _status(self.host, path) if cdi_registry.is_loaded_path(path) else None
        if status is None:
            return []
        reasons = []
        if status.st_mode & 0o7777 != _FILE_MODE:
            reasons.append(f"It has mode {status.st_mode & 0o7777:04o} instead of {_FILE_MODE:04o}.")
        if status.st_uid != os.geteuid():
            reasons.append(f"It belongs to user {status.st_uid}.")
        return reasons

    def _folder_modes(self, path: str) -> dict[str, int]:
        folder = os.path.dirname(path)
        status = _status(self.host, folder) if cdi_registry.is_loaded_path(path) else None
        mode = 0 if status is None else status.st_mode & 0o7777
        return {} if status is None or mode | _FOLDER_MODE == mode else {folder: mode | _FOLDER_MODE}

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> tuple[CdiPlan, list[dict[str, str | None]]]:
        # An unchanged host does not need these imports.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (  # noqa: PLC0415
            apply,
            atomic_write,
            lock,
            trusted_paths,
        )

        host = self.host
        backup_dir = host.check_path("backup_dir", self.options.backup_dir or core_records.BACKUP_DIR)
        trusted_paths.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
        with lock.host_lock(host):
            # Another run may have changed the host, so everything is read again under the lock.
            plan = self._plan(check_mode=False)
            main = plan.files[0].path
            writer = apply.ChangeWriter(
                host, cdi_records.OWNER, main, backup_dir, removal=False, purge=False, replaced=plan.changed_records
            )
            backups = writer.apply(plan.files) if plan.changed else []
            for file in plan.files if plan.changed and cdi_registry.is_loaded_path(plan.location.path) else ():
                if file.after is not None:
                    atomic_write.set_access(host, file.path, _FILE_MODE, (os.geteuid(), os.getegid()))
            for folder, mode in plan.folder_modes.items():
                atomic_write.set_access(host, folder, mode)
        return plan, backups

    def _result(self, plan: CdiPlan, backups: list[dict[str, str | None]]) -> dict[str, t.Any]:
        generated = plan.generated
        document = generated.document
        # These messages were reported when the file was written.
        limit_warnings = generated.limits if plan.changed else ()
        return {
            "changed": plan.changed,
            "files": [file for file in plan.files if file.changed],
            "path": plan.location.path,
            "kind": document["kind"],
            "cdi_version": document["cdiVersion"],
            "devices": [device["name"] for device in document["devices"]],
            "device_count": host_check.device_count(document) or 1,
            "not_described": None,
            "refreshed_by": plan.service,
            "format": plan.location.format,
            "mode": generated.mode,
            "backend": generated.backend,
            "driver_version": generated.driver_version,
            "reasons": list(plan.reasons),
            "engines": [
                {
                    "name": engine.name,
                    "version": engine.version,
                    "newest_cdi": engine.newest,
                    "directories": [*engine.folders],
                }
                for engine in generated.engines
            ],
            "limits": list(generated.limits),
            "conflicts": [{**conflict._asdict(), "devices": [*conflict.devices]} for conflict in plan.conflicts],
            "removed_files": [file.path for file in plan.files if file.after is None],
            "restored_files": [],
            "backup_files": backups,
            "warnings": [*generated.warnings, *limit_warnings, *plan.warnings],
        }


def _status(host: hostfs.HostFS, path: str) -> os.stat_result | None:
    try:
        return os.stat(host.real_path(path))
    except OSError:
        return None


def _rendered(document: t.Mapping[str, t.Any], format_: str) -> bytes:
    # An unchanged file does not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document  # noqa: PLC0415

    return yaml_document.render(document, format_)
