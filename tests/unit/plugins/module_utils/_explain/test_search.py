# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import json
import re
import typing as t
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import search
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import CREATED, RUNNING
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.search import (
    EngineState,
    FoundContainer,
    Selector,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import FakeCri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import short_folder

if t.TYPE_CHECKING:
    Answer = t.Tuple[int, str, str]
    Data = t.Dict[str, t.Any]

NVIDIA = "/usr/bin/nvidia-container-runtime"
ONE, TWO, THREE = ("3a3a" + "0" * 60, "3a3b" + "0" * 60, "5cba" + "0" * 60)
TASKS = "/run/containerd/io.containerd.runtime.v2.task"


def inspected(identifier: str, name: str, **fields: t.Any) -> Data:
    """The answer of Docker and of Podman about a container, shortened."""
    return {
        "Id": identifier,
        "Name": name,
        "State": {"Status": "running", "Pid": 488, "Error": ""},
        "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"], "CreateCommand": ["podman", "run", "image"]},
        "HostConfig": {"Runtime": "nvidia"},
        "OCIRuntime": "crun",
        **fields,
    }


class Docker(DockerWithContainers):
    """A Docker with the containers ``described``, and a Podman.

    ``listed`` replaces the list of Docker, and ``list_status`` its HTTP status.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.described: dict[str, Data] = {ONE: inspected(ONE, "/web"), TWO: inspected(TWO, "/db")}
        self.listed: t.Any = None
        self.list_status = 200
        self.podman: dict[str, Answer] = {}
        self.in_podman: list[Data] = []

    def answer(self, method: str, request: str, body: bytes) -> tuple[int, bytes]:
        address = urlsplit(request)
        if address.path == "/containers/json":
            self.requests.append(f"{method} {address.path}")
            filters = json.loads(parse_qs(address.query)["filters"][0])
            # The newest is the first.
            chosen = (one for one in reversed(self.described.values()) if self.selects_all(filters, one))
            listed = self.listed if self.listed is not None else [self.entry(one) for one in chosen]
            return self.list_status, json.dumps(listed).encode()
        if address.path.startswith("/containers/"):
            described = self.described.get(address.path.split("/")[2])
            missing = b'{"message": "no such container"}'
            return (404, missing) if described is None else (200, json.dumps(described).encode())
        return super().answer(method, request, body)

    def entry(self, described: Data) -> Data:
        labels = described["Config"].get("Labels", {})
        return {
            "Id": described["Id"], "Names": [described["Name"]], "Labels": labels, "Created": described.get("Created")
        }  # fmt: skip

    def selects_all(self, filters: dict[str, list[str]], described: Data) -> bool:
        """Return whether all filters match, as in Docker 20.10 to 28.5. The beginning of several IDs matches none."""
        labels = {f"{key}={value}" for key, value in described["Config"].get("Labels", {}).items()}
        matches = {
            "label": lambda values: labels >= {*values},
            "name": lambda values: re.search(values[0], described["Name"].lstrip("/")) is not None,
            "id": lambda values: [key for key in self.described if key.startswith(values[0])] == [described["Id"]],
        }
        return all(matches[kind](values) for kind, values in filters.items())

    def run(self, argv: list[str]) -> Answer:
        words = " ".join(argv[3:])
        if words.startswith("ps ") and self.in_podman and "ps " not in self.podman:
            return 0, json.dumps([entry for entry in self.in_podman if self.selects(argv, entry)]), ""
        return next((answer for begin, answer in self.podman.items() if words.startswith(begin)), super().run(argv))

    @staticmethod
    def selects(argv: list[str], entry: Data) -> bool:
        """Return whether all filters of podman ps match, as those of libpod in 3.4 to 5.4."""
        filters = [word.partition("=")[2].partition("=") for word in argv if word.startswith("--filter=")]
        values = {"id": entry["Id"], "name": entry["Names"][0]}
        return all(re.search(pattern, values[kind]) for kind, _sign, pattern in filters)

    def find(self, name: str, *selector: str) -> FoundContainer:
        return search.find(name, Selector(*selector), self.host, self.run)

    def error(self, name: str, *selector: str) -> str:
        with pytest.raises(HostError) as caught:
            self.find(name, *selector)
        return str(caught.value)

    def add_podman(self, *containers: Data) -> None:
        self.write("/usr/bin/podman", mode=0o755)
        self.podman["--version"] = (0, "podman version 5.8.6\n", "")
        self.in_podman = [{"Id": entry["Id"], "Names": [entry["Name"]], "Command": ["secret"]} for entry in containers]
        for entry in containers:
            self.podman[f"container inspect -- {entry['Id']}"] = (0, json.dumps([entry]), "")

    def add_pod(self, name: str, created: int, namespace: str = "default", kind: str = "container") -> str:
        """Add the container POD/NAME as cri-dockerd makes it, and return its ID."""
        pod, _slash, own = name.partition("/")
        identifier = f"{len(self.described):064x}"
        labels = {
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.name": pod,
            "io.kubernetes.container.name": own,
            "io.kubernetes.docker.type": kind,
        }
        self.described[identifier] = inspected(
            identifier, f"/k8s_{own}_{pod}_{namespace}_u1_{created}", Config={"Labels": labels}, Created=created
        )
        return identifier


@pytest.fixture
def docker() -> t.Iterator[Docker]:
    with docker_host() as plain:
        made = Docker(Path(plain.root, "host"))
        made.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
        made.runs()
        with made.answers():
            yield made


# -- Docker ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["web", ONE, ONE[:12], "3a3a"])
def test_docker(docker: Docker, name: str) -> None:
    found = docker.find(name)
    assert (found.container.identifier, found.container.name, found.container.pid) == (ONE, "web", 488)
    assert (found.container.program, found.container.in_pod) == (NVIDIA, False)
    assert found.engine == EngineState("docker", "/run/docker.sock", "/usr/bin/dockerd")


def test_a_bundle_of_a_listed_container(docker: Docker) -> None:
    docker.write(f"{TASKS}/moby/{ONE}/config.json", "{}")
    docker.write(f"{TASKS}/moby/{ONE}/init.pid", "488")
    docker.write("/proc/488/comm", "sleep")
    assert docker.find(ONE[:12]).container.name == "web"
    docker.list_status = 500
    assert docker.find(ONE[:12]).container.name == ""


def test_a_prefix_of_two_containers(docker: Docker) -> None:
    assert docker.error("3a3").startswith("No container has the name or ID '3a3'. Searched: docker (/run/docker.sock)")
    docker.add_podman(inspected(ONE, "p1"), inspected(TWO, "p2"))
    assert "several containers: p1 (podman, 3a3a00000000), p2 (podman, 3a3b00000000). " in docker.error("3a3", "podman")
    # A name has precedence over the beginning of an ID.
    docker.add_podman(inspected(ONE, "p1"), inspected(THREE, "3a3"))
    assert docker.find("3a3", "podman").container.identifier == THREE


def test_a_name_in_two_engines(docker: Docker) -> None:
    docker.add_podman(inspected(THREE, "web"))
    assert "web (docker, 3a3a00000000), web (podman, 5cba00000000)" in docker.error("web")
    assert docker.find("web", "podman").container.engine == "podman"
    assert docker.find("web", "docker").container.engine == "docker"


def test_no_container(docker: Docker) -> None:
    docker.add_podman()
    docker.write("/etc/crio/crio.conf")
    places = "docker (/run/docker.sock), crio (does not run), podman (/usr/bin/podman), bundles of running containers"
    assert f" 'x'. Searched: {places}. " in docker.error("x")
    assert f" ''. Searched: {places}. " in docker.error("")
    assert "Searched: podman (/usr/bin/podman)." in docker.error("x", "podman")


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="Searched: bundles of running containers"):
        search.find("x", Selector(), HostFS(str(tmp_path), live=True), lambda _argv: (0, "", ""))
    with pytest.raises(NvidiaError, match="offline tree"):
        search.find("x", Selector(), HostFS(str(tmp_path), live=False), lambda _argv: (0, "", ""))


@pytest.mark.parametrize("listed", [{}, [1], [{"Id": 1, "Names": []}], [{"Id": ONE}], [{"Id": ONE, "Names": [1]}]])
def test_an_invalid_list_of_docker(docker: Docker, listed: t.Any) -> None:
    docker.listed = listed
    assert "docker (its description of containers is not valid: " in docker.error("3a3")


def test_a_container_of_docker_that_cannot_be_read(docker: Docker) -> None:
    docker.listed = [{"Id": THREE, "Names": ["/gone"]}]
    assert " gone (docker, 5cba00000000) cannot be read: /run/docker.sock answers no such " in docker.error("gone")
    docker.described[THREE] = {"Id": THREE}
    assert docker.find("gone").container.state == CREATED


@pytest.mark.parametrize(
    "name",
    [
        *("../info", "web/json?", "we b", "web\r\nHost: x", "-web", "wéb", "web\n"),
        *("train-1/POD", "train-1/main/x/y", "Train-1/main", "train-1/", "/main", "a b/main"),
    ],
)
def test_no_request_contains_a_name_that_engines_do_not_allow(docker: Docker, name: str) -> None:
    docker.add_podman(inspected(THREE, "p1"))
    assert f"No container has the name or ID {name!r}" in docker.error(name)
    assert not docker.requests


# -- pods of cri-dockerd -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train-1/main", "default/train-1/main"])
@pytest.mark.parametrize("engine", [(), ("docker",)])
def test_a_container_of_a_pod_in_docker(docker: Docker, name: str, engine: tuple[str, ...]) -> None:
    docker.add_pod("train-1/POD", 1, kind="podsandbox")
    identifier = docker.add_pod("train-1/main", 2)
    docker.add_pod("train-1/sidecar", 3)
    docker.add_pod("train-10/main", 4)
    found = docker.find(name, *engine).container
    assert (found.engine, found.identifier, found.state, found.pid) == ("docker", identifier, RUNNING, 488)
    assert (found.name, found.in_pod) == ("default/train-1/main", True)


@pytest.mark.parametrize("seconds", [5, 6])
def test_the_newest_of_several_attempts(docker: Docker, seconds: int) -> None:
    *_older, newest = [docker.add_pod("train-1/main", created) for created in (4, 5, seconds)]
    assert docker.find("train-1/main").container.identifier == newest
    docker.add_pod("train-1/main", 9, namespace="test")
    assert docker.find("default/train-1/main").container.identifier == newest
    message = r"several containers: default/train-1/main \(docker, 0+[0-9]?\), test/train-1/main \(docker, 0+\)\."
    with pytest.raises(HostError, match=message):
        docker.find("train-1/main")


# -- Podman ------------------------------------------------------------------------------------------------------------


def test_podman(docker: Docker) -> None:
    docker.add_podman(inspected(THREE, "p1"))
    found = docker.find("p1")
    assert (found.container.identifier, found.container.program) == (THREE, "crun")
    assert found.engine == EngineState("podman", "", "/usr/bin/podman")
    docker.podman[f"container inspect -- {THREE}"] = (0, "{}", "")
    assert "cannot be read: a value is not of the type list. Run the task again." in docker.error("p1")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((125, "", "Error: no\n storage"), "podman (podman fails: Error: no storage)"),
        ((125, "", "warning\n" * 99 + "Error: no storage"), "warning Error: no storage)"),
        ((0, "[", ""), "podman (the output of podman is not JSON)"),
        ((0, "{}", ""), "podman (its list of containers is not valid: a value is not of the type list)"),
    ],
)
def test_podman_that_fails(docker: Docker, answer: Answer, message: str) -> None:
    docker.add_podman()
    docker.podman["ps "] = answer
    assert message in docker.error("x")
    # The other engines are searched.
    assert docker.find("web").container.engine == "docker"


# -- bundles -----------------------------------------------------------------------------------------------------------


def test_a_bundle_without_an_engine(docker: Docker) -> None:
    for namespace in ("default", "test"):
        folder = f"{TASKS}/{namespace}/redis"
        config = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}, "annotations": {"nerdctl/name": namespace}}
        docker.write(f"{folder}/config.json", json.dumps(config))
        docker.write(f"{folder}/init.pid", "489")
        docker.write(f"{folder}/runtime", "/usr/bin/runc")
    docker.write("/proc/489/comm", "redis")
    found, engine = docker.find("test/redis")
    assert (found.engine, found.name, found.state, found.pid, found.program) == (
        "containerd", "test", RUNNING, 489, "/usr/bin/runc",
    )  # fmt: skip
    assert ([one.names for one in found.requests], engine) == ([("0",)], EngineState())
    assert "several containers: default/redis (containerd, redis), test/redis (containerd, redis)." in docker.error(
        "redis", "containerd"
    )
    assert "Searched: docker (/run/docker.sock)." in docker.error("test/redis", "docker")
    assert "bundles of running containers." in docker.error("test/redis", "crio")
    docker.write(f"{TASKS}/test/redis/config.json", "[")
    assert docker.find("test/redis").container.name == ""


# -- CRI ---------------------------------------------------------------------------------------------------------------

INFO = {
    "pid": 872,
    "runtimeOptions": {"binary_name": NVIDIA},
    "config": {"CDI_devices": [{"name": "nvidia.com/gpu=0"}]},
    "runtimeSpec": {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"]}},
}


def of_pod(identifier: str, created: int, pod: str, name: str = "main", padding: int = 0) -> bytes:
    """Return an entry in a ListContainersResponse."""
    values = {"pod.namespace": "default", "pod.name": pod, "container.name": name}
    labels = b"".join(field(8, field(1, f"io.kubernetes.{key}") + field(2, value)) for key, value in values.items())
    annotation = field(9, field(1, "a") + field(2, "x" * padding))
    return field(
        1, field(1, identifier) + field(2, "pod-1") + field(3, field(1, name)) + labels + annotation + field(7, created)
    )


@functools.lru_cache(maxsize=None)
def labels_of(container: bytes) -> set[tuple[bytes, ...]]:
    return {tuple(dict(fields(label)).values()) for number, label in fields(container) if number == 8}


class Cri(FakeCri):
    """A CRI with one container of a pod. ``reply`` replaces its status, and ``more`` adds containers."""

    reply: bytes | None = None
    more = b""
    identifiers: tuple[str, ...] = (ONE, TWO, THREE)

    def do_list_containers(self, message: bytes) -> bytes:
        loose = field(1, field(1, TWO) + field(3, field(1, "loose")))
        every = of_pod(ONE, 50, "training-0") + loose + self.more
        wanted = dict(fields(message)).get(1)
        if wanted is None:
            return every
        # As in containerd 1.6 to 2.1 and CRI-O 1.24 to 1.33.
        selector = {tuple(dict(fields(label)).values()) for number, label in fields(wanted) if number == 4}
        identifier = dict(fields(wanted)).get(1, b"")
        labelled = (one for _number, one in fields(every) if selector <= labels_of(one))
        return b"".join(field(1, one) for one in labelled if dict(fields(one))[1].startswith(identifier))

    def do_container_status(self, message: bytes) -> bytes:
        assert dict(fields(message))[1].decode() in self.identifiers
        info = field(1, "info") + field(2, json.dumps(INFO))
        return field(1, field(1, ONE) + field(3, 1)) + field(2, info) if self.reply is None else self.reply

    def do_pod_sandbox_status(self, message: bytes) -> bytes:
        assert dict(fields(message)) == {1: b"pod-1"}
        return field(1, field(1, "pod-1") + field(8, field(1, "nvidia.cdi.k8s.io") + field(2, "nvidia.com/gpu=1")))

    def find(self, name: str) -> FoundContainer:
        return search.find(name, Selector("containerd"), self.host, lambda _argv: (0, "", ""))

    def write(self, path: str, content: str = "") -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755)

    def add_engine(self, name: str, command: str, pid: int) -> None:
        self.write(f"/usr/bin/{name}")
        self.write(f"/usr/lib/systemd/system/{name}.service", f"[Service]\nExecStart={command}\n")
        self.write(f"/sys/fs/cgroup/system.slice/{name}.service/cgroup.procs", f"{pid}\n")
        self.write(f"/proc/{pid}/comm", f"{name}\n")


@pytest.fixture
def cri() -> t.Iterator[Cri]:
    with short_folder() as root:
        made = Cri(root)
        made.add_engine("containerd", "/usr/bin/containerd -a /run/cri.sock", 77)
        with made.answers():
            yield made


@pytest.mark.parametrize("name", ["main", "training-0/main", "default/training-0/main", ONE, "3a3a"])
def test_cri(cri: Cri, name: str) -> None:
    found, engine = cri.find(name)
    assert (found.engine, found.identifier, found.name, found.state, found.in_pod) == (
        "containerd", ONE, "default/training-0/main", RUNNING, True,
    )  # fmt: skip
    assert (found.pid, found.program, found.data["sandbox"]) == (872, NVIDIA, "pod-1")
    assert [request.names for request in found.requests] == [("nvidia.com/gpu=0",), ("nvidia.com/gpu=1",), ("all",)]
    assert engine == ("containerd", "/run/cri.sock", "/usr/bin/containerd")


def test_the_newest_container_of_a_pod(cri: Cri) -> None:
    cri.more = of_pod(THREE, 60, "training-0")
    for name in ("main", "training-0/main", "default/training-0/main"):
        assert cri.find(name).container.identifier == THREE
    assert cri.find(ONE).container.identifier == ONE
    cri.more = of_pod(THREE, 40, "training-0")
    assert cri.find("main").container.identifier == ONE
    cri.more = of_pod(THREE, 60, "training-1")
    with pytest.raises(HostError, match="matches several containers"):
        cri.find("main")


TOO_LONG = r"larger than max \([0-9]+ vs\. [0-9]+\); give the whole ID, or NAMESPACE/POD/NAME\)"


@pytest.mark.parametrize("count", [300, 5000])
def test_cri_with_thousands_of_containers(cri: Cri, count: int) -> None:
    # A real entry has about 4 KiB, so the list is longer than containerd's limit from about 4,000 on.
    cri.more = b"".join(of_pod(f"{number:064x}", 1, f"web-{number}", "worker", 4096) for number in range(count))
    assert len(cri.more) > 1 << 20
    for name in ("main", "training-0/main", "default/training-0/main", ONE, "3a3a"):
        assert cri.find(name).container.identifier == ONE
    for name in ("web-250/worker", "default/web-250/worker"):
        cri.identifiers = (f"{250:064x}",)
        assert cri.find(name).container.identifier == f"{250:064x}"
    cri.identifiers = (TWO,)
    assert cri.find(TWO).container.name == "loose"
    for name in ("web-9999/worker", "other/web-250/worker"):
        with pytest.raises(HostError, match=r"Searched: containerd \(/run/cri.sock\)"):
            cri.find(name)
    for name in ("worker", "0000"):
        with pytest.raises(HostError, match="matches several containers" if count == 300 else TOO_LONG):
            cri.find(name)


def test_a_cri_that_fails(cri: Cri) -> None:
    cri.reply = b""
    with pytest.raises(HostError, match=r"The container default/training-0/main \(containerd.*the reply has no status"):
        cri.find("3a3a")
    cri.reply = field(1, b"") + field(2, field(1, "info") + field(2, "[]"))
    assert cri.find("3a3a").container.state == CREATED
    cri.errors["PodSandboxStatus"] = "no pod"
    with pytest.raises(HostError, match=r"cannot be read: .*no pod"):
        cri.find("main")
    cri.errors["ListContainers"] = "unknown service"
    with pytest.raises(HostError, match=r"containerd \(its CRI does not list containers: unknown service\)"):
        cri.find("main")


def test_a_container_that_was_never_created(cri: Cri) -> None:
    for name in ("default/train-1/main", "train-1/main"):
        with pytest.raises(HostError, match=r"`kubectl describe pod train-1` says why\.$"):
            cri.find(name)
