# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import copies, record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import EXITED
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.search import EngineState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields, numbers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers, host_programs
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import fake_cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import SOCKET, docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_podman import FakePodman

Data = t.Dict[str, t.Any]
PID = 4711
NO_MOUNT = {"Type": "bind", "Source": "/etc", "Destination": "/var/run/nvidia-container-devices/0"}
MOUNT = {"Type": "bind", "Source": "/dev/null", "Destination": "/var/run/nvidia-container-devices/all"}
NOT_IN_COPY = "is a user or a group of the image, which the copy does not have"


def state(socket: str = "", binary: str = "") -> EngineState:
    """Return the state of an engine with this socket and program."""
    return EngineState(socket=socket, binary=binary)


class Trial:
    """A container to copy, and the processes that were measured. ``after`` is called after each measurement."""

    def __init__(self, name: str, host: HostFS, engine: EngineState, data: Data) -> None:
        self.name, self.host, self.engine, self.data = name, host, engine, data
        self.measured: list[int] = []
        self.after: t.Callable[[], object] = list
        self.podman = FakePodman()

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        return self.podman.run(["chroot", "/host", *argv[2:]])

    def measure(self, pid: int) -> None:
        self.measured.append(pid)
        self.after()

    def copy(self, image: str | None = None) -> copies.Tried:
        # A CRI reports the variables of the process.
        process = self.data.get("info", {}).get("runtimeSpec", {}).get("process", {"env": []})
        inspected = record.from_docker({"Config": {"Env": process["env"]}, **self.data}, {})
        container = inspected._replace(engine=self.name, state=EXITED, data=self.data)
        return copies.try_copy(container, self.engine, image, self.host, self.run, measure=self.measure, timeout=5)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_programs, "archive", lambda _host: b"tar")


@pytest.mark.parametrize(
    ("name", "engine"),
    [("ctr", state("/x", "/x")), ("docker", state("", "/x")), ("containerd", state()), ("podman", state("/x"))],
)
def test_engine_that_cannot_start_it(tmp_path: Path, name: str, engine: EngineState) -> None:
    trial = Trial(name, HostFS(str(tmp_path), live=True), engine, {})
    assert trial.copy() == copies.Tried(reason="No engine of this host can start a copy of the container")


# -- Docker ------------------------------------------------------------------------------------------------------------


def docker_data(**host_config: t.Any) -> Data:
    config: Data = {"Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0"], "User": "", "Cmd": ["/evil"]}
    return {"Config": config, "HostConfig": {"Runtime": "runc", **host_config}, "Mounts": []}


@pytest.fixture
def docker() -> t.Iterator[DockerWithContainers]:
    with docker_host() as plain:
        made = DockerWithContainers(Path(plain.root, "host"))
        runs(made, PID)
        with made.answers():
            yield made


def runs(docker: DockerWithContainers, pid: int) -> None:
    docker.answers_to["json"] = (200, b'{"State": {"Status": "running", "Pid": %d}}' % pid)


def docker_trial(docker: DockerWithContainers, data: Data) -> Trial:
    return Trial("docker", docker.host, state(SOCKET, "/usr/bin/dockerd"), data)


def test_docker_copies_what_decides_about_devices(docker: DockerWithContainers) -> None:
    copied: Data = {
        "Annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"},
        "DeviceCgroupRules": ["c 195:* rw"],
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}],
        "Devices": [{"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0", "CgroupPermissions": "rwm"}],
        "GroupAdd": ["44"],
        "Privileged": True,
        "Runtime": "nvidia",
        "UsernsMode": "host",
    }
    others = {"Binds": ["/etc:/etc2"], "CapAdd": ["ALL"], "NetworkMode": "host", "SecurityOpt": ["label:disable", "x"]}
    data = docker_data(**copied, **others)
    data["Config"]["User"] = "1000:44"
    data["Mounts"] = [MOUNT, NO_MOUNT, {**MOUNT, "Destination": "/etc"}]
    trial = docker_trial(docker, data)
    assert (trial.copy(), trial.measured) == (copies.Tried(), [PID])
    (made,) = docker.made
    mounts = [{"Type": "bind", "Source": "/dev/null", "Target": MOUNT["Destination"], "ReadOnly": True}]
    expected = {**copied, "SecurityOpt": ["label:disable"], "NetworkMode": "none", "Mounts": mounts}
    assert made["HostConfig"] == {**expected, "LogConfig": made["HostConfig"]["LogConfig"]}
    expected = {"Entrypoint": ["/bin/sh", "-c", "read x"], "Cmd": [], "OpenStdin": True, "NetworkDisabled": True}
    expected.update(User="1000:44", Env=["NVIDIA_VISIBLE_DEVICES=0"], Labels={containers.LABEL: "1"})
    assert made == {**expected, "Image": made["Image"], "HostConfig": made["HostConfig"]}
    assert (docker.archives, docker.imported, docker.kept) == ([b"tar"], {}, {})


