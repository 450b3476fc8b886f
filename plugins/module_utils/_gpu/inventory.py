# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs and MIG devices of a host, from NVML or from /proc.

It raises an error if a GPU does not answer. ``info`` reports such GPUs too.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files, file_lookup, procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml


_NOT_ASKED = "NVML was not asked: it is left alone in offline trees, and where it is not wanted."
# The codes of nvml_answer() if there is no answer.
NOT_ASKED, UNUSABLE = "nvml-not-asked", "nvml-unusable"
# The codes of a fault in the device nodes of a MIG device, and in the device node of a GPU.
MIG_NODE, NODE = "mig-node-unusable", "node-unusable"
_PCI = "/sys/bus/pci/devices"
# The second name is known since toolkit 1.17.7 (IsIntegratedGPUName in pkg/nvlib/info/property-extractor.go of
# go-nvlib).
_INTEGRATED = ("(nvgpu)", "NVIDIA Thor")


class MigDevice(t.NamedTuple):
    """A MIG device: its number on its GPU, and the numbers of its GPU instance and its compute instance.

    ``gfx`` says that it supports graphics.
    """

    # Hides tuple.index on purpose.
    index: int  # type: ignore[assignment]
    uuid: str
    gi: int
    ci: int
    gfx: bool


class Gpu(t.NamedTuple):
    """A GPU.

    ``index`` is NVML's. ``minor`` is the minor number of its device node. ``bus`` is its PCI address as from
    normal_bus(): in lower case, with a domain of four digits, or of eight if four are not enough. ``uuid`` is empty if
    the driver does not know it yet. ``mig`` says that MIG mode is on, even without MIG devices. ``coherent`` is as in
    NvmlGpu, and has no meaning in a GpuInventory from /proc.
    """

    # Hides tuple.index on purpose.
    index: int  # type: ignore[assignment]
    uuid: str
    minor: int
    bus: str
    name: str
    mig: bool
    migs: tuple[MigDevice, ...]
    coherent: bool | None = False


class GpuInventory(t.NamedTuple):
    """The GPUs of a host in NVML's order, and the driver's version; ``source`` is "nvml" or "proc"."""

    version: str
    gpus: tuple[Gpu, ...]
    source: str
    warnings: tuple[str, ...]


class IntegratedGpuError(errors.HostError):
    """The error for an integrated GPU of a Tegra, of which NVML does not report everything."""


class GpuProblem(t.NamedTuple):
    """The reason why a container cannot use a GPU or a MIG device; ``name`` is as in CDI, such as 0 or 0:1."""

    name: str
    problem: errors.Problem


def machine(
    host: hostfs.HostFS, driver_root: str = "/", use_nvml: bool | None = None, library_folders: t.Sequence[str] = ()
) -> GpuInventory:
    """Return the GPUs of ``host`` from NVML, or from /proc if NVML cannot be used.

    Excluded GPUs and display adapters (SKIPPED_NAMES) are omitted; the latter leave a gap in the indices. An NVML that
    cannot be used gives a warning.

    Args:
        host: The host.
        driver_root: The directory of the driver's files.
        use_nvml: Whether to use NVML; None for yes if the host is live.
        library_folders: As in DriverFiles.

    Raises:
        HostError: NVML returns an error, a GPU does not answer, no driver is loaded, or there are MIG devices and NVML
            cannot be used. The list never silently has fewer GPUs than the host.
        ConfigurationError: A file of the driver is invalid.
    """
    answer, refusal = nvml_answer(host, driver_root, use_nvml, library_folders)
    if answer is None:
        return _from_proc(host, refusal)
    for gpu in answer.gpus:
        if gpu.failure:
            error = IntegratedGpuError if is_integrated(gpu.name) else errors.HostError
            raise error(f"GPU {gpu.index} ({gpu.bus or 'its address is unknown'}): {gpu.failure}")
    gpus = tuple(_from_nvml(gpu) for gpu in answer.gpus if gpu.name not in procfs.SKIPPED_NAMES)
    return GpuInventory(answer.version, gpus, "nvml", ())


def is_integrated(name: str) -> bool:
    """Return whether a GPU with this name is part of a Tegra."""
    return any(part in name for part in _INTEGRATED)


def nvml_answer(
    host: hostfs.HostFS,
    driver_root: str = "/",
    use_nvml: bool | None = None,
    library_folders: t.Sequence[str] = (),
    absent: t.Sequence[str] | None = None,
) -> tuple[nvml.NvmlAnswer | None, errors.Problem]:
    """Return NVML's answer, with failures of single GPUs, or None; and the reason why there is no answer.

    The reason is an empty problem if there is an answer; otherwise its code is NOT_ASKED or UNUSABLE.

    The first four arguments are those of machine(). ``absent`` has the device nodes that NVML would create, to prevent
    that; with None, NVML may create them.

    Raises:
        HostError: NVML returns an error, crashes or hangs.
    """
    if not (host.live if use_nvml is None else use_nvml):
        return None, errors.Problem(NOT_ASKED, _NOT_ASKED)
    # Callers that do not use NVML do not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml  # noqa: PLC0415

    files = driver_files.DriverFiles(file_lookup.CachedFS(host), driver_root, library_folders)
    libraries = [host.real_path(found.host) for found in files.libraries(nvml.LIBRARY)]
    refusals: list[str] = []
    for library in libraries:
        try:
            return nvml.ask(library, procfs.SKIPPED_NAMES, absent), errors.Problem("", "")
        except nvml.UnusableNvmlError as error:
            refusals.append(str(error))
    return None, errors.Problem(UNUSABLE, " ".join(refusals) or f"There is no {nvml.LIBRARY} below {files.place}.")


