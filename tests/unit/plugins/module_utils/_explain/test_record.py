# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import Container, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import ContainerStatus, CriContainer

if t.TYPE_CHECKING:
    Data = t.Dict[str, t.Any]

NVIDIA = "/usr/bin/nvidia-container-runtime"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
# Docker 28.5.2, `docker inspect`, without the fields that are not read.
DOCKER: Data = {
    "Id": "3a3a",
    "State": {"Status": "running", "Pid": 488, "Error": ""},
    "Name": "/d1",
    "HostConfig": {
        "Runtime": "nvidia",
        "Annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0,nvidia.com/gpu=1", "a": "nvidia.com/gpu=2"},
        "Devices": [
            {"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0", "CgroupPermissions": "rwm"},
            {"PathOnHost": "/dev/dri/card0", "PathInContainer": "/dev/dri/card0", "CgroupPermissions": "rwm"},
        ],
        "DeviceRequests": [
            {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=0"], "Capabilities": None, "Options": None},
        ],
    },
    "Mounts": [
        {"Type": "bind", "Source": "/dev/null", "Destination": "/var/run/nvidia-container-devices/all"},
        {"Type": "bind", "Source": "/srv", "Destination": "/srv"},
    ],
    "Config": {"Env": ["PATH=/bin", "NVIDIA_API_KEY=secret", f"{VISIBLE}=all", "CUDA_VERSION", "EMPTY="]},
}
# Podman 5.8.6, `podman container inspect`, likewise. The last variable and the devices are those of CDI.
PODMAN: Data = {
    "Id": "93e9",
    "State": {"Status": "running", "Pid": 488, "Error": ""},
    "OCIRuntime": "/usr/bin/crun",
    "Name": "p1",
    "HostConfig": {
        "Annotations": {"io.container.manager": "libpod", "cdi.k8s.io/x": "nvidia.com/gpu=0"},
        "Devices": [{"PathOnHost": path, "PathInContainer": path} for path in ("/dev/nvidiactl", "/dev/nvidia0")],
    },
    "Mounts": [{"Type": "bind", "Source": "/dev/null", "Destination": "/var/run/nvidia-container-devices/GPU-1"}],
    "Config": {
        "Env": ["PATH=/bin", f"{VISIBLE}=0,1", f"{VISIBLE}=void"],
        "CreateCommand": ["podman", "run", "--device=nvidia.com/gpu=0", "image", "sleep", "--device=nvidia.com/gpu=7"],
        "Cmd": ["sleep", "--device=nvidia.com/gpu=7"],
    },
}
# containerd 2.1.9, ContainerStatus with verbose, likewise.
INFO: Data = {
    "pid": 872,
    "runtimeType": "io.containerd.runc.v2",
    "runtimeOptions": {"binary_name": NVIDIA},
    "config": {
        "CDI_devices": [{"name": "nvidia.com/gpu=0"}],
        "devices": [{"container_path": "/dev/nvidia0", "host_path": "/dev/nvidia0", "permissions": "rwm"}],
        "annotations": {"cdi.k8s.io/plugin": "nvidia.com/gpu=1"},
    },
    "runtimeSpec": {
        "process": {"env": ["PATH=/bin", f"{VISIBLE}=GPU-1", f"{VISIBLE}=void"]},
        "mounts": [{"destination": "/run/nvidia-container-devices/GPU-1", "type": "bind", "source": "/dev/null"}],
        "annotations": {"io.kubernetes.cri.container-name": "main"},
    },
}
ENTRY = CriContainer("7c71", ("default/pod/main", "pod/main", "main"), 1, "pod-1")


def from_cri(info: Data, state: int = 1, error: str = "", engine: str = "containerd", **options: t.Any) -> Container:
    return record.from_cri(engine, ENTRY, ContainerStatus(state, info, error), **options)


def docker_with(variables: t.Sequence[str] = (), **host: t.Any) -> tuple[Request, ...]:
    return record.from_docker({"HostConfig": host, "Config": {"Env": [*variables]}}, {}).requests


