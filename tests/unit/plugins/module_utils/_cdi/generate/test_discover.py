# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.discover import (
    DeviceNodes,
    driver_edits,
    graphics_edits,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Hooks, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.edits import (
    MOUNT_OPTIONS,
    SOCKET_OPTIONS,
    DeviceNode,
    Edits,
    Mount,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import CONTROL_NODES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    Tree,
    TreeLookup,
    elf,
    gpus,
)

GPU = gpus(2)[1]
CHMOD = Request(enabled_hooks=("chmod",))


def device_nodes(tree: Tree, root: str = "/", request: Request | None = None, with_gids: bool = True) -> DeviceNodes:
    return DeviceNodes(TreeLookup(tree.host()), root, Hooks(request or Request()), with_gids)


def arguments(edits: Edits) -> list[tuple[str, ...]]:
    return [hook.arguments[1:] for hook in edits.hooks]


def test_named_nodes_are_character_devices(tree: Tree) -> None:
    tree.node("/dev/nvidiactl", 195, 255, 0o660, 44)
    tree.link("/dev/nvidia-uvm", "nvidiactl")
    tree.folder("/dev/nvidia-modeset")
    assert device_nodes(tree).named(CONTROL_NODES) == [DeviceNode("/dev/nvidiactl", "", 195, 255, 0o660, gid=44)]
    assert device_nodes(tree).edits(device_nodes(tree).named(CONTROL_NODES)).gids == (44,)
    assert device_nodes(tree, with_gids=False).edits(device_nodes(tree).named(CONTROL_NODES)).gids == ()


@pytest.mark.parametrize(
    ("root", "target", "taken"),
    [
        ("/", "../card1", True),
        ("/", "/dev/dri/card1", True),
        ("/", "../by-path/../card1", True),
        ("/", "../others/card1", False),
        ("/", "card1", False),
        ("/run/driver", "../card1", True),
        ("/run/driver", "/run/driver/dev/dri/card1", True),
        # This path is not below the root.
        ("/run/driver", "/dev/dri/card1", False),
    ],
)
def test_links_by_pci_address(tree: Tree, root: str, target: str, taken: bool) -> None:
    tree.gpu(GPU, root.rstrip("/"))
    link = f"{root.rstrip('/')}/dev/dri/by-path/pci-{GPU.bus}-card"
    (tree.path / link[1:]).unlink()
    tree.link(link, target)
    made = [argument for argument in arguments(device_nodes(tree, root).gpu(GPU))[0] if argument.endswith("-card")]
    assert made == ([f"{target}::{link}"] if taken else [])


def test_gpu_without_drm(tree: Tree) -> None:
    tree.gpu(GPU, drm=False)
    # A link to a node of another GPU.
    tree.link(f"/dev/dri/by-path/pci-{GPU.bus}-card", "../card0")
    tree.node("/dev/dri/card0", 226, 0)
    found = device_nodes(tree, request=CHMOD).gpu(GPU)
    assert [node.path for node in found.nodes] == ["/dev/nvidia0"]
    assert arguments(found) == [("chmod", "--mode", "755")]
    assert device_nodes(tree).gpu(GPU).hooks == ()


def test_mig_without_capability_numbers(tree: Tree) -> None:
    gpu = gpus(1, 1)[0]
    tree.gpu(gpu)
    with pytest.raises(NvidiaError, match="mig-minors"):
        device_nodes(tree).mig(gpu, gpu.migs[0])


LIBRARY = f"{MULTIARCH}/{{}}.so.{VERSION}"


def driver(tree: Tree, request: Request | None = None, root: str = "/") -> Edits:
    request = request or Request()
    return driver_edits(DriverFiles(CachedFS(tree.host()), root), VERSION, request, Hooks(request))


def hook(found: Edits, name: str) -> list[str]:
    """Return the arguments of a hook, without its name and its flag."""
    return [
        argument
        for entry in found.hooks
        if entry.arguments[1] == name
        for argument in entry.arguments[2:]
        if argument != "--link"
    ]


