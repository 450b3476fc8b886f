# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.discover import driver_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.edits import (
    MOUNT_OPTIONS,
    SOCKET_OPTIONS,
    Edits,
    Mount,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Hooks, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    Tree,
    elf,
)

if t.TYPE_CHECKING:
    from pathlib import Path

LIBRARY = f"{MULTIARCH}/{{}}.so.{VERSION}"


def edits(tree: Tree, request: Request | None = None, root: str = "/") -> Edits:
    wanted = request or Request()
    return driver_edits(DriverFiles(CachedFS(tree.host()), root), VERSION, wanted, Hooks(wanted))


def hook(found: Edits, name: str) -> list[str]:
    """The arguments of the hook, without its own name and its option."""
    return [
        word for entry in found.hooks if entry.arguments[1] == name for word in entry.arguments[2:] if word != "--link"
    ]


def test_libraries_and_their_links(driver_tree: Tree) -> None:
    found = edits(driver_tree)
    names = [
        "libGLX_nvidia",
        "libcuda",
        "libnvidia-allocator",
        "libnvidia-glcore",
        "libnvidia-ml",
        "libnvidia-opticalflow",
    ]
    assert found.mounts == tuple(Mount(LIBRARY.format(name), LIBRARY.format(name)) for name in names)
    assert hook(found, "create-symlinks") == [
        f"libGLX_nvidia.so.{VERSION}::{MULTIARCH}/libGLX_indirect.so.0",
        f"libGLX_nvidia.so.{VERSION}::{MULTIARCH}/libGLX_nvidia.so.0",
        f"libcuda.so.1::{MULTIARCH}/libcuda.so",
        f"libcuda.so.{VERSION}::{MULTIARCH}/libcuda.so.1",
        f"libnvidia-allocator.so.{VERSION}::{MULTIARCH}/libnvidia-allocator.so.1",
        f"libnvidia-ml.so.{VERSION}::{MULTIARCH}/libnvidia-ml.so.1",
        f"libnvidia-ml.so.1::{MULTIARCH}/libnvidia-ml.so",
        f"libnvidia-opticalflow.so.1::{MULTIARCH}/libnvidia-opticalflow.so",
        f"libnvidia-opticalflow.so.{VERSION}::{MULTIARCH}/libnvidia-opticalflow.so.1",
    ]
    assert found.env == (f"NVIDIA_CTK_LIBCUDA_DIR={MULTIARCH}",)


