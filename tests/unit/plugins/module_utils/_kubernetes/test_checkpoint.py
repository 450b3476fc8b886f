# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import checkpoint
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes.checkpoint import HeldDevices
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import CHECKPOINT, GPU, Node

if t.TYPE_CHECKING:
    from pathlib import Path

# As Kubernetes 1.34 writes it, with a pod on two NUMA nodes and a device on both.
CURRENT = """\
{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"cuda","ResourceName":"nvidia.com/gpu",
"DeviceIDs":{"0":["GPU-b"],"1":["GPU-a","GPU-b"],"-1":null},"AllocResp":"CigKFk5WSURJQQ=="},
{"PodUID":"u0","ContainerName":"nic","ResourceName":"rdma/hca","DeviceIDs":{},"AllocResp":""}],
"RegisteredDevices":{"nvidia.com/gpu":["GPU-b","GPU-a"],"rdma/hca":[]}},"Checksum":2214317226,"BootID":"6b1f"}"""
# As Kubernetes 1.19 and older write it.
OLD = """\
{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"cuda","ResourceName":"nvidia.com/gpu",
"DeviceIDs":["GPU-a"],"AllocResp":"CigK"}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":1}"""
EMPTY = '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":null}},"Checksum":1}'


def read(root: Path, content: str | bytes) -> checkpoint.Checkpoint | None:
    node = Node(root)
    node.write(CHECKPOINT, content)
    return checkpoint.read(node.host)


def test_the_current_version(tmp_path: Path) -> None:
    found = read(tmp_path, CURRENT)
    assert found is not None
    assert found.registered == {GPU: ("GPU-a", "GPU-b"), "rdma/hca": ()}
    assert found.held == (
        HeldDevices(GPU, "u1", "", "cuda", ("GPU-a", "GPU-b")),
        HeldDevices("rdma/hca", "u0", "", "nic", ()),
    )


def test_the_version_before_numa_nodes(tmp_path: Path) -> None:
    found = read(tmp_path, OLD)
    answers = ((GPU, b"\n(\n"),)
    assert found == checkpoint.Checkpoint({GPU: ("GPU-a",)}, (HeldDevices(GPU, "u1", "", "cuda", ("GPU-a",)),), answers)


def test_nothing_registered(tmp_path: Path) -> None:
    assert read(tmp_path, EMPTY) == checkpoint.Checkpoint({GPU: ()}, ())
    assert read(tmp_path, '{"Data":{}}') == checkpoint.Checkpoint({}, ())


def test_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.read(Node(tmp_path).host) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "garbage",
        CURRENT[:200],
        "[]",
        "{}",
        '{"Data":null}',
        '{"Data":[]}',
        '{"Data":{"RegisteredDevices":["GPU-a"]}}',
        '{"Data":{"RegisteredDevices":{"x":"GPU-a"}}}',
        '{"Data":{"RegisteredDevices":{"x":[7]}}}',
        '{"Data":{"RegisteredDevices":{"x":["\\ud800"]}}}',
        '{"Data":{"RegisteredDevices":{"\\ud800":[]}}}',
        '{"Data":{"PodDeviceEntries":{"x":1}}}',
        '{"Data":{"PodDeviceEntries":[null]}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":7,"ContainerName":"","ResourceName":""}]}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":"","ContainerName":"","ResourceName":"","DeviceIDs":7}]}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":"","ContainerName":"","ResourceName":"","DeviceIDs":{"0":"GPU"}}]}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":"","ContainerName":"\\udfff","ResourceName":""}]}}',
        "[" * 200000,
        '{"Data":' + "9" * 100000 + "}",
        b"\xff\xfe{}",
    ],
)
def test_damaged_checkpoints(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(NvidiaError) as caught:
        read(tmp_path, content)
    assert caught.value.code == "file-invalid"
    assert str(caught.value).startswith(f"{CHECKPOINT}: the checkpoint is damaged: ")


def test_a_damaged_checkpoint_is_a_problem_of_the_report(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(CHECKPOINT, "garbage")
    found = node.described()
    assert (found["source"], found["resources"]) == (None, [])
    assert [problem["code"] for problem in found["problems"]] == ["file-invalid"]


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def test_other_things_than_a_file_of_limited_size(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.path(CHECKPOINT).parent.mkdir(parents=True)
    for make in (
        os.mkfifo,
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/proc/kmsg"),
        lambda path: path.mkdir(),
        make_sparse,
    ):
        make(node.path(CHECKPOINT))
        found = node.described()
        assert [problem["code"] for problem in found["problems"]] == ["host-error"]
        assert "Restart the kubelet" in found["problems"][0]["advice"]
        path = node.path(CHECKPOINT)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_the_devices_of_a_stopped_kubelet_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    node = Node(tmp_path, running=False)
    node.write(CHECKPOINT, CURRENT.replace("\n", ""))
    found = node.described()
    assert found["source"] == "checkpoint"
    assert json.dumps(found["resources"]) == json.dumps(
        [
            {
                "name": GPU,
                "allocatable": ["GPU-a", "GPU-b"],
                "recorded": ["GPU-a", "GPU-b"],
                "held": [
                    {
                        "pod": "u1",
                        "namespace": None,
                        "container": "cuda",
                        "devices": ["GPU-a", "GPU-b"],
                        "program": None,
                    }
                ],
            },
            {
                "name": "rdma/hca",
                "allocatable": [],
                "recorded": [],
                "held": [{"pod": "u0", "namespace": None, "container": "nic", "devices": [], "program": None}],
            },
        ]
    )
