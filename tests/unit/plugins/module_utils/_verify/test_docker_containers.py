# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t
from pathlib import Path
from unittest import mock

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.unix_socket import HttpResponse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import (
    LABEL,
    OUTPUT_LIMIT,
    ContainerResult,
    ContainerSpec,
    DockerContainers,
    NotRunError,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import SOCKET, docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import (
    DockerWithContainers,
)

ORDER = ContainerSpec("gpufleet/busybox:1", ("echo", "hello"), "nvidia", {"A": "b"}, 5.0)


@pytest.fixture
def docker() -> t.Iterator[DockerWithContainers]:
    with docker_host() as plain:
        made = DockerWithContainers(Path(plain.root, "host"))
        with made.answers():
            yield made


def containers(docker: DockerWithContainers) -> DockerContainers:
    return DockerContainers(docker.host.real_path(SOCKET), SOCKET)


def failure(docker: DockerWithContainers, order: ContainerSpec = ORDER) -> NotRunError:
    with pytest.raises(NotRunError) as caught:
        containers(docker).run(order)
    return caught.value


def test_a_container_that_ends_well(docker: DockerWithContainers) -> None:
    runner = containers(docker)
    assert runner.run(ORDER) == ContainerResult(0, "hello")
    assert runner.left_behind == ""
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


def test_a_container_that_fails(docker: DockerWithContainers) -> None:
    docker.status = 3
    docker.said = [(1, b"one\n"), (2, "zw\u00f6".encode()), (1, b"lf\n")]
    assert containers(docker).run(ORDER) == ContainerResult(3, "one\nzw\u00f6lf")
    assert docker.kept == {}


def test_long_output_is_cut(docker: DockerWithContainers) -> None:
    docker.said = [(1, b"x" * 9000), (1, b"end")]
    output = containers(docker).run(ORDER).output
    assert output.startswith("[...] x")
    assert output.endswith("xend")
    assert len(output) == OUTPUT_LIMIT + len("[...] ")


def test_an_image_that_is_not_there_is_not_pulled(docker: DockerWithContainers) -> None:
    missing = failure(docker, ORDER._replace(image="registry.example.com:5000/a/b@sha256:00"))
    assert missing.problem == (
        "The image registry.example.com:5000/a/b@sha256:00 is not on this host, and nothing is pulled here"
    )
    assert "docker load" in missing.advice
    assert not missing.tried
    assert docker.requests == ["GET /images/registry.example.com:5000/a/b@sha256:00/json"]


def test_a_name_that_is_none(docker: DockerWithContainers) -> None:
    docker.refused["GET /images/A b?/json"] = (400, "invalid reference format")
    assert failure(docker, ORDER._replace(image="A b?")).problem == (
        "docker does not know the image A b?: invalid reference format"
    )


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ("POST /containers/create", "docker does not create it: Unknown runtime specified nvidia"),
        ("POST /containers/gpufleet", "docker cannot start it: Unknown runtime specified nvidia"),
    ],
)
def test_words_of_docker(docker: DockerWithContainers, request_: str, problem: str) -> None:
    docker.refused[request_] = (400, "Unknown runtime specified nvidia")
    refused = failure(docker)
    assert refused.problem == problem
    assert refused.tried
    assert docker.kept == {}


def test_a_container_without_end(docker: DockerWithContainers) -> None:
    docker.status = None
    started = time.monotonic()
    slow = failure(docker, ORDER._replace(timeout=0.3))
    assert 0.3 <= time.monotonic() - started < 5
    assert (slow.problem, slow.output) == ("It did not end within 0.3 seconds", "hello")
    assert docker.kept == {}


def test_leftovers_go_first_and_others_stay(docker: DockerWithContainers) -> None:
    docker.kept = {"old": {"Labels": {LABEL: "1"}}, "other": {"Labels": {}}}
    assert containers(docker).run(ORDER).status == 0
    assert list(docker.kept) == ["other"]
    assert docker.requests.index("DELETE /containers/old") < docker.requests.index("POST /containers/create")


def test_what_is_interrupted_is_removed(docker: DockerWithContainers, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> t.NoReturn:
        raise SystemExit(143)

    monkeypatch.setattr(DockerContainers, "_status", interrupted)
    with pytest.raises(SystemExit):
        containers(docker).run(ORDER)
    assert docker.made
    assert docker.kept == {}


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({"DELETE /containers/": (500, "busy")}, "cannot be removed: busy"),
        # Somebody else is at it.
        ({"DELETE /containers/": (409, "removal already in progress")}, ""),
        ({"DELETE /containers/": (404, "no such container")}, ""),
        ({"GET /containers/json": (500, "broken")}, "The container may still be there: broken"),
    ],
)
def test_what_cannot_be_removed_is_told(
    docker: DockerWithContainers, refused: dict[str, tuple[int, str]], told: str
) -> None:
    docker.refused = refused
    runner = containers(docker)
    assert runner.run(ORDER).status == 0
    assert told in runner.left_behind
    assert bool(told) is bool(runner.left_behind)


def test_a_container_that_others_remove(docker: DockerWithContainers) -> None:
    docker.status = None
    answer = docker._about

    def gone(what: str) -> tuple[int, bytes]:
        return (404, b"{}") if what == "json" else answer(what)

    docker._about = gone  # type: ignore[method-assign]
    assert failure(docker).problem == "Somebody removed it while it ran"


ENDED = b'{"State": {"Status": "dead", "ExitCode": 0}}'


def test_output_that_cannot_be_read_is_none(docker: DockerWithContainers) -> None:
    docker._about = lambda what: (500, b"") if what == "logs" else (200, ENDED)  # type: ignore[method-assign]
    assert containers(docker).run(ORDER) == ContainerResult(0, "")


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
def test_a_state_that_is_none(docker: DockerWithContainers, state: bytes) -> None:
    answer = docker._about
    docker._about = lambda what: (200, b'{"State": ' + state + b"}") if what == "json" else answer(what)  # type: ignore[method-assign]
    assert failure(docker).problem.startswith("docker does not report the container's state: ")


@pytest.mark.parametrize("listed", [b'[{"Id": 5}]', b"[{}]", b'{"Id": "a"}', b"[5]", b"null", b"[" * 200_000])
def test_a_list_of_containers_that_is_none(docker: DockerWithContainers, listed: bytes) -> None:
    runner = containers(docker)
    with mock.patch.object(runner, "_ask", return_value=HttpResponse(200, listed)):
        assert runner._remove_all() == "The container may still be there: docker does not list its containers properly"


def test_nobody_listens(docker: DockerWithContainers) -> None:
    with pytest.raises(NotRunError, match=r"docker gives no proper answer on /run/docker[.]sock"):
        DockerContainers(docker.host.real_path("/run/none.sock"), SOCKET).run(ORDER)
