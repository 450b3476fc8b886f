# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs and MIG devices of a host, from NVML or from /proc.

read_inventory() raises an error if a GPU does not answer. The report in `info.py` also contains such GPUs.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import (
    device_nodes,
    driver_files,
    file_lookup,
    procfs,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml


# The codes of query_nvml() if there is no result. ABSENT: the host has no such library.
NOT_QUERIED, UNUSABLE, ABSENT = "nvml-not-asked", "nvml-unusable", "driver-library-missing"
# The problem codes for the device nodes of a MIG device, and for the device node of a GPU.
MIG_NODE, NODE = "mig-node-unusable", "node-unusable"
PCI = "/sys/bus/pci/devices"


class MigDevice(t.NamedTuple):
    """A MIG device: its number on its GPU, and the numbers of its GPU instance and its compute instance.

    ``gfx`` is true if it supports graphics. In a GpuInventory it is never None, which stands for an unknown value.
    """

    number: int
    uuid: str
    gi: int
    ci: int
    gfx: bool | None


class Gpu(t.NamedTuple):
    """A GPU.

    ``number`` is its position in NVML's order. ``minor`` is the minor number of its device node. ``bus`` is its PCI
    address as normalize_address() returns it. ``uuid`` is empty if the driver has not read it yet. ``mig`` is true if
    MIG mode is on, even without MIG devices. ``coherent`` is as in NvmlGpu, and has no meaning in a GpuInventory from
    /proc.
    """

    number: int
    uuid: str
    minor: int
    bus: str
    name: str
    mig: bool
    migs: tuple[MigDevice, ...]
    coherent: bool | None = False


class GpuInventory(t.NamedTuple):
    """The GPUs of a host in NVML's order, and the driver's version; ``source`` is "nvml" or "proc".

    ``omitted`` are the addresses of GPUs that no program can use. A warning names each of them.
    """

    version: str
    gpus: tuple[Gpu, ...]
    source: str
    warnings: tuple[str, ...]
    omitted: tuple[str, ...] = ()


class IntegratedGpuError(errors.HostError):
    """The error for an integrated GPU of a Tegra, of which NVML does not report everything."""


class GpuProblem(t.NamedTuple):
    """The reason why a container cannot use a GPU or a MIG device; ``name`` is as in CDI, such as 0 or 0:1."""

    name: str
    problem: errors.Problem


def read_inventory(
    host: hostfs.HostFS, driver_root: str = "/", use_nvml: bool | None = None, library_folders: t.Sequence[str] = ()
) -> GpuInventory:
    """Return the GPUs of ``host`` from NVML, or from /proc if NVML cannot be used.

    The result omits GPUs that the driver's configuration excludes, and display adapters (SKIPPED_NAMES). A display
    adapter leaves a gap in the indices. If NVML is wanted but cannot be used, the result has a warning. It also omits,
    with a warning, GPUs that do not answer or are no longer on the PCI bus, if there are others.

    Args:
        host: The host.
        driver_root: The directory of the driver's files.
        use_nvml: Whether to use NVML; None for yes if the host is live.
        library_folders: As in DriverFiles.

    Raises:
        HostError: NVML returns an error, no GPU answers, no driver is loaded, or there are MIG devices and NVML cannot
            be used.
        ConfigurationError: A file of the driver is invalid.
    """
    result, reason = query_nvml(host, driver_root, use_nvml, library_folders)
    if result is None:
        return _without_lost(host, _from_proc(host, reason))
    failed = [gpu for gpu in result.gpus if gpu.failure]
    for gpu in failed:
        if procfs.is_integrated(gpu.name) or len(failed) == len(result.gpus):
            error = IntegratedGpuError if procfs.is_integrated(gpu.name) else errors.HostError
            raise error(f"GPU {gpu.number} ({gpu.bus or 'unknown address'}): {gpu.failure} {gpu.advice}")
    whole = [gpu for gpu in result.gpus if not gpu.failure and gpu.name not in procfs.SKIPPED_NAMES]
    warnings = tuple(
        f"GPU {gpu.number} ({gpu.bus or 'unknown address'}) is left out: {gpu.failure.rstrip('.')}." for gpu in failed
    )
    omitted = tuple(procfs.normalize_or_keep(gpu.bus) for gpu in failed if gpu.bus)
    return _without_lost(host, GpuInventory(result.version, tuple(map(_from_nvml, whole)), "nvml", warnings, omitted))


def _without_lost(host: hostfs.HostFS, found: GpuInventory) -> GpuInventory:
    """Return the inventory without GPUs that are no longer on the PCI bus, unless all are gone."""
    lost = [gpu for gpu in found.gpus if is_off_bus(host, gpu.bus)]
    if not lost or len(lost) == len(found.gpus):
        return found
    warnings = [f"GPU {gpu.number} ({gpu.bus}) is left out, because it is no longer on the PCI bus." for gpu in lost]
    return found._replace(
        gpus=tuple(gpu for gpu in found.gpus if gpu not in lost),
        warnings=(*found.warnings, *(f"{warning} {procfs.CHECK_LOG}" for warning in warnings)),
        omitted=(*found.omitted, *(gpu.bus for gpu in lost)),
    )


def is_off_bus(host: hostfs.HostFS, bus: str) -> bool:
    """Return whether the kernel does not list the PCI device of a GPU. False if it lists no PCI devices."""
    return host.exists(PCI) and not host.exists(f"{PCI}/{bus}")


def query_nvml(
    host: hostfs.HostFS,
    driver_root: str = "/",
    use_nvml: bool | None = None,
    library_folders: t.Sequence[str] = (),
    *,
    missing_nodes: t.Sequence[str] | None = None,
    folder: str = "",
) -> tuple[nvml.NvmlResult | None, errors.Problem]:
    """Return NVML's result and an empty problem, or None and the reason why there is no result.

    The result includes GPUs that do not answer. The code of the reason is NOT_QUERIED, UNUSABLE or ABSENT. The first
    four arguments are those of read_inventory(). ``missing_nodes`` are missing device nodes that NVML must not create;
    with None, NVML may create nodes. ``folder`` is the directory with the driver's nodes; empty for that of
    ``driver_root``.

    Raises:
        HostError: NVML returns an error, crashes or hangs.
    """
    if not (host.live if use_nvml is None else use_nvml):
        message = f"NVML was not queried, because the host is an offline tree or {errors.option:use_nvml} is false."
        return None, errors.Problem(NOT_QUERIED, message)
    # Callers that do not use NVML do not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml  # noqa: PLC0415

    files = driver_files.DriverFiles(file_lookup.CachedFS(host), driver_root, library_folders)
    libraries = [found.host for found in files.libraries(nvml.LIBRARY)]
    folder = folder or device_nodes.dev_directory(host, [driver_root])
    dev = device_nodes.DEV if folder == device_nodes.DEV else host.real_path(folder)
    replaceable = trusted_paths.replaceable(host, libraries)
    reasons = [
        f"{path} is not loaded, because another user could replace it: {reason}. Let only root write there."
        for path, reason in replaceable.items()
    ]
    for library in libraries:
        if library in replaceable:
            continue
        try:
            result = nvml.query(host.real_path(library), procfs.SKIPPED_NAMES, missing_nodes, dev)
            given = tuple(gpu for gpu in result.gpus if procfs.is_given(host, gpu.minor))
            return result._replace(gpus=given), errors.Problem("", "")
        except nvml.UnusableNvmlError as error:
            reasons.append(str(error))
    if not libraries:
        message = f"There is no {nvml.LIBRARY} below {files.label}."
        advice = (
            "Install the libraries of the loaded driver's version. If they are in another directory, name it as"
            f" {errors.option:driver_root}."
        )
        return None, errors.Problem(ABSENT, message, advice)
    return None, errors.Problem(UNUSABLE, " ".join(reasons))


def mig_nodes(host: hostfs.HostFS, found: GpuInventory) -> list[str]:
    """Return the device nodes of the MIG devices, without those of their GPUs. Raises as Capabilities.minors()."""
    capabilities = procfs.MigCapabilities(host)
    parts = [(gpu.minor, mig) for gpu in found.gpus for mig in gpu.migs]
    return [path for minor, mig in parts for path in capabilities.nodes(minor, mig.gi, mig.ci)]


def missing_node(path: str, code: str = NODE) -> errors.Problem:
    """Return the problem of a device node that does not exist."""
    return errors.Problem(code, f"{path} does not exist.")


def unusable_devices(host: hostfs.HostFS, found: GpuInventory, folder: str = device_nodes.DEV) -> list[GpuProblem]:
    """Return the GPUs and MIG devices of ``found`` that no container can use, with the reasons.

    It checks the device nodes in ``folder``, the result of dev_directory(), including those of MIG capabilities, and
    whether the GPU is still on the PCI bus. It opens no device node, so it does not wake up a suspended GPU.
    """
    problems: list[GpuProblem] = []
    capabilities = procfs.MigCapabilities(host)
    for gpu in found.gpus:
        index, device = str(gpu.number), f"{PCI}/{gpu.bus}"
        if is_off_bus(host, gpu.bus):
            message = f"{device} does not exist: the GPU is no longer on the PCI bus."
            problems.append(GpuProblem(index, errors.Problem("gpu-off-bus", message)))
        nodes = [(index, f"nvidia{gpu.minor}", gpu.minor, NODE)]
        for mig in gpu.migs:
            name = f"{index}:{mig.number}"
            try:
                minors = capabilities.minors(gpu.minor, mig.gi, mig.ci)
            except errors.NvidiaError as error:
                problems.append(GpuProblem(name, errors.Problem.of(error)))
                continue
            nodes += [(name, f"nvidia-caps/nvidia-cap{minor}", minor, MIG_NODE) for minor in minors]
        problems += [
            GpuProblem(name, problem)
            for name, node, minor, code in nodes
            for problem in _node_problems(host, f"{folder}/{node}", minor, code)
        ]
    return problems


def _from_nvml(gpu: nvml.NvmlGpu) -> Gpu:
    try:
        bus = procfs.normalize_address(gpu.bus)
    except ValueError:
        raise errors.HostError(
            f"NVML reports the invalid PCI address {gpu.bus!r} for GPU {gpu.number}. {procfs.CHECK_LOG}"
        ) from None
    migs = tuple(MigDevice(*mig[:5]) for mig in gpu.migs)
    if any(mig.gfx is None for mig in migs):
        message = f"NVML tells only root which MIG devices of GPU {gpu.number} have graphics."
        raise errors.with_advice(errors.HostError, message, "Run the task as root (become: true).")
    return Gpu(gpu.number, gpu.uuid, gpu.minor, bus, gpu.name, gpu.mig, migs, gpu.coherent)


def _from_proc(host: hostfs.HostFS, reason: errors.Problem) -> GpuInventory:
    driver = procfs.loaded_driver(host)
    if driver is None:
        raise errors.HostError(
            f"No NVIDIA driver is loaded: {procfs.VERSION_FILES[0]} does not exist. Run modprobe nvidia, and check the"
            " kernel's log if that fails."
        )
    if driver.version is None:
        raise errors.HostError(f"{driver.path} contains no driver version. {procfs.RELOAD}")
    _refuse_mig(host, reason.message)
    gpus = tuple(
        Gpu(index, gpu.uuid, gpu.minor, gpu.bus, gpu.name, mig=False, migs=())
        for index, gpu in enumerate(procfs.read_gpus(host))
        if gpu.name not in procfs.SKIPPED_NAMES
    )
    return GpuInventory(driver.version, gpus, "proc", tuple(_warnings(host, gpus, reason)))


def _refuse_mig(host: hostfs.HostFS, reason: str) -> None:
    """Raise HostError if there are MIG devices, because /proc has neither their UUIDs nor their order."""
    found = procfs.mig_instances(host)
    if found:
        first = found[0]
        raise errors.HostError(
            f"This host has MIG devices ({procfs.CAPABILITIES}/gpu{first.minor}/mig/gi{first.gi}), which only NVML can"
            f" list. {reason} Install the libnvidia-ml.so.1 of the loaded driver's version, and do not set"
            f" {errors.option:use_nvml} to false."
        )


def _warnings(host: hostfs.HostFS, gpus: t.Iterable[Gpu], reason: errors.Problem) -> t.Iterator[str]:
    """Yield warnings about what /proc does not contain."""
    mig_capable = host.exists(procfs.MIG_MINORS)
    if mig_capable or reason.code != NOT_QUERIED:
        yield f"{listed_from_proc(mig_capable, reason)} {reason.advice}".rstrip()
    unknown = [str(gpu.number) for gpu in gpus if not gpu.uuid]
    if unknown:
        yield f"{unknown_uuid(unknown)} {READ_UUID}"


# What to do about unknown_uuid().
READ_UUID = "Run nvidia-smi -L once, or enable nvidia-persistenced."


def listed_from_proc(mig_capable: bool, reason: errors.Problem) -> str:
    """Return the message about GPUs that are listed from /proc. ``reason`` is why NVML has no result."""
    limit = " /proc shows neither MIG mode without MIG devices nor the UUIDs of MIG devices." if mig_capable else ""
    return f"The GPUs are listed from /proc, sorted by PCI address.{limit} {reason.message}"


def unknown_uuid(indices: t.Sequence[str]) -> str:
    """Return the message about GPUs whose UUID the driver reads only when they are used for the first time."""
    return (
        f"The driver has not read the UUID of GPU {core_text.listed(indices)} yet, because no program has used it since"
        " the driver was loaded."
    )


def _node_problems(host: hostfs.HostFS, path: str, minor: int, code: str) -> t.Iterator[errors.Problem]:
    """Yield the problem of a device node, if there is one. ``code`` is the code of the problem."""
    try:
        status = os.stat(host.real_path(path))
    except (errors.HostError, OSError):
        yield missing_node(path, code)
        return
    advice = f"Remove {path}, then run {device_nodes.command_for_node(path)} as root, which creates it."
    if not stat.S_ISCHR(status.st_mode):
        yield errors.Problem(code, f"{path} is not a character device.", advice)
    elif os.minor(status.st_rdev) != minor:
        message = f"{path} has the minor number {os.minor(status.st_rdev)}, not {minor}."
        yield errors.Problem(code, message, advice)
