# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import strategies
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import CHECKPOINT, GPU, Node

if t.TYPE_CHECKING:
    from pathlib import Path

DIRECTORY = "/var/run/nvidia-container-devices"
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"


def entry(number: int, key: str, value: str) -> bytes:
    return field(number, field(1, key) + field(2, value))


ENVVAR = entry(1, "NVIDIA_VISIBLE_DEVICES", "GPU-1")
ANNOTATION = entry(4, "cdi.k8s.io/nvidia-device-plugin_u1", "k8s.device-plugin.nvidia.com/gpu=GPU-1")
CDI = field(5, field(1, "k8s.device-plugin.nvidia.com/gpu=GPU-1"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", ()),
        (ENVVAR, ("envvar",)),
        (entry(1, "NVIDIA_VISIBLE_DEVICES", DIRECTORY) + field(2, b""), ("volume-mounts",)),
        (ANNOTATION, ("cdi-annotations",)),
        (CDI, ("cdi-cri",)),
        (CDI + ENVVAR, ("envvar", "cdi-cri")),
        (entry(1, "OTHER", "1") + entry(4, "other/key", "x") + field(3, b""), ()),
    ],
)
def test_answers(answer: bytes, expected: tuple[str, ...]) -> None:
    assert strategies.of_answer(answer) == expected


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        ((), (), ["envvar"]),
        ((), ("DEVICE_LIST_STRATEGY=cdi-cri",), ["cdi-cri"]),
        ((), ("DEVICE_LIST_STRATEGY=cdi-annotations, cdi-cri",), ["cdi-annotations", "cdi-cri"]),
        (("--device-list-strategy=volume-mounts",), (), ["volume-mounts"]),
        (("--device-list-strategy", "cdi-cri"), (), ["cdi-cri"]),
        (("--device-list-strategy=cdi-cri",), ("DEVICE_LIST_STRATEGY=envvar",), ["cdi-cri"]),
        # A file in the container has the setting.
        (("--config-file=/config/config.yaml",), (), []),
        ((), ("CONFIG_FILE=/config/config.yaml",), []),
    ],
)
def test_processes(tmp_path: Path, arguments: tuple[str, ...], variables: tuple[str, ...], expected: list[str]) -> None:
    node = Node(tmp_path)
    node.process(41, "nvidia-device-p", "nvidia-device-plugin", *arguments)
    node.write("/proc/41/environ", "".join(f"{variable}\0" for variable in ("PATH=/bin", *variables)))
    assert node.described()["device_list_strategies"] == expected
    # Without a process, the answers in the checkpoint count, and then the plugin's specification.
    assert strategies.strategies(node.host, (), ["cdi-cri"]) == ["cdi-cri"]
    assert strategies.strategies(node.host, (), ()) == []
    node.write("/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json", "{}")
    assert strategies.strategies(node.host, (), ()) == ["cdi-annotations", "cdi-cri"]


def test_the_answers_in_the_checkpoint(tmp_path: Path) -> None:
    def row(resource: str, answer: bytes) -> dict[str, t.Any]:
        text = base64.b64encode(answer).decode("ascii")
        return {"PodUID": "u1", "ContainerName": "c", "ResourceName": resource, "DeviceIDs": {}, "AllocResp": text}

    rows = [row(GPU, ENVVAR), row("rdma/hca", CDI), row(GPU, b"\xff")]
    node = Node(tmp_path, running=False)
    node.write(CHECKPOINT, json.dumps({"Data": {"PodDeviceEntries": rows, "RegisteredDevices": {}}}))
    assert node.described()["device_list_strategies"] == ["envvar"]


def test_the_programs_of_pods(tmp_path: Path) -> None:
    node = Node(tmp_path)
    log = "/var/log/pods/nvidia_plugin-x7k2p_u9/nvidia-device-plugin-ctr"
    node.write(f"{log}/0.log", "")
    node.write(f"{log}/12.log", "")
    node.checkpoint({GPU: ["GPU-a"]}, {GPU: ["GPU-a"]})

    def bundle(name: str, uid: str, pod: str, container: str = "", program: str = "/usr/bin/runc") -> None:
        kind = "container" if container else "sandbox"
        values = {"sandbox-namespace": "nvidia", "sandbox-name": pod, "sandbox-uid": uid, "container-name": container}
        annotations = {f"io.kubernetes.cri.{key}": value for key, value in {**values, "container-type": kind}.items()}
        node.write(f"{BUNDLES}/{name}/config.json", json.dumps({"annotations": annotations}))
        node.write(f"{BUNDLES}/{name}/runtime", program)
        node.write(f"{BUNDLES}/{name}/init.pid", "77")

    node.process(77, "pause")
    before = node.described()
    assert before["resources"][0]["held"][0]["program"] is None
    held = before["resources"][0]["held"][0]
    bundle("a" * 64, "u9", "plugin-x7k2p")
    bundle("b" * 64, held["pod"], "train", held["container"], "/usr/bin/nvidia-container-runtime")
    found = node.described()
    assert found["resources"][0]["held"][0]["program"] == "/usr/bin/nvidia-container-runtime"
    assert found["plugin_logs"] == [
        {"pod": "nvidia/plugin-x7k2p", "log": f"{log}/12.log", "restarts": 12, "program": "/usr/bin/runc"}
    ]
    assert found["plugin_pods"] == ["nvidia/plugin-x7k2p"]
