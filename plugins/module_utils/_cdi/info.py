# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the CDI specifications of a host, how they differ from the host's GPUs, and the service that refreshes them.

This file changes nothing.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import graphics
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import units as refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import compare as cdi_compare
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import systemctl

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The names that generators give to devices, by the strategy (STRATEGIES in options.py).
_NAME_PATTERNS = {
    cdi_options.UUID: re.compile(r"(?:GPU|MIG)-.*"),
    cdi_options.INDEX: re.compile(r"[0-9]+(?::[0-9]+)?"),
    cdi_options.TYPE_INDEX: re.compile(r"gpu[0-9]+|mig[0-9]+:[0-9]+"),
}


class GpuDevice(t.NamedTuple):
    """A GPU or a MIG device that a container can get.

    - ``names``: its known names in a specification, by the strategy.
    - ``nodes``: its device nodes.
    - ``complete``: whether the driver reports all names and nodes. Otherwise it is no difference if a specification
      lacks the device.
    """

    names: t.Mapping[str, str]
    nodes: frozenset[str]
    complete: bool

    def display_name(self) -> str:
        return self.names.get(cdi_options.INDEX) or self.names.get(cdi_options.UUID) or ", ".join(sorted(self.nodes))


def changed_gpus(
    document: t.Mapping[str, t.Any],
    host: hostfs.HostFS,
    gpus: t.Mapping[str, t.Any],
    other_devices: frozenset[str] | None = frozenset(),
) -> list[core_errors.Problem]:
    """Return the differences between the GPUs in ``document`` and those that the driver reports.

    gpus: the result of describe_gpus().
    other_devices: names of devices in other files of the same kind. A device in one of them is not missing. None if the
    document was generated for selected devices (device_ids), so that no other device is missing.
    """
    return [] if gpus["source"] is None else _differences(document, _gpu_devices(host, gpus), other_devices)


def _gpu_devices(host: hostfs.HostFS, gpus: t.Mapping[str, t.Any]) -> list[GpuDevice]:
    capabilities, found = procfs.MigCapabilities(host), []
    for gpu in gpus["devices"]:
        index, minor = gpu["index"], gpu["minor"]
        nodes = [f"/dev/nvidia{minor}"]
        # Without these values, the NVML query was incomplete.
        incomplete = gpus["source"] == "nvml" and (gpu["uuid"] is None or gpu["mig_enabled"] is None)
        complete = not incomplete and index is not None and minor is not None
        if not gpu["mig_enabled"]:
            found.append(_gpu_device(gpu["uuid"], "gpu", [index], nodes, complete))
        for mig in gpu["mig_devices"]:
            mig_complete = complete
            try:
                mig_nodes = capabilities.nodes(minor, mig["gpu_instance"], mig["compute_instance"])
            except core_errors.NvidiaError:
                mig_nodes = ("", "")
                mig_complete = False
            found.append(_gpu_device(mig["uuid"], "mig", [index, mig["index"]], [*nodes, *mig_nodes], mig_complete))
    return found


def _gpu_device(
    uuid: str | None, kind: str, numbers: t.Sequence[int | None], nodes: t.Sequence[str], complete: bool
) -> GpuDevice:
    names = {cdi_options.UUID: uuid} if uuid else {}
    if None not in numbers:
        number = ":".join(map(str, numbers))
        names.update({cdi_options.INDEX: number, cdi_options.TYPE_INDEX: kind + number})
    return GpuDevice(names, frozenset(nodes), complete)


