# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the GPUs of a host and their problems.

It also reports GPUs with errors, and it creates no device nodes. `inventory.py` accepts only GPUs that answer.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, inventory, procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml


CONTROL_NODE = "/dev/nvidiactl"
# The directories of the driver's files; the second is that of the driver container of NVIDIA's GPU Operator.
_DRIVER_ROOTS = ("/", "/run/nvidia/driver")
# The limit in bytes. The real files have some 300 bytes.
_MOST = 1 << 16
_LOG = "Look at the kernel's log for NVRM and Xid."


class ScannedGpu(t.NamedTuple):
    """A GPU, and the reasons of the driver why it cannot be used.

    Negative numbers, also as the index of a MIG device, and empty texts are unknown values. ``mig`` says whether MIG
    mode is on, and is None if that is unknown. ``profiles`` are those of the MIG devices, in the same order.
    """

    gpu: inventory.Gpu
    troubles: tuple[errors.Problem, ...] = ()
    mig: bool | None = False
    profiles: tuple[str, ...] = ()


class GpuScan(t.NamedTuple):
    """The GPUs of a host, and their problems.

    ``version`` is the driver's version from NVML. ``source`` is nvml or proc. ``addresses`` are those of all GPUs that
    the driver knows, including excluded ones.
    """

    version: str | None
    source: str
    gpus: tuple[ScannedGpu, ...]
    addresses: frozenset[str]
    problems: tuple[errors.Problem, ...]


def scan_gpus(host: hostfs.HostFS) -> GpuScan:
    """Return the GPUs of ``host``, which has a loaded driver, from NVML or /proc. It never raises NvidiaError."""
    problems: list[errors.Problem] = []
    listed, addresses = _listed(host)
    try:
        listed = _divided(host, listed)
    except errors.NvidiaError as error:
        problems.append(errors.Problem.of(error))
    try:
        answer, refusal = _asked(host, _absent(host, listed))
    except errors.NvidiaError as error:
        # The driver's libraries fail in the same way in containers.
        trouble = errors.Problem.of(error)
        gpus = tuple(one._replace(troubles=(*one.troubles, trouble)) for one in listed)
        return GpuScan(None, "proc", gpus, addresses, (*problems, trouble))
    if answer is None:
        problems += _limits_of_proc(host, listed, refusal)
        return GpuScan(None, "proc", tuple(listed), addresses, tuple(problems))
    gpus = tuple(_by_nvml(answer, listed))
    known = addresses | {one.gpu.bus for one in gpus}
    return GpuScan(answer.version, "nvml", gpus, known, tuple(problems))


def nodes_of(gpu: inventory.Gpu, capabilities: procfs.Capabilities) -> list[str]:
    """Return the device nodes of a GPU and of its MIG devices, as far as their numbers are known."""
    nodes = [f"/dev/nvidia{gpu.minor}"] if gpu.minor >= 0 else []
    for mig in gpu.migs:
        nodes += nodes_of_mig(gpu, mig, capabilities)
    return nodes


def nodes_of_mig(gpu: inventory.Gpu, mig: inventory.MigDevice, capabilities: procfs.Capabilities) -> list[str]:
    """Return the device nodes of a MIG device's capabilities; empty if their numbers cannot be read."""
    try:
        return list(capabilities.nodes(gpu.minor, mig.gi, mig.ci))
    except errors.NvidiaError:
        return []


# -- /proc -------------------------------------------------------------------------------------------------------------


def _listed(host: hostfs.HostFS) -> tuple[list[ScannedGpu], frozenset[str]]:
    """Return the GPUs in /proc, and the addresses of all of them."""
    capable = host.exists(procfs.MIG_MINORS)
    found: list[tuple[str, ScannedGpu | None]] = []
    for name in host.readable_entries(procfs.GPUS):
        path = f"{procfs.GPUS}/{name}/information"
        try:
            known = procfs.read_information(procfs.bounded_text(host, path, _MOST), path)
        except errors.NvidiaError as error:
            bus = procfs.normal_or_same(name)
            found.append(
                (
                    bus,
                    ScannedGpu(
                        inventory.Gpu(-1, "", -1, bus, "", mig=False, migs=()), (errors.Problem.of(error),), None
                    ),
                )
            )
            continue
        gpu = inventory.Gpu(-1, known.uuid, known.minor, known.bus, known.name, mig=False, migs=())
        found.append((known.bus, None if known.excluded else ScannedGpu(gpu, mig=None if capable else False)))
    # A domain has four or eight digits, and the longer ones are larger.
    found.sort(key=lambda entry: (len(entry[0]), entry[0]))
    # NVML numbers display adapters too.
    numbered = enumerate(seen for _bus, seen in found if seen is not None)
    seen = [one._replace(gpu=one.gpu._replace(index=index)) for index, one in numbered]
    return [one for one in seen if one.gpu.name not in procfs.SKIPPED_NAMES], frozenset(bus for bus, _seen in found)


