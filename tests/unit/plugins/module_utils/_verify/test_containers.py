# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import (
    LABEL,
    OUTPUT_LIMIT,
    ContainerError,
    ContainerResult,
    Containers,
    ContainerSpec,
    Deadline,
    DockerContainers,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.injection import ALL_GPUS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.podman_containers import PodmanContainers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import SOCKET, docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_podman import Answer, FakePodman

SPEC = ContainerSpec("gpufleet/busybox:1", ("echo", "hello"), "nvidia", {"A": "b"}, 5.0)


def failure(containers: Containers, spec: ContainerSpec = SPEC) -> ContainerError:
    with pytest.raises(ContainerError) as caught:
        containers.run(spec)
    return caught.value


def interrupt(*_arguments: object) -> t.NoReturn:
    raise SystemExit(143)


# -- time ------------------------------------------------------------------------------------------------------------


def test_deadline() -> None:
    answers = [None, None, None, 7]
    assert Deadline(5.0).wait(lambda: answers.pop(0)) == 7
    assert answers == []
    started = time.monotonic()
    deadline = Deadline(0.2)
    assert deadline.wait(lambda: None) is None
    assert 0.2 <= time.monotonic() - started < 2
    # A last query is still possible.
    assert 1 <= deadline.left() <= 5
    assert 50 < Deadline(60).left() <= 60


# -- Docker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def docker() -> t.Iterator[DockerWithContainers]:
    with docker_host() as plain:
        made = DockerWithContainers(Path(plain.root, "host"))
        with made.answers():
            yield made


def docker_containers(docker: DockerWithContainers) -> DockerContainers:
    return DockerContainers(docker.host.real_path(SOCKET), SOCKET)


def test_docker_runs_a_container(docker: DockerWithContainers) -> None:
    containers = docker_containers(docker)
    assert containers.run(SPEC) == ContainerResult(0, "hello")
    assert containers.cleanup_error == ""
    assert docker.kept == {}
    (made,) = docker.made
    assert made["Image"] == "gpufleet/busybox:1"
    assert (made["Entrypoint"], made["Cmd"]) == (["echo", "hello"], [])
    assert made["Env"] == ["A=b"]
    assert list(made["Labels"]) == [LABEL]
    assert made["HostConfig"]["Runtime"] == "nvidia"
    assert made["HostConfig"]["NetworkMode"] == "none"
    assert made["HostConfig"]["LogConfig"]["Type"] == "json-file"
    name = next(request.split("/")[2] for request in docker.requests if request.endswith("/start"))
    assert name.startswith("gpufleet-verify-")


def test_docker_returns_status_and_output(docker: DockerWithContainers) -> None:
    docker.status = 3
    docker.output = [(1, b"one\n"), (2, "zw\u00f6".encode()), (1, b"lf\n")]
    assert docker_containers(docker).run(SPEC) == ContainerResult(3, "one\nzw\u00f6lf")
    docker.output = [(1, b"x" * 30000), (1, b"end")]
    output = docker_containers(docker).run(SPEC).output
    assert output.startswith("[...] x")
    assert output.endswith("xend")
    assert len(output) == OUTPUT_LIMIT + len("[...] ")
    assert docker.kept == {}


@pytest.mark.parametrize(
    ("request_", "answer", "problem", "started"),
    [
        ("GET /images/", (404, ""), "The image {image} is not on this host, and no image is pulled", False),
        ("GET /images/", (400, "bad"), "docker cannot find the image {image}: bad", False),
        ("POST /containers/create", (400, "bad"), "docker cannot create the container: bad", True),
        ("POST /containers/gpufleet", (400, "bad"), "docker cannot start the container: bad", True),
        ("GET /containers/gpufleet", (404, "bad"), "Another program removed the container while it ran", True),
    ],
)
def test_docker_reports_refused_requests(
    docker: DockerWithContainers, request_: str, answer: tuple[int, str], problem: str, started: bool
) -> None:
    docker.refused[request_] = answer
    image = "localhost:5000/a/b@sha256:00"
    docker.images.append(image)
    error = failure(docker_containers(docker), SPEC._replace(image=image))
    assert (error.problem, error.started) == (problem.format(image=image), started)
    assert docker.kept == {}
    assert docker.requests[0] == f"GET /images/{image}/json"
    assert started or len(docker.requests) == 1


