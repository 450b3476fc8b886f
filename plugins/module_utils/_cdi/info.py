# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the CDI specifications of a host, and what refreshes them."""

from __future__ import annotations

import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import host_check, refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# How generators name devices: by UUID, by index, by type and index.
_STYLES = {
    "uuid": re.compile(r"(?:GPU|MIG)-.*"),
    "index": re.compile(r"[0-9]+(?::[0-9]+)?"),
    "type": re.compile(r"gpu[0-9]+|mig[0-9]+:[0-9]+"),
}
_GPU_NODE = re.compile(r"/dev/nvidia[0-9]+")


class Unit(t.NamedTuple):
    """A GPU or a MIG device that a container can get.

    ``names`` are its known names by style. ``nodes`` are its device nodes. If ``sure`` is false, the driver reports it
    incompletely, and a specification may or may not contain it.
    """

    names: t.Mapping[str, str]
    nodes: frozenset[str]
    sure: bool

    def shown(self) -> str:
        return self.names.get("index") or self.names.get("uuid") or ", ".join(sorted(self.nodes))


def changed_gpus(
    document: t.Mapping[str, t.Any],
    host: hostfs.HostFS,
    gpus: t.Mapping[str, t.Any],
    elsewhere: frozenset[str] | None = frozenset(),
) -> list[core_errors.Problem]:
    """Return the differences between ``document`` and the driver's GPUs. ``gpus`` is the result of describe_gpus().

    elsewhere: names of devices in other files of the same kind; None if the document should have only some.
    """
    return [] if gpus["source"] is None else _by_gpus(document, _units(host, gpus), elsewhere)


def _units(host: hostfs.HostFS, gpus: t.Mapping[str, t.Any]) -> list[Unit]:
    capabilities, found = procfs.Capabilities(host), []
    for gpu in gpus["devices"]:
        index, minor = gpu["index"], gpu["minor"]
        nodes = [f"/dev/nvidia{minor}"]
        # Without these values, the NVML query was incomplete.
        cut = gpus["source"] == "nvml" and (gpu["uuid"] is None or gpu["mig_enabled"] is None)
        sure = not cut and index is not None and minor is not None
        if not gpu["mig_enabled"]:
            found.append(_unit(gpu["uuid"], ("", "gpu"), [index], nodes, sure))
        for mig in gpu["mig_devices"]:
            try:
                own = capabilities.nodes(minor, mig["gpu_instance"], mig["compute_instance"])
            except core_errors.NvidiaError:
                own = ("", "")
                sure = False
            found.append(_unit(mig["uuid"], ("", "mig"), [index, mig["index"]], [*nodes, *own], sure))
    return found


def _unit(
    uuid: str | None, prefixes: tuple[str, str], numbers: t.Sequence[int | None], nodes: t.Sequence[str], sure: bool
) -> Unit:
    names = {"uuid": uuid} if uuid else {}
    if None not in numbers:
        number = ":".join(str(part) for part in numbers)
        names.update({style: prefix + number for style, prefix in zip(("index", "type"), prefixes)})
    return Unit(names, frozenset(nodes), sure)


def _by_gpus(
    document: t.Mapping[str, t.Any], units: t.Sequence[Unit], elsewhere: frozenset[str] | None
) -> list[core_errors.Problem]:
    common = _nodes(document)
    devices = {device["name"]: _nodes(device) | common for device in document.get("devices", ())}
    every = frozenset(node for nodes in devices.values() for node in nodes)
    if not any(_GPU_NODE.fullmatch(node) for node in every) and not any(map(_STYLES["uuid"].fullmatch, devices)):
        # The document describes something else, or GPUs that use other drivers.
        return []
    lacking: list[str] = []
    gone: list[str] = []
    moved: list[str] = []
    styled = False
    for style, pattern in _STYLES.items():
        present = [name for name in devices if pattern.fullmatch(name)]
        if not present:
            continue
        styled = True
        known = {unit.names[style]: unit for unit in units if style in unit.names}
        lacking += [name for name, unit in known.items() if unit.sure and name not in devices]
        if all(style in unit.names for unit in units):
            gone += [name for name in present if name not in known]
        moved += [name for name in present if name in known and _is_moved(known[name], devices[name])]
    if not styled:
        lacking = [unit.shown() for unit in units if unit.sure and not unit.nodes <= every]
    lacking = [] if elsewhere is None else [name for name in lacking if name not in elsewhere]
    said = [
        (lacking, "gpu-lacking", "It lacks {}, which the driver reports."),
        (gone, "gpu-gone", "It has {}, which the driver does not report."),
        (moved, "gpu-nodes-differ", "It has other device nodes for {} than the driver."),
    ]
    return [
        core_errors.Problem(code, message.format(core_text.listed(names))) for names, code, message in said if names
    ]