def _divided(host: hostfs.HostFS, listed: t.Sequence[ScannedGpu]) -> list[ScannedGpu]:
    """Return the GPUs with their MIG devices from /proc, which has neither the indices nor the UUIDs of these."""
    parts: dict[int, list[inventory.MigDevice]] = {}
    for instance in procfs.instances(host):
        devices = parts.setdefault(instance.minor, [])
        for ci in instance.compute:
            devices.append(inventory.MigDevice(-1 - len(devices), "", instance.gi, ci, gfx=False))
    return [
        one._replace(gpu=one.gpu._replace(mig=True, migs=tuple(parts[one.gpu.minor])), mig=True)
        if one.gpu.minor in parts
        else one
        for one in listed
    ]


def _limits_of_proc(
    host: hostfs.HostFS, listed: t.Sequence[ScannedGpu], refusal: errors.Problem
) -> t.Iterator[errors.Problem]:
    """Yield what /proc does not report about the GPUs in ``listed``; ``refusal`` says why NVML was not asked."""
    capable = host.exists(procfs.MIG_MINORS)
    if listed and (capable or refusal.code != inventory.NOT_ASKED):
        blind = " It tells neither MIG mode without MIG devices nor the UUIDs of these." if capable else ""
        message = f"The GPUs are listed from /proc, by their PCI addresses.{blind} {refusal.message}"
        yield errors.Problem("gpus-from-proc", message)
    unknown = [str(one.gpu.index) for one in listed if not one.gpu.uuid and not one.troubles]
    if unknown:
        message = (
            f"The driver does not know the UUID of GPU {core_text.listed(unknown)} yet, because nothing has used it"
            " since the start. Run nvidia-smi -L once, or let nvidia-persistenced run."
        )
        yield errors.Problem("gpu-uuid-unknown", message)


# -- NVML --------------------------------------------------------------------------------------------------------------


def _absent(host: hostfs.HostFS, listed: t.Sequence[ScannedGpu]) -> list[str]:
    """Return the device nodes that NVML would create."""
    if not device_nodes.may_change(host):
        return []
    capabilities = procfs.Capabilities(host)
    nodes = [CONTROL_NODE, *(node for one in listed for node in nodes_of(one.gpu, capabilities))]
    return [node for node in dict.fromkeys(nodes) if not host.exists(node)]


def _asked(host: hostfs.HostFS, absent: t.Sequence[str]) -> tuple[nvml.NvmlAnswer | None, errors.Problem]:
    """Return NVML's answer, or None and the reason why it was not asked. Raises HostError as nvml_answer() does."""
    refusals: list[errors.Problem] = []
    for root in _DRIVER_ROOTS:
        if root == "/" or host.exists(root):
            answer, refusal = inventory.nvml_answer(host, root, absent=absent)
            if answer is not None:
                return answer, refusal
            refusals.append(refusal)
    return None, refusals[0]._replace(message=" ".join(dict.fromkeys(refusal.message for refusal in refusals)))


def _by_nvml(answer: nvml.NvmlAnswer, listed: t.Sequence[ScannedGpu]) -> list[ScannedGpu]:
    """Return the GPUs in NVML's order, then those that NVML does not report."""
    seen = [_of_nvml(gpu) for gpu in answer.gpus if gpu.name not in procfs.SKIPPED_NAMES]
    told = {one.gpu.bus for one in seen}
    if "" in told:
        # The GPU without an address may be any of those that seem to be missing.
        return seen
    for number, one in enumerate(listed):
        if one.gpu.bus not in told:
            troubles = one.troubles or (errors.Problem("gpu-not-listed", f"NVML does not list it. {_LOG}"),)
            seen.append(one._replace(gpu=one.gpu._replace(index=-1 - number), troubles=troubles))
    return seen


def _of_nvml(gpu: nvml.NvmlGpu) -> ScannedGpu:
    bus = procfs.normal_or_same(gpu.bus)
    told = inventory.Gpu(
        gpu.index, gpu.uuid, gpu.minor, bus, gpu.name, gpu.mig, tuple(inventory.MigDevice(*mig[:5]) for mig in gpu.migs)
    )
    if gpu.failure:
        return ScannedGpu(told, (errors.Problem("gpu-failed", gpu.failure),), gpu.mig or None)
    # The files in /proc and /sys identify a GPU by its address.
    message = f"NVML says that it has the PCI address {bus!r}, which is none. {_LOG}"
    troubles = () if ":" in bus else (errors.Problem("gpu-address-invalid", message),)
    return ScannedGpu(told, troubles, gpu.mig, tuple(mig.profile for mig in gpu.migs))


