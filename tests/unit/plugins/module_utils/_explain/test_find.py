# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import json
import re
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import find as explain_find
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import CREATED, RUNNING
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.find import FoundContainer, Selector
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import FakeCri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import short_folder

if t.TYPE_CHECKING:
    Answer = t.Tuple[int, str, str]

NVIDIA = "/usr/bin/nvidia-container-runtime"
ONE, TWO, THREE = ("3a3a" + "0" * 60, "3a3b" + "0" * 60, "5cba" + "0" * 60)
TASKS = "/run/containerd/io.containerd.runtime.v2.task"


def inspected(identifier: str, name: str, **fields: t.Any) -> dict[str, t.Any]:
    """The answer of Docker and of Podman about a container, shortened."""
    return {
        "Id": identifier,
        "Name": name,
        "State": {"Status": "running", "Pid": 488, "Error": ""},
        "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"], "CreateCommand": ["podman", "--device", "nvidia.com/gpu=0"]},
        "HostConfig": {"Runtime": "nvidia"},
        "OCIRuntime": "crun",
        **fields,
    }


class Docker(DockerWithContainers):
    """A Docker with the containers ``described``. ``listed`` replaces its list of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.described: dict[str, t.Any] = {ONE: inspected(ONE, "/web"), TWO: inspected(TWO, "/db")}
        self.listed: t.Any = None
        self.podman: dict[str, Answer] = {}
        self.in_podman: list[dict[str, t.Any]] = []
        self.padding = 0

    def answer(self, method: str, request: str, body: bytes) -> tuple[int, bytes]:
        if request == "/containers/json?all=1":
            usual = (entry for entry in self.described.values() if isinstance(entry, dict))
            listed = [
                {"Id": entry["Id"], "Names": [entry["Name"]], "Labels": {"a": "x" * self.padding}} for entry in usual
            ]
            return 200, json.dumps(listed if self.listed is None else self.listed).encode()
        if request.startswith("/containers/"):
            return self.inspect(request.split("/")[2])
        return super().answer(method, request, body)

    def inspect(self, name: str) -> tuple[int, bytes]:
        """Answer as GetContainer() in daemon/container.go of moby."""
        named = [
            key for key, entry in self.described.items() if isinstance(entry, dict) and entry["Name"] == f"/{name}"
        ]
        found = [name] if name in self.described else named or [key for key in self.described if key.startswith(name)]
        if len(found) == 1:
            return 200, json.dumps(self.described[found[0]]).encode()
        if found:
            return 400, b'{"message": "multiple IDs found with provided prefix"}'
        return 404, b'{"message": "no such container"}'

    def run(self, argv: list[str]) -> Answer:
        words = " ".join(argv[3:])
        if words.startswith("ps ") and self.in_podman and "ps " not in self.podman:
            return 0, json.dumps([entry for entry in self.in_podman if self.selects(argv, entry)]), ""
        return next((answer for begin, answer in self.podman.items() if words.startswith(begin)), super().run(argv))

    @staticmethod
    def selects(argv: list[str], entry: dict[str, t.Any]) -> bool:
        """Return whether all filters of podman ps match, as those of libpod in 3.4 to 5.4."""
        filters = [word.partition("=")[2].partition("=") for word in argv if word.startswith("--filter=")]
        values = {"id": entry["Id"], "name": entry["Names"][0]}
        return all(re.search(pattern, values[kind]) for kind, _sign, pattern in filters)

    def find(self, name: str, *selector: str) -> FoundContainer:
        return explain_find.find(name, Selector(*selector), self.host, self.run)

    def error(self, name: str, *selector: str) -> str:
        with pytest.raises(HostError) as caught:
            self.find(name, *selector)
        return str(caught.value)

    def add_podman(self, *containers: dict[str, t.Any]) -> None:
        self.write("/usr/bin/podman", mode=0o755)
        self.in_podman = [{"Id": entry["Id"], "Names": [entry["Name"]], "Command": ["secret"]} for entry in containers]
        for entry in containers:
            self.podman[f"container inspect -- {entry['Id']}"] = (0, json.dumps([entry]), "")


@pytest.fixture
def docker() -> t.Iterator[Docker]:
    with docker_host() as plain:
        made = Docker(Path(plain.root, "host"))
        made.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
        made.runs()
        with made.answers():
            yield made


@pytest.mark.parametrize("name", ["web", ONE, ONE[:12], "3a3a"])
def test_docker(docker: Docker, name: str) -> None:
    found = docker.find(name)
    assert (found.container.identifier, found.container.name, found.container.pid) == (ONE, "web", 488)
    assert found.container.program == NVIDIA
    assert (found.engine.version, found.engine.cdi, found.container.in_pod) == ("26.1.5", False, False)
    assert found.container.config is None


def test_docker_with_a_bundle(docker: Docker) -> None:
    folder = f"{TASKS}/moby/{ONE}"
    docker.write(f"{folder}/config.json", json.dumps({"linux": {"devices": [{"path": "/dev/nvidia0"}]}}))
    docker.write(f"{folder}/init.pid", "488")
    docker.write(f"{folder}/runtime", "/opt/nvidia-container-runtime")
    docker.write("/proc/488/comm", "sleep")
    found = docker.find("web").container
    assert found.config == {"linux": {"devices": [{"path": "/dev/nvidia0"}]}}
    assert found.program == "/opt/nvidia-container-runtime"
    # The bundle is that of a container which Docker has listed.
    assert docker.find(ONE[:12]).container.engine == "docker"
    docker.write(f"{folder}/config.json", "{")
    assert docker.find("web").container.config is None


def test_a_prefix_of_two_containers(docker: Docker) -> None:
    message = docker.error("3a3")
    assert message.startswith("container '3a3' ")
    assert ": web (docker, 3a3a00000000), db (docker, 3a3b00000000). " in message
    # A name has precedence over the beginning of an ID.
    docker.described[THREE] = inspected(THREE, "/3a3")
    assert docker.find("3a3").container.identifier == THREE


def test_a_name_in_two_engines(docker: Docker) -> None:
    docker.add_podman(inspected(THREE, "web"))
    assert "web (docker, 3a3a00000000), web (podman, 5cba00000000)" in docker.error("web")
    assert docker.find("web", "podman").container.engine == "podman"
    assert docker.find("web", "docker").container.engine == "docker"


def test_no_container(docker: Docker) -> None:
    docker.add_podman()
    docker.write("/etc/crio/crio.conf")
    message = docker.error("x")
    assert " 'x'. " in message
    assert (
        ": docker (/run/docker.sock), crio (does not run), podman (/usr/bin/podman), bundles of running containers. "
        in message
    )
    assert docker.error("") == message.replace("'x'", "''")
    assert docker.error("x", "podman").count("Searched: podman (/usr/bin/podman).") == 1


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="Searched: bundles of running containers"):
        explain_find.find("x", Selector(), HostFS(str(tmp_path), live=True), lambda _argv: (0, "", ""))
    with pytest.raises(NvidiaError, match="offline tree"):
        explain_find.find("x", Selector(), HostFS(str(tmp_path), live=False), lambda _argv: (0, "", ""))


@pytest.mark.parametrize("listed", [{}, [1], [{"Id": 1, "Names": []}], [{"Id": ONE}], [{"Id": ONE, "Names": [1]}]])
def test_an_invalid_list_of_docker(docker: Docker, listed: t.Any) -> None:
    docker.listed = listed
    assert "docker (its description of containers is not valid: " in docker.error("3a3")


def test_an_invalid_container_of_docker(docker: Docker) -> None:
    docker.described[ONE] = {"Id": ONE, "Name": "/web"}
    assert docker.find("web").container.state == CREATED
    for invalid in (["x"], "x", {"Id": 1, "Name": "/gone"}, {"Id": THREE}):
        answer = (200, json.dumps(invalid).encode())
        docker.inspect = lambda _name, answer=answer: answer  # type: ignore[method-assign,misc]
        assert "docker (its description of containers is not valid: " in docker.error("gone")


def test_a_container_of_docker_that_is_removed_meanwhile(docker: Docker) -> None:
    docker.listed = [{"Id": THREE, "Names": ["/3a3"]}]
    assert " 3a3 (docker, 5cba00000000) cannot be read: /run/docker.sock " in docker.error("3a3")


@pytest.mark.parametrize("name", ["../info", "web/json?", "we b", "web\r\nHost: x", "-web", "wéb", "web\n"])
def test_no_request_contains_a_name_that_docker_does_not_allow(docker: Docker, name: str) -> None:
    docker.add_podman(inspected(THREE, "p1"))
    assert f"No container has the name or ID {name!r}" in docker.error(name)
    assert docker.requests == ["GET /info"]


def test_docker_with_thousands_of_containers(docker: Docker) -> None:
    docker.padding = 4096
    for number in range(5000):
        identifier = f"{number:064x}"
        docker.described[identifier] = inspected(identifier, f"/worker-{number}")
    for name in ("worker-4999", f"{4999:064x}", "web", "3a3a"):
        assert docker.find(name).container.state == RUNNING
    assert "Searched: docker (/run/docker.sock)" in docker.error("missing")
    # This list exceeds the limit, so it cannot name the containers.
    assert "docker (/run/docker.sock answers multiple IDs found with provided prefix)" in docker.error("0000")


def test_podman(docker: Docker) -> None:
    config = f"/var/lib/containers/storage/overlay-containers/{THREE}/userdata/config.json"
    docker.write(config, json.dumps({"hooks": {"prestart": [{"path": "/x"}]}}))
    docker.add_podman(inspected(THREE, "p1", OCIConfigPath=config))
    found = docker.find("p1")
    assert found.container.cdi_devices == ("nvidia.com/gpu=0",)
    assert found.container.hooks == ("/x",)
    assert found.container.program == "crun"
    assert found.engine.cdi is True


def test_directories_of_podman(docker: Docker) -> None:
    docker.add_podman(inspected(THREE, "p1"))
    docker.podman["--version"] = (0, "podman version 5.8.0\n", "")
    docker.write("/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/opt/cdi']\n")
    assert docker.find("p1").engine.folders == ("/opt/cdi",)
    docker.write("/etc/containers/containers.conf", "[engine\n")
    assert docker.find("p1").engine.folders is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((125, "", "Error: no\n storage"), "podman (podman fails: Error: no storage)"),
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


def test_a_bundle_without_an_engine(docker: Docker) -> None:
    folder = f"{TASKS}/default/redis"
    config = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"]}}
    docker.write(f"{folder}/config.json", json.dumps(config))
    docker.write(f"{folder}/init.pid", "489")
    docker.write(f"{folder}/runtime", "/usr/bin/runc")
    docker.write("/proc/489/comm", "redis")
    found = docker.find("redis").container
    assert (found.engine, found.state, found.pid, found.program) == ("containerd", RUNNING, 489, "/usr/bin/runc")
    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "0"}
    assert docker.find("red", "containerd").container.identifier == "redis"
    assert "Searched: docker (/run/docker.sock)." in docker.error("redis", "docker")


def test_one_id_in_two_namespaces(docker: Docker) -> None:
    for namespace in ("default", "test"):
        docker.write(f"{TASKS}/{namespace}/redis/config.json", json.dumps({"hostname": namespace}))
        docker.write(f"{TASKS}/{namespace}/redis/init.pid", "489")
    docker.write("/proc/489/comm", "redis")
    assert "several containers: default/redis (containerd, redis), test/redis (containerd, redis)." in docker.error(
        "redis"
    )
    assert docker.find("test/redis").container.config == {"hostname": "test"}


# -- CRI ---------------------------------------------------------------------------------------------------------------

INFO = {
    "pid": 872,
    "runtimeOptions": {"binary_name": NVIDIA},
    "config": {"CDI_devices": [{"name": "nvidia.com/gpu=0"}]},
    "runtimeSpec": {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"]}},
}


def of_pod(identifier: str, created: int, pod: str, name: str = "main", padding: int = 0) -> bytes:
    """Return the entry of a container that a kubelet made in a ListContainersResponse."""
    values = {"pod.namespace": "default", "pod.name": pod, "container.name": name}
    labels = b"".join(field(8, field(1, f"io.kubernetes.{key}") + field(2, value)) for key, value in values.items())
    annotation = field(9, field(1, "a") + field(2, "x" * padding))
    sandbox = field(2, "pod-1")
    return field(1, field(1, identifier) + sandbox + field(3, field(1, name)) + labels + annotation + field(7, created))


@functools.lru_cache(maxsize=1)
def decoded(listed: bytes) -> list[tuple[bytes, set[tuple[bytes, ...]]]]:
    """Return each container of a list, and its labels."""
    return [
        (content, {tuple(dict(fields(label)).values()) for number, label in fields(content) if number == 8})
        for _number, content in fields(listed)
    ]


def selects(
    content: bytes, labels: set[tuple[bytes, ...]], identifier: bytes, selector: list[tuple[bytes, ...]]
) -> bool:
    """Return whether a ContainerFilter selects a container, as in containerd 1.6 to 2.1 and CRI-O 1.24 to 1.33."""
    return set(selector) <= labels and dict(fields(content))[1].startswith(identifier)


class Cri(FakeCri):
    """A CRI with one container of a pod, which has ``annotations``. ``reply`` replaces its status."""

    annotations: t.Mapping[str, str] = types.MappingProxyType({})
    reply: bytes | None = None
    more = b""
    identifiers: tuple[str, ...] = (ONE, TWO, THREE)

    def do_list_containers(self, message: bytes) -> bytes:
        loose = field(1, field(1, TWO) + field(3, field(1, "loose")))
        every = of_pod(ONE, 50, "training-0") + loose + self.more
        wanted = dict(fields(message)).get(1)
        if wanted is None:
            return every
        selector = [tuple(dict(fields(label)).values()) for number, label in fields(wanted) if number == 4]
        identifier = dict(fields(wanted)).get(1, b"")
        return b"".join(
            field(1, content) for content, labels in decoded(every) if selects(content, labels, identifier, selector)
        )

    def do_container_status(self, message: bytes) -> bytes:
        assert dict(fields(message))[1].decode() in self.identifiers
        info = field(1, "info") + field(2, json.dumps(INFO))
        return field(1, field(1, ONE) + field(3, 1)) + field(2, info) if self.reply is None else self.reply

    def do_pod_sandbox_status(self, message: bytes) -> bytes:
        assert dict(fields(message)) == {1: b"pod-1"}
        annotations = (field(8, field(1, key) + field(2, value)) for key, value in self.annotations.items())
        return field(1, field(1, "pod-1") + b"".join(annotations))

    def find(self, name: str) -> FoundContainer:
        return explain_find.find(name, Selector("containerd"), self.host, lambda _argv: (0, "", ""))


@pytest.fixture
def cri() -> t.Iterator[Cri]:
    with short_folder() as root:
        made = Cri(root)
        for path, content in {
            "usr/bin/containerd": "",
            "usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/containerd -a /run/cri.sock\n",
            "sys/fs/cgroup/system.slice/containerd.service/cgroup.procs": "77\n",
            "proc/77/comm": "containerd\n",
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
            (root / path).chmod(0o755)
        with made.answers():
            yield made


def test_a_distribution_that_decides_about_cdi(cri: Cri) -> None:
    assert cri.find("main").engine.cdi_advice == ""
    unit = cri.host.real_path("/usr/lib/systemd/system/containerd.service")
    Path(unit).with_name("k3s.service").write_text("[Service]\nExecStart=/usr/local/bin/k3s server\n")
    group = Path(cri.host.real_path("/sys/fs/cgroup/system.slice/containerd.service"))
    group.rename(group.with_name("k3s.service"))
    selector = Selector("containerd", "k3s", socket="/run/cri.sock")
    found = explain_find.find("main", selector, cri.host, lambda _argv: (0, "", ""))
    assert "K3s" in found.engine.cdi_advice


@pytest.mark.parametrize(("folders", "advice"), [([], "empty list cdi-spec-dirs"), (["/etc/cdi"], "")])
def test_an_empty_list_of_directories(docker: Docker, folders: list[str], advice: str) -> None:
    docker.write(
        "/etc/docker/daemon.json", json.dumps({"features": {"cdi": bool(not folders)}, "cdi-spec-dirs": folders})
    )
    engine = docker.find("web").engine
    assert (engine.cdi, advice in engine.cdi_advice, bool(engine.cdi_advice)) == (False, True, bool(advice))


@pytest.mark.parametrize("name", ["main", "training-0/main", "default/training-0/main", ONE, "3a3a"])
def test_cri(cri: Cri, name: str) -> None:
    found = cri.find(name).container
    assert (found.engine, found.identifier, found.name, found.state) == (
        "containerd",
        ONE,
        "default/training-0/main",
        RUNNING,
    )
    assert (found.pid, found.program, found.cdi_devices) == (872, NVIDIA, ("nvidia.com/gpu=0",))
    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert found.received == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize(
    ("annotations", "devices"),
    [
        ({}, ()),
        ({"cdi.k8s.io/main": "nvidia.com/gpu=0", "nvidia.cdi.k8s.io/container.other": "nvidia.com/gpu=0"}, ()),
        ({"nvidia.cdi.k8s.io": "nvidia.com/gpu=0"}, ("nvidia.com/gpu=0",)),
        ({"nvidia.cdi.k8s.io": "a.com/b=c", "nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0"}, ("nvidia.com/gpu=0",)),
        ({"nvidia.cdi.k8s.io/pod": "a.com/b=c", "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=0,x.com/y=1,"},
         ("nvidia.com/gpu=0", "x.com/y=1")),
        # That of the container replaces that of the pod.
        ({"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=0", "nvidia.cdi.k8s.io/container.main": ""}, ()),
    ],
)  # fmt: skip
def test_annotations_for_the_nri_plugin(cri: Cri, annotations: dict[str, str], devices: tuple[str, ...]) -> None:
    cri.annotations = annotations
    assert cri.find("training-0/main").container.nri_devices == devices


def test_a_pod_without_a_valid_answer(cri: Cri) -> None:
    cri.errors["PodSandboxStatus"] = "no pod"
    with pytest.raises(HostError, match=r"cannot be read: .*no pod"):
        cri.find("main")


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
    several, missing = ("matches several containers", "No container has the name") if count == 300 else [TOO_LONG] * 2
    if count == 300:
        assert cri.find("loose").container.identifier == TWO
    for name, message in {"worker": several, "0000": several, "other": missing}.items():
        with pytest.raises(HostError, match=message):
            cri.find(name)


def test_cri_with_a_status_of_many_variables(cri: Cri) -> None:
    # A kubelet adds seven variables for each service of the namespace.
    many = {**INFO, "variables": [f"SERVICE_{number}_PORT_443_TCP_PROTO=tcp" for number in range(60_000)]}
    cri.reply = field(1, field(1, ONE) + field(3, 1)) + field(2, field(1, "info") + field(2, json.dumps(many)))
    assert len(cri.reply) > 2 << 20
    assert cri.find("main").container.program == NVIDIA


def test_cri_reports_the_config_before_the_runtime(cri: Cri) -> None:
    found = cri.find("loose").container
    assert (found.config, found.config_is_final) == (INFO["runtimeSpec"], False)
    folder = cri.root / f"{TASKS.lstrip('/')}/k8s.io/{TWO}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"after": 1}')
    (folder / "init.pid").write_text("77")
    found = cri.find("loose").container
    assert (found.config, found.config_is_final) == ({"after": 1}, True)


RUNTIME_TABLE = f'[crio.runtime.runtimes.{{}}]\nruntime_path = "{NVIDIA}"\n'


@pytest.mark.parametrize(
    ("handler", "toml", "program", "folders"),
    [
        ("nvidia", RUNTIME_TABLE.format("nvidia"), NVIDIA, None),
        # CRI-O reports no handler for the default runtime.
        ("", f'[crio.runtime]\ndefault_runtime = "n"\n{RUNTIME_TABLE.format("n")}', NVIDIA, None),
        ("", "", "crun", None),
        ("nvidia", "[crio.runtime.runtimes.nvidia]\n", "nvidia", None),
        ("nvidia", "[", "nvidia", None),
        ("", "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']\n", "crun", ("/opt/cdi",)),
    ],
)
def test_crio_does_not_report_its_files(
    cri: Cri, handler: str, toml: str, program: str, folders: tuple[str, ...] | None
) -> None:
    for path, content in {
        "usr/bin/crio": "",
        "etc/crio/crio.conf": toml,
        "usr/lib/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio\n",
        "sys/fs/cgroup/system.slice/crio.service/cgroup.procs": "78\n",
        "proc/78/comm": "crio\n",
    }.items():
        (cri.root / path).parent.mkdir(parents=True, exist_ok=True)
        (cri.root / path).write_text(content)
        (cri.root / path).chmod(0o755)
    spec = {"annotations": {"io.kubernetes.cri-o.RuntimeHandler": handler}}
    info = field(1, "info") + field(2, json.dumps({"pid": 872, "runtimeSpec": spec}))
    cri.reply = field(1, field(1, ONE) + field(3, 1)) + field(2, info)
    selector = Selector("crio", socket="/run/cri.sock")
    found = explain_find.find("main", selector, cri.host, lambda _argv: (0, "", ""))
    assert (found.container.program, found.engine.cdi, found.engine.folders) == (program, True, folders)


def test_a_cri_that_fails(cri: Cri) -> None:
    cri.reply = b""
    with pytest.raises(HostError, match=r"The container default/training-0/main \(containerd.*the reply has no status"):
        cri.find("3a3a")
    cri.reply = field(2, b"")
    with pytest.raises(HostError, match="the reply has no status"):
        cri.find("3a3a")
    cri.reply = field(1, b"") + field(2, field(1, "info") + field(2, "[]"))
    assert cri.find("3a3a").container.state == CREATED
    cri.errors["ListContainers"] = "unknown service"
    with pytest.raises(HostError, match=r"containerd \(its CRI does not list containers: unknown service\)"):
        cri.find("main")


UNIT = "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix://{}\n"


def test_a_container_that_was_never_created(cri: Cri) -> None:
    """Its engine does not know it, but the kubelet has written why."""
    failure = (
        'E1 pod_workers.go:1301] "Error syncing pod, skipping" err="failed to \\"StartContainer\\" for \\"main\\":'
        ' unresolvable CDI devices nvidia.com/gpu=7" pod="default/train-1" podUID="u1"'
    )
    lines = [
        'E1 pod_workers.go:1301] "Error syncing pod, skipping" err="old" pod="default/train-1" podUID="u1"',
        'E1 pod_workers.go:1301] "Error syncing pod, skipping" err="other" pod="default/train-10" podUID="u2"',
        failure,
        'I1 kubelet.go:1] "SyncLoop UPDATE" source="api" pods=["default/train-1"]',
        'x] "Error" err="failed to \\"StartContainer\\" for \\"sidecar\\": \\"\\x1b[31m\\\\n\\"" pod="default/train-1"',
        'E1 handlers.go:1] "Hook failed" err="timeout" pod="default/train-1" podUID="u1" containerName="logger"',
    ]

    def run(argv: list[str]) -> tuple[int, str, str]:
        return (0, "\n".join(lines), "") if "journalctl" in argv else (0, "", "")

    for path, content in {
        "usr/lib/systemd/system/kubelet.service": UNIT.format("/run/cri.sock"),
        "usr/bin/kubelet": "",
    }.items():
        (cri.root / path).parent.mkdir(parents=True, exist_ok=True)
        (cri.root / path).write_text(content)
        (cri.root / path).chmod(0o755)
    for name in ("default/train-1/main", "train-1/main"):
        found = explain_find.find(name, Selector(), cri.host, run).container
        assert (found.engine, found.name, found.state, found.pid) == ("containerd", name, CREATED, None)
        assert found.error == 'failed to "StartContainer" for "main": unresolvable CDI devices nvidia.com/gpu=7'
        assert found.shown == f"{name} (containerd)"
    # Each container has its own error. The sandbox belongs to all of them.
    for name, message in {
        "train-1/sidecar": r'failed to "StartContainer" for "sidecar": "\x1b[31m\n"',
        "train-1/logger": "timeout",
        "train-1/third": "old",
    }.items():
        assert explain_find.find(name, Selector(), cri.host, run).container.error == message
    for name in ("train-2/main", "train-1", "other/train-1/main"):
        with pytest.raises(HostError, match="No container has the name"):
            explain_find.find(name, Selector(), cri.host, run)
    # The kubelet does not use Docker.
    with pytest.raises(HostError, match="No container has the name"):
        explain_find.find("train-1/main", Selector("docker"), cri.host, run)
    # An existing container is not searched there, nor one that may exist.
    assert explain_find.find("training-0/main", Selector("containerd"), cri.host, run).container.identifier == ONE
    with pytest.raises(HostError, match="No container has the name"):
        explain_find.find("train-1/main", Selector("containerd", socket="/run/cri.sock"), cri.host, run)
    unit = cri.root / "usr/lib/systemd/system/kubelet.service"
    unit.write_text(UNIT.format("/run/other.sock"))
    with pytest.raises(HostError, match="No container has the name"):
        explain_find.find("train-1/main", Selector(), cri.host, run)
    unit.write_text(UNIT.format("/run/cri.sock"))
    cri.errors["ListContainers"] = "unknown service"
    with pytest.raises(HostError, match=r"containerd \(its CRI does not list containers: unknown service\)"):
        explain_find.find("train-1/main", Selector(), cri.host, run)
