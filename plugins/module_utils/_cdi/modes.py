# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The generator modes: nvml, csv, wsl, management, gds, mofed and the others.

The reference is `nvidia-ctk cdi generate`, 1.20.0 with the commits up to d34b3046. Where other files say 1.20, they
mean the same. docs/cdi.md lists what earlier releases generate.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import discover as cdi_discover
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files, file_lookup

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory


# A GPU, or a MIG device of a GPU.
_NUMBERS = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?\Z")


class _Chosen(t.NamedTuple):
    """A whole GPU, or its MIG device ``part``."""

    gpu: inventory.Gpu
    part: inventory.MigDevice | None


def selected_devices(
    machine: inventory.GpuInventory, ids: t.Sequence[str], strategies: t.Sequence[str], nodes: cdi_discover.DeviceNodes
) -> list[cdi_edits.Device]:
    """Return the devices that ``ids`` select, or all if it is empty, once for each name that the strategies give them.

    Raises NvidiaError for an unknown identifier, and HostError if a device has no node or no name.
    """
    chosen = _all(machine) if not ids or cdi_edits.ALL in ids else [_by_identifier(machine, wanted) for wanted in ids]
    if not chosen:
        raise errors.HostError(
            "The NVIDIA driver reports no GPU and no MIG device that a specification could name. If MIG mode is on,"
            " make MIG devices first; else see what dmesg says of the driver."
        )
    devices = []
    for gpu, part in dict.fromkeys(chosen):
        edits = nodes.gpu(gpu) if part is None else nodes.mig(gpu, part)
        _require_nodes(gpu, edits)
        coherent = gpu.coherent if part is None else None
        names = dict.fromkeys(_name(gpu, part, kind) for kind in strategies)
        devices += [cdi_edits.Device(name, edits, coherent) for name in names]
    return devices


def chosen_of(machine: inventory.GpuInventory, ids: t.Sequence[str]) -> inventory.GpuInventory:
    """Return ``machine`` with only the devices that ``ids`` name. A GPU that is selected as a whole is one device.

    Raises NvidiaError for an unknown identifier.
    """
    if not ids or cdi_edits.ALL in ids:
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


def _all(machine: inventory.GpuInventory) -> list[_Chosen]:
    whole = [_Chosen(gpu, None) for gpu in machine.gpus if not gpu.mig]
    return whole + [_Chosen(gpu, part) for gpu in machine.gpus for part in gpu.migs]


def _by_identifier(machine: inventory.GpuInventory, wanted: str) -> _Chosen:
    # An identifier of a GPU selects the whole GPU, whether or not MIG mode is on.
    candidates = [_Chosen(gpu, part) for gpu in machine.gpus for part in (None, *gpu.migs)]
    match = _NUMBERS.match(wanted)
    for candidate in candidates:
        gpu, part = candidate
        numbers = (gpu.index, None if part is None else part.index)
        if match and numbers == (int(match.group(1)), None if match.group(2) is None else int(match.group(2))):
            return candidate
        if wanted and wanted == (gpu.uuid if part is None else part.uuid):
            return candidate
    known = ", ".join(_name(gpu, part, cdi_options.INDEX) for gpu, part in candidates) or "none"
    raise errors.NvidiaError(
        f"device_ids: there is no device {wanted!r}. Use an index, a UUID, all or none; the devices here are {known}."
    )


def _name(gpu: inventory.Gpu, part: inventory.MigDevice | None, strategy: str) -> str:
    if strategy in {cdi_options.INDEX, cdi_options.TYPE_INDEX}:
        number = f"{gpu.index}" if part is None else f"{gpu.index}:{part.index}"
        kind = "gpu" if part is None else "mig"
        return number if strategy == cdi_options.INDEX else kind + number
    uuid = gpu.uuid if part is None else part.uuid
    if not uuid:
        raise errors.HostError(
            f"The driver does not know the UUID of GPU {gpu.index} ({gpu.bus}) yet, because nothing has used it since"
            " the start. Run nvidia-smi -L or start nvidia-persistenced, or leave uuid out of device_name_strategies."
        )
    return uuid


def _require_nodes(gpu: inventory.Gpu, edits: cdi_edits.Edits) -> None:
    if not edits.nodes:
        raise errors.HostError(
            f"GPU {gpu.index} ({gpu.bus}) has no device node: /dev/nvidia{gpu.minor} is missing. Make the nodes with"
            " nvidia-modprobe -u -c=0, nvidia-smi or nvidia-persistenced."
        )


