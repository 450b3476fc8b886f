# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers with requests for GPUs and the facts of a host, without files, for the tests of the explanation."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import (
    RUNNING,
    Container,
    GpuRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Specifications
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.devices import ExplainedGpu
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.host import ExplainedHost
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.runtime_settings import RuntimeSettings

IDENTIFIER = "3a3a3ce6c3f00fc605aa026e31f56bf724cdc75aaf35e34d8a2bddabe47dc9ec"
NVIDIA = "/usr/bin/nvidia-container-runtime"
DRIVER = "550.54.15"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GPUS = tuple(
    ExplainedGpu(f"GPU {number}", (str(number), f"GPU-{number}"), (f"/dev/nvidia{number}",), arch="8.0", brand="Tesla")
    for number in range(2)
)
MIG = (
    ExplainedGpu("GPU 0", ("0", "GPU-0"), ("/dev/nvidia0",), usable=False),
    ExplainedGpu("GPU 0 MIG 0", ("0:0", "MIG-0"), ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3")),
)
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def device(number: str, *nodes: str) -> dict[str, t.Any]:
    return {"name": number, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


SPECIFICATION: dict[str, t.Any] = {
    "kind": "nvidia.com/gpu",
    "devices": [
        device("0", "/dev/nvidia0"), device("1", "/dev/nvidia1"), device("all", "/dev/nvidia0", "/dev/nvidia1"),
    ],
    "containerEdits": {
        "env": [f"{VISIBLE}=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "mounts": [{"containerPath": f"{LIBRARIES}/libcuda.so.{DRIVER}", "hostPath": "/x"}],
    },
}  # fmt: skip
SPECIFICATIONS = Specifications(
    ("/etc/cdi", "/var/run/cdi"),
    {f"nvidia.com/gpu={name}": "/etc/cdi/nvidia.yaml" for name in ("0", "1", "all")},
    {"/etc/cdi/nvidia.yaml": SPECIFICATION},
)
HOST = ExplainedHost(
    version="1.20.0",
    programs=frozenset(("nvidia-container-runtime-hook", "nvidia-cdi-hook")),
    driver=DRIVER,
    library=DRIVER,
    cuda_library=DRIVER,
    cuda="12.4",
    all_gpus=GPUS,
    engine_cdi=True,
    engine_version="26.1.5",
    engine_specifications=SPECIFICATIONS,
    runtime_specifications=SPECIFICATIONS,
)
OLD = HOST._replace(version="1.17.8")


def mounts(*points: str) -> str:
    lines = [f"{number} 1 0:40 / {point} rw - tmpfs tmpfs rw" for number, point in enumerate(("/proc", *points))]
    return "\n".join(lines)


# What the legacy hook mounts for all GPUs.
BY_HOOK = mounts(
    *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"),
    *(f"{LIBRARIES}/libcuda.so.{DRIVER}", f"{LIBRARIES}/libnvidia-ml.so.{DRIVER}"),
)
BY_CDI = mounts("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", f"{LIBRARIES}/libcuda.so.{DRIVER}")


def container(value: str | None = None, **fields: t.Any) -> Container:
    environment = {**({} if value is None else {VISIBLE: value}), **fields.pop("environment", {})}
    given = {"runtime": "runc", "program": "runc", "environment": environment, "pid": 7, **fields}
    return Container("docker", IDENTIFIER, "web", **{"state": RUNNING, **given})


def with_nvidia(value: str | None = "all", **fields: t.Any) -> Container:
    return container(value, runtime="nvidia", program=NVIDIA, **fields)


def with_cdi(*names: str, **fields: t.Any) -> Container:
    return container(cdi_devices=tuple(f"nvidia.com/gpu={name}" for name in names), **fields)


def with_gpus(number: int = -1, *capabilities: str, **fields: t.Any) -> Container:
    return container(gpus=(GpuRequest(number, (), ("gpu", *capabilities)),), **fields)


def config(**settings: t.Any) -> ExplainedHost:
    return OLD._replace(settings=RuntimeSettings(**settings))