def test_docker() -> None:
    found = record.from_docker(DOCKER, {"nvidia": NVIDIA})
    assert (found.engine, found.identifier, found.name, found.state, found.pid, found.error) == (
        "docker", "3a3a", "d1", "running", 488, "",
    )  # fmt: skip
    assert (found.runtime, found.program, found.in_pod, found.requests_known) == ("nvidia", NVIDIA, False, True)
    value = '{"Driver":"cdi","Count":0,"DeviceIDs":["nvidia.com/gpu=0"],"Capabilities":[]}'
    mount = "/var/run/nvidia-container-devices/all"
    assert found.requests == (
        Request("cdi", value, "HostConfig.DeviceRequests", ("nvidia.com/gpu=0",)),
        Request("device", "/dev/nvidia0", "HostConfig.Devices", ("/dev/nvidia0",)),
        Request("annotation", "cdi.k8s.io/x=nvidia.com/gpu=0,nvidia.com/gpu=1", "HostConfig.Annotations",
                ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        Request("mount", mount, "Mounts", ("all",)),
        # The image may have it.
        Request("variable", f"{VISIBLE}=all", "Config.Env", ("all",)),
    )  # fmt: skip
    assert found.variables == {VISIBLE: "all"}
    assert found.data is DOCKER
    # A runtime that Docker does not know any more.
    assert record.from_docker(DOCKER, {}).program == "nvidia"


@pytest.mark.parametrize(
    ("entry", "kind", "names", "number"),
    [
        # `--gpus all`, `--gpus 2`, `--gpus device=0,1`, as Docker 28.5.2 records them.
        ({"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}, "gpus", ("all",), 0),
        ({"Driver": "", "Count": 2, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}, "gpus", (), 2),
        ({"Driver": "", "Count": 0, "DeviceIDs": ["0", "1"], "Capabilities": [["gpu"]]}, "gpus", ("0", "1"), 0),
        ({"Driver": "nvidia", "Count": -1, "DeviceIDs": ["0"], "Capabilities": [["gpu"]]}, "gpus", ("0",), 0),
        ({"Driver": "cdi", "DeviceIDs": ["a.com/nic=1", "nvidia.com/gpu=0"]}, "cdi", ("nvidia.com/gpu=0",), 0),
        ({"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=0"]}, "", (), 0),
        ({"Driver": "amd", "Count": -1, "Capabilities": [["gpu"]]}, "", (), 0),
    ],
)
def test_device_requests_of_docker(entry: Data, kind: str, names: tuple[str, ...], number: int) -> None:
    found = [(one.kind, one.names, one.number) for one in docker_with(DeviceRequests=[entry])]
    assert found == ([(kind, names, number)] if kind else [])


def test_a_cdi_device_of_an_old_client() -> None:
    paths = [{"PathOnHost": path} for path in ("nvidia.com/gpu=all", "amd.com/gpu=0", "/dev/dxg", "/dev/nvme0")]
    assert docker_with(Devices=paths) == (
        Request("cdi", "nvidia.com/gpu=all", "HostConfig.Devices", ("nvidia.com/gpu=all",)),
        Request("device", "/dev/dxg", "HostConfig.Devices", ("/dev/dxg",)),
    )


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("NVIDIA_VISIBLE_DEVICES=All", ("all",)),
        ("NVIDIA_VISIBLE_DEVICES=0, GPU-1,0:1,,0", ("0", "GPU-1", "0:1")),
        ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", ("nvidia.com/gpu=0",)),
        ("NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices", None),
        *((f"NVIDIA_VISIBLE_DEVICES={value}", None) for value in ("void", "none", "", "0,void")),
        ("DOCKER_RESOURCE_NVIDIA-GPU=GPU-1,GPU-2", ("GPU-1", "GPU-2")),
        ("DOCKER_RESOURCE_SSD=1", None),
        ("CUDA_VISIBLE_DEVICES=0", None),
    ],
)
def test_variables(variable: str, names: tuple[str, ...] | None) -> None:
    expected = () if names is None else (Request("variable", variable, "Config.Env", names),)
    assert docker_with([variable]) == expected


def test_only_variables_without_secrets_are_kept() -> None:
    kept = {"NVIDIA_REQUIRE_CUDA": "cuda>=12", "CUDA_VISIBLE_DEVICES": "0", "NVIDIA_GDS": "enabled", "CUDA_VERSION": ""}
    others = ["NVIDIA_API_KEY=secret", "NVIDIA=x", "MY_CUDA_VERSION=1"]
    data = {"Config": {"Env": [*others, *(f"{name}={value}" for name, value in kept.items()), "NVIDIA_GDS=x"]}}
    assert record.from_docker(data, {}).variables == kept


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/var/run/nvidia-container-devices/GPU-1", ("GPU-1",)),
        ("/run/nvidia-container-devices/all", ("all",)),
        ("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0", ("nvidia.com/gpu=0",)),
        ("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu=0", ("nvidia.com/gpu=0",)),
        ("/var/run/nvidia-container-devices/imex/0", None),
        ("/var/run/nvidia-container-devices", None),
        ("/var/run/nvidia-container-devices2/0", None),
        ("/srv/var/run/nvidia-container-devices/0", None),
    ],
)
def test_mounts(path: str, names: tuple[str, ...] | None) -> None:
    found = record.from_podman({"Mounts": [{"Destination": path}]}).requests
    assert found == (() if names is None else (Request("mount", path, "Mounts", names),))


