# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: every GPU of a host for those who only look: those in trouble too, and without making a
# device node.  What generates a specification takes _gpu_machine, which accepts no GPU that does not answer.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._device_nodes import may_change
from ansible_collections.gpufleet.nvidia.plugins.module_utils._driver_modules import normal_or_same
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, Problem, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import (
    NOT_ASKED,
    Gpu,
    MigDevice,
    nvml_answer,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_proc import (
    GPUS,
    SKIPPED_NAMES,
    bounded_text,
    read_information,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._mig_capabilities import (
    MIG_MINORS,
    Capabilities,
    instances,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._nvml import NvmlAnswer, NvmlGpu

CONTROL_NODE = "/dev/nvidiactl"
# Where the driver's files are besides /: that of a container with the driver (NVIDIA's GPU Operator).
_DRIVER_ROOTS = ("/", "/run/nvidia/driver")
# The real files have some 300 bytes.
_MOST = 1 << 16
_LOG = "Look at the kernel's log for NVRM and Xid."


class Seen(t.NamedTuple):
    """A GPU, and why it cannot be used, as far as the driver says so.

    Numbers below 0, indexes of MIG devices too, and empty texts are not known.  ``mig`` is whether MIG mode is on, None
    where that is not known.  ``profiles`` are those of the MIG devices, in their order.
    """

    gpu: Gpu
    troubles: tuple[Problem, ...] = ()
    mig: bool | None = False
    profiles: tuple[str, ...] = ()


class Sighting(t.NamedTuple):
    """The GPUs of a host, and what was strange about them.

    ``version`` is the driver's as NVML tells, ``source`` nvml or proc, ``addresses`` all that the driver knows, those
    of GPUs that it was told to leave alone too.
    """

    version: str | None
    source: str
    gpus: tuple[Seen, ...]
    addresses: frozenset[str]
    problems: tuple[Problem, ...]


def sight(host: HostRoot) -> Sighting:
    """The GPUs of ``host``, which has a loaded driver: by NVML, or else from /proc; never raises GpufleetError."""
    problems: list[Problem] = []
    listed, addresses = _listed(host)
    try:
        listed = _divided(host, listed)
    except GpufleetError as error:
        problems.append(Problem.of(error))
    try:
        answer, refusal = _asked(host, _absent(host, listed))
    except GpufleetError as error:
        # As the driver's libraries do not work, they do not in containers.
        trouble = Problem.of(error)
        gpus = tuple(one._replace(troubles=(*one.troubles, trouble)) for one in listed)
        return Sighting(None, "proc", gpus, addresses, (*problems, trouble))
    if answer is None:
        problems += _limits_of_proc(host, listed, refusal)
        return Sighting(None, "proc", tuple(listed), addresses, tuple(problems))
    gpus = tuple(_by_nvml(answer, listed))
    known = addresses | {one.gpu.bus for one in gpus}
    return Sighting(answer.version, "nvml", gpus, known, tuple(problems))


def nodes_of(gpu: Gpu, capabilities: Capabilities) -> list[str]:
    """The device nodes of a GPU and of its MIG devices, as far as their numbers are known."""
    nodes = [f"/dev/nvidia{gpu.minor}"] if gpu.minor >= 0 else []
    for mig in gpu.migs:
        nodes += nodes_of_mig(gpu, mig, capabilities)
    return nodes


def nodes_of_mig(gpu: Gpu, mig: MigDevice, capabilities: Capabilities) -> list[str]:
    """The device nodes of the capabilities of a MIG device; empty where their numbers cannot be read."""
    try:
        return list(capabilities.nodes(gpu.minor, mig.gi, mig.ci))
    except GpufleetError:
        return []


# -- /proc -------------------------------------------------------------------------------------------------------------


def _listed(host: HostRoot) -> tuple[list[Seen], frozenset[str]]:
    """The GPUs as /proc has them, and the addresses of all that are there."""
    capable = host.exists(MIG_MINORS)
    found: list[tuple[str, Seen | None]] = []
    for name in host.readable_entries(GPUS):
        path = f"{GPUS}/{name}/information"
        try:
            known = read_information(bounded_text(host, path, _MOST), path)
        except GpufleetError as error:
            bus = normal_or_same(name)
            found.append((bus, Seen(Gpu(-1, "", -1, bus, "", mig=False, migs=()), (Problem.of(error),), None)))
            continue
        gpu = Gpu(-1, known.uuid, known.minor, known.bus, known.name, mig=False, migs=())
        found.append((known.bus, None if known.excluded else Seen(gpu, mig=None if capable else False)))
    # A domain may have four digits or eight.
    found.sort(key=lambda entry: (len(entry[0]), entry[0]))
    # NVML counts graphics for a screen, too.
    numbered = enumerate(seen for _bus, seen in found if seen is not None)
    seen = [one._replace(gpu=one.gpu._replace(index=index)) for index, one in numbered]
    return [one for one in seen if one.gpu.name not in SKIPPED_NAMES], frozenset(bus for bus, _seen in found)


def _divided(host: HostRoot, listed: t.Sequence[Seen]) -> list[Seen]:
    """With the MIG devices that /proc tells of, which tells neither their indexes nor their UUIDs."""
    parts: dict[int, list[MigDevice]] = {}
    for instance in instances(host):
        devices = parts.setdefault(instance.minor, [])
        for ci in instance.compute:
            devices.append(MigDevice(-1 - len(devices), "", instance.gi, ci, gfx=False))
    return [
        one._replace(gpu=one.gpu._replace(mig=True, migs=tuple(parts[one.gpu.minor])), mig=True)
        if one.gpu.minor in parts
        else one
        for one in listed
    ]


def _limits_of_proc(host: HostRoot, listed: t.Sequence[Seen], refusal: Problem) -> t.Iterator[Problem]:
    """What /proc does not tell of the GPUs in ``listed``; ``refusal`` says why NVML was not asked."""
    capable = host.exists(MIG_MINORS)
    if listed and (capable or refusal.code != NOT_ASKED):
        blind = " It tells neither MIG mode without MIG devices nor the UUIDs of these." if capable else ""
        message = f"The GPUs are listed from /proc, by their PCI addresses.{blind} {refusal.message}"
        yield Problem("gpus-from-proc", message)
    unknown = [str(one.gpu.index) for one in listed if not one.gpu.uuid and not one.troubles]
    if unknown:
        message = (
            f"The driver does not know the UUID of GPU {few(unknown)} yet, because nothing has used it since the start."
            " Run nvidia-smi -L once, or let nvidia-persistenced run."
        )
        yield Problem("gpu-uuid-unknown", message)


# -- NVML --------------------------------------------------------------------------------------------------------------


def _absent(host: HostRoot, listed: t.Sequence[Seen]) -> list[str]:
    """The device nodes that NVML would make."""
    if not may_change(host):
        return []
    capabilities = Capabilities(host)
    nodes = [CONTROL_NODE, *(node for one in listed for node in nodes_of(one.gpu, capabilities))]
    return [node for node in dict.fromkeys(nodes) if not host.exists(node)]


def _asked(host: HostRoot, absent: t.Sequence[str]) -> tuple[NvmlAnswer | None, Problem]:
    """What NVML tells, or None and why it was not asked; raises HostError as nvml_answer() does."""
    refusals: list[Problem] = []
    for root in _DRIVER_ROOTS:
        if root == "/" or host.exists(root):
            answer, refusal = nvml_answer(host, root, absent=absent)
            if answer is not None:
                return answer, refusal
            refusals.append(refusal)
    return None, refusals[0]._replace(message=" ".join(dict.fromkeys(refusal.message for refusal in refusals)))


def _by_nvml(answer: NvmlAnswer, listed: t.Sequence[Seen]) -> list[Seen]:
    """The GPUs in NVML's order, then those that it does not tell of."""
    seen = [_of_nvml(gpu) for gpu in answer.gpus if gpu.name not in SKIPPED_NAMES]
    told = {one.gpu.bus for one in seen}
    if "" in told:
        # The one without an address may be any of those that seem to be missing.
        return seen
    for number, one in enumerate(listed):
        if one.gpu.bus not in told:
            troubles = one.troubles or (Problem("gpu-not-listed", f"NVML does not list it. {_LOG}"),)
            seen.append(one._replace(gpu=one.gpu._replace(index=-1 - number), troubles=troubles))
    return seen


def _of_nvml(gpu: NvmlGpu) -> Seen:
    bus = normal_or_same(gpu.bus)
    told = Gpu(gpu.index, gpu.uuid, gpu.minor, bus, gpu.name, gpu.mig, tuple(MigDevice(*mig[:5]) for mig in gpu.migs))
    if gpu.failure:
        return Seen(told, (Problem("gpu-failed", gpu.failure),), gpu.mig or None)
    # The kernel's tables know it by its address.
    message = f"NVML says that it has the PCI address {bus!r}, which is none. {_LOG}"
    troubles = () if ":" in bus else (Problem("gpu-address-invalid", message),)
    return Seen(told, troubles, gpu.mig, tuple(mig.profile for mig in gpu.migs))