def test_docker_container_that_does_not_exit(docker: DockerWithContainers) -> None:
    docker.status = None
    started = time.monotonic()
    error = failure(docker_containers(docker), SPEC._replace(timeout=0.3))
    assert 0.3 <= time.monotonic() - started < 5
    assert (error.problem, error.output) == ("The container did not exit within 0.3 seconds", "hello")
    assert docker.kept == {}


def test_docker_removes_only_own_leftovers_first(docker: DockerWithContainers) -> None:
    docker.kept = {"old": {"Labels": {LABEL: "1"}}, "other": {"Labels": {}}}
    assert docker_containers(docker).run(SPEC).status == 0
    assert list(docker.kept) == ["other"]
    assert docker.requests.index("DELETE /containers/old") < docker.requests.index("POST /containers/create")


def test_docker_removes_an_interrupted_container(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DockerContainers, "_status", interrupt)
    with pytest.raises(SystemExit):
        docker_containers(docker).run(SPEC)
    assert docker.made
    assert docker.kept == {}


@pytest.mark.parametrize(
    ("request_", "answer", "error"),
    [
        ("DELETE /containers/", (500, "busy"), "cannot be removed: busy"),
        # Another program removes it.
        ("DELETE /containers/", (409, "removal already in progress"), ""),
        ("DELETE /containers/", (404, "no such container"), ""),
        ("GET /containers/json", (500, "broken"), "The container may still exist: broken"),
    ],
)
def test_docker_reports_a_container_that_cannot_be_removed(
    docker: DockerWithContainers, request_: str, answer: tuple[int, str], error: str
) -> None:
    docker.refused[request_] = answer
    containers = docker_containers(docker)
    assert containers.run(SPEC).status == 0
    assert error in containers.cleanup_error
    assert bool(error) is bool(containers.cleanup_error)


def test_docker_output_that_cannot_be_read_is_empty(docker: DockerWithContainers) -> None:
    docker.answers_to["logs"] = (500, b"")
    assert docker_containers(docker).run(SPEC) == ContainerResult(0, "")


@pytest.mark.parametrize(
    "state",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"Status": "exited", "ExitCode": null}',
        b'{"Status": "exited", "ExitCode": "0"}',
        b"[" * 9999,
    ],
)
def test_docker_state_that_is_not_valid(docker: DockerWithContainers, state: bytes) -> None:
    docker.answers_to["json"] = (200, b'{"State": ' + state + b"}")
    assert failure(docker_containers(docker)).problem.startswith("docker does not report the container's state: ")


@pytest.mark.parametrize("listed", [b'[{"Id": 5}]', b"[{}]", b'{"Id": "a"}', b"[5]", b"null", b"[" * 200_000])
def test_docker_list_that_is_not_valid(docker: DockerWithContainers, listed: bytes) -> None:
    docker.answers_to["list"] = (200, listed)
    containers = docker_containers(docker)
    containers.run(SPEC)
    assert containers.cleanup_error == "The container may still exist: docker's list of containers is not valid"


ARCHIVE = SPEC._replace(image="", archive=b"tar")


def test_docker_imports_an_archive_and_removes_the_image(docker: DockerWithContainers) -> None:
    docker.imported = {"gpufleet-verify:old": b""}
    containers = docker_containers(docker)
    assert containers.run(ARCHIVE).status == 0
    assert (docker.archives, docker.imported, docker.kept, containers.cleanup_error) == ([b"tar"], {}, {}, "")
    assert docker.made[0]["Image"].startswith("localhost/gpufleet-verify:")
    docker.refused["POST /containers/create"] = (500, "broken")
    failure(containers, ARCHIVE)
    assert (len(docker.archives), docker.imported) == (2, {})
    docker.refused = {"DELETE /images/": (500, "busy")}
    containers.run(ARCHIVE)
    assert containers.cleanup_error.endswith("cannot be removed: busy")


