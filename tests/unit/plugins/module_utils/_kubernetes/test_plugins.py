# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import plugins
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import GPU, GPU_SOCKET, PLUGINS, Node
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import short_folder

DRA = "/var/lib/kubelet/plugins/gpu.nvidia.com"
REGISTRY = "/var/lib/kubelet/plugins_registry"
PROGRAM = "nvidia-device-plugin"


@pytest.fixture
def node() -> t.Iterator[Node]:
    with short_folder() as folder:
        yield Node(folder)


def found_plugins(node: Node) -> dict[str, tuple[str | None, bool | None, bool | None]]:
    """Return the resource of each socket by name, and whether a program listens and answers."""
    rows = node.described()["device_plugins"]
    return {row["path"].rpartition("/")[2]: (row["resource"], row["listens"], row["answers"]) for row in rows}


def test_a_device_plugin_that_answers(node: Node) -> None:
    with node.device_plugin() as plugin:
        assert found_plugins(node) == {"nvidia-gpu.sock": (GPU, True, True)}
    # ListAndWatch would be a second stream, which takes events of health from the kubelet.
    assert plugin.calls == ["GetDevicePluginOptions"]


def test_the_resource_of_a_socket(node: Node) -> None:
    names = ("kubelet.sock", "nvidia-mig-1g.5gb.sock", "nvidia-gpu.shared.sock", "nvidiaGPU-1.sock", "rdma.sock")
    for name in (*names, "nvidia-.sock"):
        node.socket_file(f"{PLUGINS}/{name}")
    node.write(f"{PLUGINS}/kubelet_internal_checkpoint", "{}")
    assert {name: row[0] for name, row in found_plugins(node).items()} == {
        "nvidia-.sock": None,
        "nvidia-mig-1g.5gb.sock": "nvidia.com/mig-1g.5gb",
        "nvidia-gpu.shared.sock": "nvidia.com/gpu.shared",
        "nvidiaGPU-1.sock": None,
        "rdma.sock": None,
    }


def test_a_plugin_that_has_ended(node: Node) -> None:
    node.socket_file(GPU_SOCKET)
    assert found_plugins(node) == {"nvidia-gpu.sock": (GPU, False, False)}


def test_a_plugin_that_answers_with_an_error(node: Node) -> None:
    with node.serves(GPU_SOCKET):
        assert found_plugins(node)["nvidia-gpu.sock"] == (GPU, True, True)


def test_a_plugin_that_never_answers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_SOCKET_TIMEOUT", 0.1)
    with node.serves(GPU_SOCKET, GetDevicePluginOptions=None):
        assert found_plugins(node)["nvidia-gpu.sock"] == (GPU, True, False)


def test_all_sockets_together_have_a_limit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_ALL_TIMEOUT", 0.0)
    with node.device_plugin() as plugin:
        assert found_plugins(node)["nvidia-gpu.sock"] == (GPU, None, None)
    assert plugin.calls == []


def test_invalid_protobuf_is_an_answer(node: Node) -> None:
    with node.serves(GPU_SOCKET, GetDevicePluginOptions=b"\x0a\xff\xff"):
        assert found_plugins(node)["nvidia-gpu.sock"] == (GPU, True, True)


@pytest.mark.parametrize("kind", ["file", "pipe", "loop", "directory", "dangling"])
def test_something_else_with_the_name_of_a_socket(node: Node, kind: str) -> None:
    path = node.path(GPU_SOCKET)
    path.parent.mkdir(parents=True)
    if kind == "file":
        path.write_text("x")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else "/missing")
    assert found_plugins(node)["nvidia-gpu.sock"] == (GPU, None, None)


def test_many_sockets_are_cut(node: Node) -> None:
    for number in range(100):
        node.write(f"{PLUGINS}/{number:03d}.sock")
    assert len(found_plugins(node)) == 64


def test_no_socket_of_a_directory_tree_is_used(node: Node) -> None:
    node.live = False
    with node.device_plugin() as plugin, node.serves(f"{DRA}/dra.sock") as driver:
        found = node.described()
        assert found["device_plugins"][0]["listens"] is None
        assert found["dra_drivers"][0]["sockets"][0]["listens"] is None
    assert plugin.calls == driver.calls == []


