# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The option container of the module, on the directory tree of a host with a running Docker."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker_containers import DockerWithContainers

IDENTIFIER = "3a3a3ce6c3f00fc605aa026e31f56bf724cdc75aaf35e34d8a2bddabe47dc9ec"
DESCRIBED = {
    "Id": IDENTIFIER,
    "Name": "/web",
    "State": {"Status": "running", "Pid": 488, "Error": ""},
    "HostConfig": {"Runtime": "runc"},
    "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_API_KEY=nvapi-secret"]},
}
CHECK_MODE = {"_ansible_check_mode": True}
Run = t.Callable[..., t.Dict[str, t.Any]]


class Docker(DockerWithContainers):
    def answer(self, method: str, request: str, body: bytes) -> tuple[int, bytes]:
        assert method == "GET"
        if request == f"/containers/{IDENTIFIER}/json":
            return 200, json.dumps(DESCRIBED).encode()
        if request.startswith("/containers/json?"):
            listed = [{"Id": IDENTIFIER, "Names": ["/web"]}] if "3a3a" in request else []
            return 200, json.dumps(listed).encode()
        return super().answer(method, request, body)


@pytest.fixture
def docker() -> t.Iterator[Docker]:
    with docker_host() as plain:
        made = Docker(Path(plain.root, "host"))
        made.runs()
        with made.answers():
            yield made


@pytest.fixture
def explain(run_module: Run, docker: Docker) -> Run:
    def run(**arguments: t.Any) -> dict[str, t.Any]:
        options = {"host_root": str(docker.root), "host_root_live": True, **arguments}
        return run_module("nvidia_runtime_verify", **options)

    return run


def state(root: Path) -> dict[str, tuple[int, float]]:
    found = {}
    for folder, _folders, files in os.walk(str(root)):
        for path in (folder, *(f"{folder}/{name}" for name in files)):
            status = os.lstat(path)
            found[path] = (status.st_size, status.st_mtime)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"_ansible_check_mode": True}, {"_ansible_check_mode": True, "try_copy": True}]
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_explanation(explain: Run, docker: Docker, options: dict[str, bool]) -> None:
    before = state(docker.root)
    result = explain(container="3a3a", **options)
    assert result["changed"] is False
    explanation = result["explanation"]
    assert set(explanation) == {"ok", "code", "message", "advice", "has", "asked", "tried", "causes"}
    # The tree has no such process.
    assert (explanation["ok"], explanation["code"]) == (None, "contents-unknown")
    assert explanation["message"].startswith("web (docker, 3a3a3ce6c3f0): It does not have any GPU, although")
    assert explanation["asked"]["variables"] == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert explanation["causes"][0]["code"] == "runtime-not-nvidia"
    assert "nvapi" not in json.dumps(result)
    # It writes nothing, not even the lock, and only reads from the socket.
    assert state(docker.root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_no_such_container(explain: Run) -> None:
    result = explain(container="x", engine="docker")
    assert result["failed"]
    assert " 'x'. " in result["msg"]
    assert ": docker (/run/docker.sock). " in result["msg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of the following is required: engine, container"),
        ({"container": "x", "level": "gpu"}, "option level does not apply"),
        ({"engine": "docker", "try_copy": True}, "option try_copy needs the option container"),
        ({"container": "x", "command": ["y"]}, "option command does not apply"),
        ({"container": "x", "pull": True}, "option pull does not apply"),
        ({"container": "x", "runtime_name": "y"}, "option runtime_name does not apply"),
        ({"container": "x", "method": "auto"}, "option method does not apply"),
        ({"container": "x", "config_path": "/y"}, "option config_path does not apply"),
        ({"container": "x", "socket": "/y"}, "missing parameter(s) required by 'socket': engine"),
        ({"container": "x", "service": "y"}, "missing parameter(s) required by 'service': engine"),
        ({"container": "x", "user": "y"}, "missing parameter(s) required by 'user': engine"),
        ({"container": "x", "flavor": "k3s"}, "option flavor needs the option engine"),
        ({"container": "x", "host_root_live": False}, "offline tree"),
    ],
)
def test_options(explain: Run, arguments: dict[str, t.Any], message: str) -> None:
    result = explain(**arguments)
    assert result["failed"]
    assert message in result["msg"]
