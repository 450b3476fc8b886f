# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.discover import DeviceNodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.edits import DeviceNode, Edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Hooks, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import CONTROL_NODES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree, TreeLookup, gpus

GPU = gpus(2)[1]
CHMOD = Request(enabled_hooks=("chmod",))


def nodes(tree: Tree, root: str = "/", request: Request | None = None, with_gids: bool = True) -> DeviceNodes:
    return DeviceNodes(TreeLookup(tree.host()), root, Hooks(request or Request()), with_gids)


def arguments(edits: Edits) -> list[tuple[str, ...]]:
    return [hook.arguments[1:] for hook in edits.hooks]


def test_nodes_as_they_are(tree: Tree) -> None:
    tree.node("/dev/nvidiactl", 195, 255, 0o660, 44)
    tree.link("/dev/nvidia-uvm", "nvidiactl")
    tree.folder("/dev/nvidia-modeset")
    assert nodes(tree).named(CONTROL_NODES) == [DeviceNode("/dev/nvidiactl", "", 195, 255, 0o660, gid=44)]
    assert nodes(tree).edits(nodes(tree).named(CONTROL_NODES)).gids == (44,)
    assert nodes(tree, with_gids=False).edits(nodes(tree).named(CONTROL_NODES)).gids == ()


def test_real_nodes() -> None:
    found = DeviceNodes(CachedFS(HostFS()), "/", Hooks(Request()), with_gids=True).named(
        ["/dev/null", "/dev", "/dev/-"]
    )
    assert [(node.path, node.host_path, node.major, node.minor) for node in found] == [("/dev/null", "", 1, 3)]


def test_another_root(tree: Tree) -> None:
    tree.gpu(GPU, "/run/driver")
    found = nodes(tree, "/run/driver").gpu(GPU)
    assert found.nodes[0] == DeviceNode("/dev/nvidia0", "/run/driver/dev/nvidia0", 195, 0, 0o666)
    assert arguments(found)[0][1:] == (
        *("--link", "../card1::/run/driver/dev/dri/by-path/pci-0000:11:00.0-card"),
        *("--link", "../renderD129::/run/driver/dev/dri/by-path/pci-0000:11:00.0-render"),
    )


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
        # The node of that name which is not below the root is another one.
        ("/run/driver", "/dev/dri/card1", False),
    ],
)
def test_links_by_pci_address(tree: Tree, root: str, target: str, taken: bool) -> None:
    tree.gpu(GPU, root.rstrip("/"))
    link = f"{root.rstrip('/')}/dev/dri/by-path/pci-{GPU.bus}-card"
    (tree.path / link[1:]).unlink()
    tree.link(link, target)
    made = [word for word in arguments(nodes(tree, root).gpu(GPU))[0] if word.endswith("-card")]
    assert made == ([f"{target}::{link}"] if taken else [])


def test_patterns(tree: Tree) -> None:
    tree.node("/run/driver/dev/nvidia-fs0", 505, 0)
    tree.node("/run/driver/dev/nvidia-fs1", 505, 1)
    tree.folder("/run/driver/dev/nvidia-fs2")
    found = nodes(tree, "/run/driver").matching("/dev/nvidia-fs*", "/dev/nvidia-fs0", "/dev/none*")
    assert [node.path for node in found] == ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]


def test_a_gpu(tree: Tree) -> None:
    tree.gpu(GPU)
    found = nodes(tree).gpu(GPU)
    assert found.nodes == (
        DeviceNode("/dev/nvidia0", "", 195, 0, 0o666),
        DeviceNode("/dev/dri/card1", "", 226, 1, 0o660, gid=44),
        DeviceNode("/dev/dri/renderD129", "", 226, 129, 0o660, gid=105),
    )
    assert found.gids == (44, 105)
    links = (
        *("--link", "../card1::/dev/dri/by-path/pci-0000:11:00.0-card"),
        *("--link", "../renderD129::/dev/dri/by-path/pci-0000:11:00.0-render"),
    )
    assert arguments(found) == [("create-symlinks", *links)]
    assert arguments(nodes(tree, request=CHMOD).gpu(GPU)) == [
        ("create-symlinks", *links),
        ("chmod", "--mode", "755", "--path", "/dev/dri"),
    ]


def test_a_gpu_without_drm(tree: Tree) -> None:
    tree.gpu(GPU, drm=False)
    # The links of another card, and one to a node that is not of this GPU.
    tree.link(f"/dev/dri/by-path/pci-{GPU.bus}-card", "../card0")
    tree.node("/dev/dri/card0", 226, 0)
    found = nodes(tree, request=CHMOD).gpu(GPU)
    assert [node.path for node in found.nodes] == ["/dev/nvidia0"]
    assert arguments(found) == [("chmod", "--mode", "755")]
    assert nodes(tree).gpu(GPU).hooks == ()


def test_a_gpu_without_its_own_node(tree: Tree) -> None:
    tree.gpu(GPU)
    (tree.path / "dev/nvidia0").unlink()
    assert [node.path for node in nodes(tree).gpu(GPU).nodes] == ["/dev/dri/card1", "/dev/dri/renderD129"]


@pytest.mark.parametrize("gfx", [False, True])
def test_mig_devices(tree: Tree, gfx: bool) -> None:
    gpu = gpus(2, 2, gfx)[0]
    tree.gpu(gpu)
    tree.mig_nodes([gpu])
    found = nodes(tree, request=CHMOD).mig(gpu, gpu.migs[1])
    drm = ["/dev/dri/card0", "/dev/dri/renderD128"] if gfx else []
    assert [node.path for node in found.nodes] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap5",
        "/dev/nvidia-caps/nvidia-cap6",
        *drm,
    ]
    assert [hook[0] for hook in arguments(found)] == (["create-symlinks"] if gfx else [])


def test_capabilities_that_the_driver_does_not_tell(tree: Tree) -> None:
    gpu = gpus(1, 1)[0]
    tree.gpu(gpu)
    with pytest.raises(NvidiaError, match="mig-minors"):
        nodes(tree).mig(gpu, gpu.migs[0])