def mig_nodes(host: hostfs.HostFS, found: GpuInventory) -> list[str]:
    """Return the device nodes of the MIG devices, without those of their GPUs. Raises as Capabilities.of()."""
    capabilities = procfs.Capabilities(host)
    parts = [(gpu.minor, mig) for gpu in found.gpus for mig in gpu.migs]
    return [path for minor, mig in parts for path in capabilities.nodes(minor, mig.gi, mig.ci)]


def faults(host: hostfs.HostFS, found: GpuInventory) -> list[GpuProblem]:
    """Return the GPUs and MIG devices of ``found`` that no container can use, with reasons, without waking a GPU.

    Device nodes, including those of MIG capabilities, may be missing or wrong, and a GPU may be lost from the PCI bus.
    GPUs for which NVML returns an error are not in ``found``, but in the answer of nvml_answer().
    """
    told: list[GpuProblem] = []
    capabilities = procfs.Capabilities(host)
    for gpu in found.gpus:
        index, device = str(gpu.index), f"{_PCI}/{_kernel_address(gpu.bus)}"
        if host.exists(_PCI) and not host.exists(device):
            message = f"{device} is not there: the GPU is no longer on the PCI bus."
            told.append(GpuProblem(index, errors.Problem("gpu-off-bus", message)))
        nodes = [(index, f"nvidia{gpu.minor}", gpu.minor, NODE)]
        for mig in gpu.migs:
            name = f"{index}:{mig.index}"
            try:
                minors = capabilities.of(gpu.minor, mig.gi, mig.ci)
            except errors.NvidiaError as error:
                told.append(GpuProblem(name, errors.Problem.of(error)))
                continue
            nodes += [(name, f"nvidia-caps/nvidia-cap{minor}", minor, MIG_NODE) for minor in minors]
        told += [
            GpuProblem(name, errors.Problem(code, message))
            for name, node, minor, code in nodes
            for message in _node(host, f"/dev/{node}", minor)
        ]
    return told


def _from_nvml(gpu: nvml.NvmlGpu) -> Gpu:
    try:
        bus = procfs.normal_bus(gpu.bus)
    except ValueError:
        raise errors.HostError(
            f"NVML says that GPU {gpu.index} has the PCI address {gpu.bus!r}, which is none."
        ) from None
    migs = tuple(MigDevice(*mig[:5]) for mig in gpu.migs)
    return Gpu(gpu.index, gpu.uuid, gpu.minor, bus, gpu.name, gpu.mig, migs, gpu.coherent)


def _from_proc(host: hostfs.HostFS, refusal: errors.Problem) -> GpuInventory:
    driver = gpu_detect.loaded_driver(host)
    if driver is None:
        raise errors.HostError(
            f"{gpu_detect.VERSION_FILES[0]} is not there: no NVIDIA driver is loaded. Load it with modprobe nvidia,"
            f" and look at"
            f" the kernel's log if that fails. {refusal.message}"
        )
    if driver.version is None:
        raise errors.HostError(f"{driver.path} does not tell the driver's version. Load NVIDIA's driver again.")
    _refuse_mig(host, refusal.message)
    gpus = tuple(
        Gpu(index, gpu.uuid, gpu.minor, gpu.bus, gpu.name, mig=False, migs=())
        for index, gpu in enumerate(procfs.information(host))
        if gpu.name not in procfs.SKIPPED_NAMES
    )
    return GpuInventory(driver.version, gpus, "proc", tuple(_doubts(host, gpus, refusal)))


def _refuse_mig(host: hostfs.HostFS, refusal: str) -> None:
    """Raise HostError if there are MIG devices, because /proc has neither their UUIDs nor their order."""
    found = procfs.instances(host)
    if found:
        first = found[0]
        raise errors.HostError(
            f"There are MIG devices ({procfs.CAPABILITIES}/gpu{first.minor}/mig/gi{first.gi}), of which only NVML"
            f" tells."
            f" {refusal} Let NVML be used, with libnvidia-ml.so.1 in the loaded driver's version."
        )


def _doubts(host: hostfs.HostFS, gpus: t.Iterable[Gpu], refusal: errors.Problem) -> t.Iterator[str]:
    """Yield warnings about what /proc does not show."""
    capable = host.exists(procfs.MIG_MINORS)
    if capable or refusal.code != NOT_ASKED:
        blind = " A GPU in MIG mode that has no MIG devices is not told from a whole one." if capable else ""
        yield f"The GPUs are listed from /proc, by their PCI addresses.{blind} {refusal.message}"
    unknown = [str(gpu.index) for gpu in gpus if not gpu.uuid]
    if unknown:
        yield (
            f"The driver does not know the UUID of GPU {', '.join(unknown)} yet, because nothing has used it since the"
            " start. Run nvidia-smi -L once, or let nvidia-persistenced run."
        )


def _node(host: hostfs.HostFS, path: str, minor: int) -> t.Iterator[str]:
    """Yield the error of a device node, if there is one."""
    try:
        status = os.stat(host.real_path(path))
    except (errors.HostError, OSError):
        yield f"{path} is not there."
        return
    if not stat.S_ISCHR(status.st_mode):
        yield f"{path} is not a character device."
    elif os.minor(status.st_rdev) != minor:
        yield f"{path} has the minor number {os.minor(status.st_rdev)}, not {minor}."


def _kernel_address(bus: str) -> str:
    """Return the address as in sysfs: the domain with as many digits as it needs, at least four."""
    domain, rest = bus.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"