@pytest.mark.parametrize("answer", [(500, b"no space"), (200, b'{"errorDetail": {"message": "no space"}}')])
def test_docker_that_cannot_import(
    docker: DockerWithContainers, answer: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "_import", lambda _query, _body: answer)
    error = failure(docker_containers(docker), ARCHIVE)
    assert error.problem.startswith("docker cannot import the image of the host's programs: ")
    assert "no space" in error.problem
    assert docker.made == []


def test_docker_does_not_listen(docker: DockerWithContainers) -> None:
    error = failure(DockerContainers(docker.host.real_path("/run/none.sock"), SOCKET))
    assert error.problem.startswith("docker does not answer correctly on /run/docker.sock")


# -- Podman ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def podman() -> FakePodman:
    return FakePodman()


def podman_containers(podman: FakePodman) -> PodmanContainers:
    return PodmanContainers(HostFS("/host", live=True), podman.run, "/usr/bin/podman")


def test_podman_runs_a_container(podman: FakePodman) -> None:
    containers = podman_containers(podman)
    assert containers.run(SPEC._replace(devices=(ALL_GPUS,))) == ContainerResult(0, "hello")
    assert containers.cleanup_error == ""
    assert podman.kept == []
    (started,) = [words for words in podman.commands if words[0] == "run"]
    assert started[-2:] == ["--", "gpufleet/busybox:1"]
    options = dict(word.partition("=")[::2] for word in started[1:-2])
    assert options.pop("--name").startswith("gpufleet-verify-")
    assert json.loads(options.pop("--entrypoint")) == ["echo", "hello"]
    assert options == {
        "--detach": "",
        "--pull": "never",
        "--network": "none",
        "--label": f"{LABEL}=1",
        "--stop-timeout": "0",
        "--log-driver": "k8s-file",
        "--log-opt": "max-size=1mb",
        "--env": "A=b",
        "--device": "nvidia.com/gpu=all",
    }


@pytest.mark.parametrize(("state", "status"), [("exited 3", 3), ("stopped 137", 137)])
def test_podman_returns_status_and_output(podman: FakePodman, state: str, status: int) -> None:
    podman.states = ["created 0", "initialized 0", state]
    podman.output = ("one\n", "two\n")
    assert podman_containers(podman).run(SPEC) == ContainerResult(status, "one\ntwo")


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ('runc: exec: "echo": executable file not found in $PATH', True),
        ("crun: executable file `echo` not found in $PATH", True),
        ('runc: exec: "/usr/bin/nvidia-cdi-hook": no such file or directory', False),
        ("crun: error executing hook `/usr/bin/nvidia-ctk` (exit code: 1): no such file or directory", False),
        ("error running hook: /opt/echo/hook: no such file or directory", False),
    ],
)
def test_podman_ends_with_127_for_every_program_that_is_not_found(
    podman: FakePodman, message: str, missing: bool
) -> None:
    podman.answers["run"] = (127, "", f"Error: {message}\n")
    error = failure(podman_containers(podman))
    assert error.problem == f"podman cannot start the container: {message}"
    assert (error.no_program, error.started) == (missing, True)
    assert podman.kept == []
    # The archive of the host's programs contains the program.
    archive = SPEC._replace(image="", archive=b"x")
    assert not failure(podman_containers(podman), archive).no_program


