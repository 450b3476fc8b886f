# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the GPUs that a container sees with those of its host.

The container runs ``COMMAND``, which prints its device nodes and the output of ``nvidia-smi -L``, or
``NODES_COMMAND``, which prints only its device nodes.
"""

from __future__ import annotations

import re
import typing as t

if t.TYPE_CHECKING:
    # The device nodes of a MIG device, from the minor number of its GPU and the numbers of its two instances.
    MigNodes = t.Callable[[int, int, int], t.Sequence[str]]


_NODE = "device node "
_LIST_NODES = (
    "for node in /dev/nvidia[0-9]* /dev/nvidia-caps/nvidia-cap[0-9]*; do"
    f' if [ -c "$node" ]; then echo "{_NODE}$node"; fi; done;'
)
# The status 127 of a shell means that nvidia-smi or its loader is missing. The device nodes are then compared.
_SCRIPT = (
    f"{_LIST_NODES} if command -v nvidia-smi >/dev/null; then nvidia-smi -L; status=$?;"
    " if [ $status -ne 127 ]; then exit $status; fi; fi; exit 0"
)
COMMAND = ("/bin/sh", "-c", _SCRIPT)
# For containers in which nvidia-smi cannot work.
NODES_COMMAND = ("/bin/sh", "-c", f"{_LIST_NODES} exit 0")
COMMANDS = (COMMAND, NODES_COMMAND)
_UUID = re.compile(r"\(UUID: ((?:GPU|MIG)-[^)\s]+)\)")


class HostGpu(t.NamedTuple):
    """A GPU or a MIG device of the host. An empty ``uuid`` and empty ``nodes`` are unknown."""

    name: str
    uuid: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        known = ", ".join(filter(None, (self.uuid, *self.nodes)))
        return f"{self.name} ({known})" if known else self.name


class View(t.NamedTuple):
    """What a container sees: the UUIDs that nvidia-smi lists, and device nodes."""

    uuids: frozenset[str]
    nodes: frozenset[str]


def gpus_of_host(devices: t.Iterable[t.Mapping[str, t.Any]], mig_nodes: MigNodes) -> list[HostGpu]:
    """Return what a container has to see of ``devices``, which are those of describe_gpus().

    A GPU in MIG mode cannot be used itself, only its MIG devices.
    """
    found: list[HostGpu] = []
    for device in devices:
        index, minor = device["index"], device["minor"]
        name = f"GPU {device['bus_id'] or 'without a number'}" if index is None else f"GPU {index}"
        node = () if minor is None else (f"/dev/nvidia{minor}",)
        if not device["mig_enabled"]:
            found.append(HostGpu(name, device["uuid"] or "", node))
            continue
        for number, mig in enumerate(device["mig_devices"]):
            nodes = tuple(mig_nodes(minor, mig["gpu_instance"], mig["compute_instance"])) if node else ()
            mig_name = f"{name} MIG {number if mig['index'] is None else mig['index']}"
            found.append(HostGpu(mig_name, mig["uuid"] or "", (*node, *nodes) if nodes else ()))
    return found


def view_of(output: str) -> View:
    """Return what a container has printed. Other lines are ignored."""
    lines = output.splitlines()
    nodes = frozenset(line[len(_NODE) :].strip() for line in lines if line.startswith(_NODE))
    return View(frozenset(_UUID.findall(output)), nodes)


def is_seen(gpu: HostGpu, view: View) -> bool:
    """Return whether the container sees a GPU: by UUID if both sides know it, otherwise by all of its device nodes."""
    if gpu.uuid and view.uuids:
        return gpu.uuid in view.uuids
    return bool(gpu.nodes) and view.nodes.issuperset(gpu.nodes)
