# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The location of a specification, and the records of the files that this collection wrote or moved away for it.

Records are those of `_core/records.py`. This file defines their keys for specifications.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import units as refresh_units
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The file name, without suffix, of the specification of the kind nvidia.com/gpu, as in NVIDIA's instructions.
_GPU_FILE_NAME = "nvidia"


class SpecLocation(t.NamedTuple):
    """The location of a specification. ``has_unit`` is whether a refresh unit writes the same file."""

    path: str
    format: str
    has_unit: bool


def location_of(
    options: cdi_options.CdiOptions,
    host: hostfs.HostFS,
    refresh: refresh_units.RefreshUnits | None,
    own_refresh: refresh_units.RefreshUnits | None = None,
) -> SpecLocation:
    """Return the location that ``options`` name, or the default one.

    ``refresh`` and ``own_refresh`` are the refresh units of the toolkit and of this collection. Raises NvidiaError for
    a location that engines would not read, or that contradicts other options.
    """
    problem = cdi_schema.kind_problem(options.kind)
    if problem:
        raise errors.NvidiaError(
            f"{errors.option:vendor} and {errors.option:class}: {options.kind} is not a valid kind. It {problem}."
        )
    unit_output = output_of(refresh, host)
    if options.path is None and unit_output and refresh is not None and refresh.kind == options.kind:
        if options.format is not None and not unit_output.endswith(f".{options.format}"):
            raise errors.NvidiaError(
                f"{errors.option:format} is {options.format}, but nvidia-cdi-refresh.service writes {unit_output},"
                f" which is the default path of this specification. Remove {errors.option:format}, or set"
                f" {errors.option:path}."
            )
        path = unit_output
    elif options.path is None:
        path = default_path(options.kind, options.format or cdi_options.YAML)
    else:
        path = cdi_registry.canonical(host, host.check_path("path", options.path))
    format_ = options.format or (cdi_options.JSON if path.endswith(f".{cdi_options.JSON}") else cdi_options.YAML)
    _check_path(path, format_, host)
    if options.exclusive and not cdi_registry.is_loaded_path(path):
        raise errors.NvidiaError(
            f"{errors.option:exclusive} requires a path in {' or '.join(core_constants.CDI_SPEC_DIRS)}, because"
            f" engines read only these directories, but {errors.option:path} is {path}."
        )
    return SpecLocation(path, format_, path in (unit_output, output_of(own_refresh, host)))


def output_of(refresh: refresh_units.RefreshUnits | None, host: hostfs.HostFS) -> str:
    """Return the file that a refresh service writes, or "". The path is unknown if systemd must expand it first."""
    if refresh is None or not refresh.enabled or not posixpath.isabs(refresh.output):
        return ""
    # nvidia-ctk appends this suffix.
    suffix = "" if refresh.output.endswith(cdi_registry.SUFFIXES) else f".{cdi_options.YAML}"
    return cdi_registry.canonical(host, posixpath.normpath(refresh.output)) + suffix


def variant_path(path: str, variant: str) -> str:
    """Return the path for the specification of a variant. It is beside ``path``, as with nvidia-ctk."""
    stem, extension = posixpath.splitext(path)
    return f"{stem}.{variant}{extension}"


def default_path(kind: str, format_: str) -> str:
    """Return the default path for a specification of ``kind``."""
    name = _GPU_FILE_NAME if kind == core_constants.GPU_KIND else kind.replace("/", "-")
    return f"{core_constants.CDI_SPEC_DIRS[0]}/{name}.{format_}"


def _check_path(path: str, format_: str, host: hostfs.HostFS) -> None:
    folder, name = posixpath.split(path)
    if folder in core_constants.CDI_SPEC_DIRS and cdi_registry.is_link(host, folder):
        raise errors.NvidiaError(
            f"{folder} is a link, which engines do not follow. Replace it with a directory, then run this task again."
        )
    if folder in core_constants.CDI_SPEC_DIRS and not cdi_registry.is_loaded_path(path):
        raise errors.NvidiaError(
            f"{errors.option:path} is {path}, but engines read only files that end in"
            f" {' or '.join(cdi_registry.SUFFIXES)} in {folder}. Change the file name."
        )
    suffix = next((suffix for suffix in cdi_registry.SUFFIXES if name.endswith(suffix)), f".{format_}")
    if suffix != f".{format_}":
        raise errors.NvidiaError(
            f"{errors.option:path} has the suffix {suffix}, but {errors.option:format} is {format_}. Remove one of the"
            " two options, or make them match."
        )