# NVIDIA's runtime must not add GPUs to a container that gets its GPUs by CDI.
_VOID = cdi_edits.Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))
_NOTHING = cdi_edits.Device(cdi_options.NONE, cdi_edits.Edits(env=("NVCT_EMPTY_DEVICE=",)))
_MANAGEMENT_NODES = (
    "/dev/nvidia*",
    "/dev/nvidia-caps/nvidia-cap*",
    *gpu_detect.CONTROL_NODES,
    "/dev/nvidia-caps-imex-channels/channel*",
)
_NOT_FOR_MANAGEMENT = ("/dev/nvidia-fs", "/dev/nvidia-nvswitch", "/dev/nvidia-nvlink")
_CHANNELS = "/dev/nvidia-caps-imex-channels/channel"
_CHANNEL = re.compile(r"(?:channel)?(0|[1-9][0-9]{0,6})\Z")
# The driver's limit.
_MOST_CHANNELS = 1 << 20

NVML, MANAGEMENT, IMEX, GDS = "nvml", "management", "imex", "gds"
# Modes with a single device that consists of nodes: their patterns, and advice if no node exists.
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
    """The inputs of a mode."""

    request: cdi_options.Request
    machine: inventory.GpuInventory | None
    files: driver_files.DriverFiles
    nodes: cdi_discover.DeviceNodes
    hooks: cdi_options.Hooks


def generate_all(
    mode: str, request: cdi_options.Request, machine: inventory.GpuInventory | None, host: hostfs.HostFS
) -> dict[str, cdi_edits.Data]:
    """Return the specification of ``mode`` by the empty name, and the variants that the request and the GPUs have.

    Specifications are plain data with keys in the generator's order. VARIANTS has the names of the variants.

    mode: one of MODES.
    machine: required for nvml. Without it, management uses the version of the loaded driver on a live host, and the
    version of libcuda in an offline tree.

    Raises NvidiaError for a request that cannot be generated, and HostError if the host lacks what the specification
    describes. Like the generator, this leaves out single device nodes that are missing. The caller must check the nodes
    that are required.
    """
    if mode not in MODES:
        raise errors.NvidiaError(f"mode {mode!r} is not known. Use one of {', '.join(MODES)}.")
    request = cdi_options.checked(request, host)
    lookup = file_lookup.CachedFS(host)
    # As in NVIDIA's generator (pkg/nvcdi/options.go, v1.20.0), where enabled_hooks still has effect.
    hooks = cdi_options.Hooks(request, off=(cdi_options.NODE_MODIFICATION,) if mode == MANAGEMENT else ())
    files = driver_files.DriverFiles(
        lookup, request.driver_root, request.library_search_paths, request.config_search_paths
    )
    nodes = cdi_discover.DeviceNodes(lookup, request.dev_root, hooks, cdi_options.NO_GIDS not in request.feature_flags)
    sources = _Sources(request, machine, files, nodes, hooks)
    if mode == NVML:
        return _nvml(sources)
    if mode == MANAGEMENT:
        return {"": _management(sources)}
    return {"": _imex(sources) if mode == IMEX else _node_mode(sources, mode)}


def _nvml(sources: _Sources) -> dict[str, cdi_edits.Data]:
    request, machine = sources.request, sources.machine
    if machine is None:
        raise errors.NvidiaError("mode nvml needs to know the GPUs of the host. Use another mode.")
    if cdi_options.NONE in request.device_ids:
        devices = [_NOTHING]
    else:
        devices = selected_devices(machine, request.device_ids, request.device_name_strategies, sources.nodes)
    common = cdi_edits.merged(
        sources.nodes.edits(sources.nodes.named(gpu_detect.CONTROL_NODES)),
        cdi_discover.graphics_edits(sources.files, machine.version, sources.hooks),
        cdi_discover.driver_edits(sources.files, machine.version, request, sources.hooks),
        sources.hooks.plain(cdi_options.APPLICATION_PROFILE),
        _VOID,
    )
    all_device = request.all_device and cdi_options.NONE not in request.device_ids
    made = {"": _document(request, devices, common, all_device)}
    with_variants = cdi_options.COHERENCE in request.feature_flags and machine.source == "nvml"
    for variant, coherent in cdi_options.VARIANTS.items() if with_variants else ():
        some = [device for device in devices if device.coherent is coherent]
        if some:
            limited = request._replace(class_=f"{request.class_}.{variant}")
            made[variant] = _document(limited, some, common, all_device)
    return made


