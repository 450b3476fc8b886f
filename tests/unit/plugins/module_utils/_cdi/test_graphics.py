# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.discover import graphics_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.edits import Edits, Mount
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Hooks, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    AARCH64,
    MULTIARCH,
    VERSION,
    Tree,
    elf,
)


def edits(tree: Tree, root: str = "/") -> Edits:
    return graphics_edits(DriverFiles(CachedFS(tree.host()), root), VERSION, Hooks(Request()))


def links(found: Edits) -> list[str]:
    return [word for hook in found.hooks for word in hook.arguments[2:] if word != "--link"]


ALLOCATOR_LINK = f"../libnvidia-allocator.so.1::{MULTIARCH}/gbm/nvidia-drm_gbm.so"


def test_a_driver_for_computing_only(driver_tree: Tree) -> None:
    found = edits(driver_tree)
    assert found.mounts == ()
    assert links(found) == [ALLOCATOR_LINK]
    (driver_tree.path / MULTIARCH.lstrip("/") / f"libnvidia-allocator.so.{VERSION}").unlink()
    assert edits(driver_tree) == Edits()


def test_libraries(driver_tree: Tree) -> None:
    names = ["libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland.so.1.1.19", "libnvidia-egl-wayland2.so.1.0.0"]
    names += ["libnvidia-egl-xcb.so.1.0.2", "libnvidia-egl-xlib.so.1.0.2", f"libnvidia-vulkan-producer.so.{VERSION}"]
    for name in names:
        driver_tree.file(f"{MULTIARCH}/{name}", elf())
    driver_tree.link(f"{MULTIARCH}/libnvidia-egl-gbm.so.1", names[0])
    driver_tree.file(f"{MULTIARCH}/libnvidia-egl-xlib.so.2", elf())
    found = edits(driver_tree)
    assert found.mounts == tuple(Mount(f"{MULTIARCH}/{name}", f"{MULTIARCH}/{name}") for name in names)
    producer = f"{names[-1]}::{MULTIARCH}/libnvidia-vulkan-producer.so"
    assert links(found) == [ALLOCATOR_LINK, producer]


@pytest.mark.parametrize(
    "folder",
    [
        f"{MULTIARCH}/nvidia/xorg",
        f"{MULTIARCH}/xorg/modules/extensions",
        f"{MULTIARCH}/xorg/modules/updates/drivers",
        "/usr/lib/xorg/modules/drivers",
        "/usr/lib64/xorg/modules/extensions",
        "/usr/X11R6/lib64/modules/updates/extensions",
    ],
)
def test_the_x_server(driver_tree: Tree, folder: str) -> None:
    extension = f"libglxserver_nvidia.so.{VERSION}"
    # The place where Debian has them is no place of the generator's.
    driver_tree.file(f"/usr/lib/nvidia/current/{extension}", elf())
    assert edits(driver_tree).mounts == ()
    driver_tree.file(f"{folder}/{extension}", elf())
    driver_tree.link(f"{folder}/nvidia_drv.so", "/etc/alternatives/nvidia_drv.so")
    driver_tree.file("/etc/alternatives/nvidia_drv.so", elf())
    found = edits(driver_tree)
    assert found.mounts == tuple(Mount(f"{folder}/{name}", f"{folder}/{name}") for name in ("nvidia_drv.so", extension))
    assert links(found) == [ALLOCATOR_LINK, f"{extension}::{folder}/libglxserver_nvidia.so"]


def test_the_first_place_counts(driver_tree: Tree) -> None:
    for folder in ("/usr/lib64/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions", f"{MULTIARCH}/nvidia/xorg"):
        driver_tree.file(f"{folder}/nvidia_drv.so", elf())
        assert edits(driver_tree).mounts == (Mount(f"{folder}/nvidia_drv.so", f"{folder}/nvidia_drv.so"),)


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        ("/etc/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        ("/usr/local/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
        ("/etc/X11/xorg.conf.d/10-nvidia.conf", "/usr/share/X11/xorg.conf.d/10-nvidia.conf"),
        ("/etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
        ("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        ("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "/etc/vulkan/icd.d/nvidia_icd.x86_64.json"),
        ("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json", ""),
        ("/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        ("/glvnd/egl_vendor.d/10_nvidia.json", ""),
        ("/usr/share/glvnd/egl_vendor.d/50_mesa.json", ""),
    ],
)
def test_files_of_loaders(driver_tree: Tree, host: str, inside: str) -> None:
    driver_tree.file(host)
    assert edits(driver_tree).mounts == ((Mount(host, inside),) if inside else ())


def test_files_of_another_machine(driver_tree: Tree) -> None:
    driver_tree.file(f"{MULTIARCH}/libnvidia-allocator.so.{VERSION}", elf(machine=AARCH64))
    driver_tree.file("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    driver_tree.file("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json")
    assert [mount.container_path for mount in edits(driver_tree).mounts] == [
        "/etc/vulkan/icd.d/nvidia_icd.aarch64.json"
    ]


def test_a_root_of_its_own(driver_tree: Tree) -> None:
    root = "/run/driver"
    driver_tree.driver("/usr/lib64", root)
    driver_tree.file("/usr/share/nvidia/nvoptix.bin")
    driver_tree.file(f"{root}/vulkan/icd.d/nvidia_icd.json")
    driver_tree.file(f"{root}/usr/share/vulkan/icd.d/nvidia_layers.json")
    driver_tree.program(f"{root}/usr/bin/nvidia-xconfig")
    found = edits(driver_tree, root)
    assert found.mounts == (
        Mount(f"{root}/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        Mount(f"{root}/usr/share/vulkan/icd.d/nvidia_layers.json", "/etc/vulkan/icd.d/nvidia_layers.json"),
        Mount(f"{root}/usr/bin/nvidia-xconfig", "/usr/bin/nvidia-xconfig"),
    )
    assert links(found) == ["../libnvidia-allocator.so.1::/usr/lib64/gbm/nvidia-drm_gbm.so"]