def _differences(
    document: t.Mapping[str, t.Any], gpus: t.Sequence[GpuDevice], other_devices: frozenset[str] | None
) -> list[core_errors.Problem]:
    common = _nodes(document)
    devices = {device["name"]: _nodes(device) | common for device in document.get("devices", ())}
    all_nodes = frozenset(node for nodes in devices.values() for node in nodes)
    has_nodes = any(device_nodes.GPU_NODE.fullmatch(node) for node in all_nodes)
    if not has_nodes and not any(map(_NAME_PATTERNS[cdi_options.UUID].fullmatch, devices)):
        # The document describes other devices, or GPUs that use other drivers.
        return []
    missing: list[str] = []
    removed: list[str] = []
    changed_nodes: list[str] = []
    has_known_names = False
    for strategy, pattern in _NAME_PATTERNS.items():
        present = [name for name in devices if pattern.fullmatch(name)]
        if not present:
            continue
        has_known_names = True
        known = {gpu.names[strategy]: gpu for gpu in gpus if strategy in gpu.names}
        missing += [name for name, gpu in known.items() if gpu.complete and name not in devices]
        if all(strategy in gpu.names for gpu in gpus):
            removed += [name for name in present if name not in known]
        changed_nodes += [name for name in present if name in known and _has_other_nodes(known[name], devices[name])]
    if not has_known_names:
        missing = [gpu.display_name() for gpu in gpus if gpu.complete and not gpu.nodes <= all_nodes]
    missing = [] if other_devices is None else [name for name in missing if name not in other_devices]
    differences = [
        (missing, "gpu-lacking", "It lacks {}, which the driver reports."),
        (removed, "gpu-gone", "It has {}, which the driver does not report."),
        (changed_nodes, "gpu-nodes-differ", "It lacks device nodes that the driver reports for {}."),
    ]
    return [
        core_errors.Problem(code, text.format(core_text.listed(names))) for names, code, text in differences if names
    ]


def _has_other_nodes(gpu: GpuDevice, nodes: frozenset[str]) -> bool:
    """Return whether ``nodes``, the device nodes in a specification, lack a node of ``gpu``."""
    return gpu.complete and not gpu.nodes <= nodes


def _nodes(part: t.Mapping[str, t.Any]) -> frozenset[str]:
    return frozenset(node["path"] for node in part.get(cdi_schema.EDITS, {}).get("deviceNodes", ()))


def describe_refresh(
    host: hostfs.HostFS, run: core_plan.Runner
) -> tuple[dict[str, t.Any] | None, list[core_errors.Problem]]:
    """Return a description of the service that generates the specification, or None, and the problems of all services.

    If both services are enabled, the toolkit's has precedence, because its file has. A service that writes nothing is
    none: without its program, masked, or stopped by the drop-in of this collection.
    """
    problems: list[core_errors.Problem] = []
    services = (
        (refresh_units.SERVICE, refresh_units.toolkit_refresh(host)),
        (refresh_units.OWN_SERVICE, refresh_units.own_refresh(host)),
    )
    found: list[dict[str, t.Any]] = [
        {"service": name, "enabled": refresh.enabled, "output": refresh.output}
        for name, refresh in services
        if refresh is not None and refresh.usable
    ]
    for service in found:
        service["output"] = cdi_registry.canonical(host, service["output"]) if service["output"] else None
        if _has_failed(host, run, service["service"], problems):
            message = f"{service['service']} has failed, so the specification may be stale."
            advice = f"Run journalctl --unit {service['service']}."
            problems.append(core_errors.Problem("cdi-refresh-failed", message, advice))
    return next(iter([*filter(lambda service: service["enabled"], found), *found]), None), problems


def _has_failed(host: hostfs.HostFS, run: core_plan.Runner, service: str, problems: list[core_errors.Problem]) -> bool:
    if not systemctl.Systemctl.booted(host):
        return False
    try:
        return systemctl.Systemctl(host, run, service).status().active == "failed"
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return False


def describe_cdi(
    host: hostfs.HostFS, run: core_plan.Runner, gpus: t.Mapping[str, t.Any] | None = None
) -> tuple[dict[str, t.Any], str | None]:
    """Return a report of the CDI specifications of ``host``, and the name of a missing Python package or None.

    The report contains invalid files with their errors. It compares the specifications with ``gpus``, the result of
    describe_gpus(). The package is missing if some files cannot be read without it (MissingPackageError).
    """
    problems: list[core_errors.Problem] = []
    records = _records(host, problems)
    read, unread, missing_package = _read(host, cdi_records.known_documents(records), problems)
    found = cdi_registry.resolve(read)
    refresh = _refresh_report(host, run, problems)
    partial_paths = {record.path for record in records if not cdi_edits.selects_all(record.device_ids)}
    files = []
    for file in found.files:
        same_kind = [other for other in found.files if other is not file and other.kind == file.kind]
        others = [name for other in same_kind if not other.errors for name in other.devices]
        other_devices = None if _real(host, file.path) in partial_paths else frozenset(others)
        files.append(_file_entry(file, read[file.path], host, gpus, other_devices))
        if file.kind == core_constants.GPU_KIND and not file.errors:
            document = cdi_validate.validate(read[file.path]).document
            problems += filter(None, [graphics.problem_of(file.path, document, host)])
    files += [_FileEntry(path)._asdict() for path in unread]
    report = {
        "files": sorted(files, key=lambda file: _sort_key(file["path"])),
        "devices": found.devices,
        "conflicts": {
            "shadowed": {name: list(paths) for name, paths in found.shadowed.items()},
            "unresolvable": {name: list(paths) for name, paths in found.unresolvable.items()},
        },
        "refresh": refresh,
        "problems": core_errors.as_dicts(dict.fromkeys(problems)),
    }
    return report, missing_package


