# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import pod_resources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes.checkpoint import HeldDevices
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes.pod_resources import ClaimedDevice
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import GPU, Node, devices_of, pod_with
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import short_folder

if t.TYPE_CHECKING:
    from pathlib import Path

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


@pytest.fixture
def root() -> t.Iterator[Path]:
    with short_folder() as folder:
        yield folder


def test_what_the_kubelet_reports(root: Path) -> None:
    node = Node(root)
    node.checkpoint({GPU: ["GPU-a", "GPU-b", "GPU-old"], "rdma/hca": []}, {GPU: ["GPU-old"]})
    claims = [("gpu.nvidia.com", "node-1", "gpu-0")]
    pods = pod_with("train", {GPU: ["GPU-a"], "rdma/hca": ["mlx5_0"]}, claims) + pod_with("idle", {})
    with node.kubelet({GPU: ["GPU-b", "GPU-a"]}, pods) as kubelet:
        found = node.described()
    assert kubelet.calls == ["GetAllocatableResources", "List"]
    assert (found["source"], found["problems"]) == ("pod-resources", [])
    held = {"pod": "train", "namespace": "ml", "container": "cuda"}
    assert found["resources"] == [
        {
            "name": GPU,
            "allocatable": ["GPU-a", "GPU-b"],
            "recorded": ["GPU-a", "GPU-b", "GPU-old"],
            "held": [{**held, "devices": ["GPU-a"], "program": None}],
        },
        {
            "name": "rdma/hca",
            "allocatable": [],
            "recorded": [],
            "held": [{**held, "devices": ["mlx5_0"], "program": None}],
        },
    ]
    assert found["claims"] == [{**held, "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}]


def test_the_root_directory_of_the_kubelet(root: Path) -> None:
    node = Node(root, "k0s")
    with node.kubelet({GPU: ["GPU-a"]}, root_dir="/var/lib/k0s/kubelet"):
        assert node.described()["source"] == "pod-resources"


def test_a_large_answer(root: Path) -> None:
    # 16 GPUs with 100 replicas each, and 250 pods.
    devices = [f"GPU-{number:032d}::{replica}" for number in range(16) for replica in range(100)]
    pods = b"".join(pod_with(f"pod-{number}", {GPU: devices[number : number + 1]}) for number in range(250))
    node = Node(root)
    with node.kubelet({GPU: devices}, pods):
        found = node.described()["resources"][0]
    assert found["allocatable"] == sorted(devices)
    assert len(found["held"]) == 250


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"GetAllocatableResources": "disabled by a feature gate"},
        {"GetAllocatableResources": b"\x0a\xff"},
        {"GetAllocatableResources": b"\x0f"},
        {"GetAllocatableResources": b"", "List": b"\x0a\x7f"},
        {"GetAllocatableResources": b"", "List": field(1, field(3, field(2, b"\x12\x50")))},
        {"GetAllocatableResources": b"x" * (2 << 20)},
    ],
)
def test_an_invalid_answer_is_a_problem(root: Path, answers: dict[str, bytes | str]) -> None:
    node = Node(root)
    node.checkpoint({GPU: ["GPU-a"]})
    with node.serves(SOCKET, **answers):
        found = node.described()
    assert (found["source"], found["resources"][0]["allocatable"]) == ("checkpoint", ["GPU-a"])
    assert [problem["code"] for problem in found["problems"]] == ["kubelet-not-responding"]


def test_a_kubelet_that_never_answers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc, "TIMEOUT", 0.1)
    node = Node(root)
    node.checkpoint({GPU: ["GPU-a"]})
    with node.serves(SOCKET, GetAllocatableResources=None):
        found = node.described()
    assert found["source"] == "checkpoint"
    assert [problem["code"] for problem in found["problems"]] == ["kubelet-not-responding"]


def test_a_socket_without_a_listener(root: Path) -> None:
    node = Node(root)
    node.socket_file(SOCKET)
    found = node.described()
    assert found["source"] is None
    assert found["problems"][0]["message"].startswith(f"The kubelet does not answer on {SOCKET}: Connection refused. ")


def test_a_file_in_place_of_the_socket_is_no_problem(root: Path) -> None:
    node = Node(root)
    node.write(SOCKET, "text")
    assert (node.described()["source"], node.described()["problems"]) == (None, [])


@pytest.mark.parametrize(("running", "live"), [(False, True), (True, False)])
def test_only_a_running_kubelet_is_asked(root: Path, running: bool, live: bool) -> None:
    node = Node(root, running=running)
    node.live = live
    with node.kubelet({GPU: ["GPU-a"]}) as kubelet:
        assert node.described()["source"] is None
    assert kubelet.calls == []


def test_devices_on_several_numa_nodes() -> None:
    # The kubelet sends one message for each device. Names that are not UTF-8 are kept readable.
    message = field(1, devices_of(GPU, ["b"], 0)) + field(1, devices_of(GPU, ["a", "b"])) + field(2, 7)
    assert pod_resources.decode_allocatable(message) == {GPU: ("a", "b")}
    assert pod_resources.decode_allocatable(field(1, field(1, b"\xff") + field(2, b"\xfe"))) == {"\ufffd": ("\ufffd",)}


def test_missing_fields_are_empty() -> None:
    assert pod_resources.decode_list(b"") == ((), ())
    container = field(2, b"") + field(5, field(4, b""))
    assert pod_resources.decode_list(field(1, field(3, container))) == (
        (HeldDevices("", "", "", "", ()),),
        (ClaimedDevice("", "", "", "", "", ""),),
    )
