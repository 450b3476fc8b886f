# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: whether a CDI specification of GPUs has those that the driver has.
#
# Documents are those of a judgement (_cdi_rules) that found no errors; GPUs are as _gpu_info describes them.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import EDITS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, Problem, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._mig_capabilities import Capabilities

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# How the generators name devices: by UUID, by index, by type and index.
_STYLES = {
    "uuid": re.compile(r"(?:GPU|MIG)-.*"),
    "index": re.compile(r"[0-9]+(?::[0-9]+)?"),
    "type": re.compile(r"gpu[0-9]+|mig[0-9]+:[0-9]+"),
}
_GPU_NODE = re.compile(r"/dev/nvidia[0-9]+")


class Unit(t.NamedTuple):
    """What a container can be given: a GPU, or a MIG device.

    ``names`` has its name in each style, where that is known; ``nodes`` its device nodes.  One that is not ``sure`` may
    be in a specification or not: the driver has trouble with it.
    """

    names: t.Mapping[str, str]
    nodes: frozenset[str]
    sure: bool

    def shown(self) -> str:
        return self.names.get("index") or self.names.get("uuid") or ", ".join(sorted(self.nodes))


def changed_gpus(
    document: t.Mapping[str, t.Any],
    host: HostRoot,
    gpus: t.Mapping[str, t.Any],
    elsewhere: frozenset[str] | None = frozenset(),
) -> list[Problem]:
    """What ``document`` has other than the driver; ``gpus`` is the answer of describe_gpus().

    elsewhere: names of devices that other files of the kind have; None if the document is to have only some.
    """
    return [] if gpus["source"] is None else _by_gpus(document, _units(host, gpus), elsewhere)


def _units(host: HostRoot, gpus: t.Mapping[str, t.Any]) -> list[Unit]:
    capabilities, found = Capabilities(host), []
    for gpu in gpus["devices"]:
        index, minor = gpu["index"], gpu["minor"]
        nodes = [f"/dev/nvidia{minor}"]
        # Without these NVML was cut short.
        cut = gpus["source"] == "nvml" and (gpu["uuid"] is None or gpu["mig_enabled"] is None)
        sure = not cut and index is not None and minor is not None
        if not gpu["mig_enabled"]:
            found.append(_unit(gpu["uuid"], ("", "gpu"), [index], nodes, sure))
        for mig in gpu["mig_devices"]:
            try:
                own = capabilities.nodes(minor, mig["gpu_instance"], mig["compute_instance"])
            except GpufleetError:
                own = ("", "")
                sure = False
            found.append(_unit(mig["uuid"], ("", "mig"), [index, mig["index"]], [*nodes, *own], sure))
    return found


def _unit(
    uuid: str | None, prefixes: tuple[str, str], numbers: t.Sequence[int | None], nodes: t.Sequence[str], sure: bool
) -> Unit:
    names = {"uuid": uuid} if uuid else {}
    if None not in numbers:
        number = ":".join(str(part) for part in numbers)
        names.update({style: prefix + number for style, prefix in zip(("index", "type"), prefixes)})
    return Unit(names, frozenset(nodes), sure)


def _by_gpus(
    document: t.Mapping[str, t.Any], units: t.Sequence[Unit], elsewhere: frozenset[str] | None
) -> list[Problem]:
    common = _nodes(document)
    devices = {device["name"]: _nodes(device) | common for device in document.get("devices", ())}
    every = frozenset(node for nodes in devices.values() for node in nodes)
    if not any(_GPU_NODE.fullmatch(node) for node in every) and not any(map(_STYLES["uuid"].fullmatch, devices)):
        # It describes something else of NVIDIA's, or GPUs that have other drivers.
        return []
    lacking: list[str] = []
    gone: list[str] = []
    moved: list[str] = []
    styled = False
    for style, pattern in _STYLES.items():
        present = [name for name in devices if pattern.fullmatch(name)]
        if not present:
            continue
        styled = True
        known = {unit.names[style]: unit for unit in units if style in unit.names}
        lacking += [name for name, unit in known.items() if unit.sure and name not in devices]
        if all(style in unit.names for unit in units):
            gone += [name for name in present if name not in known]
        moved += [name for name in present if name in known and _is_moved(known[name], devices[name])]
    if not styled:
        lacking = [unit.shown() for unit in units if unit.sure and not unit.nodes <= every]
    lacking = [] if elsewhere is None else [name for name in lacking if name not in elsewhere]
    said = [
        (lacking, "gpu-lacking", "It lacks {}, which the driver reports."),
        (gone, "gpu-gone", "It has {}, which the driver does not report."),
        (moved, "gpu-nodes-differ", "It has other device nodes for {} than the driver."),
    ]
    return [Problem(code, message.format(few(names))) for names, code, message in said if names]


def _is_moved(unit: Unit, nodes: frozenset[str]) -> bool:
    return unit.sure and not unit.nodes <= nodes


def _nodes(holder: t.Mapping[str, t.Any]) -> frozenset[str]:
    return frozenset(node["path"] for node in holder.get(EDITS, {}).get("deviceNodes", ()))
