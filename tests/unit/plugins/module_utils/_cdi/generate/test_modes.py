# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.discover import DeviceNodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.modes import (
    NATIVE_MODES,
    generate_all,
    selected_devices,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Hooks, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    Tree,
    TreeLookup,
    elf,
    gpus,
    inventory_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu


Data = t.Dict[str, t.Any]
CHANNELS = "/dev/nvidia-caps-imex-channels"


pytestmark = pytest.mark.usefixtures("files_for_devices")


def generate(tree: Tree, mode: str, request: Request | None = None, devices: tuple[Gpu, ...] = ()) -> Data:
    known = inventory_of(*devices) if devices else None
    return generate_all(mode, request or Request(), known, tree.host())[""]


def write_host(tree: Tree, devices: tuple[Gpu, ...]) -> None:
    tree.driver()
    tree.nodes(devices)


def names(document: Data) -> list[str]:
    return [device["name"] for device in document["devices"]]


def node_paths(edits: Data) -> list[str]:
    return [node["path"] for node in edits.get("deviceNodes", [])]


def commands(edits: Data) -> list[str]:
    return [hook["args"][1] for hook in edits.get("hooks", [])]


def test_management(tree: Tree) -> None:
    devices = gpus(2, 1)
    write_host(tree, devices)
    for name in ("nvidia-fs0", "nvidia-nvswitch0", "nvidia-nvswitchctl", "nvidia-nvlink", "nvidia-caps/nvidia-cap1"):
        tree.node(f"/dev/{name}", 505, 0)
    tree.node(f"{CHANNELS}/channel0", 235, 0, 0o600)
    tree.file("/dev/nvidia-notes", b"none of them")
    document = generate(tree, "management", Request(vendor="management.nvidia.com", enabled_hooks=("chmod",)))
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


# Files of another driver or of a user. Sorted by name with the driver's libcuda, each comes first in one direction.
STALE = ["libcuda.so.535.10", "libcuda.so.999.1", f"libcuda.so.{VERSION}.old", f"libcuda.so.{VERSION}.bak.2"]


@pytest.mark.parametrize("folder", [MULTIARCH, "/usr/lib64"])
@pytest.mark.parametrize("name", STALE)
def test_management_uses_loaded_driver(tree: Tree, name: str, folder: str) -> None:
    write_host(tree, gpus(1))
    before = generate(tree, "management")
    tree.file(f"{folder}/{name}", elf())
    tree.file("/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX  {VERSION}  Tue Apr  8\n".encode())
    assert generate_all("management", Request(), None, HostFS(str(tree.path), True))[""] == before


@pytest.mark.parametrize("name", ["libcuda.so.535.10", "libcuda.so.999.1"])
def test_management_with_two_drivers(tree: Tree, name: str) -> None:
    write_host(tree, gpus(1))
    tree.file(f"/usr/lib64/{name}", elf())
    with pytest.raises(HostError) as caught:
        generate(tree, "management")
    assert f"/usr/lib64/{name}" in str(caught.value)
    assert f"{MULTIARCH}/libcuda.so.{VERSION}" in str(caught.value)


@pytest.mark.parametrize("name", STALE[2:])
def test_management_ignores_copies(tree: Tree, name: str) -> None:
    write_host(tree, gpus(1))
    before = generate(tree, "management")
    tree.file(f"/usr/lib64/{name}", elf())
    assert generate(tree, "management") == before


