# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.modes import MODES, generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    Tree,
    elf,
    gpus,
    ld_cache,
    machine,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu

Data = t.Dict[str, t.Any]
CHANNELS = "/dev/nvidia-caps-imex-channels"


pytestmark = pytest.mark.usefixtures("files_for_devices")


def made(tree: Tree, mode: str, request: Request | None = None, devices: tuple[Gpu, ...] = ()) -> Data:
    known = machine(*devices) if devices else None
    return generate_all(mode, request or Request(), known, tree.host())[""]


def ready(tree: Tree, devices: tuple[Gpu, ...], root: str = "", drm: bool = True) -> None:
    tree.driver(root=root)
    tree.nodes(devices, root, drm)


def names(document: Data) -> list[str]:
    return [device["name"] for device in document["devices"]]


def node_paths(edits: Data) -> list[str]:
    return [node["path"] for node in edits.get("deviceNodes", [])]


def commands(edits: Data) -> list[str]:
    return [hook["args"][1] for hook in edits.get("hooks", [])]


# -- GPUs ------------------------------------------------------------------------------------------------------------


def test_a_whole_specification(tree: Tree) -> None:
    devices = gpus(1)
    ready(tree, devices, drm=False)
    tree.program("/usr/bin/nvidia-smi")
    document = made(
        tree, "nvml", Request(disabled_hooks=("all",), enabled_hooks=("update-application-profile",)), devices
    )
    gpu = {
        "deviceNodes": [{"path": "/dev/nvidia0", "major": 195, "fileMode": 438, "permissions": "rwm"}],
    }
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    paths = [
        "/usr/bin/nvidia-smi",
        *(
            f"{MULTIARCH}/{name}.so.{VERSION}"
            for name in (
                "libGLX_nvidia",
                "libcuda",
                "libnvidia-allocator",
                "libnvidia-glcore",
                "libnvidia-ml",
                "libnvidia-opticalflow",
            )
        ),
    ]
    assert json.dumps(document) == json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [
                {"name": "0", "containerEdits": gpu},
                {"name": "GPU-00000000-0000", "containerEdits": gpu},
                {"name": "all", "containerEdits": gpu},
            ],
            "containerEdits": {
                "env": [f"NVIDIA_CTK_LIBCUDA_DIR={MULTIARCH}", "NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [
                    {"path": "/dev/nvidia-modeset", "major": 195, "minor": 254, "fileMode": 438, "permissions": "rwm"},
                    {"path": "/dev/nvidia-uvm", "major": 510, "fileMode": 438, "permissions": "rwm"},
                    {"path": "/dev/nvidia-uvm-tools", "major": 510, "minor": 1, "fileMode": 438, "permissions": "rwm"},
                    {"path": "/dev/nvidiactl", "major": 195, "minor": 255, "fileMode": 438, "permissions": "rwm"},
                ],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/usr/bin/nvidia-cdi-hook",
                        "args": ["nvidia-cdi-hook", "update-application-profile"],
                        "env": ["NVIDIA_CTK_DEBUG=false"],
                    }
                ],
                "mounts": [{"hostPath": path, "containerPath": path, "options": options} for path in paths],
            },
        }
    )


def test_the_order_of_common_hooks(tree: Tree) -> None:
    devices = gpus(1)
    ready(tree, devices)
    assert commands(made(tree, "nvml", devices=devices)["containerEdits"]) == [
        "create-symlinks",
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
        "update-application-profile",
    ]
    none = made(tree, "nvml", Request(hooks="none", enabled_hooks=("chmod",)), devices)
    assert "hooks" not in json.dumps(none)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_many_gpus(tree: Tree, count: int) -> None:
    devices = gpus(count)
    ready(tree, devices)
    document = made(tree, "nvml", Request(device_name_strategies=("index",)), devices)
    assert document["cdiVersion"] == "0.7.0"
    assert names(document) == [*sorted(str(number) for number in range(count)), "all"]
    all_of_them = document["devices"][-1]["containerEdits"]
    assert len(all_of_them["deviceNodes"]) == 3 * count
    # In the order of the names: 0, 1, 10, 11, ..., 2.
    links = [hook["args"][3] for hook in all_of_them["hooks"]]
    assert links == [
        f"../card{name}::/dev/dri/by-path/pci-{devices[int(name)].bus}-card" for name in names(document)[:-1]
    ]
    assert all_of_them["additionalGids"] == [44, 105]


