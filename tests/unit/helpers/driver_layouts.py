# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with NVIDIA's driver in the directories of several distributions, and summaries of CDI specifications."""

from __future__ import annotations

import shlex
import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    AARCH64,
    LIBRARIES,
    MULTIARCH,
    VERSION,
    X86_64,
    Tree,
    elf,
    gpus,
    ld_cache,
    mig_gpu,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu

Data = t.Dict[str, t.Any]

DRIVER_ROOT = "/run/nvidia/driver"
# The driver's files for graphics below /usr/share.
_SHARED = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "nvidia/nvoptix.bin",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_PROGRAMS = ("nvidia-debugdump", "nvidia-persistenced", "nvidia-smi", "nvidia-xconfig")
_GSP = f"nvidia/{VERSION}/gsp_ga10x.bin"


class Layout(t.NamedTuple):
    """A layout of the driver's files. ``root`` is the driver's root directory, empty for that of the host."""

    build: t.Callable[[Tree], None]
    devices: tuple[Gpu, ...]
    root: str = ""
    node_mode: int = 0o666
    node_gid: int = 0

    def make(self, tree: Tree, devices: t.Sequence[Gpu] = ()) -> tuple[Gpu, ...]:
        """Write the host to ``tree``, with the layout's GPUs or ``devices``, and return them."""
        found = tuple(devices) or self.devices
        self.build(tree)
        tree.nodes(found, self.root, mode=self.node_mode, gid=self.node_gid)
        return found


