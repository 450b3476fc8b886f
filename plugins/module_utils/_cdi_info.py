# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the CDI specifications of a host in one answer: which ones engines can use, which are
# stale, which are in each other's way, and what keeps them fresh.

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_files import (
    read_specification,
    read_specifications,
    specification_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_folders import resolve
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_gpu_changes import changed_gpus
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import check_host, driver_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_records import known_documents, own_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_info import describe_refresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_staleness import why_stale
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    GpufleetError,
    MissingPackageError,
    Problem,
    as_dicts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import GPU_KIND, SPECIFICATION_FOLDERS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_folders import SpecificationFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_records import OwnRecord
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner


def describe_cdi(
    host: HostRoot, run: Runner, gpus: t.Mapping[str, t.Any] | None = None
) -> tuple[dict[str, t.Any], str | None]:
    """All that is known of the CDI specifications of ``host``; strange ones give problems in the answer, no error.

    ``gpus`` is the answer of describe_gpus(), which the specifications are compared with.  The second value is the
    package without which some files were left unread, as MissingPackageError names it, None where all were read.
    """
    problems: list[Problem] = []
    records = _records(host, problems)
    read, unread, needed = _read(host, known_documents(records), problems)
    found = resolve(read)
    refresh = _refresh(host, run, problems)
    limited = {own.path for own in records if own.device_ids}
    files = []
    for file in found.files:
        others = [name for other in found.files if other is not file and not other.faults for name in other.devices]
        elsewhere = None if _real(host, file.path) in limited else frozenset(others)
        files.append(_described(file, read[file.path], host, gpus, elsewhere))
    files += [_Described(path)._asdict() for path in unread]
    answer = {
        "folders": list(SPECIFICATION_FOLDERS),
        "files": sorted(files, key=lambda file: _place(file["path"])),
        "devices": found.devices,
        "conflicts": {
            # What is wrong with a single file stands there.
            "sentences": found._replace(files=()).warnings(),
            "shadowed": {name: list(paths) for name, paths in found.shadowed.items()},
            "unresolvable": {name: list(paths) for name, paths in found.unresolvable.items()},
        },
        "ignored": _ignored(host, {*read, *unread}),
        "refresh": refresh,
        "problems": as_dicts(dict.fromkeys(problems)),
    }
    return answer, needed


class _Described(t.NamedTuple):
    """A file as it is told; None is what cannot be known."""

    path: str
    kind: str | None = None
    cdi_version: str | None = None
    driver_version: str | None = None
    devices: t.Sequence[str] = ()
    valid: bool | None = None
    errors: t.Sequence[str] = ()
    warnings: t.Sequence[str] = ()
    stale: bool | None = None
    reasons: t.Sequence[t.Mapping[str, str]] = ()
    missing_paths: t.Sequence[str] = ()


def _described(
    file: SpecificationFile,
    data: t.Any,
    host: HostRoot,
    gpus: t.Mapping[str, t.Any] | None,
    elsewhere: frozenset[str] | None,
) -> dict[str, t.Any]:
    """``elsewhere``: the devices of other files; None for a file that is to have only some of the GPUs."""
    if isinstance(data, GpufleetError):
        return _Described(file.path, valid=False, errors=file.faults)._asdict()
    judgement = judge(data)
    document = judgement.document
    told = _Described(
        file.path,
        kind=file.kind or None,
        cdi_version=document.get("cdiVersion") or None,
        devices=[device["name"] for device in document.get("devices", ()) if device.get("name")],
        valid=not file.faults,
        errors=file.faults,
        warnings=[str(problem) for problem in judgement.warnings],
    )
    if file.faults:
        return told._asdict()
    reasons, missing = why_stale(document, host, gpus["driver_version"] if gpus is not None else None)
    if gpus is not None and file.kind == GPU_KIND:
        names = None if elsewhere is None else frozenset(name.partition("=")[2] for name in elsewhere)
        reasons += changed_gpus(document, host, gpus, names)
    return told._replace(
        driver_version=driver_of(document) or None,
        warnings=[*told.warnings, *check_host(document, host).warnings],
        stale=bool(reasons),
        reasons=as_dicts(reasons),
        missing_paths=missing,
    )._asdict()


def _read(
    host: HostRoot, known: dict[str, t.Any], problems: list[Problem]
) -> tuple[dict[str, t.Any], list[str], str | None]:
    """The data of all files, or the error of reading it; the files that need a package that is not there, and that."""
    try:
        return read_specifications(host, known), [], None
    except MissingPackageError as error:
        problems.append(Problem.of(error))
        return (*_without_package(host, known), error.details.get("needed"))
    except GpufleetError as error:
        problems.append(Problem.of(error))
        return {}, [], None


def _without_package(host: HostRoot, known: dict[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    read: dict[str, t.Any] = {}
    unread: list[str] = []
    for path in specification_paths(host):
        try:
            read[path] = read_specification(host, path, known)
        except MissingPackageError:
            unread.append(path)
    return read, unread


def _refresh(host: HostRoot, run: Runner, problems: list[Problem]) -> dict[str, t.Any] | None:
    try:
        refresh, troubles = describe_refresh(host, run)
    except GpufleetError as error:
        problems.append(Problem.of(error))
        return None
    problems += troubles
    return refresh


def _real(host: HostRoot, path: str) -> str:
    try:
        return host.resolve(path)
    except GpufleetError:
        return path


def _records(host: HostRoot, problems: list[Problem]) -> list[OwnRecord]:
    """What we wrote: that needs no parser."""
    try:
        return own_records(host)
    except GpufleetError as error:
        problems.append(Problem.of(error))
        return []


def _ignored(host: HostRoot, paths: t.Collection[str]) -> list[str]:
    """What lies in the folders and is no specification by its name, or for engines."""
    found = []
    for folder in SPECIFICATION_FOLDERS:
        found += [f"{folder}/{name}" for name in host.readable_entries(folder)]
    return [path for path in found if path not in paths and not _is_folder(host, path)]


def _is_folder(host: HostRoot, path: str) -> bool:
    outer = host.outer(path, last=False)
    return os.path.isdir(outer) and not os.path.islink(outer)


def _place(path: str) -> tuple[int, str]:
    return SPECIFICATION_FOLDERS.index(posixpath.dirname(path)), path