def test_parts_of_gpus(tree: Tree) -> None:
    devices = (gpus(2)[0], gpus(2, 3)[1])
    ready(tree, devices, drm=False)
    document = made(tree, "nvml", Request(device_name_strategies=("index",), all_device=False), devices)
    assert document["cdiVersion"] == "0.5.0"
    assert {device["name"]: node_paths(device["containerEdits"]) for device in document["devices"]} == {
        "0": ["/dev/nvidia1"],
        "1:0": ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"],
        "1:1": ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap5", "/dev/nvidia-caps/nvidia-cap6"],
        "1:2": ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap7", "/dev/nvidia-caps/nvidia-cap8"],
    }


def test_no_device_at_all(tree: Tree) -> None:
    devices = gpus(1)
    ready(tree, devices)
    document = made(tree, "nvml", Request(device_ids=("none",)), devices)
    assert document["devices"] == [{"name": "none", "containerEdits": {"env": ["NVCT_EMPTY_DEVICE="]}}]
    assert document["cdiVersion"] == "0.3.0"


def test_groups(tree: Tree) -> None:
    devices = gpus(1)
    ready(tree, devices, drm=False)
    tree.node("/dev/nvidia0", 195, 0, 0o660, 44)
    tree.node("/dev/nvidiactl", 195, 255, 0o660, 44)
    document = made(tree, "nvml", devices=devices)
    assert document["containerEdits"]["additionalGids"] == [44]
    assert document["devices"][0]["containerEdits"]["additionalGids"] == [44]
    plain = made(tree, "nvml", Request(feature_flags=("no-additional-gids-for-device-nodes",)), devices)
    assert "additionalGids" not in json.dumps(plain)
    assert plain["devices"][0]["containerEdits"]["deviceNodes"][0]["gid"] == 44


def test_a_driver_container(tree: Tree) -> None:
    devices, root = gpus(1), "/run/nvidia/driver"
    ready(tree, devices, root)
    document = made(tree, "nvml", Request(driver_root=root), devices)
    nodes = document["containerEdits"]["deviceNodes"] + document["devices"][0]["containerEdits"]["deviceNodes"]
    assert len(nodes) == 7
    assert all(node["hostPath"] == root + node["path"] for node in nodes)
    assert all(mount["hostPath"] == root + mount["containerPath"] for mount in document["containerEdits"]["mounts"])
    # Its nodes may be the host's own.
    ready(tree, devices)
    assert "hostPath" not in str(made(tree, "nvml", Request(driver_root=root, dev_root="/"), devices)["devices"])


def test_libraries_known_to_the_cache_only(tree: Tree) -> None:
    devices = gpus(1)
    ready(tree, devices)
    (tree.path / "opt").mkdir()
    (tree.path / MULTIARCH.lstrip("/")).rename(tree.path / "opt/lib")
    tree.file("/etc/ld.so.cache", ld_cache("/opt/lib/libcuda.so.1", "/opt/lib/libnvidia-ml.so.1", old=3))
    common = made(tree, "nvml", devices=devices)["containerEdits"]
    assert common["env"][0] == "NVIDIA_CTK_LIBCUDA_DIR=/opt/lib"
    assert f"/opt/lib/libnvidia-glcore.so.{VERSION}" in [mount["hostPath"] for mount in common["mounts"]]


def test_both_ways_of_debian(tree: Tree) -> None:
    devices, current = gpus(1), f"{MULTIARCH}/nvidia/current"
    ready(tree, devices)
    tree.folder(current)
    for file in (tree.path / MULTIARCH.lstrip("/")).glob("lib*"):
        file.rename(file.parent / "nvidia/current" / file.name)
    tree.file(f"{MULTIARCH}/libnvidia-eglcore.so.{VERSION}", elf())
    tree.link(f"{MULTIARCH}/libcuda.so.1", "/etc/alternatives/libcuda.so.1")
    tree.link("/etc/alternatives/libcuda.so.1", f"{current}/libcuda.so.1")
    common = made(tree, "nvml", devices=devices)["containerEdits"]
    assert common["env"][0] == f"NVIDIA_CTK_LIBCUDA_DIR={MULTIARCH}:{current}"
    inside = [mount["containerPath"] for mount in common["mounts"]]
    assert f"{MULTIARCH}/libnvidia-eglcore.so.{VERSION}" in inside
    assert f"{current}/libcuda.so.{VERSION}" in inside


def test_missing_control_nodes_are_left_out(tree: Tree) -> None:
    devices = gpus(1)
    ready(tree, devices)
    (tree.path / "dev/nvidia-uvm").unlink()
    assert "/dev/nvidia-uvm" not in node_paths(made(tree, "nvml", devices=devices)["containerEdits"])


# -- other modes -----------------------------------------------------------------------------------------------------