def test_management_enables_hook_on_request(tree: Tree) -> None:
    write_host(tree, gpus(1))
    hook = "disable-device-node-modification"
    assert hook not in commands(generate(tree, "management")["containerEdits"])
    for request in (Request(enabled_hooks=(hook,)), Request(enabled_hooks=(hook,), disabled_hooks=(hook,))):
        common = generate(tree, "management", request)["containerEdits"]
        assert commands(common) == ["create-symlinks", "enable-cuda-compat", "update-ldcache", hook]
    request = Request(enabled_hooks=(hook,), disabled_hooks=("all",))
    assert commands(generate(tree, "management", request)["containerEdits"]) == [hook]


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
def test_node_modes(tree: Tree, mode: str, made_nodes: list[str], found: list[str]) -> None:
    for name in made_nodes:
        tree.node(f"/dev/{name}", 505, 1, 0o660, 7)
    document = generate(tree, mode, Request(class_=mode))
    assert document["kind"] == f"nvidia.com/{mode}"
    assert names(document) == ["all"]
    assert document["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    edits = document["devices"][0]["containerEdits"]
    assert node_paths(edits) == [f"/dev/{name}" for name in found]
    assert edits["additionalGids"] == [7]
    assert sorted(edits) == ["additionalGids", "deviceNodes"]


def test_gds_mounts(tree: Tree) -> None:
    tree.node("/dev/nvidia-fs0", 505, 0)
    tree.folder("/run/driver/run/udev")
    tree.file("/run/driver/etc/cufile.json")
    tree.file("/etc/cufile.json")
    request = Request(driver_root="/run/driver", dev_root="/")
    edits = generate(tree, "gds", request)["devices"][0]["containerEdits"]
    assert [(mount["hostPath"], mount["containerPath"]) for mount in edits["mounts"]] == [
        ("/run/driver/etc/cufile.json", "/etc/cufile.json"),
        ("/run/driver/run/udev", "/run/udev"),
    ]
    assert "hostPath" not in edits["deviceNodes"][0]


def test_imex_channels(tree: Tree) -> None:
    for name in ("channel0", "channel2", "channel10", "channelx", f"channel{1 << 20}"):
        tree.node(f"{CHANNELS}/{name}", 235, 1)
    document = generate(tree, "imex", Request(class_="imex-channel"))
    assert document["cdiVersion"] == "0.5.0"
    assert names(document) == ["0", "10", "2", "all"]
    path = f"{CHANNELS}/channel10"
    assert document["devices"][1]["containerEdits"] == {"deviceNodes": [{"path": path, "hostPath": path}]}
    assert len(node_paths(document["devices"][3]["containerEdits"])) == 3
    assert names(generate(tree, "imex", Request(all_device=False))) == ["0", "10", "2"]
    assert names(generate(tree, "imex", Request(device_ids=("channelall",)))) == ["0", "10", "2", "all"]
    # The node of a selected channel may be missing.
    document = generate(tree, "imex", Request(device_ids=("5", "channel2", "5"), dev_root="/run/driver"))
    assert names(document) == ["2", "5", "all"]
    assert document["devices"][1]["containerEdits"]["deviceNodes"] == [
        {"path": f"{CHANNELS}/channel5", "hostPath": f"/run/driver{CHANNELS}/channel5"}
    ]


@pytest.mark.parametrize("identifier", ["x", "-1", "1048576", "01", "channel"])
def test_invalid_imex_channels(tree: Tree, identifier: str) -> None:
    with pytest.raises(NvidiaError, match=f"device_ids: '{identifier}' is not an IMEX channel"):
        generate(tree, "imex", Request(device_ids=(identifier,)))


@pytest.mark.parametrize("mode", [mode for mode in NATIVE_MODES if mode != "nvml"])
def test_missing_nodes(tree: Tree, mode: str) -> None:
    tree.driver(root="/run/driver")
    with pytest.raises(HostError, match=f"^mode: {mode} needs device nodes, but there is no /run/driver/dev/"):
        generate(tree, mode, Request(driver_root="/run/driver"))


def test_gpus_are_needed(tree: Tree) -> None:
    with pytest.raises(NvidiaError, match="mode: nvml needs the list of the host's GPUs"):
        generate_all("nvml", Request(), None, tree.host())


def test_missing_driver_libraries(tree: Tree) -> None:
    devices = gpus(1)
    tree.control_nodes()
    tree.gpu(devices[0])
    for mode in ("nvml", "management"):
        with pytest.raises(HostError, match=r"there is no libcuda\.so\."):
            generate(tree, mode, devices=devices)


# The second GPU has MIG devices.
MIXED = (gpus(2)[0], gpus(2, 2)[1])
WHOLE, PARTS = ["0", "GPU-00000000-0000"], ["1:0", "MIG-00010000-0000", "1:1", "MIG-00010001-0000"]


def selected_names(
    path: Path, devices: tuple[Gpu, ...], ids: tuple[str, ...] = (), strategies: tuple[str, ...] = ("index", "uuid")
) -> list[str]:
    tree = Tree(path)
    for gpu in devices:
        tree.gpu(gpu)
    tree.mig_nodes(devices)
    nodes = DeviceNodes(TreeLookup(tree.host()), "/", Hooks(Request()), with_gids=True)
    found = selected_devices(inventory_of(*devices), ids, strategies, nodes)
    for device in found:
        assert not device.edits.is_empty()
    return [device.name for device in found]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ((), WHOLE + PARTS),
        (("all",), WHOLE + PARTS),
        (("1:1", "all"), WHOLE + PARTS),
        (("0",), WHOLE),
        (("0", "GPU-00000000-0000", "0"), WHOLE),
        (("1:1",), PARTS[2:]),
        (("MIG-00010000-0000", "0"), PARTS[:2] + WHOLE),
        # The index of a GPU with MIG devices selects the whole GPU.
        (("1",), ["1", "GPU-00000001-0000"]),
    ],
)
def test_device_ids(tmp_path: Path, ids: tuple[str, ...], found: list[str]) -> None:
    assert selected_names(tmp_path, MIXED, ids) == found