@pytest.mark.parametrize(
    ("name", "content", "beside", "links"),
    [
        # A link on the host is needed, not a file. A broken link is sufficient.
        ("libx.so.{v}", elf("libx.so.1"), {}, []),
        ("libx.so.{v}", elf("libx.so.1"), {"libx.so.1": None}, []),
        ("libx.so.{v}", elf("libx.so.1"), {"libx.so.1": "lost"}, ["libx.so.{v}::{d}/libx.so.1"]),
        ("libx.so.{v}", elf("libx.so.1"), {"libx.so": "lost"}, ["libx.so.1::{d}/libx.so"]),
        # The file name is used if there is no soname.
        ("libx.so.{v}", elf(), {"libx.so": "lost", "libx.so.1": "lost"}, ["libx.so.{v}::{d}/libx.so"]),
        # The file is not a library.
        ("libx.so.{v}", b"garbled", {"libx.so": "lost", "libx.so.{v}": None}, []),
        ("libx.so.{v}", elf("libx.so.{v}"), {"libx.so.{v}": None}, []),
        ("libx.so.{v}", elf("plain"), {"plain": "lost"}, ["libx.so.{v}::{d}/plain"]),
        ("libx.so.{v}", elf("../libx.so.1"), {"../libx.so.1": "lost"}, []),
        ("libnvidia-nvvm70.so.4", elf("libnvidia-nvvm70.so.4"), {"libnvidia-nvvm70.so": "libnvidia-nvvm70.so.4"},
         ["libnvidia-nvvm70.so.4::{d}/libnvidia-nvvm70.so"]),
        ("vdpau/libvdpau_x.so.{v}", elf("libvdpau_x.so.1"), {"vdpau/libvdpau_x.so.1": "libvdpau_x.so.{v}"},
         ["libvdpau_x.so.{v}::{d}/vdpau/libvdpau_x.so.1"]),
    ],
)  # fmt: skip
def test_library_links(
    driver_tree: Tree, name: str, content: bytes, beside: dict[str, str | None], links: list[str]
) -> None:
    before = set(hook(driver(driver_tree), "create-symlinks"))
    library = f"{MULTIARCH}/{name.format(v=VERSION)}"
    for other, target in beside.items():
        path = f"{MULTIARCH}/{other.format(v=VERSION)}"
        if target is None:
            driver_tree.file(path)
        else:
            driver_tree.link(path, target.format(v=VERSION))
    driver_tree.file(library, content)
    found = driver(driver_tree)
    assert Mount(library, library) in found.mounts
    made = [link for link in hook(found, "create-symlinks") if link not in before]
    assert made == [link.format(v=VERSION, d=MULTIARCH) for link in links]


def test_ldcache_folders(driver_tree: Tree) -> None:
    # ldconfig ignores names that do not begin with lib.
    driver_tree.file(f"{MULTIARCH}/vdpau/plugin.so.{VERSION}", elf())
    found = driver(driver_tree)
    assert f"{MULTIARCH}/vdpau/plugin.so.{VERSION}" in [mount.host_path for mount in found.mounts]
    assert hook(found, "update-ldcache") == ["--folder", MULTIARCH]


