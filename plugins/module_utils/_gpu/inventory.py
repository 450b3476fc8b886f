# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs and MIG devices of a host, from NVML or from /proc."""

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
# The codes of nvml_answer() where it gives no answer.
NOT_ASKED, UNUSABLE = "nvml-not-asked", "nvml-unusable"
# The code of a fault in the device nodes of a MIG device, and of one in the device node of a GPU.
MIG_NODE, NODE = "mig-node-unusable", "node-unusable"
_PCI = "/sys/bus/pci/devices"
# The second since the toolkit 1.17.7 (IsIntegratedGPUName in pkg/nvlib/info/property-extractor.go of go-nvlib).
_INTEGRATED = ("(nvgpu)", "NVIDIA Thor")


class MigDevice(t.NamedTuple):
    """A part of a GPU: its number on that GPU, and the numbers of its GPU instance and its compute instance.

    ``gfx`` says that it can draw, too.
    """

    # What tuples have of this name nobody needs.
    index: int  # type: ignore[assignment]
    uuid: str
    gi: int
    ci: int
    gfx: bool


class Gpu(t.NamedTuple):
    """A GPU; ``index`` is NVML's, ``minor`` that of its device node, ``bus`` its PCI address in lower case.

    The address has a domain of four digits, or of eight where four do not hold it.  ``uuid`` is empty where the driver
    does not know it yet.  ``mig`` says that MIG mode is on, even without a MIG device.  ``coherent`` is as in
    NvmlGpu, and means nothing in a Machine whose source is not NVML.
    """

    # What tuples have of this name nobody needs.
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
    """NVML does not report all of a GPU that is part of a Tegra."""


class GpuProblem(t.NamedTuple):
    """Why a container cannot use a GPU, or one of its MIG devices; ``name`` as in CDI: 0, or 0:1."""

    name: str
    problem: errors.Problem


def machine(
    host: hostfs.HostFS, driver_root: str = "/", use_nvml: bool | None = None, library_folders: t.Sequence[str] = ()
) -> GpuInventory:
    """The GPUs of ``host``, whose driver's files are below ``driver_root``: by NVML, or else from /proc.

    ``use_nvml`` is None for NVML wherever the host is live; ``library_folders`` as in DriverFiles.  Excluded GPUs and
    graphics for a screen alone (SKIPPED_NAMES) are left out; the latter leave a gap in the indices.  An NVML that
    cannot be used is a warning.

    Raises HostError where NVML returns an error, where a GPU does not answer, where no driver is loaded, and where
    there are MIG devices that only an NVML that cannot be used could tell of; ConfigurationError where a file of the
    driver makes no sense.  These are never quietly fewer GPUs than there are.
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
    """Whether a GPU is part of a Tegra, by its name."""
    return any(part in name for part in _INTEGRATED)


def nvml_answer(
    host: hostfs.HostFS,
    driver_root: str = "/",
    use_nvml: bool | None = None,
    library_folders: t.Sequence[str] = (),
    absent: t.Sequence[str] | None = None,
) -> tuple[nvml.NvmlAnswer | None, errors.Problem]:
    """What NVML tells, failures of single GPUs included, or None and why it was not asked; arguments as of machine().

    The problem of an answer is empty, that of no answer has the code NOT_ASKED or UNUSABLE.

    ``absent``, the device nodes that it would make, keeps it from making any; None lets it.

    Raises HostError where it returns an error, crashes or hangs.
    """
    if not (host.live if use_nvml is None else use_nvml):
        return None, errors.Problem(NOT_ASKED, _NOT_ASKED)
    # Who does not ask need not wait for this import.
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
    """The device nodes of the MIG devices of ``found``, but for those of their GPUs; raises as Capabilities.of()."""
    capabilities = procfs.Capabilities(host)
    parts = [(gpu.minor, mig) for gpu in found.gpus for mig in gpu.migs]
    return [path for minor, mig in parts for path in capabilities.nodes(minor, mig.gi, mig.ci)]


def faults(host: hostfs.HostFS, found: GpuInventory) -> list[GpuProblem]:
    """What of ``found`` no container can use, and why, as far as it is seen without waking a GPU.

    Device nodes, those of MIG devices' capabilities too, may be missing or be something else, and the PCI bus may have
    lost the GPU.  One that NVML has trouble with is not in ``found``: nvml_answer() tells of it.
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
    """Raises HostError where there are MIG devices: /proc has neither their UUIDs nor their order."""
    found = procfs.instances(host)
    if found:
        first = found[0]
        raise errors.HostError(
            f"There are MIG devices ({procfs.CAPABILITIES}/gpu{first.minor}/mig/gi{first.gi}), of which only NVML"
            f" tells."
            f" {refusal} Let NVML be used, with libnvidia-ml.so.1 in the loaded driver's version."
        )


def _doubts(host: hostfs.HostFS, gpus: t.Iterable[Gpu], refusal: errors.Problem) -> t.Iterator[str]:
    """What may be other than /proc makes it look."""
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
    """What is wrong with a device node, if anything is."""
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
    """The address as sysfs has it: the domain with as many digits as it needs, at least four."""
    domain, rest = bus.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"