def test_docker_leaves_out_what_was_not_requested(docker: DockerWithContainers) -> None:
    docker_trial(docker, docker_data(Annotations=None, Privileged=False, GroupAdd=[], UsernsMode="")).copy()
    host_config = docker.made[0]["HostConfig"]
    assert not {"Annotations", "Privileged", "GroupAdd", "UsernsMode", "DeviceRequests"}.intersection(host_config)


@pytest.mark.parametrize(
    ("user", "groups", "tried"),
    [
        ("", [], copies.Tried()),
        ("0", ["44"], copies.Tried()),
        ("1000:1000", [], copies.Tried()),
        ("1000", [], copies.Tried(groups_known=False)),
        ("nobody", [], copies.Tried(reason=f"nobody {NOT_IN_COPY}")),
        ("1000:video", [], copies.Tried(reason=f"1000:video {NOT_IN_COPY}")),
        ("1000:1000", ["44", "video"], copies.Tried(reason=f"video {NOT_IN_COPY}")),
    ],
)
def test_users(docker: DockerWithContainers, user: str, groups: list[str], tried: copies.Tried) -> None:
    data = docker_data(GroupAdd=groups)
    data["Config"]["User"] = user
    assert docker_trial(docker, data).copy() == tried
    assert bool(docker.made) is not bool(tried.reason)


@pytest.mark.parametrize(
    ("request_", "message", "tried"),
    [
        ("POST /containers/create", "unknown runtime: x", copies.Tried("unknown runtime: x")),
        ("POST /containers/gpufleet", "no driver: gpu", copies.Tried("no driver: gpu")),
        ("POST /images/create", "x", copies.Tried("", "docker cannot import the image of the host's programs: x")),
        ("DELETE /containers/", "x", copies.Tried(cleanup_error="The container gpufleet-ver cannot be removed: x")),
    ],
)
def test_docker_that_refuses(docker: DockerWithContainers, request_: str, message: str, tried: copies.Tried) -> None:
    docker.refused[request_] = (500, message)
    trial = docker_trial(docker, docker_data())
    assert trial.copy() == tried
    assert bool(trial.measured) is bool(docker.kept) is bool(tried.cleanup_error)


def test_docker_that_records_nothing(docker: DockerWithContainers) -> None:
    assert docker_trial(docker, {"Config": {}}).copy().reason == "Docker does not record what the container requests"


@pytest.mark.parametrize(("before", "after"), [(PID, 0), (PID, PID + 1), (0, 0)])
def test_a_copy_that_ends(docker: DockerWithContainers, before: int, after: int) -> None:
    runs(docker, before)
    trial = docker_trial(docker, docker_data())
    trial.after = lambda: runs(docker, after)
    assert trial.copy() == copies.Tried(reason="The copy ended before it was measured")
    assert (trial.measured, docker.kept) == ([before] * bool(before), {})


def test_programs_that_cannot_be_used(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_host: HostFS) -> t.NoReturn:
        raise host_programs.HostProgramsError("/bin/sh does not exist on this host.")

    monkeypatch.setattr(host_programs, "archive", fail)
    assert docker_trial(docker, docker_data()).copy() == copies.Tried(reason="/bin/sh does not exist on this host")


