# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers as their engines report them, on hosts in directories."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    explain,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    host as explain_host,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import ContainerStatus
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import gpu_hosts
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FakeGpu, FakeMig

if t.TYPE_CHECKING:
    from pathlib import Path

    Explanation = t.Dict[str, t.Any]

FIRST, SECOND = FakeGpu("0000:07:00.0", 0), FakeGpu("0000:0f:00.0", 1)
IN_MIG_MODE = FakeGpu("0000:47:00.0", 0, mig=1)
WITH_MIG = IN_MIG_MODE._replace(migs=(FakeMig(0, 3, 0),))
PROGRAMS = (
    *("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk"),
    *("nvidia-cdi-hook", "dockerd", "runc", "crun", "podman"),
)
LIBRARIES = gpu_hosts.LIBRARY_FOLDER
VERSION = gpu_hosts.VERSION
CONFIG = "etc/nvidia-container-runtime/config.toml"
SPECIFICATION = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}]}}
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
"""
COMMON = f"""\
containerEdits:
  deviceNodes: [{{path: /dev/nvidiactl}}, {{path: /dev/nvidia-uvm}}]
  mounts: [{{hostPath: /{LIBRARIES}/libcuda.so.{VERSION}, containerPath: /{LIBRARIES}/libcuda.so.{VERSION}}}]
"""
# What a container with both GPUs has.
ALL_MOUNTS = (
    *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"),
    *(f"/{LIBRARIES}/libcuda.so.{VERSION}", f"/{LIBRARIES}/libnvidia-ml.so.{VERSION}"),
)
WITHOUT_GPUS = tuple(path for path in ALL_MOUNTS if not path.startswith("/dev/nvidia") or path[11:12] not in "01")


class Report:
    """A host with a driver, a toolkit and engines, and a container on it."""

    def __init__(self, root: Path, gpus: t.Sequence[FakeGpu] = (FIRST, SECOND), with_nvml: bool = False) -> None:
        self.root, self.toolkit, self.docker = root / "host", "1.19.1", "28.5.2"
        self.podman = "5.4.2"
        self.runtimes = {"nvidia": "nvidia-container-runtime", "runc": "runc"}
        self.cdi: bool | None = True
        self.host = gpu_hosts.gpu_host(self.root, gpus)
        if with_nvml:
            gpu_hosts.nvml_files(self.root, gpu_hosts.compiled(root), gpus)
        else:
            self.add_library(VERSION)
        for name in PROGRAMS:
            self.add(f"usr/bin/{name}", "", 0o755)

    def add(self, path: str, text: str, mode: int = 0o644) -> None:
        gpu_hosts.write(self.root, {path: text})
        (self.root / path).chmod(mode)

    def add_library(self, version: str) -> None:
        for name in ("libnvidia-ml", "libcuda"):
            self.add(f"{LIBRARIES}/{name}.so.{version}", "")
            link = self.root / LIBRARIES / f"{name}.so.1"
            if link.is_symlink():
                link.unlink()
            os.symlink(f"{name}.so.{version}", link)

    def remove(self, *programs: str) -> None:
        for name in programs:
            (self.root / "usr/bin" / name).unlink()

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        outputs = {
            "nvidia-ctk": f"NVIDIA Container Toolkit CLI version {self.toolkit}\ncommit: 1",
            "dockerd": f"Docker version {self.docker}, build 1",
            "podman": f"podman version {self.podman}",
        }
        found = next((output for name, output in outputs.items() if name in " ".join(argv)), None)
        return (127, "", "") if found is None else (0, found, "")

    def set_mounts(self, points: t.Sequence[str]) -> None:
        lines = [f"{number} 1 0:40 / {point} rw - tmpfs tmpfs rw\n" for number, point in enumerate(("/proc", *points))]
        self.add("proc/488/mountinfo", "".join(lines))

    def explain(self, container: explain_container.Container, version: str, cuda: str | None) -> Explanation:
        state = explain_host.ReportedEngine(version, self.cdi)
        facts = explain_host.read_host(container, state, None, self.host, self.run)
        return explain.explain(container, facts if cuda is None else facts._replace(cuda=cuda))

    def of_docker(
        self,
        *environment: str,
        mounts: t.Sequence[str] | None = None,
        error: str = "",
        runtime: str = "nvidia",
        cuda: str | None = None,
        **host: t.Any,
    ) -> Explanation:
        """Explain a container of Docker. With ``mounts`` it runs and has these, otherwise it has exited."""
        state = {"Status": "exited" if mounts is None else "running", "Pid": 0 if mounts is None else 488}
        if mounts is not None:
            self.set_mounts(mounts)
        data = {
            "Id": "ab12" + "0" * 60,
            "Name": "/job",
            "State": {**state, "Error": error},
            "Config": {"Env": list(environment), "User": host.pop("User", "")},
            "HostConfig": {"Runtime": runtime, **host},
        }
        container = explain_container.from_docker(data, self.runtimes, host.pop("config", None))
        return self.explain(container, self.docker, cuda)

    def of_podman(self, error: str = "", config: dict[str, t.Any] | None = None, **fields: t.Any) -> Explanation:
        data: dict[str, t.Any] = {
            "Id": "ab12" + "0" * 60,
            "Name": "job",
            "State": {"Status": "exited", "Pid": 0, "Error": error},
            "OCIRuntime": "/usr/bin/crun",
            "Config": {"Env": [], "CreateCommand": None},
            **fields,
        }
        return self.explain(explain_container.from_podman(data, config), "", None)

    def of_pod(self, *names: str, mounts: t.Sequence[str] = ("/dev/shm",), **spec: t.Any) -> Explanation:
        self.set_mounts(mounts)
        request = {"CDI_devices": [{"name": name} for name in names]}
        info = {"pid": 488, "runtimeOptions": {}, "config": request, "runtimeSpec": {"process": {"env": []}, **spec}}
        status = ContainerStatus(1, info, "")
        container = explain_container.from_cri("containerd", "ab12" + "0" * 60, "ns/pod/c", status, cdi=True)
        return self.explain(container, "2.1.4", None)


def verdict(found: Explanation) -> tuple[bool | None, str]:
    return found["ok"], found["code"]


ALL = "NVIDIA_VISIBLE_DEVICES=all"
