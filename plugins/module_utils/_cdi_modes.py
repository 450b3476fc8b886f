# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: CDI specifications made from what the host has, one function for each mode of NVIDIA's
# generator ("nvidia-ctk cdi generate", v1.20.0 and the commits up to d34b3046), equal to what that makes.  In
# other files 1.20 means the same; docs/cdi.md lists what earlier releases make.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_devices import DeviceNodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_discovery import driver_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import (
    ALL,
    Data,
    Device,
    DeviceNode,
    Edits,
    Mount,
    document,
    merged,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_graphics import graphics_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import (
    APPLICATION_PROFILE,
    COHERENCE,
    NO_GIDS,
    NODE_MODIFICATION,
    NONE,
    VARIANTS,
    Hooks,
    Request,
    checked,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_selection import selected_devices
from ansible_collections.gpufleet.nvidia.plugins.module_utils._driver_files import DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import CONTROL_NODES, loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_lookup import Lookup, under

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_machine import Machine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# NVIDIA's runtime must not add GPUs of its own to a container that has them by CDI.
_VOID = Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))
_NOTHING = Device(NONE, Edits(env=("NVCT_EMPTY_DEVICE=",)))
_MANAGEMENT_NODES = (
    "/dev/nvidia*",
    "/dev/nvidia-caps/nvidia-cap*",
    *CONTROL_NODES,
    "/dev/nvidia-caps-imex-channels/channel*",
)
_NOT_FOR_MANAGEMENT = ("/dev/nvidia-fs", "/dev/nvidia-nvswitch", "/dev/nvidia-nvlink")
_CHANNELS = "/dev/nvidia-caps-imex-channels/channel"
_CHANNEL = re.compile(r"(?:channel)?(0|[1-9][0-9]{0,6})\Z")
# As many as the driver has.
_MOST_CHANNELS = 1 << 20

NVML, MANAGEMENT, IMEX, GDS = "nvml", "management", "imex", "gds"
# Modes of one device that is made of nodes: their patterns, and what to do where there is none.
_NODE_MODES = {
    GDS: (("/dev/nvidia-fs*",), "Load the module nvidia-fs of GPUDirect Storage."),
    "gdrcopy": (("/dev/gdrdrv",), "Load the module gdrdrv of GDRCopy."),
    "mofed": (("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"), "Load the modules ib_uverbs and rdma_ucm."),
    "nvswitch": (
        ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"),
        "Such nodes are only on machines with NVSwitch whose driver is loaded.",
    ),
}
MODES = (NVML, MANAGEMENT, *_NODE_MODES, IMEX)


class _Sources(t.NamedTuple):
    """What a mode makes its specification from."""

    request: Request
    machine: Machine | None
    files: DriverFiles
    nodes: DeviceNodes
    hooks: Hooks


def generate_all(mode: str, request: Request, machine: Machine | None, host: HostRoot) -> dict[str, Data]:
    """The specification of ``mode``, by the empty name, and those of VARIANTS that the request and the GPUs have.

    mode: one of MODES.  Specifications are plain data with their keys in the generator's order.
    machine: needed for nvml.  Without it, management takes the version of the driver that is loaded on a live host, and
    that of libcuda in a tree.
    Raises GpufleetError for a request that nothing can be made of, HostError where the host lacks what the
    specification is about.  A device node that is missing beside others is left out, as the generator does: whoever
    writes the specification has to look for those that must be there.
    """
    if mode not in MODES:
        raise GpufleetError(f"mode {mode!r} is not known. Use one of {', '.join(MODES)}.")
    request = checked(request, host)
    lookup = Lookup(host)
    # As in NVIDIA's generator (pkg/nvcdi/options.go, v1.20.0), where enabled_hooks still counts.
    hooks = Hooks(request, off=(NODE_MODIFICATION,) if mode == MANAGEMENT else ())
    files = DriverFiles(lookup, request.driver_root, request.library_search_paths, request.config_search_paths)
    nodes = DeviceNodes(lookup, request.dev_root, hooks, NO_GIDS not in request.feature_flags)
    sources = _Sources(request, machine, files, nodes, hooks)
    if mode == NVML:
        return _nvml(sources)
    if mode == MANAGEMENT:
        return {"": _management(sources)}
    return {"": _imex(sources) if mode == IMEX else _node_mode(sources, mode)}


