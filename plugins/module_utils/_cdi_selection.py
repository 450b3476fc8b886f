# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which GPUs and MIG devices a CDI specification names, and how.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import ALL, Device, Edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import INDEX, TYPE_INDEX
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_devices import DeviceNodes
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import Gpu, Machine, MigDevice

# A GPU, or its MIG device.
_NUMBERS = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?\Z")


class _Chosen(t.NamedTuple):
    """A GPU as a whole, or its part."""

    gpu: Gpu
    part: MigDevice | None


def selected_devices(
    machine: Machine, ids: t.Sequence[str], strategies: t.Sequence[str], nodes: DeviceNodes
) -> list[Device]:
    """The devices with one of ``ids``, all without any; each once for every name that the strategies give it.

    Raises GpufleetError for an unknown identifier, HostError where a device has no node or no name.
    """
    chosen = _all(machine) if not ids or ALL in ids else [_by_identifier(machine, wanted) for wanted in ids]
    if not chosen:
        raise HostError(
            "The NVIDIA driver reports no GPU and no MIG device that a specification could name. If MIG mode is on,"
            " make MIG devices first; else see what dmesg says of the driver."
        )
    devices = []
    for gpu, part in dict.fromkeys(chosen):
        edits = nodes.gpu(gpu) if part is None else nodes.mig(gpu, part)
        _require_nodes(gpu, edits)
        coherent = gpu.coherent if part is None else None
        names = dict.fromkeys(_name(gpu, part, kind) for kind in strategies)
        devices += [Device(name, edits, coherent) for name in names]
    return devices


def chosen_of(machine: Machine, ids: t.Sequence[str]) -> Machine:
    """``machine`` with no more than what ``ids`` name; a GPU that is asked for as a whole counts as one.

    Raises GpufleetError for an unknown identifier.
    """
    if not ids or ALL in ids:
        return machine
    chosen = list(dict.fromkeys(_by_identifier(machine, wanted) for wanted in ids))
    gpus = []
    for gpu in machine.gpus:
        if any(one.gpu is gpu and one.part is None for one in chosen):
            gpus.append(gpu._replace(mig=False, migs=()))
        parts = tuple(one.part for one in chosen if one.gpu is gpu and one.part is not None)
        if parts:
            gpus.append(gpu._replace(mig=True, migs=parts))
    return machine._replace(gpus=tuple(gpus))


def _all(machine: Machine) -> list[_Chosen]:
    whole = [_Chosen(gpu, None) for gpu in machine.gpus if not gpu.mig]
    return whole + [_Chosen(gpu, part) for gpu in machine.gpus for part in gpu.migs]


def _by_identifier(machine: Machine, wanted: str) -> _Chosen:
    # Asked for by its own name a GPU is given as a whole, be MIG mode on or off.
    candidates = [_Chosen(gpu, part) for gpu in machine.gpus for part in (None, *gpu.migs)]
    match = _NUMBERS.match(wanted)
    for candidate in candidates:
        gpu, part = candidate
        numbers = (gpu.index, None if part is None else part.index)
        if match and numbers == (int(match.group(1)), None if match.group(2) is None else int(match.group(2))):
            return candidate
        if wanted and wanted == (gpu.uuid if part is None else part.uuid):
            return candidate
    known = ", ".join(_name(gpu, part, INDEX) for gpu, part in candidates) or "none"
    raise GpufleetError(
        f"device_ids: there is no device {wanted!r}. Use an index, a UUID, all or none; the devices here are {known}."
    )


def _name(gpu: Gpu, part: MigDevice | None, strategy: str) -> str:
    if strategy in {INDEX, TYPE_INDEX}:
        number = f"{gpu.index}" if part is None else f"{gpu.index}:{part.index}"
        kind = "gpu" if part is None else "mig"
        return number if strategy == INDEX else kind + number
    uuid = gpu.uuid if part is None else part.uuid
    if not uuid:
        raise HostError(
            f"The driver does not know the UUID of GPU {gpu.index} ({gpu.bus}) yet, because nothing has used it since"
            " the start. Run nvidia-smi -L or start nvidia-persistenced, or leave uuid out of device_name_strategies."
        )
    return uuid


def _require_nodes(gpu: Gpu, edits: Edits) -> None:
    if not edits.nodes:
        raise HostError(
            f"GPU {gpu.index} ({gpu.bus}) has no device node: /dev/nvidia{gpu.minor} is missing. Make the nodes with"
            " nvidia-modprobe -u -c=0, nvidia-smi or nvidia-persistenced."
        )