@pytest.mark.parametrize("identifier", ["2", "0:0", "1:2", "GPU-", "", "gpu0", "0:", "-1", "01x", "99999"])
def test_unknown_device_ids(tmp_path: Path, identifier: str) -> None:
    with pytest.raises(NvidiaError) as caught:
        selected_names(tmp_path, MIXED, (identifier,))
    assert str(caught.value).startswith(f"device_ids: unknown device {identifier!r}. ")
    assert str(caught.value).endswith(": 0, 1, 1:0, 1:1.")


@pytest.mark.parametrize(
    ("strategies", "found"),
    [
        (("index",), ["0", "1:0", "1:1"]),
        (("type-index",), ["gpu0", "mig1:0", "mig1:1"]),
        (("uuid",), [WHOLE[1], PARTS[1], PARTS[3]]),
        (("type-index", "index", "type-index"), ["gpu0", "0", "mig1:0", "1:0", "mig1:1", "1:1"]),
    ],
)
def test_device_names(tmp_path: Path, strategies: tuple[str, ...], found: list[str]) -> None:
    assert selected_names(tmp_path, MIXED, strategies=strategies) == found


def test_indexes_with_gaps(tmp_path: Path) -> None:
    assert selected_names(tmp_path, (gpus(3)[0], gpus(3)[2]), strategies=("index",)) == ["0", "2"]


def test_no_devices(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no GPU and no MIG device"):
        selected_names(tmp_path, (gpus(1, 1)[0]._replace(migs=()),))


def test_missing_uuid(tmp_path: Path) -> None:
    gpu = gpus(1)[0]._replace(uuid="")
    with pytest.raises(HostError, match=r"UUID of GPU 0 \(0000:10:00\.0\).*nvidia-smi -L"):
        selected_names(tmp_path, (gpu,))


def test_empty_uuid_matches_nothing(tmp_path: Path) -> None:
    gpu = gpus(1)[0]._replace(uuid="")
    with pytest.raises(NvidiaError, match="unknown device ''"):
        selected_names(tmp_path, (gpu,), ("",), ("index",))


def test_missing_uuid_is_not_needed(tmp_path: Path) -> None:
    gpu = gpus(1)[0]._replace(uuid="")
    assert selected_names(tmp_path, (gpu,), strategies=("index",)) == ["0"]


def test_gpu_without_nodes(tmp_path: Path) -> None:
    # The edits contain this hook although there is no node.
    hooks = Hooks(Request(enabled_hooks=("chmod",)))
    nodes = DeviceNodes(TreeLookup(Tree(tmp_path).host()), "/", hooks, with_gids=True)
    with pytest.raises(HostError, match=r"^GPU 0 \(0000:10:00\.0\) has no device node: /dev/nvidia0 is missing"):
        selected_devices(inventory_of(*gpus(1)), (), ("index",), nodes)
