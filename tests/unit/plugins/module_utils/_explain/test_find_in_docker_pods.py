# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers that a kubelet made in Docker, with cri-dockerd."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import find as explain_find
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import CREATED, RUNNING
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.find import FoundContainer, Selector
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import kubelet
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers

UNIT = "/usr/lib/systemd/system/kubelet.service"
START = "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix:///run/cri-dockerd.sock\n"
FAILURE = 'E1 pod_workers.go:1301] "Error syncing pod, skipping" err="no device" pod="default/train-1" podUID="u1"'


class DockerOfKubelet(DockerWithContainers):
    """A Docker with containers of pods, and the journal of their kubelet. ``missing``: the status of its lists."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pods: list[dict[str, t.Any]] = []
        self.missing = 200
        self.write("/usr/bin/kubelet", mode=0o755)
        self.write(UNIT, START)

    def add(self, name: str, created: int, namespace: str = "default", kind: str = "container") -> str:
        """Add the container POD/NAME as cri-dockerd makes it, and return its ID."""
        pod, _slash, own = name.partition("/")
        identifier = f"{len(self.pods):064x}"
        labels = {
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.name": pod,
            "io.kubernetes.container.name": own,
            "io.kubernetes.docker.type": kind,
        }
        names = [f"/k8s_{own}_{pod}_{namespace}_u1_{len(self.pods)}"]
        self.pods.append({"Id": identifier, "Names": names, "Labels": labels, "Created": created})
        return identifier

    def answer(self, method: str, request: str, body: bytes) -> tuple[int, bytes]:
        """Answer as moby, which lists the newest containers first, and those with all labels of a filter."""
        address = urlsplit(request)
        if address.path == "/containers/json":
            self.requests.append(f"{method} {address.path}")
            wanted = json.loads(parse_qs(address.query)["filters"][0])["label"]
            listed = [pod for pod in reversed(self.pods) if {f"{k}={v}" for k, v in pod["Labels"].items()} >= {*wanted}]
            return self.missing, json.dumps(listed).encode()
        found = [pod for pod in self.pods if address.path == f"/containers/{pod['Id']}/json"]
        if found:
            labels = {"Labels": found[0]["Labels"], "Env": ["NVIDIA_VISIBLE_DEVICES=all"]}
            state = {"Status": "running", "Pid": 488}
            described = {"Id": found[0]["Id"], "Name": found[0]["Names"][0], "State": state, "Config": labels}
            return 200, json.dumps({**described, "HostConfig": {"Runtime": "runc"}}).encode()
        return super().answer(method, request, body)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        return (0, FAILURE, "") if "journalctl" in argv else super().run(argv)

    def find(self, name: str, *selector: str) -> FoundContainer:
        return explain_find.find(name, Selector(*selector), self.host, self.run)


@pytest.fixture
def docker() -> t.Iterator[DockerOfKubelet]:
    with docker_host() as plain:
        made = DockerOfKubelet(Path(plain.root, "host"))
        made.runs()
        with made.answers():
            yield made


@pytest.mark.parametrize("name", ["train-1/main", "default/train-1/main"])
@pytest.mark.parametrize("engine", [(), ("docker",)])
def test_a_running_container(docker: DockerOfKubelet, name: str, engine: tuple[str, ...]) -> None:
    docker.add("train-1/POD", 1, kind="podsandbox")
    identifier = docker.add("train-1/main", 2)
    docker.add("train-1/sidecar", 3)
    docker.add("train-10/main", 4)
    found = docker.find(name, *engine).container
    assert (found.engine, found.identifier, found.state, found.pid) == ("docker", identifier, RUNNING, 488)
    assert (found.name, found.in_pod) == ("default/train-1/main", True)
    assert docker.requests.count("GET /containers/json") == 1


@pytest.mark.parametrize("seconds", [5, 6])
def test_the_newest_of_several_attempts(docker: DockerOfKubelet, seconds: int) -> None:
    *_older, newest = [docker.add("train-1/main", created) for created in (4, 5, seconds)]
    assert docker.find("train-1/main").container.identifier == newest
    docker.add("train-1/main", 9, namespace="test")
    assert docker.find("default/train-1/main").container.identifier == newest
    message = r"several containers: default/train-1/main \(docker, 0+\), test/train-1/main \(docker, 0+\)\."
    with pytest.raises(HostError, match=message):
        docker.find("train-1/main")


@pytest.mark.parametrize("name", ["train-1/POD", "train-1/main/x/y", "Train-1/main", "train-1/", "/main", "a b/main"])
def test_other_names(docker: DockerOfKubelet, name: str) -> None:
    docker.add("train-1/POD", 1, kind="podsandbox")
    docker.add("train-1/main", 2)
    with pytest.raises(HostError, match="No container has the name"):
        docker.find(name)
    assert "GET /containers/json" not in docker.requests


@pytest.mark.parametrize("engine", [(), ("docker",)])
def test_a_container_that_was_never_created(docker: DockerOfKubelet, engine: tuple[str, ...]) -> None:
    found = docker.find("train-1/main", *engine).container
    assert (found.engine, found.state, found.error, found.in_pod) == ("docker", CREATED, "no device", True)
    # Whether it exists is not known.
    docker.missing = 500
    with pytest.raises(HostError, match="No container has the name"):
        docker.find("train-1/main", *engine)


@pytest.mark.parametrize("selector", [("podman",), ("docker", "auto", None, None, "/run/docker.sock")])
def test_another_engine_is_searched(docker: DockerOfKubelet, selector: tuple[str, ...]) -> None:
    docker.write("/usr/bin/podman", mode=0o755)
    with pytest.raises(HostError, match="No container has the name"):
        docker.find("train-1/main", *selector)


def test_an_endpoint_that_needs_a_package(docker: DockerOfKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = kubelet.KubeletSettings("/var/lib/kubelet", "", {}, (), missing_package="yaml")
    monkeypatch.setattr(kubelet, "read_settings", lambda _host, _found: unknown)

    def missing(_name: str) -> None:
        raise MissingPackageError("PyYAML is needed.")

    monkeypatch.setattr(bundled, "import_bundled", missing)
    with pytest.raises(MissingPackageError):
        docker.find("train-1/main")