# The records of specifications have names that begin with this.
OWNER = "cdi"
# Keys of a record: the document in the file, the mode that generated it, the devices that it is limited to, the kind
# for which a file was moved away, and the kind to whose specification a variant belongs.
_DOCUMENT, _MODE, _DEVICES, _MOVED_FILE = ("document",), ("mode",), ("device_ids",), ("made room for",)
_VARIANT_OF = ("variant of",)


class SpecRecord(t.NamedTuple):
    """The record of a file of this collection, or of a file that was moved away for one (``document`` is None then).

    ``variant_of`` is the kind of the specification that a variant belongs to, or None for the specification itself.
    """

    record: core_records.OriginalFile
    document: t.Mapping[str, t.Any] | None
    mode: str
    device_ids: t.Sequence[str]
    moved_for_kind: str | None
    variant_of: str | None = None

    @property
    def path(self) -> str:
        """The path of the file, with links resolved."""
        return self.record.path

    @property
    def by_unit(self) -> bool:
        """Whether only a unit of this collection has written the file, and no task has."""
        return self.document is not None and not self.record.written

    @property
    def kind(self) -> t.Any:
        """The kind in the options of the tasks that write or remove the file."""
        if self.variant_of is not None:
            return self.variant_of
        return self.moved_for_kind if self.document is None else self.document.get("kind")


def own_records(host: hostfs.HostFS) -> list[SpecRecord]:
    """Return all records. Raises HostError for a damaged record."""
    return [_spec_record(record) for record in core_records.load_records(host, OWNER)]


def spec_entries(
    document: t.Mapping[str, t.Any], mode: str, device_ids: t.Iterable[str], variant_of: str | None = None
) -> dict[tuple[str, ...], t.Any]:
    """Return the entries to record with a file of this collection."""
    entries: dict[tuple[str, ...], t.Any] = {_DOCUMENT: document, _MODE: mode, _DEVICES: [*device_ids]}
    return entries if variant_of is None else {**entries, _VARIANT_OF: variant_of}


def moved_file_entries(kind: str) -> dict[tuple[str, ...], t.Any]:
    """Return the entries to record with a file that is moved away for a specification of ``kind``."""
    return {_MOVED_FILE: kind}


def known_documents(records: t.Iterable[SpecRecord]) -> dict[str, t.Any]:
    """Return the documents that this collection wrote, by the digests of their files.

    A file with such a digest need not be parsed.
    """
    return {
        spec_record.record.written[-1]: spec_record.document
        for spec_record in records
        if spec_record.document is not None and spec_record.record.written
    }


def _spec_record(record: core_records.OriginalFile) -> SpecRecord:
    keys = record.keys or {}
    document, mode, kind = keys.get(_DOCUMENT), keys.get(_MODE), keys.get(_MOVED_FILE)
    devices, variant_of = keys.get(_DEVICES), keys.get(_VARIANT_OF)
    return SpecRecord(
        record,
        document if isinstance(document, dict) else None,
        mode if isinstance(mode, str) else "",
        devices if isinstance(devices, list) else [],
        kind if isinstance(kind, str) else None,
        variant_of if isinstance(variant_of, str) else None,
    )


# -- files that a unit of this collection writes -----------------------------------------------------------------------


def record_for_unit(
    host: hostfs.HostFS, path: str, kind: str, original: bytes | None, variant_of: str | None = None
) -> None:
    """Record the content of ``path`` before a unit of this collection writes a specification of ``kind`` there.

    With this record, ``state: absent`` of nvidia_cdi_spec also removes the unit's file. ``variant_of`` is as in
    SpecRecord. The caller holds the host's lock.
    """
    # Only a new unit needs this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import record_store  # noqa: PLC0415

    record = record_store.with_directories(host, record_store.new_record(host, OWNER, path, original))
    record_store.save(host, record._replace(keys=spec_entries({"kind": kind}, "", (), variant_of)))


def is_recorded(host: hostfs.HostFS, path: str) -> bool:
    return core_records.load_record(host, OWNER, path) is not None


def unused_unit_records(host: hostfs.HostFS) -> list[core_records.OriginalFile]:
    """Return the records of record_for_unit() whose files are unchanged because no unit has written them yet."""
    records = [spec_record.record for spec_record in own_records(host) if spec_record.by_unit]
    return [record for record in records if host.read(record.path) == record.original]
