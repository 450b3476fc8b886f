# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import container as explain_container
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import (
    CREATED,
    EXITED,
    RUNNING,
    GpuRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import ContainerStatus

NVIDIA = "/usr/bin/nvidia-container-runtime"
# Docker 26.1.5, `docker inspect`, without the fields that are not read.
DOCKER: dict[str, t.Any] = {
    "Id": "3a3a",
    "State": {"Status": "running", "Pid": 488, "Error": ""},
    "Name": "/d1",
    "HostConfig": {
        "Privileged": False,
        "CapAdd": None,
        "Runtime": "nvidia",
        "DeviceRequests": [
            {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=0"], "Capabilities": None, "Options": None},
            {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu", "utility"]], "Options": {}},
            {"Driver": "nvidia", "Count": 0, "DeviceIDs": ["0", "GPU-1"], "Capabilities": [["gpu"]], "Options": {}},
        ],
    },
    "Mounts": [{"Type": "bind", "Source": "/dev/null", "Destination": "/x"}],
    "Config": {"Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "EMPTY="]},
}


def test_docker() -> None:
    found = explain_container.from_docker(DOCKER, {"nvidia": NVIDIA}, None)
    assert (found.engine, found.identifier, found.name, found.state, found.pid) == (
        "docker", "3a3a", "d1", RUNNING, 488,
    )  # fmt: skip
    assert (found.runtime, found.program) == ("nvidia", NVIDIA)
    assert found.environment == {"PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "all", "EMPTY": ""}
    assert found.mounts == (("/dev/null", "/x"),)
    assert found.cdi_devices == ("nvidia.com/gpu=0",)
    assert found.gpus == (GpuRequest(-1, (), ("gpu", "utility")), GpuRequest(0, ("0", "GPU-1"), ("gpu",)))
    assert found.privileged is False
    assert found.request_known
    # A runtime that Docker does not know any more.
    assert explain_container.from_docker(DOCKER, {}, None).program == "nvidia"


@pytest.mark.parametrize(
    ("host", "privileged"),
    [
        ({"Privileged": True}, True),
        ({"CapAdd": ["SYS_ADMIN"]}, True),
        ({"CapAdd": ["CAP_SYS_ADMIN"]}, True),
        ({"CapAdd": ["all"]}, True),
        ({"CapAdd": ["SYS_PTRACE"]}, False),
    ],
)
def test_privileges_of_docker(host: dict[str, t.Any], privileged: bool) -> None:
    assert explain_container.from_docker({"HostConfig": host}, {}, None).privileged is privileged


@pytest.mark.parametrize(
    ("status", "pid", "expected"),
    [("created", 0, (CREATED, None)), ("running", 5, (RUNNING, 5)), ("paused", 5, (RUNNING, 5)),
     ("exited", 0, (EXITED, None)), ("dead", 7, (EXITED, None)), ("", 0, (CREATED, None)),
     ("configured", 0, (CREATED, None)), ("running", 0, (RUNNING, None)), ("running", -1, (RUNNING, None))],
)  # fmt: skip
def test_states(status: str, pid: int, expected: tuple[str, int | None]) -> None:
    data = {"State": {"Status": status, "Pid": pid}}
    for found in (explain_container.from_docker(data, {}, None), explain_container.from_podman(data, None)):
        assert (found.state, found.pid) == expected


# Podman 5.4.2, `podman container inspect`, likewise.
PODMAN: dict[str, t.Any] = {
    "Id": "93e9",
    "State": {"Status": "created", "Pid": 0, "Error": "setting up CDI devices: unresolvable CDI devices"},
    "OCIRuntime": "crun",
    "Name": "p1",
    "BoundingCaps": ["CAP_CHOWN"],
    "Config": {
        "Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"],
        "Annotations": {"io.container.manager": "libpod"},
        "CreateCommand": ["podman", "run", "--device", "nvidia.com/gpu=0", "-e", "PASSWORD=x", "image"],
    },
}


def test_podman() -> None:
    found = explain_container.from_podman(PODMAN, {"hooks": {"prestart": [{"path": "/x"}], "poststop": None}})
    assert (found.engine, found.name, found.state, found.error[:7]) == ("podman", "p1", CREATED, "setting")
    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert found.cdi_devices == ("nvidia.com/gpu=0",)
    assert found.annotations == {"io.container.manager": "libpod"}
    assert found.hooks == ("/x",)
    assert found.request_known
    assert not explain_container.from_podman({**PODMAN, "Config": {}}, None).request_known
    assert explain_container.from_podman({"BoundingCaps": ["CAP_SYS_ADMIN"]}, None).privileged


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        (["podman", "run", "--device=nvidia.com/gpu=all", "x"], ("nvidia.com/gpu=all",)),
        (["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"], ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        (["--device", "nvidia.com/gpu=0", "--device=nvidia.com/gpu=0"], ("nvidia.com/gpu=0",)),
        (["--gpus", "all"], ("nvidia.com/gpu=all",)),
        (["--gpus=0,1"], ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        (["--device", "/dev/nvidia0"], ()),
        (["--device"], ()),
        (["--devices", "nvidia.com/gpu=0"], ()),
    ],
)
def test_cdi_options(command: list[str], devices: tuple[str, ...]) -> None:
    assert explain_container.cdi_options(command) == devices


# containerd 1.7.24, ContainerStatus with verbose, likewise.
INFO: dict[str, t.Any] = {
    "pid": 872,
    "runtimeType": "io.containerd.runc.v2",
    "runtimeOptions": {"binary_name": NVIDIA},
    "config": {
        "metadata": {"name": "look-1"},
        "envs": [{"key": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        "CDI_devices": [{"name": "nvidia.com/gpu=0"}],
    },
    "runtimeSpec": {
        "process": {
            "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"],
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"]},
        },
        "mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
        "annotations": {"cdi.k8s.io/plugin": "nvidia.com/gpu=1"},
    },
}


def test_cri() -> None:
    found = explain_container.from_cri("containerd", "7c71", "default/pod/main", ContainerStatus(1, INFO), cdi=True)
    assert (found.state, found.pid, found.program, found.runtime) == (
        RUNNING, 872, NVIDIA, "nvidia-container-runtime",
    )  # fmt: skip
    assert found.environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert (found.received or {})["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert found.cdi_devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert not found.by_annotation
    assert found.privileged
    assert found.error == ""
    failed = explain_container.from_cri("containerd", "7c71", "x", ContainerStatus(2, INFO, "no device"), cdi=True)
    assert failed.error == "no device"
    assert found.request_known
    # Without CDI, containerd ignores annotations, and refuses the devices of the other field.
    without = explain_container.from_cri("containerd", "7c71", "x", ContainerStatus(1, INFO), cdi=False)
    assert without.cdi_devices == ("nvidia.com/gpu=0",)


def test_cri_o_and_the_default_runtime() -> None:
    spec = {"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "nvidia", "cdi.k8s.io/x": "a.com/b=c"}}
    found = explain_container.from_cri(
        "crio", "7c71", "x", ContainerStatus(2, {"pid": 9, "runtimeSpec": spec}), cdi=True
    )
    assert (found.state, found.pid, found.runtime, found.program) == (EXITED, None, "nvidia", "nvidia")
    assert (found.cdi_devices, found.by_annotation, found.request_known) == (("a.com/b=c",), True, False)
    programs = {"nvidia": NVIDIA, "": "/usr/bin/crun"}
    info = {"runtimeSpec": spec}
    assert (
        explain_container.from_cri("crio", "7c71", "x", ContainerStatus(1, info), True, programs=programs).program
        == NVIDIA
    )
    found = explain_container.from_cri("crio", "7c71", "x", ContainerStatus(1, {}), True, programs=programs)
    assert (found.runtime, found.program) == ("crun", "/usr/bin/crun")
    found = explain_container.from_cri("containerd", "7c71", "x", ContainerStatus(9, {}), cdi=None)
    assert (found.state, found.runtime, found.program) == (CREATED, "runc", "runc")


@pytest.mark.parametrize("shim", ["io.containerd.kata.v2", "io.containerd.runsc.v1"])
def test_a_shim_without_a_program(shim: str) -> None:
    info = {**INFO, "runtimeType": shim, "runtimeOptions": {"ConfigPath": "/opt/kata/configuration.toml"}}
    found = explain_container.from_cri("containerd", "7c71", "x", ContainerStatus(1, info), cdi=True)
    assert (found.runtime, found.program) == (shim, shim)


def test_bundle() -> None:
    config = {
        "process": {"env": ["A=1", "A=2"], "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}},
        "mounts": [{"source": "/dev/null", "destination": "/x"}, {"source": "/y"}],
        "annotations": {"nerdctl/name": "web"},
    }
    found = explain_container.from_bundle("containerd", "redis", config, "/usr/bin/runc", 7)
    assert (found.name, found.environment, found.mounts) == ("web", {"A": "1"}, (("/dev/null", "/x"),))
    assert (found.privileged, found.request_known, found.runtime) == (True, False, "runc")
    assert found.shown == "web (containerd, redis)"
    assert found._replace(name="").shown == "redis"


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [1], ["x"], {"x": 1}, True])
def test_values_of_wrong_types(value: t.Any) -> None:
    """A damaged answer gives a container without the value, and no exception."""
    for data in (DOCKER, PODMAN):
        for name in data:
            damaged = {**data, name: value}
            explain_container.from_docker(damaged, {}, None)
            explain_container.from_podman(damaged, {"hooks": value, "process": value, "linux": value})
        for group in ("State", "HostConfig", "Config"):
            for name in data.get(group, {}):
                damaged = {**data, group: {**data[group], name: value}}
                explain_container.from_docker(damaged, {}, None)
                explain_container.from_podman(damaged, None)
    for name in INFO:
        explain_container.from_cri("containerd", "x", "x", ContainerStatus(1, {**INFO, name: value}), cdi=True)
    for name in INFO["runtimeSpec"]:
        damaged = {**INFO, "runtimeSpec": {**INFO["runtimeSpec"], name: value}}
        explain_container.from_cri("containerd", "x", "x", ContainerStatus(1, damaged), cdi=True)
        explain_container.from_bundle("containerd", "x", damaged["runtimeSpec"], "", None)
    requests = {"HostConfig": {"DeviceRequests": [value, {"Driver": value, "Capabilities": value, "DeviceIDs": value}]}}
    explain_container.from_docker(requests, {}, None)