def test_management(tree: Tree) -> None:
    devices = gpus(2, 1)
    ready(tree, devices)
    for name in ("nvidia-fs0", "nvidia-nvswitch0", "nvidia-nvswitchctl", "nvidia-nvlink", "nvidia-caps/nvidia-cap1"):
        tree.node(f"/dev/{name}", 505, 0)
    tree.node(f"{CHANNELS}/channel0", 235, 0, 0o600)
    tree.file("/dev/nvidia-notes", b"none of them")
    document = made(tree, "management", Request(vendor="management.nvidia.com", enabled_hooks=("chmod",)))
    assert document["kind"] == "management.nvidia.com/gpu"
    assert document["cdiVersion"] == "0.3.0"
    assert names(document) == ["all"]
    edits = document["devices"][0]["containerEdits"]
    assert node_paths(edits) == [
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
        f"{CHANNELS}/channel0",
        *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (1, 3, 4, 5, 6)),
    ]
    assert edits["hooks"][0]["args"] == ["nvidia-cdi-hook", "chmod", "--mode", "755", "--path", "/dev/nvidia-caps"]
    common = document["containerEdits"]
    assert commands(common) == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert common["env"] == [f"NVIDIA_CTK_LIBCUDA_DIR={MULTIARCH}", "NVIDIA_VISIBLE_DEVICES=void"]
    assert "deviceNodes" not in common


# What a former driver, or a user, leaves beside the driver; each comes first in one of the possible orders.
STALE = ["libcuda.so.535.10", "libcuda.so.999.1", f"libcuda.so.{VERSION}.old", f"libcuda.so.{VERSION}.bak.2"]


@pytest.mark.parametrize("folder", [MULTIARCH, "/usr/lib64"])
@pytest.mark.parametrize("name", STALE)
def test_management_of_the_loaded_driver(tree: Tree, name: str, folder: str) -> None:
    ready(tree, gpus(1))
    before = made(tree, "management")
    tree.file(f"{folder}/{name}", elf())
    tree.file("/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX  {VERSION}  Tue Apr  8\n".encode())
    assert generate_all("management", Request(), None, HostFS(str(tree.path), True))[""] == before


def test_management_without_the_libraries_of_the_loaded_driver(tree: Tree) -> None:
    ready(tree, gpus(1))
    tree.file("/sys/module/nvidia/version", b"535.10\n")
    with pytest.raises(HostError, match=r"NVIDIA driver has version 535\.10, but there is no libcuda\.so\.535\.10"):
        generate_all("management", Request(), None, HostFS(str(tree.path), True))[""]


@pytest.mark.parametrize("name", ["libcuda.so.535.10", "libcuda.so.999.1"])
def test_management_of_a_tree_with_two_drivers(tree: Tree, name: str) -> None:
    ready(tree, gpus(1))
    tree.file(f"/usr/lib64/{name}", elf())
    with pytest.raises(HostError) as caught:
        made(tree, "management")
    assert f"/usr/lib64/{name}" in str(caught.value)
    assert f"{MULTIARCH}/libcuda.so.{VERSION}" in str(caught.value)


@pytest.mark.parametrize("name", STALE[2:])
def test_management_of_a_tree_with_a_copy_of_a_library(tree: Tree, name: str) -> None:
    ready(tree, gpus(1))
    before = made(tree, "management")
    tree.file(f"/usr/lib64/{name}", elf())
    assert made(tree, "management") == before


def test_a_hook_that_management_has_only_on_request(tree: Tree) -> None:
    ready(tree, gpus(1))
    hook = "disable-device-node-modification"
    assert hook not in commands(made(tree, "management")["containerEdits"])
    for request in (Request(enabled_hooks=(hook,)), Request(enabled_hooks=(hook,), disabled_hooks=(hook,))):
        common = made(tree, "management", request)["containerEdits"]
        assert commands(common) == ["create-symlinks", "enable-cuda-compat", "update-ldcache", hook]
    request = Request(enabled_hooks=(hook,), disabled_hooks=("all",))
    assert commands(made(tree, "management", request)["containerEdits"]) == [hook]


