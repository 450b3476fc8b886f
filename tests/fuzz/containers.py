# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz target that explains a container: what engines report about it, its OCI config, its mounts, and config.toml.

An explanation is never an error, and always data that Ansible can send.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    devices as explain_devices,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import explain as explain_explain
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    host as explain_host,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    rules as explain_rules,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    import random

    from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import Files

_PROGRAM = "/usr/bin/nvidia-container-runtime"
_GPUS = (explain_devices.ExplainedGpu("GPU 0", ("0", "GPU-1"), ("/dev/nvidia0",)),)
_VERSIONS = ("1.17.8", "1.20.0")


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
    config, mounts = _object(files, "config.json"), files.get("mountinfo", b"")
    host = explain_host.ExplainedHost(
        version=rng.choice(_VERSIONS),
        settings=runtime_settings.settings_of(_object(files, "settings.json")),
        driver="550.54.15",
        all_gpus=_GPUS,
        engine_cdi=rng.choice((None, True, False)),
        mountinfo=mounts.decode("utf-8", "replace") if isinstance(mounts, bytes) else "",
    )
    inspected, status = _object(files, "inspect.json"), _object(files, "status.json")
    for container in (
        explain_container.from_docker(inspected, {"nvidia": _PROGRAM}, config),
        explain_container.from_podman(inspected, config),
        explain_container.from_cri("containerd", "a", "b", cri.ContainerStatus(1, status), host.engine_cdi),
        explain_container.from_cri(
            "crio", "a", "b", cri.ContainerStatus(1, status), host.engine_cdi, programs={"": _PROGRAM}
        ),
        explain_container.from_bundle("containerd", "a", config, _PROGRAM, 7),
    ):
        json.dumps(explain_explain.explain(container, host))


def containers_seeds() -> list[Files]:
    """A container as Docker, Podman and containerd report it."""
    variables = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.6 brand=tesla,driver>=535", "A=b"]
    requests = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu", "compute"]]}]
    inspected = {
        "Id": "a" * 64,
        "Name": "/web",
        "State": {"Status": "running", "Pid": 7, "Error": ""},
        "Config": {"Env": variables, "Annotations": {"a": "b"}, "CreateCommand": ["--device", "nvidia.com/gpu=0"]},
        "HostConfig": {"Runtime": "nvidia", "Privileged": False, "CapAdd": None, "DeviceRequests": requests},
        "Mounts": [{"Source": "/dev/null", "Destination": f"{explain_rules.DEVICE_MOUNTS}/0"}],
        "OCIRuntime": "crun",
        "BoundingCaps": ["CAP_CHOWN"],
    }
    config = {
        "process": {"env": variables, "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}},
        "mounts": [{"source": "/dev/null", "destination": f"{explain_rules.DEVICE_MOUNTS}/cdi/nvidia.com/gpu/0"}],
        "hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]},
        "annotations": {"cdi.k8s.io/plugin": "nvidia.com/gpu=0"},
        "linux": {"devices": [{"path": "/dev/nvidia0"}]},
    }
    status = {
        "pid": 7,
        "runtimeSpec": config,
        "runtimeOptions": {"binary_name": _PROGRAM},
        "config": {"CDI_devices": [{"name": "nvidia.com/gpu=0"}]},
    }
    runtime = {"mode": "auto", "modes": {"cdi": {"spec-dirs": []}}}
    settings = {"swarm-resource": "A", "nvidia-container-runtime": runtime}
    mounts = "1 1 0:5 /nvidia0 /dev/nvidia0 rw - devtmpfs x rw\n2 1 0:5 /x /lib/libcuda.so.535.1 rw - ext4 x rw\n"
    files: Files = {f"{name}.json": json.dumps(data).encode() for name, data in (
        ("inspect", inspected), ("config", config), ("status", status), ("settings", settings),
    )}  # fmt: skip
    return [{**files, "mountinfo": mounts.encode()}]
