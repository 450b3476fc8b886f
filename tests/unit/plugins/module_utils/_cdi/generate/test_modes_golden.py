# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.modes import generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.replaceable import without_replaceable_mounts
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_layouts import (
    DRIVER_ROOT,
    LAYOUTS,
    difference,
    summary,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    MULTIARCH,
    VERSION,
    NodeTree,
    Tree,
    elf,
    gpus,
    inventory_of,
    ld_cache,
    mig_gpu,
    needs_root,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu


Data = t.Dict[str, t.Any]
FOLDER = Path(__file__).parents[4] / "files" / "cdi"
# The naming strategies of the golden documents.
BOTH, INDEX = ("index", "uuid"), ("index",)
DOCUMENTS = [
    ("flat", "nvml", BOTH),
    ("flat", "management", INDEX),
    ("lib64", "nvml", INDEX),
    ("debian", "nvml", INDEX),
    ("cache", "nvml", INDEX),
    ("container", "nvml", INDEX),
    ("arm64", "nvml", INDEX),
]


def golden(name: str) -> Data:
    document: Data = json.loads((FOLDER / f"{name}.json").read_text())
    return document


def generated(tree: Tree, name: str, request: Request, devices: tuple[Gpu, ...], mode: str = "nvml") -> Data:
    root = LAYOUTS[name].root or "/"
    document = generate_all(mode, request._replace(driver_root=root), inventory_of(*devices), tree.host())[""]
    return without_replaceable_mounts(document, tree.host())[0]


@pytest.mark.usefixtures("files_for_devices")
@pytest.mark.parametrize(("name", "mode", "strategies"), DOCUMENTS)
def test_layouts(tmp_path: Path, name: str, mode: str, strategies: tuple[str, ...]) -> None:
    tree = Tree(tmp_path)
    devices = LAYOUTS[name].make(tree)
    result = generated(tree, name, Request(device_name_strategies=strategies), devices, mode)
    expected = golden(name if mode == "nvml" else f"{name}-{mode}")
    assert summary(result) == summary(expected)
    assert json.dumps(result) == json.dumps(expected)


@needs_root
@pytest.mark.parametrize("name", ["lib64", "debian"])
def test_real_nodes(tmp_path: Path, name: str) -> None:
    tree = NodeTree(tmp_path)
    devices = LAYOUTS[name].make(tree)
    assert generated(tree, name, Request(device_name_strategies=INDEX), devices) == golden(name)


# -- changes of the host ---------------------------------------------------------------------------------------------


def remove(*paths: str) -> t.Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        for path in paths:
            (tree.path / path.lstrip("/")).unlink()

    return change


def node(path: str, major: int, minor: int, mode: int = 0o666, gid: int = 0) -> t.Callable[[Tree], None]:
    return lambda tree: tree.node(path, major, minor, mode, gid)


def file(path: str, content: bytes = b"") -> t.Callable[[Tree], None]:
    return lambda tree: tree.file(path, content)


def files(*contents: tuple[str, bytes]) -> t.Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        for path, content in contents:
            tree.file(path, content)

    return change


def in_tmp(mode: int) -> t.Callable[[Tree], None]:
    """Create the path of MPS in a directory with this mode."""

    def change(tree: Tree) -> None:
        tree.file("/tmp/nvidia-mps")
        (tree.path / "tmp").chmod(mode)

    return change


def link(path: str, target: str) -> t.Callable[[Tree], None]:
    return lambda tree: tree.link(path, target)


def program(path: str) -> t.Callable[[Tree], None]:
    return lambda tree: tree.program(path)


CARD = "0000:10:00.0"
LINKS = f"hook nvidia-cdi-hook create-symlinks --link ../card0::/dev/dri/by-path/pci-{CARD}-card"
ALLOCATOR = "hook nvidia-cdi-hook create-symlinks --link ../libnvidia-allocator.so.1::{}/gbm/nvidia-drm_gbm.so"
HOSTS = [
    # Nodes that are missing, or have other modes and groups.
    ("cache", remove("/dev/nvidia-modeset"), ["- every node /dev/nvidia-modeset 195:254 666"]),
    (
        "cache",
        remove("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        ["- every node /dev/nvidia-uvm 510:0 666", "- every node /dev/nvidia-uvm-tools 510:1 666"],
    ),
    ("cache", remove("/dev/nvidia0"), ["- 0 node /dev/nvidia0 195:0 666", "- all node /dev/nvidia0 195:0 666"]),
    (
        "cache",
        node("/dev/nvidia0", 195, 0, 0o664, 500),
        [
            "- 0 node /dev/nvidia0 195:0 666",
            "- all node /dev/nvidia0 195:0 666",
            "+ 0 node /dev/nvidia0 195:0 664 gid 500",
            "+ 0 gid 500",
            "+ all node /dev/nvidia0 195:0 664 gid 500",
            "+ all gid 500",
        ],
    ),
    (
        "cache",
        node("/dev/nvidiactl", 195, 255, 0o666, 44),
        ["- every node /dev/nvidiactl 195:255 666", "+ every node /dev/nvidiactl 195:255 666 gid 44"],
    ),
    # DRM: without the render node there is no link to it.
    (
        "cache",
        remove("/dev/dri/renderD128"),
        [
            *(f"- {name} {what}" for name in ("0", "all") for what in (
                "node /dev/dri/renderD128 226:128 660 gid 105",
                f"{LINKS} --link ../renderD128::/dev/dri/by-path/pci-{CARD}-render",
                "gid 105",
            )),
            *(f"+ {name} {LINKS}" for name in ("0", "all")),
        ],
    ),
    # Sockets and MPS.
    ("cache", file("/var/run/nvidia-fabricmanager/socket"),
     ["+ every mount /var/run/nvidia-fabricmanager/socket noexec"]),
    # Unlike nvidia-ctk, this leaves out what another user can replace.
    ("cache", in_tmp(0o1777), ["+ every mount /tmp/nvidia-mps noexec"]),
    ("cache", in_tmp(0o777), []),
    ("container", file("/run/nvidia-fabricmanager/socket"), []),
    # Firmware in the directory that is a parameter of the kernel.
    (
        "flat",
        files(
            ("/sys/module/firmware_class/parameters/path", b"/var/firmware\n"),
            (f"/var/firmware/nvidia/{VERSION}/gsp_tu10x.bin", b""),
        ),
        [f"+ every mount /var/firmware/nvidia/{VERSION}/gsp_tu10x.bin rprivate"],
    ),
    # Libraries in other directories and of other versions are ignored.
    ("flat", file(f"/opt/libnvidia-new.so.{VERSION}", elf()), []),
    ("flat", file(f"{MULTIARCH}/libcuda.so.535.1", elf("libcuda.so.1")), []),
    ("flat", file(f"{MULTIARCH}/libnvidia-new.so.{VERSION}", elf()),
     [f"+ every mount {MULTIARCH}/libnvidia-new.so.{VERSION} rprivate"]),
    # A file in /etc has precedence over that of the distribution, and has the same path in containers.
    ("flat", file("/etc/nvidia/nvoptix.bin"), [
        "- every mount /usr/share/nvidia/nvoptix.bin rprivate",
        "+ every mount /usr/share/nvidia/nvoptix.bin from /etc/nvidia/nvoptix.bin rprivate",
    ]),
    ("flat", file("/etc/vulkan/icd.d/nvidia_icd.json"), [
        "- every mount /etc/vulkan/icd.d/nvidia_icd.json from /usr/share/vulkan/icd.d/nvidia_icd.json rprivate",
        "+ every mount /etc/vulkan/icd.d/nvidia_icd.json rprivate",
    ]),
    # The first executable program on the search path is used.
    ("cache", program("/usr/local/bin/nvidia-smi"),
     ["- every mount /usr/bin/nvidia-smi rprivate", "+ every mount /usr/local/bin/nvidia-smi rprivate"]),
    ("cache", file("/usr/local/bin/nvidia-smi"), []),
    # Libraries for graphics that are not in the loader's cache are not found.
    ("cache", file("/etc/ld.so.cache", ld_cache("/opt/nvidia/lib/libcuda.so.1", "/opt/nvidia/lib/libnvidia-ml.so.1")),
     [f"- every {ALLOCATOR.format('/opt/nvidia/lib')}"]),
    # Links to a folder of libraries are followed.
    ("lib64", link("/usr/lib/x86_64-linux-gnu", "../lib64"), []),
]  # fmt: skip


@pytest.mark.usefixtures("files_for_devices")
@pytest.mark.parametrize(("name", "change", "lines"), HOSTS)
def test_host_changes(tmp_path: Path, name: str, change: t.Callable[[Tree], t.Any], lines: list[str]) -> None:
    tree = Tree(tmp_path)
    devices = LAYOUTS[name].make(tree)
    change(tree)
    strategies = BOTH if name == "flat" else INDEX
    result = generated(tree, name, Request(device_name_strategies=strategies), devices)
    assert difference(golden(name), result) == lines


# -- changes of the request ------------------------------------------------------------------------------------------

Lines = t.Callable[[t.List[str]], t.List[str]]


def without(*fields: str) -> Lines:
    """Lines that contain one of these fields are removed."""
    return lambda lines: [f"- {line}" for line in lines if {*fields} & {*line.split()}]


def only(*starts: str) -> Lines:
    """Lines of other devices are removed."""
    kept = ("cdiVersion", "kind", "every", *starts)
    return lambda lines: [f"- {line}" for line in lines if line.split()[0] not in kept]


def exactly(*changes: str) -> Lines:
    return lambda _lines: [*changes]


CHMOD = "hook nvidia-cdi-hook chmod --mode 755 --path /dev/dri"
LDCACHE = "every hook nvidia-cdi-hook update-ldcache"
REQUESTS: list[tuple[str, Request, Lines]] = [
    # Hooks.
    ("flat", Request(hooks="none"), without("hook")),
    ("flat", Request(disabled_hooks=("all",)), without("hook")),
    ("flat", Request(disabled_hooks=("create-symlinks", "enable-cuda-compat")),
     without("create-symlinks", "enable-cuda-compat")),
    ("lib64", Request(disabled_hooks=("all", "update-ldcache"), enabled_hooks=("update-ldcache",)),
     lambda lines: [f"- {line}" for line in lines if " hook " in line and "update-ldcache" not in line]),
    ("lib64", Request(enabled_hooks=("chmod",)), exactly(f"+ 0 {CHMOD}", f"+ all {CHMOD}")),
    ("cache", Request(ldconfig_path="/sbin/ldconfig.real"), exactly(
        f"- {LDCACHE} --folder /opt/nvidia/lib",
        f"+ {LDCACHE} --ldconfig-path /sbin/ldconfig.real --folder /opt/nvidia/lib",
    )),
    ("cache", Request(cdi_hook_path="/usr/local/nvidia/toolkit/nvidia-ctk"), lambda lines: [
        *(f"- {line}" for line in lines if " hook " in line),
        *(f"+ {line.replace('nvidia-cdi-hook', 'nvidia-ctk hook')}" for line in lines if " hook " in line),
    ]),
    # Names.
    ("flat", Request(vendor="example.com", class_="card.a"),
     exactly("- kind nvidia.com/gpu", "+ kind example.com/card.a")),
    ("flat", Request(all_device=False), without("all")),
    ("flat", Request(device_name_strategies=INDEX), without("GPU-00000000-0000", "GPU-00000001-0000")),
    ("lib64", Request(device_name_strategies=("type-index",)), lambda lines: [
        *(f"- {line}" for line in lines if line.split()[0] in {"0", "1:0", "1:1", "1:3"}),
        *(f"+ {'mig' if ':' in line.split()[0] else 'gpu'}{line}" for line in lines
          if line.split()[0] in {"0", "1:0", "1:1", "1:3"}),
    ]),
    # Selected devices.
    ("lib64", Request(device_ids=("1:1", "MIG-00010003-0000", "0"), all_device=False), only("0", "1:1", "1:3")),
    ("lib64", Request(device_ids=("1:0", "all")), exactly()),
    ("cache", Request(device_ids=("none",)), lambda lines: [
        "- cdiVersion 0.7.0", *only()(lines), "+ cdiVersion 0.3.0", "+ none env NVCT_EMPTY_DEVICE=",
    ]),
    # The index of a GPU with MIG devices selects the whole GPU.
    ("lib64", Request(device_ids=("1",), all_device=False), lambda lines: [
        *only()(lines),
        "+ 1 node /dev/nvidia0 195:0 666",
        "+ 1 node /dev/dri/card1 226:1 660 gid 44",
        "+ 1 node /dev/dri/renderD129 226:129 660 gid 105",
        f"+ 1 {lines[lines.index('1:3 gid 44') - 1].split(' ', 1)[1]}",
        "+ 1 gid 44",
        "+ 1 gid 105",
    ]),
    # Feature flags. Some have no effect.
    ("debian", Request(feature_flags=("no-additional-gids-for-device-nodes",)), lambda lines: [
        "- cdiVersion 0.7.0", *(f"- {line}" for line in lines if line.split()[1] == "gid"), "+ cdiVersion 0.5.0",
    ]),
    ("flat", Request(feature_flags=("disable-ipc-discoverer",)), without("/run/nvidia-persistenced/socket")),
    ("flat", Request(feature_flags=(
        "enable-explicit-driver-libraries",
        "disable-nvsandboxutils",
        "disable-multiple-csv-devices",
        "enable-coherent-annotations",
    )), exactly()),
    # Search paths.
    ("cache", Request(library_search_paths=("/opt/nvidia/lib",)), exactly()),
    ("flat", Request(config_search_paths=("/opt/share",)), lambda lines: [
        f"- {line}" for line in lines if "/usr/share" in line or "/OpenCL/" in line
    ]),
    ("container", Request(dev_root=DRIVER_ROOT), exactly()),
]  # fmt: skip


@pytest.mark.usefixtures("files_for_devices")
@pytest.mark.parametrize(("name", "request_", "expected"), REQUESTS)
def test_request_changes(tmp_path: Path, name: str, request_: Request, expected: Lines) -> None:
    tree = Tree(tmp_path)
    devices = LAYOUTS[name].make(tree)
    if request_.device_name_strategies == BOTH and name != "flat":
        request_ = request_._replace(device_name_strategies=INDEX)
    before = golden(name)
    assert difference(before, generated(tree, name, request_, devices)) == expected(summary(before))


@pytest.mark.usefixtures("files_for_devices")
@pytest.mark.parametrize("all_device", [True, False])
def test_coherent_variants(tmp_path: Path, all_device: bool) -> None:
    tree = Tree(tmp_path)
    whole, other, unknown = gpus(3)
    divided = mig_gpu(whole._replace(number=3, minor=3, bus="0000:20:00.0"), (0, 7, 0, False))._replace(coherent=True)
    devices = (whole._replace(coherent=True), other, unknown._replace(coherent=None), divided)
    LAYOUTS["cache"].make(tree, devices)
    flag = ("enable-coherent-annotations",)
    request = Request(device_name_strategies=INDEX, feature_flags=flag, all_device=all_device)
    documents = generate_all("nvml", request, inventory_of(*devices), tree.host())
    assert list(documents) == ["", "coherent", "noncoherent"]
    without_flags = request._replace(feature_flags=())
    assert documents[""] == generate_all("nvml", without_flags, inventory_of(*devices), tree.host())[""]
    for name, device in (("coherent", devices[0]), ("noncoherent", devices[1])):
        alone = generate_all("nvml", request._replace(class_=f"gpu.{name}"), inventory_of(device), tree.host())[""]
        # A dot in the class needs 0.6.0, groups need 0.7.0.
        assert alone["cdiVersion"] == "0.7.0"
        assert json.dumps(documents[name]) == json.dumps(alone)
    assert "annotations" not in json.dumps(documents)
    for mode, known in (("management", None), ("nvml", inventory_of(*devices)._replace(source="proc"))):
        assert list(generate_all(mode, request, known, tree.host())) == [""]


@pytest.mark.usefixtures("files_for_devices")
def test_driver_container_with_host_nodes(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    devices = LAYOUTS["container"].make(tree)
    tree.nodes(devices)
    result = generated(tree, "container", Request(device_name_strategies=INDEX, dev_root="/"), devices)
    before = summary(golden("container"))
    assert summary(result) == [
        line.partition(f" from {DRIVER_ROOT}/dev/")[0].replace(f"::{DRIVER_ROOT}/dev/", "::/dev/") for line in before
    ]


@pytest.mark.usefixtures("files_for_devices")
@pytest.mark.parametrize("count", [1, 2, 4, 8, 10, 12, 16])
@pytest.mark.parametrize("parts", [0, 2])
def test_many_gpus(tmp_path: Path, count: int, parts: int) -> None:
    tree = Tree(tmp_path)
    # Every other GPU has MIG devices.
    devices = tuple(whole if number % 2 else other for number, (whole, other) in enumerate(
        zip(gpus(count), gpus(count, parts))
    ))  # fmt: skip
    LAYOUTS["cache"].make(tree, devices)
    request = Request(device_name_strategies=INDEX)
    document = generated(tree, "cache", request, devices)
    alone = [generated(tree, "cache", request._replace(all_device=False), (gpu,)) for gpu in devices]
    found = {device["name"]: device["containerEdits"] for device in document["devices"]}
    assert [*found] == sorted(found)
    everything = found.pop("all")
    assert found == {device["name"]: device["containerEdits"] for one in alone for device in one["devices"]}
    assert all(document["containerEdits"] == one["containerEdits"] for one in alone)
    nodes = [entry for edits in found.values() for entry in edits["deviceNodes"]]
    unique = {entry["path"]: entry for entry in nodes}
    assert everything["deviceNodes"] == [unique[path] for path in sorted(unique, key=lambda p: (p.count("/"), p))]
    # In the order of the names: 0, 1, 10, 11, ..., 2.
    assert everything.get("hooks", []) == [hook for name in sorted(found) for hook in found[name].get("hooks", [])]