@pytest.mark.parametrize(
    ("name", "content", "beside", "links"),
    [
        # Neither a file in the place of a link nor a missing one counts; a link that leads nowhere does.
        ("libx.so.{v}", elf("libx.so.1"), {}, []),
        ("libx.so.{v}", elf("libx.so.1"), {"libx.so.1": None}, []),
        ("libx.so.{v}", elf("libx.so.1"), {"libx.so.1": "lost"}, ["libx.so.{v}::{d}/libx.so.1"]),
        ("libx.so.{v}", elf("libx.so.1"), {"libx.so": "lost"}, ["libx.so.1::{d}/libx.so"]),
        # Without a soname the file has its own.
        ("libx.so.{v}", elf(), {"libx.so": "lost", "libx.so.1": "lost"}, ["libx.so.{v}::{d}/libx.so"]),
        # What is no library has none.
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
def test_links_that_are_on_the_host(
    driver_tree: Tree, name: str, content: bytes, beside: dict[str, str | None], links: list[str]
) -> None:
    before = set(hook(edits(driver_tree), "create-symlinks"))
    place = name.format(v=VERSION)
    for other, target in beside.items():
        path = f"{MULTIARCH}/{other.format(v=VERSION)}"
        if target is None:
            driver_tree.file(path)
        else:
            driver_tree.link(path, target.format(v=VERSION))
    driver_tree.file(f"{MULTIARCH}/{place}", content)
    found = edits(driver_tree)
    assert Mount(f"{MULTIARCH}/{place}", f"{MULTIARCH}/{place}") in found.mounts
    made = [link for link in hook(found, "create-symlinks") if link not in before]
    assert made == [link.format(v=VERSION, d=MULTIARCH) for link in links]


def test_the_hooks_in_their_order(driver_tree: Tree) -> None:
    driver_tree.file(f"{MULTIARCH}/vdpau/libvdpau_nvidia.so.{VERSION}", elf())
    found = edits(driver_tree, Request(ldconfig_path="/sbin/ldconfig"))
    assert [entry.arguments[1] for entry in found.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert hook(found, "enable-cuda-compat") == [f"--host-driver-version={VERSION}"]
    folders = ["--folder", MULTIARCH, "--folder", f"{MULTIARCH}/vdpau"]
    assert hook(found, "update-ldcache") == ["--ldconfig-path", "/sbin/ldconfig", *folders]
    assert hook(edits(driver_tree), "update-ldcache") == folders


def test_folders_without_libraries(driver_tree: Tree) -> None:
    # In the eyes of ldconfig.
    driver_tree.file(f"{MULTIARCH}/vdpau/plugin.so.{VERSION}", elf())
    found = edits(driver_tree)
    assert f"{MULTIARCH}/vdpau/plugin.so.{VERSION}" in [mount.host_path for mount in found.mounts]
    assert hook(found, "update-ldcache") == ["--folder", MULTIARCH]


def test_two_folders(driver_tree: Tree) -> None:
    current = f"{MULTIARCH}/nvidia/current"
    driver_tree.file(f"{current}/libnvidia-x.so.{VERSION}", elf())
    found = edits(driver_tree)
    assert found.env == (f"NVIDIA_CTK_LIBCUDA_DIR={MULTIARCH}:{current}",)
    assert hook(found, "update-ldcache") == ["--folder", MULTIARCH, "--folder", current]


def test_sockets_firmware_and_programs(driver_tree: Tree) -> None:
    libraries = edits(driver_tree).mounts
    driver_tree.file("/var/run/nvidia-persistenced/socket")
    driver_tree.file("/run/nvidia-fabricmanager/socket")
    driver_tree.file("/var/run/nvidia-fabricmanager/socket")
    driver_tree.folder("/tmp/nvidia-mps")
    driver_tree.file(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_x.bin")
    driver_tree.program("/usr/bin/nvidia-imex")
    driver_tree.program("/usr/bin/nvidia-smi")
    found = edits(driver_tree).mounts
    assert found[len(libraries) :] == (
        Mount("/var/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket", SOCKET_OPTIONS),
        Mount("/run/nvidia-fabricmanager/socket", "/run/nvidia-fabricmanager/socket", SOCKET_OPTIONS),
        *(
            Mount(path, path, MOUNT_OPTIONS)
            for path in (f"/lib/firmware/nvidia/{VERSION}/gsp_x.bin", "/usr/bin/nvidia-smi", "/usr/bin/nvidia-imex")
        ),
    )
    without = edits(driver_tree, Request(feature_flags=("disable-ipc-discoverer",))).mounts
    assert without == (*found[: len(libraries)], *found[len(libraries) + 2 :])


def test_a_file_for_mps(driver_tree: Tree) -> None:
    driver_tree.file("/tmp/nvidia-mps")
    assert Mount("/tmp/nvidia-mps", "/tmp/nvidia-mps", SOCKET_OPTIONS) in edits(driver_tree).mounts


def test_libraries_of_the_loader(driver_tree: Tree) -> None:
    driver_tree.file(f"{MULTIARCH}/libGL.so.1.7.0", elf("libGL.so.1"))
    driver_tree.link(f"{MULTIARCH}/libGL.so.1", "libGL.so.1.7.0")
    driver_tree.link(f"{MULTIARCH}/libGL.so", "libGL.so.1")
    library = Mount(f"{MULTIARCH}/libGL.so.1.7.0", f"{MULTIARCH}/libGL.so.1.7.0")
    assert library not in edits(driver_tree).mounts
    found = edits(driver_tree, Request(feature_flags=("enable-explicit-driver-libraries",)))
    assert library in found.mounts
    assert hook(found, "create-symlinks")[-2:] == [
        f"libGL.so.1.7.0::{MULTIARCH}/libGL.so.1",
        f"libGL.so.1::{MULTIARCH}/libGL.so",
    ]


def test_a_root_of_its_own(driver_tree: Tree) -> None:
    root = "/run/driver"
    driver_tree.driver("/usr/lib64", root)
    driver_tree.program(f"{root}/usr/bin/nvidia-smi")
    driver_tree.file(f"{root}/run/nvidia-persistenced/socket")
    driver_tree.program("/usr/bin/nvidia-imex")
    found = edits(driver_tree, root=root)
    assert found.env == ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64",)
    assert all(mount.host_path == root + mount.container_path for mount in found.mounts)
    assert f"libcuda.so.{VERSION}::/usr/lib64/libcuda.so.1" in hook(found, "create-symlinks")
    assert hook(found, "update-ldcache") == ["--folder", "/usr/lib64"]
    inside = [mount.container_path for mount in found.mounts]
    assert inside[-2:] == ["/run/nvidia-persistenced/socket", "/usr/bin/nvidia-smi"]


def test_no_libraries_of_this_version(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="The loaded NVIDIA driver has version"):
        edits(Tree(tmp_path))