def test_waits_for_the_lock(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TIMEOUT", 0.0)
    with lock.host_lock(docker.host):
        assert docker_trial(docker, docker_data()).copy().reason.startswith("/run/gpufleet-nvidia.lock is held by ")
    assert docker.made == []


# -- Podman ------------------------------------------------------------------------------------------------------------

RUN = ["podman", "run"]


@pytest.fixture
def podman(tmp_path: Path) -> Trial:
    (tmp_path / "tmp").mkdir()
    config = {"CreateCommand": [*RUN, "x"], "Cmd": ["sh"], "User": "", "Env": ["NVIDIA_GDS=1", "A=b"]}
    data = {"Config": config, "HostConfig": {"UsernsMode": ""}, "Mounts": []}
    trial = Trial("podman", HostFS(str(tmp_path), live=True), state("", "/usr/bin/podman"), data)
    trial.podman.pid = PID
    return trial


def started(trial: Trial) -> list[str]:
    (command,) = [words for words in trial.podman.commands if words[0] == "run"]
    return command


@pytest.mark.parametrize(
    ("command", "copied"),
    [
        (["--device", "/dev/nvidia0", "--device=nvidia.com/gpu=all", "x"],
         ["--device=/dev/nvidia0", "--device=nvidia.com/gpu=all"]),
        (["--gpus", "all", "--annotation", "a=b", "--device-cgroup-rule=c 195:* rw", "x"],
         ["--gpus=all", "--annotation=a=b", "--device-cgroup-rule=c 195:* rw"]),
        (["--privileged", "--userns=keep-id", "x"], ["--privileged=true", "--userns=keep-id"]),
        (["--privileged=false", "x"], ["--privileged=false"]),
        (["--group-add", "44,keep-groups", "x"], ["--group-add=44,keep-groups"]),
        (["--security-opt", "label=disable", "--security-opt=seccomp=/x", "--security-opt", "no-new-privileges", "x"],
         ["--security-opt=label=disable"]),
        (["--hooks-dir", "/hooks", "--runtime=crun", "x"], ["--hooks-dir=/hooks", "--runtime=crun"]),
        (["--name", "x", "--volume", "/etc:/etc2", "--secret=y", "--env", "NVIDIA_B=2", "--network=host", "x"], []),
        # The options of the command are its own.
        (["x", "sh", "--device", "/dev/sda"], []),
        (["--device", "/dev/nvidia0", "--", "x", "--device", "/dev/sda"], ["--device=/dev/nvidia0"]),
        (["x", "--device"], ["--device="]),
    ],
)  # fmt: skip
def test_podman_options(podman: Trial, command: list[str], copied: list[str]) -> None:
    podman.data["Config"].update(CreateCommand=[*RUN, *command], Cmd=["sh", "--device", "/dev/sda"])
    assert podman.copy() == copies.Tried()
    options = started(podman)[1:-3]
    own = options.index("--interactive")
    assert (options[own + 1 :], options[own - 1]) == (copied, "--env=NVIDIA_GDS=1")
    assert "--network=none" in options


def test_podman_copies_the_user_and_the_mounts(podman: Trial) -> None:
    podman.data["Config"]["User"] = "1000"
    podman.data["Mounts"] = [NO_MOUNT, MOUNT]
    assert (podman.copy(), podman.measured) == (copies.Tried(groups_known=False), [PID])
    command = started(podman)
    assert command[-6:-4] == ["--interactive", "--user=1000"]
    assert command[-4] == "--mount=type=bind,src=/dev/null,dst=/var/run/nvidia-container-devices/all,ro"
    assert command[-3:-1] == ['--entrypoint=["/bin/sh", "-c", "read x"]', "--"]
    assert podman.podman.kept == []


@pytest.mark.parametrize(
    ("config", "host_config", "reason"),
    [
        ({"CreateCommand": None}, {}, "Podman does not record what the container requests"),
        ({"CreateCommand": ["podman", "--module=x", *RUN]}, {}, "The container was created with `podman --module`"),
        ({"User": "nobody"}, {}, f"nobody {NOT_IN_COPY}"),
        ({"CreateCommand": [*RUN, "--group-add=5,video", "x"]}, {}, f"video {NOT_IN_COPY}"),
        ({}, {"UsernsMode": "container:0123"}, "The container has the user namespace of its pod"),
        # containers.conf has the same default for the copy.
        ({}, {"UsernsMode": "private"}, ""),
        ({"CreateCommand": [*RUN, "--userns=container:0123", "x"]}, {"UsernsMode": "container:0123"}, ""),
    ],
)
def test_podman_that_cannot_copy(podman: Trial, config: Data, host_config: Data, reason: str) -> None:
    podman.data["Config"].update(config)
    podman.data["HostConfig"].update(host_config)
    assert podman.copy() == copies.Tried(reason=reason)


def test_podman_that_refuses(podman: Trial) -> None:
    podman.podman.answers["run"] = (126, "", "Error: setting up CDI devices: x\n")
    assert podman.copy() == copies.Tried("setting up CDI devices: x")
    podman.podman.answers["run"], podman.podman.pid = (0, "", ""), 0
    assert podman.copy() == copies.Tried(reason="The copy ended before it was measured")
    assert (podman.measured, podman.podman.kept) == ([], [])


# -- CRI ---------------------------------------------------------------------------------------------------------------

IMAGE = "busybox:1"


def cri_data() -> Data:
    config = {
        "metadata": {"name": "main"},
        "devices": [{"container_path": "/dev/nvidia0", "host_path": "/dev/nvidia1", "permissions": "rw"}],
        "CDI_devices": [{"name": "nvidia.com/gpu=0"}],
        "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=1"},
        "mounts": [{"host_path": each["Source"], "container_path": each["Destination"]} for each in (MOUNT, NO_MOUNT)],
        "linux": {"security_context": {"selinux_options": {"type": "t", "level": "s"}}},
    }
    user = {"uid": 1000, "gid": 0, "additionalGids": [44, 55]}
    process = {"user": user, "env": ["NVIDIA_GDS=1", "B=2", "NVIDIA_GDS=void"], "args": ["/evil"]}
    return {"info": {"config": config, "runtimeSpec": {"process": process}}, "sandbox": "0123"}