def _is_moved(unit: Unit, nodes: frozenset[str]) -> bool:
    return unit.sure and not unit.nodes <= nodes


def _nodes(holder: t.Mapping[str, t.Any]) -> frozenset[str]:
    return frozenset(node["path"] for node in holder.get(cdi_schema.EDITS, {}).get("deviceNodes", ()))


TOOLKIT, OURS = "toolkit", "gpufleet"


def describe_refresh(
    host: hostfs.HostFS, run: core_plan.Runner
) -> tuple[dict[str, t.Any] | None, list[core_errors.Problem]]:
    """Return the service that generates the specification, or None, and the problems with it.

    An enabled service has precedence over a disabled one, and the toolkit's service over the one of this collection.
    """
    problems: list[core_errors.Problem] = []
    found = [one for one in (_toolkit(host), _ours(host)) if one is not None]
    for one in found:
        one["failed"] = _failed(host, run, one["service"], problems)
        if one["failed"]:
            message = (
                f"{one['service']} has failed, so that the specification may be stale. Look at journalctl --unit"
                f" {one['service']}."
            )
            problems.append(core_errors.Problem("cdi-refresh-failed", message))
    enabled = [one for one in found if one["enabled"]]
    if len({one["owner"] for one in enabled}) > 1:
        services = " and ".join(one["service"] for one in enabled)
        message = f"{services} both make specifications. Leave this to one of them."
        problems.append(core_errors.Problem("cdi-refresh-twice", message))
    return next(iter([*enabled, *found]), None), problems


def _toolkit(host: hostfs.HostFS) -> dict[str, t.Any] | None:
    units = refresh_units.toolkit_refresh(host)
    if units is None:
        return None
    return {
        "owner": TOOLKIT,
        "service": refresh_units.SERVICE,
        "enabled": units.enabled,
        "output": units.output or None,
    }


def _ours(host: hostfs.HostFS) -> dict[str, t.Any] | None:
    path = systemd_units.unit_file(host, refresh_units.OWN_SERVICE)
    if path is None:
        return None
    own, toolkit = refresh_units.own_refresh(host), refresh_units.toolkit_refresh(host)
    enabled = not systemd_units.is_masked(host, path) and (
        refresh_units.is_enabled(host, refresh_units.OWN_SERVICE)
        or refresh_units.is_enabled(host, refresh_units.OWN_PATH)
    )
    # Without its own output, the unit runs the command of the toolkit's unit, at an earlier time.
    owner = TOOLKIT if own is None and toolkit is not None else OURS
    output = own.output if own is not None else toolkit.output if toolkit is not None else ""
    return {"owner": owner, "service": refresh_units.OWN_SERVICE, "enabled": enabled, "output": output or None}


def _failed(
    host: hostfs.HostFS, run: core_plan.Runner, service: str, problems: list[core_errors.Problem]
) -> bool | None:
    if not systemctl.Systemctl.booted(host):
        return None
    try:
        return systemctl.Systemctl(host, run, service).status().active == "failed"
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return None