@pytest.mark.parametrize(
    ("command", "answer", "problem", "advice"),
    [
        ("image exists -- --strange", (1, "", ""), "The image --strange is not on this host, and", "podman load"),
        ("image exists", (125, "", 'time="x" level=warning msg="y"\nError: invalid reference format\n'),
         "podman cannot find the image --strange: invalid reference format", "Correct image"),
        ("run", (126, "", "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n"),
         "podman cannot start the container: setting up CDI devices: unresolvable", ""),
        ("run", (125, "", "Error: stat /x: no such file\nsee podman run --help\n"),
         "podman cannot start the container: stat /x: no such file", ""),
        ("run", (1, "", "sh: odd\n\n"), "podman cannot start the container: sh: odd", ""),
        ("run", (124, "", ""), "podman cannot start the container: no error message", ""),
        ("container inspect", (125, "", "Error: no such container\n"), "Another program removed the container", ""),
    ],
)  # fmt: skip
def test_podman_reports_errors(podman: FakePodman, command: str, answer: Answer, problem: str, advice: str) -> None:
    podman.answers[command] = answer
    error = failure(podman_containers(podman), SPEC._replace(image="--strange"))
    assert error.problem.startswith(problem)
    assert advice in error.advice
    assert error.started is not command.startswith("image")
    assert error.output == ("hello" if command == "run" else "")
    assert podman.kept == []


@pytest.mark.parametrize(
    "answer",
    [
        (125, "exited 0\n", "Error: locked\n"),
        *((0, state, "") for state in ("running\n", "", "exited \u00b2", "exited ", "exited -1", "exited 0 0")),
    ],
)
def test_podman_state_that_is_not_valid(podman: FakePodman, answer: Answer) -> None:
    podman.answers["container inspect"] = answer
    assert failure(podman_containers(podman)).problem.startswith("podman does not report the container's state: ")


def test_podman_removes_leftovers_first(podman: FakePodman) -> None:
    podman.kept = ["old"]
    podman_containers(podman).run(SPEC)
    assert [words[0] for words in podman.commands[:5]] == ["image", "ps", "rm", "images", "run"]
    assert podman.commands[1][-1] == f"--filter=label={LABEL}"
    assert podman.commands[2][-2:] == ["--", "old"]


def test_podman_imports_an_archive_and_removes_the_image(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    commands: list[list[str]] = []
    read: list[bytes] = []

    def run(argv: list[str]) -> Answer:
        words = argv[3:]
        commands.append(words)
        if words[0] == "import":
            read.append((tmp_path / words[-2].lstrip("/")).read_bytes())
        imported, removed = ([words for words in commands if words[0] == name] for name in ("import", "rmi"))
        listed = "sha256:1\nsha256:1\n" if len(imported) > len(removed) else ""
        return 0, listed if words[0] == "images" else "exited 0" if words[0] == "container" else "", ""

    containers = PodmanContainers(HostFS(str(tmp_path), live=True), run, "/usr/bin/podman")
    assert containers.run(ARCHIVE).status == 0
    assert (read, containers.cleanup_error, list((tmp_path / "tmp").iterdir())) == ([b"tar"], "", [])
    assert [words[0] for words in commands] == [
        "ps", "images", "import", "run", "container", "logs", "ps", "images", "rmi",
    ]  # fmt: skip
    assert "--change=LABEL gpufleet.nvidia.verify=1" in commands[2]
    assert commands[3][-1] == commands[2][-1]
    assert commands[2][-1].startswith("localhost/")
    assert commands[-1] == ["rmi", "--force", "--", "sha256:1"]
    (tmp_path / "tmp").rmdir()
    assert failure(containers, ARCHIVE).problem.startswith("The archive of the host's programs cannot be written: ")


def test_podman_that_cannot_import(podman: FakePodman, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    podman.answers["import"] = (125, "", "Error: no space\n")
    containers = PodmanContainers(
        HostFS(str(tmp_path), live=True), lambda argv: podman.run(["chroot", "/host", *argv[2:]]), "/usr/bin/podman"
    )
    assert failure(containers, ARCHIVE).problem == "podman cannot import the image of the host's programs: no space"
    assert "run" not in [words[0] for words in podman.commands]


@pytest.mark.parametrize("command", ["ps", "rm"])
def test_podman_reports_a_container_that_cannot_be_removed(podman: FakePodman, command: str) -> None:
    podman.answers[command] = (125, "something\n", "Error: busy\n")
    containers = podman_containers(podman)
    assert containers.run(SPEC) == ContainerResult(0, "hello")
    assert containers.cleanup_error == "The container may still exist: busy"
