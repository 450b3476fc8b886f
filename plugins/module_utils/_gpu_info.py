# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the GPUs and MIG devices of a host in one answer: which ones a container could get, and
# why not the others.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import maker_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._device_nodes import control_nodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._driver_modules import (
    different_versions,
    loaded_modules,
    undriven_gpus,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, Problem, as_dicts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import NODE, Machine, faults
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import NEEDED_NODES, loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_sighting import Seen, nodes_of, sight
from ansible_collections.gpufleet.nvidia.plugins.module_utils._mig_capabilities import Capabilities

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


def describe_gpus(host: HostRoot) -> dict[str, t.Any]:
    """All that is known of the GPUs of ``host``; a strange one gives problems in the answer, never an error."""
    modules = loaded_modules(host)
    answer: dict[str, t.Any] = {
        "driver_version": None,
        "source": None,
        "modules": {module.name: {"version": module.version, "refcount": module.refcount} for module in modules},
        "devices": [],
        "advertised": [],
        "missing_nodes": [],
    }
    problems = different_versions(modules)
    try:
        _look(host, answer, problems)
    except (GpufleetError, OSError, ValueError) as error:
        # Numbers in /proc that are none of the kernel's, for one.
        code = error.code if isinstance(error, GpufleetError) else "gpus-unreadable"
        problems.append(Problem(code, f"Not all of the GPUs could be looked at: {error}"))
    answer["problems"] = as_dicts(dict.fromkeys(problems))
    return answer


def _look(host: HostRoot, answer: dict[str, t.Any], problems: list[Problem]) -> None:
    driver = loaded_driver(host)
    if driver is None:
        problems += undriven_gpus(host, ()) if host.live else []
        return
    sighting = sight(host)
    problems += [*sighting.problems, *(undriven_gpus(host, sighting.addresses) if host.live else [])]
    answer["driver_version"], answer["source"] = sighting.version or driver.version, sighting.source
    missing = _missing(host, sighting.gpus)
    answer["missing_nodes"] = [{"path": path, "advice": f"{maker_of(path)}."} for path in missing]
    devices = answer["devices"] = _devices(host, sighting.gpus, missing)
    healthy = (one["uuid"] for one in _advertised(devices) if one["healthy"])
    answer["advertised"] = [uuid for uuid in healthy if uuid is not None]


def _advertised(devices: t.Iterable[dict[str, t.Any]]) -> t.Iterator[dict[str, t.Any]]:
    """What a container is given one of: GPUs that are not in MIG mode, and MIG devices."""
    for device in devices:
        yield from device["mig_devices"] if device["mig_enabled"] else [device]


def _missing(host: HostRoot, gpus: t.Iterable[Seen]) -> list[str]:
    """The device nodes that should be there and are not."""
    capabilities = Capabilities(host)
    nodes = [*NEEDED_NODES, *(node.path for node in control_nodes(host))]
    nodes += [node for one in gpus for node in nodes_of(one.gpu, capabilities)]
    return [node for node in dict.fromkeys(nodes) if not host.exists(node)]


def _devices(host: HostRoot, gpus: t.Sequence[Seen], missing: t.Collection[str]) -> list[dict[str, t.Any]]:
    usable = tuple(one.gpu for one in gpus if ":" in one.gpu.bus and one.gpu.minor >= 0)
    reasons: dict[str, list[Problem]] = {}
    for fault in faults(host, Machine("", usable, "", ())):
        reasons.setdefault(fault.name, []).append(fault.problem)
    # Without these no GPU is of use.
    shared = [Problem(NODE, f"{node} is not there.") for node in NEEDED_NODES if node in missing]
    return [_device(one, shared, reasons) for one in gpus]


def _device(one: Seen, shared: t.Sequence[Problem], reasons: t.Mapping[str, t.Sequence[Problem]]) -> dict[str, t.Any]:
    gpu = one.gpu
    own = [*one.troubles, *reasons.get(str(gpu.index), ()), *shared]
    parts = []
    for number, mig in enumerate(gpu.migs):
        # What keeps containers from a GPU keeps them from its parts.
        why = [*reasons.get(f"{gpu.index}:{mig.index}", ()), *own]
        parts.append(
            {
                "index": _number(mig.index),
                "uuid": mig.uuid or None,
                "gpu_instance": mig.gi,
                "compute_instance": mig.ci,
                "profile": (one.profiles[number] if number < len(one.profiles) else "") or None,
                "healthy": not why,
                "reasons": as_dicts(why),
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
        "reasons": as_dicts(own),
    }


def _number(number: int) -> int | None:
    return number if number >= 0 else None