@pytest.mark.parametrize(
    ("mode", "made_nodes", "found"),
    [
        ("gds", ["nvidia-fs0", "nvidia-fs1", "nvidia0"], ["nvidia-fs0", "nvidia-fs1"]),
        ("gdrcopy", ["gdrdrv", "gdrdrv0"], ["gdrdrv"]),
        ("mofed", ["infiniband/rdma_cm", "infiniband/uverbs0", "infiniband/umad0"],
         ["infiniband/rdma_cm", "infiniband/uverbs0"]),
        ("nvswitch", ["nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvlink"],
         ["nvidia-nvswitch0", "nvidia-nvswitchctl"]),
    ],
)  # fmt: skip
def test_modes_of_nodes(tree: Tree, mode: str, made_nodes: list[str], found: list[str]) -> None:
    with pytest.raises(HostError, match=f"mode {mode} needs device nodes, but there is no"):
        made(tree, mode)
    for name in made_nodes:
        tree.node(f"/dev/{name}", 505, 1, 0o660, 7)
    document = made(tree, mode, Request(class_=mode))
    assert document["kind"] == f"nvidia.com/{mode}"
    assert names(document) == ["all"]
    assert document["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    edits = document["devices"][0]["containerEdits"]
    assert node_paths(edits) == [f"/dev/{name}" for name in found]
    assert edits["additionalGids"] == [7]
    assert sorted(edits) == ["additionalGids", "deviceNodes"]


def test_what_gds_needs_else(tree: Tree) -> None:
    tree.node("/dev/nvidia-fs0", 505, 0)
    tree.folder("/run/driver/run/udev")
    tree.file("/run/driver/etc/cufile.json")
    tree.file("/etc/cufile.json")
    request = Request(driver_root="/run/driver", dev_root="/")
    edits = made(tree, "gds", request)["devices"][0]["containerEdits"]
    assert [(mount["hostPath"], mount["containerPath"]) for mount in edits["mounts"]] == [
        ("/run/driver/etc/cufile.json", "/etc/cufile.json"),
        ("/run/driver/run/udev", "/run/udev"),
    ]
    assert "hostPath" not in edits["deviceNodes"][0]


def test_the_nodes_of_mofed_are_in_dev_root(tree: Tree) -> None:
    tree.folder("/run/driver")
    tree.node("/dev/infiniband/rdma_cm", 10, 121)
    edits = made(tree, "mofed", Request(driver_root="/run/driver", dev_root="/"))["devices"][0]["containerEdits"]
    assert [(node["path"], node["minor"]) for node in edits["deviceNodes"]] == [("/dev/infiniband/rdma_cm", 121)]
    assert "hostPath" not in edits["deviceNodes"][0]


def test_channels(tree: Tree) -> None:
    for name in ("channel0", "channel2", "channel10", "channelx", f"channel{1 << 20}"):
        tree.node(f"{CHANNELS}/{name}", 235, 1)
    document = made(tree, "imex", Request(class_="imex-channel"))
    assert document["cdiVersion"] == "0.5.0"
    assert names(document) == ["0", "10", "2", "all"]
    path = f"{CHANNELS}/channel10"
    assert document["devices"][1]["containerEdits"] == {"deviceNodes": [{"path": path, "hostPath": path}]}
    assert len(node_paths(document["devices"][3]["containerEdits"])) == 3
    assert names(made(tree, "imex", Request(all_device=False))) == ["0", "10", "2"]
    assert names(made(tree, "imex", Request(device_ids=("channelall",)))) == ["0", "10", "2", "all"]
    # One may be made later.
    document = made(tree, "imex", Request(device_ids=("5", "channel2", "5"), dev_root="/run/driver"))
    assert names(document) == ["2", "5", "all"]
    assert document["devices"][1]["containerEdits"]["deviceNodes"] == [
        {"path": f"{CHANNELS}/channel5", "hostPath": f"/run/driver{CHANNELS}/channel5"}
    ]


@pytest.mark.parametrize("wanted", ["x", "-1", "1048576", "01", "channel"])
def test_channels_that_are_none(tree: Tree, wanted: str) -> None:
    with pytest.raises(NvidiaError, match=f"device_ids: '{wanted}' is not an IMEX channel"):
        made(tree, "imex", Request(device_ids=(wanted,)))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "nvml"])
def test_no_nodes(tree: Tree, mode: str) -> None:
    tree.driver(root="/run/driver")
    with pytest.raises(HostError, match=f"^mode {mode} needs device nodes, but there is no /run/driver/dev/"):
        made(tree, mode, Request(driver_root="/run/driver"))


@pytest.mark.parametrize(
    ("mode", "request_", "message"),
    [
        ("csv", Request(), "mode: unknown value 'csv'. Use one of nvml, management, gds, "),
        ("nvml", Request(), "mode nvml needs the list of the host's GPUs"),
        ("gds", Request(hooks="x"), "hooks: unknown value 'x'"),
    ],
)
def test_requests_that_are_refused(tree: Tree, mode: str, request_: Request, message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        generate_all(mode, request_, None, tree.host())[""]


def test_no_driver(tree: Tree) -> None:
    devices = gpus(1)
    tree.control_nodes()
    tree.gpu(devices[0])
    for mode in ("nvml", "management"):
        with pytest.raises(HostError, match=r"there is no libcuda\.so\."):
            made(tree, mode, devices=devices)