@pytest.fixture
def cri() -> t.Iterator[fake_cri.FakeCri]:
    with fake_cri.cri_host() as made, made.answers():
        made.pid, made.status, made.handler = PID, None, "nvidia"
        made.pod_info = {"image": "pause:1", "config": {"annotations": {"a": "b"}, "linux": {"cgroup_parent": "/x"}}}
        yield made


def cri_trial(cri: fake_cri.FakeCri, data: Data | None = None) -> Trial:
    return Trial("containerd", cri.host, state(fake_cri.SOCKET, "/usr/bin/containerd"), data or cri_data())


def parts(message: bytes, *path: int) -> list[bytes]:
    """Return the messages at ``path``."""
    found = [message]
    for wanted in path:
        found = [content for each in found for number, content in fields(each) if number == wanted]
    return found


def test_cri_copies_what_decides_about_devices(cri: fake_cri.FakeCri) -> None:
    trial = cri_trial(cri)
    assert (trial.copy(IMAGE), trial.measured, cri.pods) == (copies.Tried(), [PID], {})
    (pod,), (made,) = cri.made, cri.containers
    assert parts(pod, 2) == [b"nvidia"]
    assert parts(pod, 1, 7) == [field(1, "a") + field(2, "b")]
    assert (fake_cri.network_of(pod), fake_cri.parent_of(pod)) == (2, "")
    (config,) = parts(made, 2)
    assert parts(config, 1, 1)[-1] == b"main"
    assert (parts(config, 2, 1), parts(config, 3)) == ([b"sha256:bb"], [b"sh", b"-c", b"read x"])
    assert parts(config, 6) == [field(1, "NVIDIA_GDS") + field(2, "1")]
    assert parts(config, 7) == [field(1, MOUNT["Destination"]) + field(2, "/dev/null") + field(3, 1)]
    assert parts(config, 8) == [field(1, "/dev/nvidia0") + field(2, "/dev/nvidia1") + field(3, "rw")]
    assert parts(config, 10) == [field(1, "cdi.k8s.io/x") + field(2, "nvidia.com/gpu=1")]
    assert dict(numbers(config))[12] == 1
    assert parts(config, 17, 1) == [b"nvidia.com/gpu=0"]
    (context,) = parts(config, 15, 2)
    assert list(numbers(context)) == [(8, 44), (8, 55)]
    assert [parts(context, number) for number in (4, 5, 12)] == [
        [field(1, "") + field(2, "") + field(3, "t") + field(4, "s")], [field(1, 1000)], [field(1, 0)],
    ]  # fmt: skip