def describe_gpus(host: hostfs.HostFS) -> dict[str, t.Any]:
    """Return the report of the GPUs of ``host``. Errors become problems in the report."""
    modules = procfs.loaded_modules(host)
    answer: dict[str, t.Any] = {
        "driver_version": None,
        "source": None,
        "modules": {module.name: {"version": module.version, "refcount": module.refcount} for module in modules},
        "devices": [],
        "advertised": [],
        "missing_nodes": [],
    }
    problems = procfs.different_versions(modules)
    try:
        _look(host, answer, problems)
    except (errors.NvidiaError, OSError, ValueError) as error:
        # For example, /proc may have numbers that the kernel does not write.
        code = error.code if isinstance(error, errors.NvidiaError) else "gpus-unreadable"
        problems.append(errors.Problem(code, f"Not all of the GPUs could be looked at: {error}"))
    answer["problems"] = errors.as_dicts(dict.fromkeys(problems))
    return answer


def _look(host: hostfs.HostFS, answer: dict[str, t.Any], problems: list[errors.Problem]) -> None:
    driver = gpu_detect.loaded_driver(host)
    if driver is None:
        problems += procfs.undriven_gpus(host, ()) if host.live else []
        return
    sighting = scan_gpus(host)
    problems += [*sighting.problems, *(procfs.undriven_gpus(host, sighting.addresses) if host.live else [])]
    answer["driver_version"], answer["source"] = sighting.version or driver.version, sighting.source
    missing = _missing(host, sighting.gpus)
    answer["missing_nodes"] = [{"path": path, "advice": f"{device_nodes.fix_for_node(path)}."} for path in missing]
    devices = answer["devices"] = _devices(host, sighting.gpus, missing)
    healthy = (one["uuid"] for one in _advertised(devices) if one["healthy"])
    answer["advertised"] = [uuid for uuid in healthy if uuid is not None]


def _advertised(devices: t.Iterable[dict[str, t.Any]]) -> t.Iterator[dict[str, t.Any]]:
    """Yield what containers can get: GPUs without MIG mode, and MIG devices."""
    for device in devices:
        yield from device["mig_devices"] if device["mig_enabled"] else [device]


def _missing(host: hostfs.HostFS, gpus: t.Iterable[ScannedGpu]) -> list[str]:
    """Return the device nodes that are missing."""
    capabilities = procfs.Capabilities(host)
    nodes = [*gpu_detect.NEEDED_NODES, *(node.path for node in device_nodes.control_nodes(host))]
    nodes += [node for one in gpus for node in nodes_of(one.gpu, capabilities)]
    return [node for node in dict.fromkeys(nodes) if not host.exists(node)]


def _devices(host: hostfs.HostFS, gpus: t.Sequence[ScannedGpu], missing: t.Collection[str]) -> list[dict[str, t.Any]]:
    usable = tuple(one.gpu for one in gpus if ":" in one.gpu.bus and one.gpu.minor >= 0)
    reasons: dict[str, list[errors.Problem]] = {}
    for fault in inventory.faults(host, inventory.GpuInventory("", usable, "", ())):
        reasons.setdefault(fault.name, []).append(fault.problem)
    # Without these nodes no GPU can be used.
    shared = [
        errors.Problem(inventory.NODE, f"{node} is not there.") for node in gpu_detect.NEEDED_NODES if node in missing
    ]
    return [_device(one, shared, reasons) for one in gpus]


def _device(
    one: ScannedGpu, shared: t.Sequence[errors.Problem], reasons: t.Mapping[str, t.Sequence[errors.Problem]]
) -> dict[str, t.Any]:
    gpu = one.gpu
    own = [*one.troubles, *reasons.get(str(gpu.index), ()), *shared]
    parts = []
    for number, mig in enumerate(gpu.migs):
        # What prevents the use of a GPU also prevents that of its MIG devices.
        why = [*reasons.get(f"{gpu.index}:{mig.index}", ()), *own]
        parts.append(
            {
                "index": _number(mig.index),
                "uuid": mig.uuid or None,
                "gpu_instance": mig.gi,
                "compute_instance": mig.ci,
                "profile": (one.profiles[number] if number < len(one.profiles) else "") or None,
                "healthy": not why,
                "reasons": errors.as_dicts(why),
            }
        )
    return {
        "index": _number(gpu.index),
        "uuid": gpu.uuid or None,
        "minor": _number(gpu.minor),
        "bus_id": gpu.bus or None,
        "model": gpu.name or None,
        "mig_enabled": one.mig,
        "mig_devices": parts,
        "healthy": not own,
        "reasons": errors.as_dicts(own),
    }


def _number(number: int) -> int | None:
    return number if number >= 0 else None