def test_sockets_firmware_and_programs(driver_tree: Tree) -> None:
    libraries = driver(driver_tree).mounts
    driver_tree.file("/var/run/nvidia-persistenced/socket")
    driver_tree.file("/run/nvidia-fabricmanager/socket")
    driver_tree.file("/var/run/nvidia-fabricmanager/socket")
    driver_tree.folder("/tmp/nvidia-mps")
    driver_tree.file(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_x.bin")
    driver_tree.program("/usr/bin/nvidia-imex")
    driver_tree.program("/usr/bin/nvidia-smi")
    found = driver(driver_tree).mounts
    assert found[len(libraries) :] == (
        Mount("/var/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket", SOCKET_OPTIONS),
        Mount("/run/nvidia-fabricmanager/socket", "/run/nvidia-fabricmanager/socket", SOCKET_OPTIONS),
        *(
            Mount(path, path, MOUNT_OPTIONS)
            for path in (f"/lib/firmware/nvidia/{VERSION}/gsp_x.bin", "/usr/bin/nvidia-smi", "/usr/bin/nvidia-imex")
        ),
    )
    without = driver(driver_tree, Request(feature_flags=("disable-ipc-discoverer",))).mounts
    assert without == (*found[: len(libraries)], *found[len(libraries) + 2 :])


def test_explicit_driver_libraries(driver_tree: Tree) -> None:
    driver_tree.file(f"{MULTIARCH}/libGL.so.1.7.0", elf("libGL.so.1"))
    driver_tree.link(f"{MULTIARCH}/libGL.so.1", "libGL.so.1.7.0")
    driver_tree.link(f"{MULTIARCH}/libGL.so", "libGL.so.1")
    library = Mount(f"{MULTIARCH}/libGL.so.1.7.0", f"{MULTIARCH}/libGL.so.1.7.0")
    assert library not in driver(driver_tree).mounts
    found = driver(driver_tree, Request(feature_flags=("enable-explicit-driver-libraries",)))
    assert library in found.mounts
    assert hook(found, "create-symlinks")[-2:] == [
        f"libGL.so.1.7.0::{MULTIARCH}/libGL.so.1",
        f"libGL.so.1::{MULTIARCH}/libGL.so",
    ]


def graphics(tree: Tree, root: str = "/") -> Edits:
    return graphics_edits(DriverFiles(CachedFS(tree.host()), root), VERSION, Hooks(Request()))


def graphics_links(found: Edits) -> list[str]:
    return [argument for hook in found.hooks for argument in hook.arguments[2:] if argument != "--link"]


ALLOCATOR_LINK = f"../libnvidia-allocator.so.1::{MULTIARCH}/gbm/nvidia-drm_gbm.so"


def test_graphics_without_files(driver_tree: Tree) -> None:
    found = graphics(driver_tree)
    assert found.mounts == ()
    assert graphics_links(found) == [ALLOCATOR_LINK]
    (driver_tree.path / MULTIARCH.lstrip("/") / f"libnvidia-allocator.so.{VERSION}").unlink()
    assert graphics(driver_tree) == Edits()


def test_graphics_libraries(driver_tree: Tree) -> None:
    names = ["libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland.so.1.1.19", "libnvidia-egl-wayland2.so.1.0.0"]
    names += ["libnvidia-egl-xcb.so.1.0.2", "libnvidia-egl-xlib.so.1.0.2", f"libnvidia-vulkan-producer.so.{VERSION}"]
    for name in names:
        driver_tree.file(f"{MULTIARCH}/{name}", elf())
    driver_tree.link(f"{MULTIARCH}/libnvidia-egl-gbm.so.1", names[0])
    driver_tree.file(f"{MULTIARCH}/libnvidia-egl-xlib.so.2", elf())
    found = graphics(driver_tree)
    assert found.mounts == tuple(Mount(f"{MULTIARCH}/{name}", f"{MULTIARCH}/{name}") for name in names)
    producer = f"{names[-1]}::{MULTIARCH}/libnvidia-vulkan-producer.so"
    assert graphics_links(found) == [ALLOCATOR_LINK, producer]


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
def test_x_server_files(driver_tree: Tree, folder: str) -> None:
    extension = f"libglxserver_nvidia.so.{VERSION}"
    # nvidia-ctk does not search the directory of Debian.
    driver_tree.file(f"/usr/lib/nvidia/current/{extension}", elf())
    assert graphics(driver_tree).mounts == ()
    driver_tree.file(f"{folder}/{extension}", elf())
    driver_tree.link(f"{folder}/nvidia_drv.so", "/etc/alternatives/nvidia_drv.so")
    driver_tree.file("/etc/alternatives/nvidia_drv.so", elf())
    found = graphics(driver_tree)
    assert found.mounts == tuple(Mount(f"{folder}/{name}", f"{folder}/{name}") for name in ("nvidia_drv.so", extension))
    assert graphics_links(found) == [ALLOCATOR_LINK, f"{extension}::{folder}/libglxserver_nvidia.so"]


def test_x_server_search_order(driver_tree: Tree) -> None:
    for folder in ("/usr/lib64/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions", f"{MULTIARCH}/nvidia/xorg"):
        driver_tree.file(f"{folder}/nvidia_drv.so", elf())
        assert graphics(driver_tree).mounts == (Mount(f"{folder}/nvidia_drv.so", f"{folder}/nvidia_drv.so"),)


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
def test_graphics_config_files(driver_tree: Tree, host: str, inside: str) -> None:
    driver_tree.file(host)
    assert graphics(driver_tree).mounts == ((Mount(host, inside),) if inside else ())
