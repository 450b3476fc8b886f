# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz target that explains a container: what engines report about it, its OCI config, and its mounts.

An explanation is never an error, and always data that Ansible can send.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import contents as explain_contents
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import decide as explain_decide
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as explain_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record as explain_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import container_nodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri

if t.TYPE_CHECKING:
    import random

    from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import Files

_PROGRAM = "/usr/bin/nvidia-container-runtime"
_MOUNTS = "/var/run/nvidia-container-devices"
_HOST = explain_host.ExplainedHost(
    driver="550.54.15", gpus=(explain_host.HostGpu("GPU 0", ("0", "gpu-1"), ("/dev/nvidia0",)),)
)
_NODES = tuple(container_nodes.Node(path, usable=True) for path in ("/dev/nvidia0", "/dev/nvidiactl"))


def _object(files: Files, name: str) -> dict[str, t.Any]:
    """Return the file as an object; an empty one if it is damaged, as the readers treat it."""
    content = files.get(name, b"")
    try:
        data = json_data.load(content if isinstance(content, bytes) else b"")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def containers(_folder: object, files: Files, rng: random.Random) -> None:
    """Explain a container of Docker, Podman, containerd and CRI-O."""
    mounts = files.get("mountinfo", b"")
    mountinfo = mounts.decode("utf-8", "replace") if isinstance(mounts, bytes) else ""
    measured = container_nodes.Measured(_NODES[: rng.randrange(3)])
    contents = explain_contents.Contents(measured, explain_contents.driver_files(mountinfo))
    inspected, status = _object(files, "inspect.json"), _object(files, "status.json")
    state = cri.ContainerStatus(rng.randrange(4), status, "")
    for container in (
        explain_record.from_docker(inspected, {"nvidia": _PROGRAM}),
        explain_record.from_podman(inspected),
        explain_record.from_cri("containerd", cri.CriContainer("a", ("ns/pod/b",)), state),
        explain_record.from_bundle("containerd", "a", _object(files, "config.json"), _PROGRAM, 7),
    ):
        for found in (contents, None):
            json.dumps([explain_decide.decide(container, _HOST, found), container.requests])


def containers_seeds() -> list[Files]:
    """A container as Docker, Podman and containerd report it."""
    variables = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.6 brand=tesla,driver>=535", "A=b"]
    requests = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu", "compute"]]}]
    inspected = {
        "Id": "a" * 64,
        "Name": "/web",
        "State": {"Status": "running", "Pid": 7, "Error": ""},
        "Config": {"Env": variables, "Annotations": {"a": "b"}, "CreateCommand": ["--device", "nvidia.com/gpu=0"]},
        "HostConfig": {"Runtime": "nvidia", "DeviceRequests": requests, "Annotations": {"cdi.k8s.io/a": "x"}},
        "Mounts": [{"Source": "/dev/null", "Destination": f"{_MOUNTS}/0"}],
        "OCIRuntime": "crun",
    }
    config = {
        "process": {"env": variables},
        "mounts": [{"source": "/dev/null", "destination": f"{_MOUNTS}/cdi/nvidia.com/gpu/0"}],
        "annotations": {"cdi.k8s.io/plugin": "nvidia.com/gpu=0"},
        "linux": {"devices": [{"path": "/dev/nvidia0"}]},
    }
    status = {
        "pid": 7,
        "runtimeSpec": config,
        "runtimeOptions": {"binary_name": _PROGRAM},
        "config": {"CDI_devices": [{"name": "nvidia.com/gpu=0"}], "devices": [{"host_path": "/dev/nvidia0"}]},
    }
    mounts = "1 1 0:5 /nvidia0 /dev/nvidia0 rw - devtmpfs x rw\n2 1 0:5 /x /lib/libcuda.so.535.1 rw - ext4 x rw\n"
    files: Files = {f"{name}.json": json.dumps(data).encode() for name, data in (
        ("inspect", inspected), ("config", config), ("status", status),
    )}  # fmt: skip
    return [{**files, "mountinfo": mounts.encode()}]