@pytest.mark.parametrize(
    ("name", "is_request"),
    [
        ("nvidia.com/gpu=all", True),
        ("nvidia.com/gpu=GPU-00000000-0000-0000-0000-000000000000", True),
        ("nvidia.com/gpu=0:1", True),
        ("nvidia.com/pgpu=0", True),
        ("management.nvidia.com/gpu=all", True),
        ("runtime.nvidia.com/gpu=0", True),
        ("k8s.gpu.nvidia.com/claim=u1-gpu-0", True),
        ("k8s.compute-domain.nvidia.com/claim=u1-channel-0", False),
        ("nvidia.com/gds=all", False),
        ("nvidia.com/imex-channel=0", False),
        ("mynvidia.com/gpu=0", False),
        ("amd.com/gpu=0", False),
        ("nvidia.com/gpu", False),
        ("nvidia.com/gpu=", False),
    ],
)
def test_cdi_devices(name: str, is_request: bool) -> None:
    assert bool(record.of_devices([name], "x")) is is_request
    error = f"setting up CDI devices: unresolvable CDI devices {name}, a.com/b=c."
    found = record.from_podman({"State": {"Error": error}})
    assert (found.requests_known, [one.names for one in found.requests]) == (is_request, [(name,)] * is_request)


def test_podman() -> None:
    found = record.from_podman(PODMAN)
    assert (found.engine, found.name, found.state, found.runtime, found.program) == (
        "podman", "p1", "running", "crun", "/usr/bin/crun",
    )  # fmt: skip
    assert found.requests_known
    assert found.requests == (
        Request("cdi", "nvidia.com/gpu=0", "Config.CreateCommand", ("nvidia.com/gpu=0",)),
        Request("annotation", "cdi.k8s.io/x=nvidia.com/gpu=0", "HostConfig.Annotations", ("nvidia.com/gpu=0",)),
        Request("mount", "/var/run/nvidia-container-devices/GPU-1", "Mounts", ("GPU-1",)),
        Request("variable", f"{VISIBLE}=0,1", "Config.Env", ("0", "1")),
    )


@pytest.mark.parametrize(
    ("command", "requests"),
    [
        # Podman 5.8 refuses a list, earlier releases split it.
        (["--device", "nvidia.com/gpu=0,/dev/nvidiactl", "x"],
         [("cdi", "nvidia.com/gpu=0", ("nvidia.com/gpu=0",)), ("device", "/dev/nvidiactl", ("/dev/nvidiactl",))]),
        (["--device", "/dev/nvidia0:/dev/x:rw", "--device=/dev/dri", "x"],
         [("device", "/dev/nvidia0:/dev/x:rw", ("/dev/nvidia0",))]),
        # Podman 5.8 makes nvidia.com/gpu=0 of it.
        (["--gpus", "0", "x"], [("gpus", "0", ("0",))]),
        (["--gpus=all", "x", "sleep"], [("gpus", "all", ("all",))]),
        (["--devices", "nvidia.com/gpu=0", "x"], []),
        (["--device"], []),
    ],
)  # fmt: skip
def test_the_command_line_of_podman(command: list[str], requests: list[tuple[str, str, tuple[str, ...]]]) -> None:
    own = ["sleep"] if command[-1] == "sleep" else ["of-the-image"]
    found = record.from_podman({"Config": {"CreateCommand": ["podman", "run", *command], "Cmd": own}})
    assert [(one.kind, one.value, one.names) for one in found.requests] == requests


@pytest.mark.parametrize(("program", "kinds"), [("/usr/bin/crun", ["device"]), (NVIDIA, [])])
def test_nodes_that_a_runtime_of_nvidia_has_added(program: str, kinds: list[str]) -> None:
    devices = [{"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0"}]
    found = record.from_podman({"OCIRuntime": program, "HostConfig": {"Devices": devices}})
    assert [one.kind for one in found.requests] == kinds


def test_podman_without_a_command_line() -> None:
    data = {**PODMAN, "Mounts": [], "Config": {"CreateCommand": None}}
    found = record.from_podman(data)
    assert not found.requests_known
    assert [(one.kind, one.source) for one in found.requests[:2]] == [("device", record.NODES)] * 2


@pytest.mark.parametrize(
    ("status", "pid", "expected"),
    [("created", 0, ("created", None)), ("running", 5, ("running", 5)), ("paused", 5, ("running", 5)),
     ("exited", 0, ("exited", None)), ("dead", 7, ("exited", None)), ("", 0, ("created", None)),
     ("configured", 0, ("created", None)), ("running", 0, ("running", None)), ("running", -1, ("running", None)),
     ("restarting", 0, ("exited", None))],
)  # fmt: skip
def test_states(status: str, pid: int, expected: tuple[str, int | None]) -> None:
    data = {"State": {"Status": status, "Pid": pid, "Error": "no device"}}
    for found in (record.from_docker(data, {}), record.from_podman(data)):
        assert (found.state, found.pid) == expected
        assert found.error == ("" if expected[0] == "running" else "no device")