def _management(sources: _Sources) -> cdi_edits.Data:
    nodes = sources.nodes
    found = [node for node in nodes.matching(*_MANAGEMENT_NODES) if not node.path.startswith(_NOT_FOR_MANAGEMENT)]
    if not found:
        raise _no_nodes(MANAGEMENT, nodes.root, ("/dev/nvidia*",), "Load NVIDIA's driver (modprobe nvidia).")
    common = cdi_edits.merged(
        cdi_discover.driver_edits(sources.files, _driver_version(sources), sources.request, sources.hooks), _VOID
    )
    return _document(
        sources.request,
        [cdi_edits.Device(cdi_edits.ALL, cdi_edits.merged(nodes.edits(found), nodes.folders(found)))],
        common,
    )


def _driver_version(sources: _Sources) -> str:
    host = sources.files.lookup.host
    loaded = gpu_detect.loaded_driver(host) if host.live else None
    known = sources.machine.version if sources.machine is not None else loaded.version if loaded is not None else None
    return known or sources.files.version()


def _node_mode(sources: _Sources, mode: str) -> cdi_edits.Data:
    patterns, advice = _NODE_MODES[mode]
    nodes = sources.nodes.matching(*patterns)
    if not nodes:
        raise _no_nodes(mode, sources.nodes.root, patterns, advice)
    edits = sources.nodes.edits(nodes)
    if mode == GDS:
        edits = cdi_edits.merged(edits, cdi_edits.Edits(mounts=tuple(_gds_mounts(sources.files))))
    return _document(sources.request, [cdi_edits.Device(cdi_edits.ALL, edits)], _VOID)


def _gds_mounts(files: driver_files.DriverFiles) -> t.Iterator[cdi_edits.Mount]:
    udev, config = "/run/udev", "/etc/cufile.json"
    if files.lookup.is_directory(file_lookup.under(files.root, udev)):
        yield cdi_edits.Mount(file_lookup.under(files.root, udev), udev)
    if files.lookup.is_file(file_lookup.under(files.root, config)):
        yield cdi_edits.Mount(file_lookup.under(files.root, config), config)


def _imex(sources: _Sources) -> cdi_edits.Data:
    request = sources.request
    there = [node.path[len(_CHANNELS) :] for node in sources.nodes.matching(f"{_CHANNELS}*")]
    channels = [channel for channel in there if _CHANNEL.match(channel) and int(channel) < _MOST_CHANNELS]
    if request.device_ids and not {cdi_edits.ALL, f"channel{cdi_edits.ALL}"} & {*request.device_ids}:
        channels = [_channel(wanted) for wanted in request.device_ids]
    if not channels:
        raise _no_nodes(IMEX, sources.nodes.root, (f"{_CHANNELS}*",), "Make them with nvidia-modprobe -i 0:1.")
    devices = [
        cdi_edits.Device(
            channel,
            cdi_edits.Edits(
                nodes=(cdi_edits.DeviceNode(path, file_lookup.under(request.dev_root, path), permissions=""),)
            ),
        )
        for channel in dict.fromkeys(channels)
        for path in [f"{_CHANNELS}{channel}"]
    ]
    return _document(request, devices, _VOID, request.all_device)


def _channel(wanted: str) -> str:
    match = _CHANNEL.match(wanted)
    if match is None or int(match.group(1)) >= _MOST_CHANNELS:
        raise errors.NvidiaError(
            f"device_ids: {wanted!r} is no IMEX channel. Give its number, from 0 to {_MOST_CHANNELS - 1}, or all."
        )
    return match.group(1)


def _document(
    request: cdi_options.Request,
    devices: t.Iterable[cdi_edits.Device],
    common: cdi_edits.Edits,
    all_device: bool = False,
) -> cdi_edits.Data:
    return cdi_edits.to_spec(f"{request.vendor}/{request.class_}", devices, common, all_device)


def _no_nodes(mode: str, root: str, patterns: t.Sequence[str], advice: str) -> errors.HostError:
    places = " and ".join(file_lookup.under(root, pattern) for pattern in patterns)
    return errors.HostError(
        f"There is no device node {places}, so there is nothing for mode {mode} to specify. {advice}"
    )
