# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generate the specifications of the modes that need no nvidia-ctk: nvml, management, imex, gds and other nodes.

The output is that of `nvidia-ctk cdi generate`, 1.20.0 with the commits up to d34b3046. Other files call this version
1.20. docs/cdi.md lists what earlier releases generate.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import discover as cdi_discover
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import (
    device_nodes,
    driver_files,
    file_lookup,
    procfs,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory


# The index of a GPU, or of a MIG device of a GPU.
_INDEX = re.compile(r"([0-9]{1,4})(?::([0-9]{1,4}))?\Z")


class _Selected(t.NamedTuple):
    """A MIG device of ``gpu``, or the whole GPU if ``mig_device`` is None."""

    gpu: inventory.Gpu
    mig_device: inventory.MigDevice | None


def selected_devices(
    gpu_inventory: inventory.GpuInventory,
    ids: t.Sequence[str],
    strategies: t.Sequence[str],
    nodes: cdi_discover.DeviceNodes,
) -> list[cdi_edits.Device]:
    """Return the devices that ``ids`` select, or all if it is empty, once for each name that the strategies give them.

    Raises NvidiaError for an unknown identifier, and HostError if a device has no node or no name.
    """
    selected = (
        _all_devices(gpu_inventory)
        if cdi_edits.selects_all(ids)
        else [_by_identifier(gpu_inventory, identifier) for identifier in ids]
    )
    if not selected:
        raise errors.HostError(
            "The NVIDIA driver reports no GPU and no MIG device. If MIG mode is on, create MIG devices first. Otherwise"
            " check the driver's messages in dmesg."
        )
    devices = []
    for gpu, mig_device in dict.fromkeys(selected):
        edits = nodes.gpu(gpu) if mig_device is None else nodes.mig(gpu, mig_device)
        _require_nodes(gpu, edits)
        coherent = gpu.coherent if mig_device is None else None
        names = dict.fromkeys(_name(gpu, mig_device, kind) for kind in strategies)
        devices += [cdi_edits.Device(name, edits, coherent) for name in names]
    return devices


def selected_gpus(gpu_inventory: inventory.GpuInventory, ids: t.Sequence[str]) -> inventory.GpuInventory:
    """Return the inventory with only the devices that ``ids`` name. A GPU that is selected as a whole is one device.

    Raises NvidiaError for an unknown identifier.
    """
    if cdi_edits.selects_all(ids):
        return gpu_inventory
    selected = list(dict.fromkeys(_by_identifier(gpu_inventory, identifier) for identifier in ids))
    gpus = []
    for gpu in gpu_inventory.gpus:
        if any(device.gpu is gpu and device.mig_device is None for device in selected):
            gpus.append(gpu._replace(mig=False, migs=()))
        mig_devices = tuple(
            device.mig_device for device in selected if device.gpu is gpu and device.mig_device is not None
        )
        if mig_devices:
            gpus.append(gpu._replace(mig=True, migs=mig_devices))
    return gpu_inventory._replace(gpus=tuple(gpus))


def required_of(gpu_inventory: inventory.GpuInventory, mig_nodes: t.Iterable[str] = ()) -> host_check.Required:
    """Return what a specification of these GPUs must contain: all GPUs, their nodes and the driver's.

    A GPU in MIG mode is described by its MIG devices. These need the node of the GPU, and their own ``mig_nodes``. A
    GPU in MIG mode without MIG devices is not required.
    """
    gpus = [gpu for gpu in gpu_inventory.gpus if gpu.migs or not gpu.mig]
    nodes = [*device_nodes.NEEDED_NODES, *(f"/dev/nvidia{gpu.minor}" for gpu in gpus), *mig_nodes]
    return host_check.Required(frozenset(nodes), sum(len(gpu.migs) if gpu.mig else 1 for gpu in gpus))


def _all_devices(gpu_inventory: inventory.GpuInventory) -> list[_Selected]:
    whole = [_Selected(gpu, None) for gpu in gpu_inventory.gpus if not gpu.mig]
    return whole + [_Selected(gpu, mig_device) for gpu in gpu_inventory.gpus for mig_device in gpu.migs]


def _by_identifier(gpu_inventory: inventory.GpuInventory, identifier: str) -> _Selected:
    # An identifier of a GPU selects the whole GPU, whether or not MIG mode is on.
    candidates = [_Selected(gpu, mig_device) for gpu in gpu_inventory.gpus for mig_device in (None, *gpu.migs)]
    match = _INDEX.match(identifier)
    for candidate in candidates:
        gpu, mig_device = candidate
        numbers = (gpu.number, None if mig_device is None else mig_device.number)
        if match and numbers == (int(match.group(1)), None if match.group(2) is None else int(match.group(2))):
            return candidate
        if identifier and identifier == (gpu.uuid if mig_device is None else mig_device.uuid):
            return candidate
    known = ", ".join(_name(gpu, mig_device, cdi_options.INDEX) for gpu, mig_device in candidates) or "none"
    raise errors.NvidiaError(
        f"{errors.option:device_ids}: unknown device {identifier!r}. Use an index, a UUID, all or none. Devices of"
        f" this host: {known}."
    )


def _name(gpu: inventory.Gpu, mig_device: inventory.MigDevice | None, strategy: str) -> str:
    if strategy in {cdi_options.INDEX, cdi_options.TYPE_INDEX}:
        number = f"{gpu.number}" if mig_device is None else f"{gpu.number}:{mig_device.number}"
        prefix = "gpu" if mig_device is None else "mig"
        return number if strategy == cdi_options.INDEX else prefix + number
    uuid = gpu.uuid if mig_device is None else mig_device.uuid
    if not uuid:
        raise errors.HostError(
            f"The driver does not report the UUID of GPU {gpu.number} ({gpu.bus}), because no program has used the GPU"
            f" since the host started. Run nvidia-smi -L, or remove uuid from {errors.option:device_name_strategies}."
        )
    return uuid


def _require_nodes(gpu: inventory.Gpu, edits: cdi_edits.Edits) -> None:
    if not edits.nodes:
        raise errors.HostError(
            f"GPU {gpu.number} ({gpu.bus}) has no device node: /dev/nvidia{gpu.minor} is missing. Run nvidia-smi as"
            " root to create it."
        )


# NVIDIA's runtime must not add GPUs to a container that gets its GPUs by CDI.
_VOID = cdi_edits.Edits(env=("NVIDIA_VISIBLE_DEVICES=void",))
_NONE_DEVICE = cdi_edits.Device(cdi_options.NONE, cdi_edits.Edits(env=("NVCT_EMPTY_DEVICE=",)))
_MANAGEMENT_NODES = (
    "/dev/nvidia*",
    "/dev/nvidia-caps/nvidia-cap*",
    *device_nodes.CONTROL_NODES,
    "/dev/nvidia-caps-imex-channels/channel*",
)
_NOT_FOR_MANAGEMENT = ("/dev/nvidia-fs", "/dev/nvidia-nvswitch", "/dev/nvidia-nvlink")
_CHANNEL_PREFIX = "/dev/nvidia-caps-imex-channels/channel"
_CHANNEL = re.compile(r"(?:channel)?(0|[1-9][0-9]{0,6})\Z")
# The driver's limit.
_MAX_CHANNELS = 1 << 20

NVML, MANAGEMENT, IMEX, GDS = "nvml", "management", "imex", "gds"
# Modes with a single device that consists of nodes: their patterns, and advice if no node exists.
_NODE_MODES = {
    GDS: (("/dev/nvidia-fs*",), "Load the module nvidia-fs of GPUDirect Storage."),
    "gdrcopy": (("/dev/gdrdrv",), "Load the module gdrdrv of GDRCopy."),
    "mofed": (("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"), "Load the modules ib_uverbs and rdma_ucm."),
    "nvswitch": (
        ("/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch*"),
        "Use this mode only on hosts with NVSwitch and a loaded driver.",
    ),
}
NATIVE_MODES = (NVML, MANAGEMENT, *_NODE_MODES, IMEX)


class _Inputs(t.NamedTuple):
    request: cdi_options.Request
    gpu_inventory: inventory.GpuInventory | None
    files: driver_files.DriverFiles
    nodes: cdi_discover.DeviceNodes
    hooks: cdi_options.Hooks


def generate_all(
    mode: str, request: cdi_options.Request, gpu_inventory: inventory.GpuInventory | None, host: hostfs.HostFS
) -> dict[str, cdi_edits.Data]:
    """Return the specification of ``mode`` by the empty name, and the variants that the request and the GPUs have.

    Specifications are plain data with keys in the order of nvidia-ctk. VARIANTS has the names of the variants.

    mode: one of NATIVE_MODES.
    gpu_inventory: required for nvml. Without it, management uses the version of the loaded driver on a live host, and
    the version of libcuda in an offline tree.

    Raises NvidiaError for a request that cannot be generated, and HostError if the host lacks what the specification
    describes. Like nvidia-ctk, this leaves out single device nodes that are missing. The caller must check the nodes
    that are required.
    """
    request = cdi_options.checked(request, host)
    lookup = file_lookup.CachedFS(host)
    # As in nvidia-ctk (pkg/nvcdi/options.go, v1.20.0), where enabled_hooks still has effect.
    hooks = cdi_options.Hooks(request, off_by_default=(cdi_options.NODE_MODIFICATION,) if mode == MANAGEMENT else ())
    files = driver_files.DriverFiles(
        lookup, request.driver_root, request.library_search_paths, request.config_search_paths
    )
    nodes = cdi_discover.DeviceNodes(lookup, request.dev_root, hooks, cdi_options.NO_GIDS not in request.feature_flags)
    inputs = _Inputs(request, gpu_inventory, files, nodes, hooks)
    if mode == NVML:
        return _nvml(inputs)
    if mode == MANAGEMENT:
        return {"": _management(inputs)}
    return {"": _imex(inputs) if mode == IMEX else _node_mode(inputs, mode)}


def _nvml(inputs: _Inputs) -> dict[str, cdi_edits.Data]:
    request, gpu_inventory = inputs.request, inputs.gpu_inventory
    if gpu_inventory is None:
        raise errors.NvidiaError(f"{errors.option:mode}: nvml needs the list of the host's GPUs. Use another mode.")
    if cdi_options.NONE in request.device_ids:
        devices = [_NONE_DEVICE]
    else:
        devices = selected_devices(gpu_inventory, request.device_ids, request.device_name_strategies, inputs.nodes)
    common = cdi_edits.merged(
        inputs.nodes.edits(inputs.nodes.named(device_nodes.CONTROL_NODES)),
        cdi_discover.graphics_edits(inputs.files, gpu_inventory.version, inputs.hooks),
        cdi_discover.driver_edits(inputs.files, gpu_inventory.version, request, inputs.hooks),
        inputs.hooks.edits(cdi_options.APPLICATION_PROFILE),
        _VOID,
    )
    all_device = request.all_device and cdi_options.NONE not in request.device_ids
    documents = {"": _spec(request, devices, common, all_device)}
    with_variants = cdi_options.COHERENCE in request.feature_flags and gpu_inventory.source == "nvml"
    for variant, coherent in cdi_options.VARIANTS.items() if with_variants else ():
        variant_devices = [device for device in devices if device.coherent is coherent]
        if variant_devices:
            variant_request = request._replace(class_=f"{request.class_}.{variant}")
            documents[variant] = _spec(variant_request, variant_devices, common, all_device)
    return documents


def _management(inputs: _Inputs) -> cdi_edits.Data:
    nodes = inputs.nodes
    found = [node for node in nodes.matching(*_MANAGEMENT_NODES) if not node.path.startswith(_NOT_FOR_MANAGEMENT)]
    if not found:
        raise _no_nodes(MANAGEMENT, nodes.root, ("/dev/nvidia*",), "Load NVIDIA's driver (modprobe nvidia).")
    common = cdi_edits.merged(
        cdi_discover.driver_edits(inputs.files, _driver_version(inputs), inputs.request, inputs.hooks), _VOID
    )
    return _spec(
        inputs.request,
        [cdi_edits.Device(cdi_edits.ALL, cdi_edits.merged(nodes.edits(found), nodes.folders(found)))],
        common,
    )


def _driver_version(inputs: _Inputs) -> str:
    host = inputs.files.lookup.host
    if inputs.gpu_inventory is not None:
        return inputs.gpu_inventory.version
    loaded = procfs.loaded_driver(host) if host.live else None
    return (loaded.version if loaded is not None else None) or inputs.files.version()


def _node_mode(inputs: _Inputs, mode: str) -> cdi_edits.Data:
    patterns, advice = _NODE_MODES[mode]
    nodes = inputs.nodes.matching(*patterns)
    if not nodes:
        raise _no_nodes(mode, inputs.nodes.root, patterns, advice)
    edits = inputs.nodes.edits(nodes)
    if mode == GDS:
        edits = cdi_edits.merged(edits, cdi_edits.Edits(mounts=tuple(_gds_mounts(inputs.files))))
    return _spec(inputs.request, [cdi_edits.Device(cdi_edits.ALL, edits)], _VOID)


def _gds_mounts(files: driver_files.DriverFiles) -> t.Iterator[cdi_edits.Mount]:
    udev, config = "/run/udev", "/etc/cufile.json"
    if files.lookup.is_directory(file_lookup.under(files.root, udev)):
        yield cdi_edits.Mount(file_lookup.under(files.root, udev), udev)
    if files.lookup.is_file(file_lookup.under(files.root, config)):
        yield cdi_edits.Mount(file_lookup.under(files.root, config), config)


def _imex(inputs: _Inputs) -> cdi_edits.Data:
    request = inputs.request
    existing = [node.path[len(_CHANNEL_PREFIX) :] for node in inputs.nodes.matching(f"{_CHANNEL_PREFIX}*")]
    channels = [channel for channel in existing if _CHANNEL.match(channel) and int(channel) < _MAX_CHANNELS]
    if request.device_ids and not {cdi_edits.ALL, f"channel{cdi_edits.ALL}"} & {*request.device_ids}:
        channels = [_channel(identifier) for identifier in request.device_ids]
    if not channels:
        raise _no_nodes(IMEX, inputs.nodes.root, (f"{_CHANNEL_PREFIX}*",), "Create them with nvidia-modprobe -i 0:1.")
    devices = [
        cdi_edits.Device(
            channel,
            cdi_edits.Edits(
                nodes=(cdi_edits.DeviceNode(path, file_lookup.under(request.dev_root, path), permissions=""),)
            ),
        )
        for channel in dict.fromkeys(channels)
        for path in [f"{_CHANNEL_PREFIX}{channel}"]
    ]
    return _spec(request, devices, _VOID, request.all_device)


def _channel(identifier: str) -> str:
    match = _CHANNEL.match(identifier)
    if match is None or int(match.group(1)) >= _MAX_CHANNELS:
        raise errors.NvidiaError(
            f"{errors.option:device_ids}: {identifier!r} is not an IMEX channel. Use a number from 0 to"
            f" {_MAX_CHANNELS - 1}, or all."
        )
    return match.group(1)


def _spec(
    request: cdi_options.Request,
    devices: t.Iterable[cdi_edits.Device],
    common: cdi_edits.Edits,
    all_device: bool = False,
) -> cdi_edits.Data:
    return cdi_edits.to_spec(f"{request.vendor}/{request.class_}", devices, common, all_device)


def _no_nodes(mode: str, root: str, patterns: t.Sequence[str], advice: str) -> errors.HostError:
    paths = " and ".join(file_lookup.under(root, pattern) for pattern in patterns)
    return errors.HostError(f"{errors.option:mode}: {mode} needs device nodes, but there is no {paths}. {advice}")