def _drawing(tree: Tree, folder: str, root: str = "", machine: int = X86_64) -> None:
    """Write the libraries for graphics. Some have other versions than the driver."""
    for name, soname in (
        (f"libnvidia-vulkan-producer.so.{VERSION}", f"libnvidia-vulkan-producer.so.{VERSION}"),
        (f"vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1"),
        ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1"),
        ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4"),
    ):
        tree.file(f"{root}{folder}/{name}", elf(soname, machine))
    tree.link(f"{root}{folder}/vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so.{VERSION}")
    tree.link(f"{root}{folder}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    for name in _SHARED:
        tree.file(f"{root}/usr/share/{name}")
    tree.file(f"{root}/etc/OpenCL/vendors/nvidia.icd")


def _programs(tree: Tree, root: str = "") -> None:
    for name in _PROGRAMS:
        tree.program(f"{root}/usr/bin/{name}")


def _flat(tree: Tree) -> None:
    tree.driver()
    _drawing(tree, MULTIARCH)
    _programs(tree)
    tree.file(f"{MULTIARCH}/nvidia/xorg/nvidia_drv.so")
    tree.file(f"{MULTIARCH}/nvidia/xorg/libglxserver_nvidia.so.{VERSION}")
    tree.file("/usr/share/vulkan/icd.d/nvidia_icd.json")
    tree.file(f"/usr/lib/firmware/{_GSP}")
    tree.file("/run/nvidia-persistenced/socket")
    # The directory of MPS is not mounted in containers.
    tree.folder("/tmp/nvidia-mps")


def _lib64(tree: Tree) -> None:
    tree.driver("/usr/lib64")
    _drawing(tree, "/usr/lib64")
    _programs(tree)
    tree.file("/usr/lib64/xorg/modules/drivers/nvidia_drv.so")
    tree.file(f"/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}")
    tree.file("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    tree.file("/proc/sys/kernel/osrelease", b"5.14.0\n")
    tree.file(f"/usr/lib/firmware/{_GSP}")
    tree.file(f"/usr/lib/firmware/updates/5.14.0/{_GSP}")


def _debian(tree: Tree) -> None:
    """Write the files of Debian's packages: links through /etc/alternatives."""
    current = f"{MULTIARCH}/nvidia/current"
    tree.driver(current)
    tree.file(f"{MULTIARCH}/libnvidia-eglcore.so.{VERSION}", elf(f"libnvidia-eglcore.so.{VERSION}"))
    for name, soname, _linked in LIBRARIES[:2]:
        tree.link(f"{MULTIARCH}/{soname}", f"/etc/alternatives/glx--{soname}")
        tree.link(f"/etc/alternatives/glx--{soname}", f"{current}/{name}.so.{VERSION}")
    tree.link("/etc/vulkan/icd.d/nvidia_icd.json", "/etc/alternatives/nvidia_icd.json")
    tree.link("/etc/alternatives/nvidia_icd.json", "/usr/share/nvidia/current/nvidia_icd.json")
    tree.file("/usr/share/nvidia/current/nvidia_icd.json")
    # nvidia-ctk does not search this directory.
    tree.file(f"/usr/lib/nvidia/current/libglxserver_nvidia.so.{VERSION}")
    _programs(tree)


def _cache(tree: Tree) -> None:
    """Write a driver for compute in a directory that only the loader's cache contains."""
    tree.driver("/opt/nvidia/lib")
    names = ["/usr/lib/x86_64-linux-gnu/libc.so.6", *(f"/opt/nvidia/lib/{soname}" for _n, soname, _l in LIBRARIES)]
    tree.file("/etc/ld.so.cache", ld_cache(*names, old=3))
    _programs(tree)


def _container(tree: Tree) -> None:
    """Write the driver's container of NVIDIA's GPU operator, whose root contains the driver and the nodes."""
    tree.driver("/usr/lib64", DRIVER_ROOT)
    _programs(tree, DRIVER_ROOT)
    tree.file(f"{DRIVER_ROOT}/lib/firmware/{_GSP}")
    tree.file(f"{DRIVER_ROOT}/run/nvidia-persistenced/socket")
    tree.file(f"{DRIVER_ROOT}/vulkan/icd.d/nvidia_icd.json")
    # The files on the host are not those of the driver.
    tree.driver()
    _programs(tree)


def _arm64(tree: Tree) -> None:
    folder = "/usr/lib/aarch64-linux-gnu"
    tree.driver(folder, machine=AARCH64)
    _drawing(tree, folder, machine=AARCH64)
    _programs(tree)
    tree.file("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json")
    tree.file("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")


LAYOUTS = {
    "flat": Layout(_flat, gpus(2)),
    # The second GPU has MIG devices: two compute instances in one GPU instance, and after a gap one with graphics.
    "lib64": Layout(_lib64, (gpus(2)[0], mig_gpu(gpus(2)[1], (0, 1, 0, False), (1, 1, 1, False), (3, 5, 0, True)))),
    "debian": Layout(_debian, gpus(1), node_mode=0o660, node_gid=44),
    "cache": Layout(_cache, gpus(1)),
    "container": Layout(_container, gpus(1), root=DRIVER_ROOT),
    "arm64": Layout(_arm64, gpus(1)),
}


def summary(document: Data) -> list[str]:
    """Return a line for each entry of a specification. It begins with the name of the device, or with "every"."""
    lines = [f"cdiVersion {document['cdiVersion']}", f"kind {document['kind']}"]
    parts = [(device["name"], device["containerEdits"]) for device in document["devices"]]
    for name, edits in [*parts, ("every", document["containerEdits"])]:
        lines += [f"{name} {line}" for line in _summary(edits)]
    return lines


def difference(before: Data, after: Data) -> list[str]:
    """Return the lines of summary() that are removed ("-") and added ("+")."""
    old, new = summary(before), summary(after)
    return [*(f"- {line}" for line in old if line not in new), *(f"+ {line}" for line in new if line not in old)]


def _summary(edits: Data) -> t.Iterator[str]:
    for variable in edits.get("env", []):
        yield f"env {variable}"
    for node in edits.get("deviceNodes", []):
        yield (
            f"node {node['path']} {node.get('major', 0)}:{node.get('minor', 0)} {node.get('fileMode', 0):o}"
            + (f" gid {node['gid']}" if "gid" in node else "")
            + (f" from {node['hostPath']}" if "hostPath" in node else "")
        )
    for hook in edits.get("hooks", []):
        yield f"hook {' '.join(map(shlex.quote, hook['args']))}"
    for mount in edits.get("mounts", []):
        source = "" if mount["hostPath"] == mount["containerPath"] else f" from {mount['hostPath']}"
        yield f"mount {mount['containerPath']}{source} {mount['options'][-1]}"
    for gid in edits.get("additionalGids", []):
        yield f"gid {gid}"