class _FileEntry(t.NamedTuple):
    """The entry of a file in the report. None means that the value is not known."""

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


def _file_entry(
    file: cdi_registry.SpecificationFile,
    data: t.Any,
    host: hostfs.HostFS,
    gpus: t.Mapping[str, t.Any] | None,
    other_devices: frozenset[str] | None,
) -> dict[str, t.Any]:
    if isinstance(data, core_errors.NvidiaError):
        return _FileEntry(file.path, valid=False, errors=file.errors)._asdict()
    result = cdi_validate.validate(data)
    document = result.document
    entry = _FileEntry(
        file.path,
        kind=file.kind or None,
        cdi_version=document.get("cdiVersion") or None,
        devices=[device["name"] for device in document.get("devices", ()) if device.get("name")],
        valid=not file.errors,
        errors=file.errors,
    )
    if file.errors:
        return entry._asdict()
    reasons, missing = cdi_compare.stale_reasons(document, host, gpus["driver_version"] if gpus is not None else None)
    unsafe = host_check.replaceable_messages(host_check.replaceable_paths(document, host))
    reasons += [core_errors.Problem("path-replaceable", message) for message in unsafe]
    if gpus is not None and file.kind == core_constants.GPU_KIND:
        names = None if other_devices is None else frozenset(name.partition("=")[2] for name in other_devices)
        reasons += changed_gpus(document, host, gpus, names)
    return entry._replace(
        driver_version=cdi_compare.driver_of(document) or None,
        warnings=[*host_check.check_host(document, host).warnings],
        stale=bool(reasons),
        reasons=core_errors.as_dicts(reasons),
        missing_paths=missing,
    )._asdict()


def _read(
    host: hostfs.HostFS, known: dict[str, t.Any], problems: list[core_errors.Problem]
) -> tuple[dict[str, t.Any], list[str], str | None]:
    """Read all specifications on the host.

    ``known`` is the cache of cdi_registry.read_specification(). Return the data or the error of each file by its path,
    the paths of files that need a missing Python package, and the name of that package or None.
    """
    read: dict[str, t.Any] = {}
    unread: list[str] = []
    missing_package = None
    try:
        for path in cdi_registry.specification_paths(host):
            try:
                read[path] = cdi_registry.read_specification(host, path, known)
            except core_errors.MissingPackageError as error:
                problems.append(core_errors.Problem.of(error))
                missing_package = error.details.get("needed")
                unread.append(path)
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
    return read, unread, missing_package


def _refresh_report(
    host: hostfs.HostFS, run: core_plan.Runner, problems: list[core_errors.Problem]
) -> dict[str, t.Any] | None:
    try:
        refresh, refresh_problems = describe_refresh(host, run)
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return None
    problems += refresh_problems
    return refresh


def _real(host: hostfs.HostFS, path: str) -> str:
    try:
        return host.resolve(path)
    except core_errors.NvidiaError:
        return path


def _records(host: hostfs.HostFS, problems: list[core_errors.Problem]) -> list[cdi_records.SpecRecord]:
    try:
        return cdi_records.own_records(host)
    except core_errors.NvidiaError as error:
        problems.append(core_errors.Problem.of(error))
        return []


def _sort_key(path: str) -> tuple[int, str]:
    return core_constants.CDI_SPEC_DIRS.index(posixpath.dirname(path)), path
