# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what of a host a container is compared with: GPUs, device numbers, the driver, and CDI devices."""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import info as gpu_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks as verify_checks

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


WSL_NODE = "/dev/dxg"


class HostGpu(t.NamedTuple):
    """A GPU or MIG device of the host.

    - ``name``: for messages. ``names``: how requests can name it, in lower case.
    - ``nodes``: the paths of its device nodes in containers: that of the GPU, for a MIG device also its capabilities.
    - ``exists``: whether the host has these nodes. ``in_mig_mode``: only MIG devices of this GPU can be used.
    """

    name: str
    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    exists: bool = True
    in_mig_mode: bool = False

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG device."""
        return len(self.nodes) > 1


class CdiDevice(t.NamedTuple):
    """A CDI device that a specification defines now: its device nodes, and whether all of them exist on the host."""

    nodes: tuple[str, ...]
    is_valid: bool


class ExplainedHost(t.NamedTuple):
    """The host of a container.

    - ``kind``: how the GPU is connected, as in procfs. ``driver``: the version of the loaded module, None: unknown.
    - ``gpus``: GPUs, each followed by its MIG devices.
    - ``numbers``: major and minor numbers of the driver's device nodes, by their paths in containers.
    - ``cdi``: the CDI devices by qualified name.
    """

    kind: str | None = procfs.DRIVER
    driver: str | None = None
    gpus: tuple[HostGpu, ...] = ()
    numbers: t.Mapping[str, tuple[int, int]] = core_plan.NOTHING
    cdi: t.Mapping[str, CdiDevice] = core_plan.NOTHING

    @property
    def gpu_nodes(self) -> frozenset[str]:
        """The paths of the device nodes of all GPUs and MIG devices."""
        return frozenset(node for gpu in self.gpus for node in gpu.nodes)


def read_host(host: hostfs.HostFS) -> ExplainedHost:
    """Return what a container on ``host`` is compared with.

    Raises MissingPackageError if a CDI specification needs a Python package that this host lacks.
    """
    driver = procfs.loaded_driver(host)
    numbers = _Numbers(host)
    gpus = tuple(_gpus(host, numbers))
    return ExplainedHost(
        kind=procfs.detect_gpu(host).kind,
        driver=driver.version if driver is not None else None,
        gpus=gpus,
        numbers=numbers.of([*device_nodes.NEEDED_NODES, WSL_NODE, *(node for gpu in gpus for node in gpu.nodes)]),
        cdi=_cdi_devices(host),
    )


def _gpus(host: hostfs.HostFS, numbers: _Numbers) -> t.Iterator[HostGpu]:
    mig_nodes = procfs.MigCapabilities(host).known_nodes
    for device in gpu_info.describe_gpus(host)["devices"]:
        index, minor, bus = device["index"], device["minor"], device["bus_id"] or ""
        node = () if minor is None else (f"/dev/nvidia{minor}",)
        # nvidia-smi writes the domain of a PCI address with eight digits.
        names = (None if index is None else str(index), device["uuid"], bus, bus and bus.zfill(len("00000000:00:00.0")))
        gpu = f"GPU {bus if index is None else index}"
        yield HostGpu(gpu, _lower(names), node, numbers.exist(node), device["mig_enabled"] is True)
        for number, mig in enumerate(device["mig_devices"]):
            own = number if mig["index"] is None else mig["index"]
            nodes = tuple(mig_nodes(minor, mig["gpu_instance"], mig["compute_instance"])) if node else ()
            own_names = (None if index is None else f"{index}:{own}", mig["uuid"])
            yield HostGpu(f"{gpu} MIG {own}", _lower(own_names), (*node, *nodes), numbers.exist((*node, *nodes)))


def _lower(names: t.Iterable[str | None]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names if name)


class _Numbers:
    """The numbers of the driver's device nodes: those of the kernel, or those of the node of the host."""

    def __init__(self, host: hostfs.HostFS) -> None:
        self._host = host
        self._folder = device_nodes.dev_directory(host)
        self._majors = device_nodes.kernel_majors(host)

    def of(self, paths: t.Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return the numbers of ``paths``, without those that are unknown."""
        found = {path: self._number(path) for path in dict.fromkeys(paths)}
        return {path: number for path, number in found.items() if number is not None}

    def exist(self, paths: t.Sequence[str]) -> bool:
        """Return whether the host has all of these nodes."""
        return bool(paths) and all(self._status(path) is not None for path in paths)

    def _number(self, path: str) -> tuple[int, int] | None:
        expected = device_nodes.device_numbers(path, self._majors)
        if expected is not None and expected[0] in self._majors.values():
            # A node of the host that is older than the loaded module can have other numbers.
            return t.cast("tuple[int, int]", expected)
        status = self._status(path)
        return None if status is None else (os.major(status.st_rdev), os.minor(status.st_rdev))

    def _status(self, path: str) -> os.stat_result | None:
        try:
            status = os.stat(self._host.real_path(device_nodes.node_in(self._folder, path)))
        except (errors.HostError, OSError):
            return None
        return status if stat.S_ISCHR(status.st_mode) else None


def _cdi_devices(host: hostfs.HostFS) -> dict[str, CdiDevice]:
    """Return the CDI devices that engines find now in the usual directories."""
    try:
        documents, resolution = verify_checks.read_specifications(host, core_constants.CDI_SPEC_DIRS)
    except errors.MissingPackageError:
        raise
    except errors.HostError:
        return {}
    known = {path: cdi_validate.validate(documents[path]).document for path in set(resolution.devices.values())}
    found = {}
    for name, path in resolution.devices.items():
        own = [one for one in known[path].get("devices", ()) if one.get("name") == name.partition("=")[2]]
        nodes = [node for device in own for node in device.get(cdi_schema.EDITS, {}).get("deviceNodes", ())]
        exist = all(host.exists(node.get("hostPath") or node["path"]) for node in nodes)
        found[name] = CdiDevice(tuple(node["path"] for node in nodes), exist)
    return found
