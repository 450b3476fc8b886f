# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the GPUs of a host and their problems.

It also reports GPUs with errors, and it creates no device nodes. `inventory.py` raises an error for such GPUs.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import (
    device_nodes,
    inventory,
    kernel,
    procfs,
    services,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml


_CONTROL_NODE = "/dev/nvidiactl"


class DriverPlaces(t.NamedTuple):
    """Where the driver's files are: directories like the root of a host, and directories of libraries (empty: usual).

    ``library_folders`` are as in DriverFiles.
    """

    roots: tuple[str, ...] = device_nodes.DRIVER_ROOTS
    library_folders: tuple[str, ...] = ()


_USUAL_PLACES = DriverPlaces()


class ScannedGpu(t.NamedTuple):
    """A GPU, and the problems that the driver reports for it.

    Negative numbers, also as the index of a MIG device, and empty texts are unknown values. ``mig_enabled`` is None if
    it is unknown. ``profiles`` are those of the MIG devices, in the same order. ``vgpu`` and ``licensed`` are as in
    NvmlGpu.
    """

    gpu: inventory.Gpu
    problems: tuple[errors.Problem, ...] = ()
    mig_enabled: bool | None = False
    profiles: tuple[str, ...] = ()
    vgpu: str | None = None
    licensed: bool | None = None


class GpuScan(t.NamedTuple):
    """The GPUs of a host, and problems of the scan.

    ``version`` is the driver's version from NVML. ``source`` is nvml or proc. ``addresses`` are those of all GPUs of
    the driver, including excluded ones.
    """

    version: str | None
    source: str
    gpus: tuple[ScannedGpu, ...]
    addresses: frozenset[str]
    problems: tuple[errors.Problem, ...]


def describe_gpus(host: hostfs.HostFS, places: DriverPlaces = _USUAL_PLACES) -> dict[str, t.Any]:
    """Return the report of the GPUs of ``host``. Errors become problems in the report."""
    modules = procfs.loaded_modules(host)
    report: dict[str, t.Any] = {
        "driver_version": None,
        "source": None,
        "modules": {module.name: {"version": module.version, "refcount": module.refcount} for module in modules},
        "devices": [],
        "advertised": [],
        "missing_nodes": [],
    }
    problems = procfs.version_problems(modules)
    try:
        _add_gpus(host, places, report, problems)
    except (errors.NvidiaError, OSError, ValueError) as error:
        # For example, /proc may have numbers that the kernel does not write.
        problem = errors.Problem.of(error if isinstance(error, errors.NvidiaError) else errors.NvidiaError(str(error)))
        problems.append(problem._replace(message=f"Some GPUs cannot be inspected: {problem.message}"))
    report["problems"] = errors.as_dicts(dict.fromkeys(problems))
    return report


def describe_driver(host: hostfs.HostFS, run: core_plan.Runner, report: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return facts about the kernel and the fabric manager. Both are None if the host is known to need neither.

    It also has the problems of ``report``, which is the result of describe_gpus(). Those about a driver that is not
    loaded get what the kernel and modinfo say about its module.
    """
    is_loaded, problems = report["source"] is not None, report["problems"]
    lacks_driver = [problem for problem in problems if problem["code"] in procfs.WITHOUT_DRIVER]
    if not host.live or not (is_loaded or lacks_driver):
        return {"kernel": None, "fabric_manager": None, "problems": problems}
    found = kernel.describe_kernel(host)
    if is_loaded:
        manager = services.describe_fabric_manager(host, run)
        return {"kernel": found, "fabric_manager": manager, "problems": problems}
    facts = list(kernel.unloaded_module(host, run, found))
    explained = [{**problem, "message": " ".join([problem["message"], *facts])} for problem in lacks_driver]
    return {
        "kernel": found,
        "fabric_manager": None,
        "problems": [*explained, *(problem for problem in problems if problem not in lacks_driver)],
    }


def _add_gpus(
    host: hostfs.HostFS, places: DriverPlaces, report: dict[str, t.Any], problems: list[errors.Problem]
) -> None:
    driver = procfs.loaded_driver(host)
    if driver is None:
        problems += procfs.gpus_without_driver(host, ()) if host.live else []
        return
    folder = device_nodes.dev_directory(host, places.roots)
    scan = _scan_gpus(host, places, folder)
    problems += [*scan.problems, *(procfs.gpus_without_driver(host, scan.addresses) if host.live else [])]
    report["driver_version"], report["source"] = scan.version or driver.version, scan.source
    missing = report["missing_nodes"] = _missing_nodes(host, scan.gpus, folder)
    devices = report["devices"] = _describe_devices(host, scan.gpus, missing, folder)
    # Containers can get GPUs without MIG mode, and MIG devices.
    usable = [part for device in devices for part in (device["mig_devices"] if device["mig_enabled"] else [device])]
    report["advertised"] = [part["uuid"] for part in usable if part["healthy"] and part["uuid"] is not None]


def _missing_nodes(host: hostfs.HostFS, gpus: t.Sequence[ScannedGpu], folder: str) -> list[str]:
    if procfs.has_other_nodes(host):
        return []
    nodes = [*device_nodes.NEEDED_NODES, *device_nodes.control_nodes(host)]
    if host.is_system_container():
        nodes = [*device_nodes.NEEDED_NODES] if gpus else []
    return device_nodes.missing_in(folder, [*nodes, *_gpu_nodes(host, gpus)], host)


def _gpu_nodes(host: hostfs.HostFS, gpus: t.Iterable[ScannedGpu]) -> t.Iterator[str]:
    """Yield the nodes of GPUs and of their MIG devices, as in containers, as far as their numbers are known."""
    capabilities = procfs.MigCapabilities(host)
    for gpu in (scanned.gpu for scanned in gpus):
        if gpu.minor >= 0:
            yield f"/dev/nvidia{gpu.minor}"
        for mig in gpu.migs:
            try:
                yield from capabilities.nodes(gpu.minor, mig.gi, mig.ci)
            except errors.NvidiaError:
                # The numbers of the nodes cannot be read.
                continue


# -- scan --------------------------------------------------------------------------------------------------------------


def _scan_gpus(host: hostfs.HostFS, places: DriverPlaces, folder: str) -> GpuScan:
    """Return the GPUs of ``host``, which has a loaded driver, from NVML or /proc. It never raises NvidiaError.

    ``folder`` is the directory with the driver's nodes.
    """
    problems: list[errors.Problem] = []
    gpus, addresses = _gpus_in_proc(host)
    try:
        gpus = _add_mig_devices(host, gpus)
    except errors.NvidiaError as error:
        problems.append(errors.Problem.of(error))
    try:
        result, reason = _query_nvml(host, places, gpus, folder)
    except errors.NvidiaError as error:
        # The driver's libraries fail in the same way in containers.
        problem = errors.Problem.of(error)
        failed = tuple(gpu._replace(problems=(*gpu.problems, problem)) for gpu in gpus)
        return GpuScan(None, "proc", failed, addresses, (*problems, problem))
    if result is None:
        problems += _limits_of_proc(host, gpus, reason)
        return GpuScan(None, "proc", tuple(gpus), addresses, tuple(problems))
    merged = tuple(_merge(result, gpus))
    return GpuScan(result.version, "nvml", merged, addresses | {gpu.gpu.bus for gpu in merged}, tuple(problems))


def _gpus_in_proc(host: hostfs.HostFS) -> tuple[list[ScannedGpu], frozenset[str]]:
    """Return the GPUs in /proc, and the addresses of all of them, including excluded ones."""
    mig_enabled = None if host.exists(procfs.MIG_MINORS) else False
    found: list[tuple[str, ScannedGpu | None]] = []
    for name in host.readable_entries(procfs.GPUS):
        path = f"{procfs.GPUS}/{name}/information"
        try:
            known = procfs.parse_information(procfs.read_bounded(host, path, procfs.MAX_INFORMATION), path)
        except errors.NvidiaError as error:
            bus = procfs.normalize_or_keep(name)
            gpu = inventory.Gpu(-1, "", -1, bus, "", mig=False, migs=())
            found.append((bus, ScannedGpu(gpu, (errors.Problem.of(error),), None)))
            continue
        gpu = inventory.Gpu(-1, known.uuid, known.minor, known.bus, known.name, mig=False, migs=())
        is_usable = not known.excluded and procfs.is_given(host, known.minor)
        found.append((known.bus, ScannedGpu(gpu, mig_enabled=mig_enabled) if is_usable else None))
    # A domain has no leading zeros if it has more than four digits, so the longer ones are larger.
    found.sort(key=lambda entry: (len(entry[0]), entry[0]))
    # NVML numbers display adapters, too.
    numbered = enumerate(scanned for _bus, scanned in found if scanned is not None)
    gpus = [scanned._replace(gpu=scanned.gpu._replace(number=index)) for index, scanned in numbered]
    addresses = frozenset(bus for bus, _scanned in found)
    return [scanned for scanned in gpus if scanned.gpu.name not in procfs.SKIPPED_NAMES], addresses


def _add_mig_devices(host: hostfs.HostFS, gpus: t.Sequence[ScannedGpu]) -> list[ScannedGpu]:
    """Return the GPUs with their MIG devices from /proc, which has neither the indices nor the UUIDs of these."""
    migs: dict[int, list[inventory.MigDevice]] = {}
    for instance in procfs.mig_instances(host):
        devices = migs.setdefault(instance.minor, [])
        for ci in instance.compute:
            devices.append(inventory.MigDevice(-1 - len(devices), "", instance.gi, ci, gfx=False))
    return [
        scanned._replace(gpu=scanned.gpu._replace(mig=True, migs=tuple(migs[scanned.gpu.minor])), mig_enabled=True)
        if scanned.gpu.minor in migs
        else scanned
        for scanned in gpus
    ]


def _limits_of_proc(
    host: hostfs.HostFS, gpus: t.Sequence[ScannedGpu], reason: errors.Problem
) -> t.Iterator[errors.Problem]:
    """Yield what /proc does not report about ``gpus``. ``reason`` is why NVML was not queried."""
    mig_capable = host.exists(procfs.MIG_MINORS)
    if gpus and (mig_capable or reason.code != inventory.NOT_QUERIED):
        code = reason.code if reason.code == inventory.ABSENT else "gpus-from-proc"
        yield errors.Problem(code, inventory.listed_from_proc(mig_capable, reason), reason.advice)
    unknown = [str(scanned.gpu.number) for scanned in gpus if not scanned.gpu.uuid and not scanned.problems]
    if unknown:
        yield errors.Problem("gpu-uuid-unknown", inventory.unknown_uuid(unknown), inventory.READ_UUID)


def _query_nvml(
    host: hostfs.HostFS, places: DriverPlaces, gpus: t.Sequence[ScannedGpu], folder: str
) -> tuple[nvml.NvmlResult | None, errors.Problem]:
    """Return what NVML reports, or None and the reason. Raises HostError as query_nvml() does."""
    missing: list[str] = []
    if device_nodes.may_create_nodes(host):
        missing = device_nodes.missing_in(folder, [_CONTROL_NODE, *_gpu_nodes(host, gpus)], host)
    reasons: list[errors.Problem] = []
    for number, root in enumerate(places.roots):
        if number == 0 or host.exists(root):
            result, reason = inventory.query_nvml(
                host, root, library_folders=places.library_folders, missing_nodes=missing, folder=folder
            )
            if result is not None:
                return result, reason
            reasons.append(reason)
    reason = next((reason for reason in reasons if reason.code != inventory.ABSENT), reasons[0])
    return None, reason._replace(message=" ".join(dict.fromkeys(reason.message for reason in reasons)))


def _merge(result: nvml.NvmlResult, in_proc: t.Sequence[ScannedGpu]) -> list[ScannedGpu]:
    """Return the GPUs in NVML's order, then those that NVML does not report."""
    gpus = [_from_nvml(gpu) for gpu in result.gpus if gpu.name not in procfs.SKIPPED_NAMES]
    addresses = {scanned.gpu.bus for scanned in gpus}
    if "" in addresses:
        # The GPU without an address may be any of those that seem to be missing.
        return gpus
    for number, scanned in enumerate(in_proc):
        if scanned.gpu.bus not in addresses:
            not_listed = errors.Problem("gpu-not-listed", "NVML does not list this GPU.", procfs.CHECK_LOG)
            gpu = scanned.gpu._replace(number=-1 - number)
            gpus.append(scanned._replace(gpu=gpu, problems=scanned.problems or (not_listed,)))
    return gpus


def _from_nvml(gpu: nvml.NvmlGpu) -> ScannedGpu:
    bus = procfs.normalize_or_keep(gpu.bus)
    migs = tuple(inventory.MigDevice(*mig[:5]) for mig in gpu.migs)
    found = inventory.Gpu(gpu.number, gpu.uuid, gpu.minor, bus, gpu.name, gpu.mig, migs)
    if gpu.unsupported and procfs.is_integrated(gpu.name):
        # Not all functions are for integrated GPUs.
        return ScannedGpu(found, mig_enabled=gpu.mig)
    if gpu.failure:
        return ScannedGpu(found, (errors.Problem("gpu-failed", gpu.failure, gpu.advice),), gpu.mig or None)
    # The files in /proc and /sys identify a GPU by its address.
    message = f"NVML reports the invalid PCI address {bus!r}."
    problems = () if ":" in bus else (errors.Problem("gpu-address-invalid", message, procfs.CHECK_LOG),)
    profiles = tuple(mig.profile for mig in gpu.migs)
    return ScannedGpu(found, problems, gpu.mig, profiles, gpu.vgpu, gpu.licensed)


# -- report ------------------------------------------------------------------------------------------------------------


def _describe_devices(
    host: hostfs.HostFS, gpus: t.Sequence[ScannedGpu], missing: t.Collection[str], folder: str
) -> list[dict[str, t.Any]]:
    checked = tuple(scanned.gpu for scanned in gpus if ":" in scanned.gpu.bus and scanned.gpu.minor >= 0)
    reasons: dict[str, list[errors.Problem]] = {}
    for unusable in inventory.unusable_devices(host, inventory.GpuInventory("", checked, "", ()), folder):
        reasons.setdefault(unusable.name, []).append(unusable.problem)
    # Without these nodes no GPU can be used.
    needed = (device_nodes.node_in(folder, node) for node in device_nodes.NEEDED_NODES)
    shared = [inventory.missing_node(path) for path in needed if path in missing]
    return [_describe_device(scanned, shared, reasons) for scanned in gpus]


def _describe_device(
    scanned: ScannedGpu, shared: t.Sequence[errors.Problem], reasons: t.Mapping[str, t.Sequence[errors.Problem]]
) -> dict[str, t.Any]:
    gpu = scanned.gpu
    problems = [*scanned.problems, *reasons.get(str(gpu.number), ()), *shared]
    mig_devices = []
    for number, mig in enumerate(gpu.migs):
        # What prevents the use of a GPU also prevents that of its MIG devices.
        mig_problems = [*reasons.get(f"{gpu.number}:{mig.number}", ()), *problems]
        mig_devices.append(
            {
                "index": _known(mig.number),
                "uuid": mig.uuid or None,
                "gpu_instance": mig.gi,
                "compute_instance": mig.ci,
                "profile": (scanned.profiles[number] if number < len(scanned.profiles) else "") or None,
                "healthy": not mig_problems,
                "reasons": errors.as_dicts(mig_problems),
            }
        )
    return {
        "index": _known(gpu.number),
        "uuid": gpu.uuid or None,
        "minor": _known(gpu.minor),
        "bus_id": gpu.bus or None,
        "model": gpu.name or None,
        "mig_enabled": scanned.mig_enabled,
        "mig_devices": mig_devices,
        "vgpu": None if scanned.vgpu is None else {"product": scanned.vgpu or None, "licensed": scanned.licensed},
        "healthy": not problems,
        "reasons": errors.as_dicts(problems),
    }


def _known(number: int) -> int | None:
    return number if number >= 0 else None