def _nvml(sources: _Sources) -> dict[str, Data]:
    request, machine = sources.request, sources.machine
    if machine is None:
        raise GpufleetError("mode nvml needs to know the GPUs of the host. Use another mode.")
    if NONE in request.device_ids:
        devices = [_NOTHING]
    else:
        devices = selected_devices(machine, request.device_ids, request.device_name_strategies, sources.nodes)
    common = merged(
        sources.nodes.edits(sources.nodes.named(CONTROL_NODES)),
        graphics_edits(sources.files, machine.version, sources.hooks),
        driver_edits(sources.files, machine.version, request, sources.hooks),
        sources.hooks.plain(APPLICATION_PROFILE),
        _VOID,
    )
    all_device = request.all_device and NONE not in request.device_ids
    made = {"": _document(request, devices, common, all_device)}
    with_variants = COHERENCE in request.feature_flags and machine.source == "nvml"
    for variant, coherent in VARIANTS.items() if with_variants else ():
        some = [device for device in devices if device.coherent is coherent]
        if some:
            limited = request._replace(class_=f"{request.class_}.{variant}")
            made[variant] = _document(limited, some, common, all_device)
    return made


def _management(sources: _Sources) -> Data:
    nodes = sources.nodes
    found = [node for node in nodes.matching(*_MANAGEMENT_NODES) if not node.path.startswith(_NOT_FOR_MANAGEMENT)]
    if not found:
        raise _no_nodes(MANAGEMENT, nodes.root, ("/dev/nvidia*",), "Load NVIDIA's driver (modprobe nvidia).")
    common = merged(driver_edits(sources.files, _driver_version(sources), sources.request, sources.hooks), _VOID)
    return _document(sources.request, [Device(ALL, merged(nodes.edits(found), nodes.folders(found)))], common)


def _driver_version(sources: _Sources) -> str:
    host = sources.files.lookup.host
    loaded = loaded_driver(host) if host.live else None
    known = sources.machine.version if sources.machine is not None else loaded.version if loaded is not None else None
    return known or sources.files.version()


def _node_mode(sources: _Sources, mode: str) -> Data:
    patterns, advice = _NODE_MODES[mode]
    nodes = sources.nodes.matching(*patterns)
    if not nodes:
        raise _no_nodes(mode, sources.nodes.root, patterns, advice)
    edits = sources.nodes.edits(nodes)
    if mode == GDS:
        edits = merged(edits, Edits(mounts=tuple(_gds_mounts(sources.files))))
    return _document(sources.request, [Device(ALL, edits)], _VOID)


def _gds_mounts(files: DriverFiles) -> t.Iterator[Mount]:
    udev, config = "/run/udev", "/etc/cufile.json"
    if files.lookup.is_directory(under(files.root, udev)):
        yield Mount(under(files.root, udev), udev)
    if files.lookup.is_file(under(files.root, config)):
        yield Mount(under(files.root, config), config)


def _imex(sources: _Sources) -> Data:
    request = sources.request
    there = [node.path[len(_CHANNELS) :] for node in sources.nodes.matching(f"{_CHANNELS}*")]
    channels = [channel for channel in there if _CHANNEL.match(channel) and int(channel) < _MOST_CHANNELS]
    if request.device_ids and not {ALL, f"channel{ALL}"} & {*request.device_ids}:
        channels = [_channel(wanted) for wanted in request.device_ids]
    if not channels:
        raise _no_nodes(IMEX, sources.nodes.root, (f"{_CHANNELS}*",), "Make them with nvidia-modprobe -i 0:1.")
    devices = [
        Device(channel, Edits(nodes=(DeviceNode(path, under(request.dev_root, path), permissions=""),)))
        for channel in dict.fromkeys(channels)
        for path in [f"{_CHANNELS}{channel}"]
    ]
    return _document(request, devices, _VOID, request.all_device)


def _channel(wanted: str) -> str:
    match = _CHANNEL.match(wanted)
    if match is None or int(match.group(1)) >= _MOST_CHANNELS:
        raise GpufleetError(
            f"device_ids: {wanted!r} is no IMEX channel. Give its number, from 0 to {_MOST_CHANNELS - 1}, or all."
        )
    return match.group(1)


def _document(request: Request, devices: t.Iterable[Device], common: Edits, all_device: bool = False) -> Data:
    return document(f"{request.vendor}/{request.class_}", devices, common, all_device)


def _no_nodes(mode: str, root: str, patterns: t.Sequence[str], advice: str) -> HostError:
    places = " and ".join(under(root, pattern) for pattern in patterns)
    return HostError(f"There is no device node {places}, so there is nothing for mode {mode} to specify. {advice}")