def test_drivers_of_dynamic_resource_allocation(node: Node) -> None:
    node.socket_file(f"{REGISTRY}/gpu.nvidia.com-reg.sock")
    node.socket_file(f"{REGISTRY}/csi.example.com-reg.sock")
    node.socket_file("/var/lib/kubelet/plugins/csi.example.com/csi.sock")
    node.socket_file(f"{DRA}/dra-9f1c.sock")
    with node.serves(f"{DRA}/dra.sock") as driver:
        found = node.described()["dra_drivers"]
    assert found == [
        {
            "name": "gpu.nvidia.com",
            "sockets": [
                {"path": f"{DRA}/dra-9f1c.sock", "listens": False},
                {"path": f"{DRA}/dra.sock", "listens": True},
                {"path": f"{REGISTRY}/gpu.nvidia.com-reg.sock", "listens": False},
            ],
        }
    ]
    # Nothing is sent to a driver.
    assert driver.calls == []


def test_drivers_among_many_other_plugins(node: Node) -> None:
    """There may be more directories than the limit, and a driver whose name begins with that of another one."""
    for number in range(64):
        node.path(f"/var/lib/kubelet/plugins/csi{number:02d}").mkdir(parents=True)
    uid = "0f6c9a7e-3f1b-4c55-9c0d-9f1c0a7e3f1b"
    sockets = [f"{DRA}/dra.sock", f"{REGISTRY}/gpu.nvidia.com-reg.sock", f"{REGISTRY}/gpu.nvidia.com-{uid}-reg.sock"]
    for path in (*sockets, f"{DRA}-a/dra.sock", f"{REGISTRY}/gpu.nvidia.com-a-reg.sock"):
        node.write(path, "")
    found = {driver["name"]: driver["sockets"] for driver in node.described()["dra_drivers"]}
    assert {socket["path"] for socket in found["gpu.nvidia.com"]} == set(sockets)


def test_a_socket_whose_path_is_too_long(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.socket_file(f"{DRA}/dra.sock")
    monkeypatch.setattr(plugins, "_MAX_PATH", len(os.fsencode(node.path(f"{DRA}/dra.sock"))) - 1)
    assert node.described()["dra_drivers"][0]["sockets"][0]["listens"] is None


def test_pods_of_the_plugin(node: Node) -> None:
    for name in (
        "gpu-operator_nvidia-device-plugin-abc_1-2/nvidia-device-plugin", "nvdp_a-b_3/nvidia-device-plugin-ctr",
        "kube-system_other_4/cuda", "nvdp_mps_5/nvidia-device-plugin-init", "odd/nvidia-device-plugin",
    ):  # fmt: skip
        node.write(f"/var/log/pods/{name}/0.log", "")
    assert node.described()["plugin_pods"] == ["gpu-operator/nvidia-device-plugin-abc", "nvdp/a-b"]


@pytest.mark.parametrize(
    ("name", "uid", "path", "found"),
    [
        ("nvidia-toolkit", 0, "/run/nri/nri.sock", True),
        ("nvidia-ctk-inst", 0, "/run/nri/nri.sock", True),
        ("nvidia-toolkit", 0, "/run/other.sock", False),
        ("nvidia-toolkit", 1000, "/run/nri/nri.sock", False),
        ("nvidia-ctk", 0, "/run/nri/nri.sock", False),
    ],
)
def test_the_nri_plugin_of_the_operator(node: Node, name: str, uid: int, path: str, found: bool) -> None:
    node.process(41, name, uid=uid)
    node.write(path, "")
    assert node.described()["nri_plugin"] is found


def test_processes_of_users_and_damaged_ones(node: Node) -> None:
    node.process(41, PROGRAM[:15], started=1000, uid=1000)
    node.process(42, "nvidia-smi")
    node.write("/proc/43/comm", f"{PROGRAM[:15]}\n")
    node.write("/proc/44/comm", f"{PROGRAM[:15]}\n")
    node.write("/proc/44/status", "Uid:\t0\n")
    assert node.described()["plugin_processes"] == [44]