def test_cri_copies_privileges(cri: fake_cri.FakeCri) -> None:
    data = cri_data()
    data["info"]["config"]["linux"]["security_context"] = {"privileged": True}
    assert cri_trial(cri, data).copy(IMAGE) == copies.Tried()
    (made,) = cri.containers
    assert dict(numbers(parts(made, 2, 15, 2)[0]))[2] == 1
    # Otherwise containerd refuses the container.
    assert list(numbers(parts(cri.made[0], 1, 8, 2)[-1])) == list(numbers(parts(made, 3, 8, 2)[-1])) == [(6, 1)]


def test_cri_uses_the_pause_image(cri: fake_cri.FakeCri) -> None:
    cri.pod_info["config"]["linux"]["cgroup_parent"] = "kubepods.slice"
    assert cri_trial(cri).copy() == copies.Tried()
    assert (parts(cri.containers[0], 2, 2, 1), parts(cri.containers[0], 2, 3)) == ([b"sha256:aa"], [])
    assert fake_cri.parent_of(cri.made[0]) == "system.slice"


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer"])
def test_cri_that_refuses(cri: fake_cri.FakeCri, method: str) -> None:
    cri.errors[method] = 'no runtime for "x" is configured'
    assert cri_trial(cri).copy(IMAGE) == copies.Tried('no runtime for "x" is configured')
    assert (cri.pods, cri.calls.count("RunPodSandbox")) == ({}, 1)


@pytest.mark.parametrize(("ended", "reason"), [(2, ""), (3, "The copy ended before it was measured")])
def test_cri_pods_that_a_kubelet_ends(cri: fake_cri.FakeCri, ended: int, reason: str) -> None:
    trial = cri_trial(cri)

    def end() -> None:
        cri.pid = PID + len(trial.measured) if len(trial.measured) <= ended else cri.pid

    trial.after = end
    assert trial.copy() == copies.Tried(reason=reason)
    assert (len(trial.measured), cri.pods) == (3, {})


def test_cri_pods_that_end_before_the_start(cri: fake_cri.FakeCri) -> None:
    cri.errors, cri.ended = {"StartContainer": "sandbox is not running"}, True
    assert cri_trial(cri).copy() == copies.Tried(reason="The copy ended before it was measured")
    assert (cri.calls.count("RunPodSandbox"), cri.pods) == (3, {})


@pytest.mark.parametrize("message", ['exec: "sh": executable file not found', "crun: executable file `sh` not found"])
def test_cri_image_that_cannot_be_used(cri: fake_cri.FakeCri, message: str) -> None:
    cri.errors["StartContainer"] = f"{message} in $PATH"
    tried = copies.Tried(reason="The image busybox:1 has no sh", advice="Set another image.")
    assert cri_trial(cri).copy(IMAGE) == tried
    tried = cri_trial(cri).copy("other:2")
    assert tried.reason == "The image other:2 is not on this host, and no image is pulled"
    assert tried.advice.startswith("Load it first")
    cri.errors["ImageStatus"] = "unknown service"
    assert cri_trial(cri).copy(IMAGE).reason == "containerd cannot find the image busybox:1: unknown service"


def in_user_namespace(data: Data, **options: t.Any) -> None:
    data["info"]["config"]["linux"]["security_context"]["namespace_options"] = {"userns_options": options}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data, _cri: data["info"].pop("config"), "containerd does not record what the container requests"),
        (lambda data, _cri: data["info"].pop("runtimeSpec"), "containerd does not record what the container requests"),
        (lambda data, _cri: in_user_namespace(data, uids=[]), "The pod has a user namespace of its own"),
        (lambda data, _cri: in_user_namespace(data, mode=2), ""),
        (lambda _data, cri: cri.pod_info.pop("image"), "containerd does not report the pause image"),
        (lambda _data, cri: cri.errors.update(PodSandboxStatus="x"), "containerd does not report the pod: x"),
    ],
)
def test_cri_that_cannot_copy(cri: fake_cri.FakeCri, change: t.Callable[..., object], reason: str) -> None:
    data = cri_data()
    change(data, cri)
    assert cri_trial(cri, data).copy() == copies.Tried(reason=reason)
    assert bool(cri.made) is not bool(reason)