def test_cri() -> None:
    found = from_cri(INFO)
    assert (found.name, found.state, found.pid, found.program, found.runtime, found.in_pod, found.requests_known) == (
        "default/pod/main", "running", 872, NVIDIA, "nvidia-container-runtime", True, True,
    )  # fmt: skip
    assert found.requests == (
        Request("cdi", "nvidia.com/gpu=0", "config.CDI_devices", ("nvidia.com/gpu=0",)),
        Request("device", "/dev/nvidia0", "config.devices", ("/dev/nvidia0",)),
        Request("annotation", "cdi.k8s.io/plugin=nvidia.com/gpu=1", "annotations", ("nvidia.com/gpu=1",)),
        Request("mount", "/run/nvidia-container-devices/GPU-1", "mounts", ("GPU-1",)),
        Request("variable", f"{VISIBLE}=GPU-1", "process.env", ("GPU-1",)),
    )
    assert found.data == {"info": INFO, "sandbox": "pod-1"}
    assert from_cri(INFO, 2, "no device")[3:6] == ("exited", None, "no device")
    assert from_cri(INFO, 1, "no device").error == ""


@pytest.mark.parametrize(
    ("annotations", "devices"),
    [
        ({"cdi.k8s.io/main": "nvidia.com/gpu=0", "nvidia.cdi.k8s.io/container.other": "nvidia.com/gpu=0"}, []),
        ({"nvidia.cdi.k8s.io": "nvidia.com/gpu=0"}, [("nvidia.com/gpu=0",)]),
        ({"nvidia.cdi.k8s.io": "a.com/b=c", "nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0"}, [("nvidia.com/gpu=0",)]),
        ({"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=1", "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=0,a.b/c=d"},
         [("nvidia.com/gpu=0",)]),
        # That of the container replaces that of the pod.
        ({"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0", "nvidia.cdi.k8s.io/container.main": ""}, []),
    ],
)  # fmt: skip
def test_annotations_of_the_pod(annotations: dict[str, str], devices: list[tuple[str, ...]]) -> None:
    assert [one.names for one in from_cri({}, pod=annotations).requests] == devices


def test_cri_o_and_the_default_runtime() -> None:
    spec = {"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "nvidia", "cdi.k8s.io/x": "nvidia.com/gpu=0"}}
    found = from_cri({"pid": 9, "runtimeSpec": spec}, 2, engine="crio")
    assert (found.state, found.pid, found.runtime, found.program) == ("exited", None, "nvidia", "nvidia")
    assert ([one.kind for one in found.requests], found.requests_known) == (["annotation"], False)
    # CRI-O does not report that it used its default runtime.
    assert from_cri({"runtimeSpec": {}}, engine="crio").program == ""
    assert from_cri({}, 9).state == "created"
    assert from_cri({"runtimeType": "io.containerd.runc.v2"}).program == "runc"
    # These shims have no program.
    for shim in ("io.containerd.kata.v2", "io.containerd.runsc.v1"):
        found = from_cri({"runtimeType": shim, "runtimeOptions": {"ConfigPath": "/opt/kata/configuration.toml"}})
        assert (found.runtime, found.program) == (shim, shim)


def test_bundle() -> None:
    config = {"process": {"env": [f"{VISIBLE}=0", f"{VISIBLE}=void"]}, "annotations": {"nerdctl/name": "web"}}
    found = record.from_bundle("containerd", "redis", config, "/usr/bin/runc", 7)
    assert (found.name, found.state, found.pid, found.runtime, found.requests_known) == (
        "web",
        "running",
        7,
        "runc",
        False,
    )
    assert found.requests == (Request("variable", f"{VISIBLE}=0", "process.env", ("0",)),)
    assert found.shown == "web (containerd, redis)"
    assert found._replace(name="").shown == "redis"


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [1], ["x"], {"x": 1}, [{"x": 1}], True])
def test_values_of_wrong_types(value: t.Any) -> None:
    """A damaged answer gives a container without the value, and no exception."""
    for data in (DOCKER, PODMAN):
        groups = {name: group for name, group in data.items() if isinstance(group, dict)}
        damaged = [{**data, name: value} for name in data]
        damaged += [{**data, name: {**group, key: value}} for name, group in groups.items() for key in group]
        for each in damaged:
            assert record.from_docker(each, {}).engine == "docker"
            assert record.from_podman(each).engine == "podman"
    entry = {"Driver": value, "Count": value, "Capabilities": value, "DeviceIDs": value}
    assert docker_with(DeviceRequests=[value, entry]) is not None
    for group in ("config", "runtimeSpec"):
        for name in INFO[group]:
            assert from_cri({**INFO, group: {**INFO[group], name: value}}).engine == "containerd"
    for name in INFO:
        assert from_cri({**INFO, name: value}).engine == "containerd"
