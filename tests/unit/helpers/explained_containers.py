# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers, and what was measured of them, on a host with two GPUs and a MIG device."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Contents, DriverFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.host import CdiDevice, ExplainedHost, HostGpu
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import (
    ALL,
    CDI,
    RUNNING,
    VARIABLE,
    Container,
    Request,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.container_nodes import Measured, Node

DRIVER = "580.95.05"
CUDA = DriverFile(f"/usr/lib64/libcuda.so.{DRIVER}", DRIVER)
NVML = DriverFile(f"/usr/lib64/libnvidia-ml.so.{DRIVER}", DRIVER)
FIRST = HostGpu("GPU 0", ("0", "gpu-a", "0000:07:00.0"), ("/dev/nvidia0",))
SECOND = HostGpu("GPU 1", ("1", "gpu-b"), ("/dev/nvidia1",))
MIG = HostGpu(
    "GPU 1 MIG 0",
    ("1:0", "mig-b"),
    ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"),
)
NUMBERS = {
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-uvm": (510, 0),
    "/dev/nvidia0": (195, 0),
    "/dev/nvidia1": (195, 1),
    "/dev/nvidia-caps/nvidia-cap3": (511, 3),
    "/dev/nvidia-caps/nvidia-cap4": (511, 4),
    "/dev/dxg": (10, 125),
}
CDI_DEVICES = {
    "nvidia.com/gpu=all": CdiDevice(("/dev/nvidia0", "/dev/nvidia1", "/dev/dri/card0"), is_valid=True),
    "nvidia.com/gpu=0": CdiDevice(("/dev/nvidia0",), is_valid=True),
    "nvidia.com/gpu=stale": CdiDevice(("/dev/nvidia1",), is_valid=False),
    "k8s.gpu.nvidia.com/claim=empty": CdiDevice((), is_valid=True),
    "nvidia.com/other=fs": CdiDevice(("/dev/nvidia-fs0",), is_valid=True),
}
HOST = ExplainedHost(driver=DRIVER, gpus=(FIRST, SECOND), numbers=NUMBERS, cdi=CDI_DEVICES)


def node(path: str, **changes: t.Any) -> Node:
    """Return a node that the host has too, and that the container may open."""
    major, minor = NUMBERS.get(path, (226, 0))
    return Node(path, major=major, minor=minor, mode=0o666, usable=True)._replace(**changes)


def contents(*nodes: str | Node, files: t.Sequence[DriverFile] = (CUDA, NVML), **measured: t.Any) -> Contents:
    """Return the contents of a container with nvidiactl, nvidia-uvm, and ``nodes``, which replace those."""
    found = {path: node(path) for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")}
    for one in nodes:
        whole = node(one) if isinstance(one, str) else one
        found[whole.path] = whole
    return Contents(Measured(tuple(found[path] for path in sorted(found)), **measured), tuple(files))


def without(full: Contents, *paths: str) -> Contents:
    """Return ``full`` without the nodes ``paths``."""
    kept = tuple(one for one in full.measured.nodes if one.path not in paths)
    return full._replace(measured=full.measured._replace(nodes=kept))


def by_cdi(*names: str) -> Request:
    return Request(CDI, ",".join(names), "HostConfig.DeviceRequests", names)


def by_variable(*names: str) -> Request:
    return Request(VARIABLE, f"NVIDIA_VISIBLE_DEVICES={','.join(names)}", "Config.Env", names)


def container(*requests: Request, **fields: t.Any) -> Container:
    """Return a running container of Docker; without ``requests``, it requests all GPUs by a variable."""
    usual = {"state": RUNNING, "pid": 488, "runtime": "nvidia", "program": "nvidia-container-runtime"}
    return Container(
        "docker", "ab12" + "0" * 60, "job", **{**usual, "requests": requests or (by_variable(ALL),), **fields}
    )