def describe_cdi(
    host: hostfs.HostFS, run: core_plan.Runner, gpus: t.Mapping[str, t.Any] | None = None
) -> tuple[dict[str, t.Any], str | None]:
    """Return a report of the CDI specifications of ``host``. Invalid files are problems in the report, not errors.

    ``gpus`` is the result of describe_gpus(). The specifications are compared with it. The second value is the package
    that is missing to read some files, as MissingPackageError names it, or None if all files were read.
    """
    problems: list[core_errors.Problem] = []
    records = _records(host, problems)
    read, unread, needed = _read(host, cdi_records.known_documents(records), problems)
    found = cdi_registry.resolve(read)
    refresh = _refresh(host, run, problems)
    limited = {own.path for own in records if own.device_ids}
    files = []
    for file in found.files:
        others = [name for other in found.files if other is not file and not other.faults for name in other.devices]
        elsewhere = None if _real(host, file.path) in limited else frozenset(others)
        files.append(_described(file, read[file.path], host, gpus, elsewhere))
    files += [_Described(path)._asdict() for path in unread]
    answer = {
        "folders": list(core_constants.CDI_SPEC_DIRS),
        "files": sorted(files, key=lambda file: _place(file["path"])),
        "devices": found.devices,
        "conflicts": {
            # The entry of each file has its own errors.
            "sentences": found._replace(files=()).warnings(),
            "shadowed": {name: list(paths) for name, paths in found.shadowed.items()},
            "unresolvable": {name: list(paths) for name, paths in found.unresolvable.items()},
        },
        "ignored": _ignored(host, {*read, *unread}),
        "refresh": refresh,
        "problems": core_errors.as_dicts(dict.fromkeys(problems)),
    }
    return answer, needed


class _Described(t.NamedTuple):
    """The entry of a file in the report. None stands for a value that is not known."""

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
    file: cdi_registry.SpecificationFile,
    data: t.Any,
    host: hostfs.HostFS,
    gpus: t.Mapping[str, t.Any] | None,
    elsewhere: frozenset[str] | None,
) -> dict[str, t.Any]:
    """Return the entry of a file. ``elsewhere``: the devices of other files; None for a file with only some GPUs."""
    if isinstance(data, core_errors.NvidiaError):
        return _Described(file.path, valid=False, errors=file.faults)._asdict()
    judgement = cdi_validate.validate(data)
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
    reasons, missing = host_check.why_stale(document, host, gpus["driver_version"] if gpus is not None else None)
    if gpus is not None and file.kind == core_constants.GPU_KIND:
        names = None if elsewhere is None else frozenset(name.partition("=")[2] for name in elsewhere)
        reasons += changed_gpus(document, host, gpus, names)
    return told._replace(
        driver_version=host_check.driver_of(document) or None,
        warnings=[*told.warnings, *host_check.check_host(document, host).warnings],
        stale=bool(reasons),
        reasons=core_errors.as_dicts(reasons),
        missing_paths=missing,
    )._asdict()


def _read(
    host: hostfs.HostFS, known: dict[str, t.Any], problems: list[core_errors.Problem]
) -> tuple[dict[str, t.Any], list[str], str | None]:
    """Return the data of each file or the error of reading it, the files that need a missing package, and its name."""
    try:
        return cdi_registry.read_specifications(host, known), [], None
    except core_errors.MissingPackageError as error:
        problems.append(core_errors.Problem.of(error))
        return (*_without_package(host, known), error.details.get("needed"))
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return {}, [], None


def _without_package(host: hostfs.HostFS, known: dict[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    read: dict[str, t.Any] = {}
    unread: list[str] = []
    for path in cdi_registry.specification_paths(host):
        try:
            read[path] = cdi_registry.read_specification(host, path, known)
        except core_errors.MissingPackageError:
            unread.append(path)
    return read, unread


def _refresh(
    host: hostfs.HostFS, run: core_plan.Runner, problems: list[core_errors.Problem]
) -> dict[str, t.Any] | None:
    try:
        refresh, troubles = describe_refresh(host, run)
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return None
    problems += troubles
    return refresh


def _real(host: hostfs.HostFS, path: str) -> str:
    try:
        return host.resolve(path)
    except core_errors.NvidiaError:
        return path


def _records(host: hostfs.HostFS, problems: list[core_errors.Problem]) -> list[cdi_records.OwnRecord]:
    """Return the records of this collection. Reading them needs no parser."""
    try:
        return cdi_records.own_records(host)
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return []


def _ignored(host: hostfs.HostFS, paths: t.Collection[str]) -> list[str]:
    """Return paths in the directories that engines do not read as specifications."""
    found = []
    for folder in core_constants.CDI_SPEC_DIRS:
        found += [f"{folder}/{name}" for name in host.readable_entries(folder)]
    return [path for path in found if path not in paths and not _is_folder(host, path)]


def _is_folder(host: hostfs.HostFS, path: str) -> bool:
    outer = host.real_path(path, last=False)
    return os.path.isdir(outer) and not os.path.islink(outer)


def _place(path: str) -> tuple[int, str]:
    return core_constants.CDI_SPEC_DIRS.index(posixpath.dirname(path)), path
