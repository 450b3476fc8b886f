# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import UNIT_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import info as engines_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    SOCKET,
    UNIT,
    FakeDocker,
    docker_host,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import HungError, within

DAEMON_JSON = "/etc/docker/daemon.json"
NVIDIA = "/usr/bin/nvidia-container-runtime"


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[FakeDocker]:
    monkeypatch.setattr(engines_registry, "targets_on", lambda *_args: [Target("docker")])
    with docker_host() as made:
        yield made


def inspect(docker: FakeDocker) -> dict[str, t.Any]:
    (engine,), _needed = engines_info.describe_engines(docker.host, docker.run)
    return engine


def configure(docker: FakeDocker) -> None:
    options = Options("docker", RuntimeRequest())
    ConfigureEngine(options, docker.host, docker.run).execute(check_mode=False)


def test_unfinished_restart(docker: FakeDocker) -> None:
    docker.write("/var/lib/gpufleet-nvidia/state/restart-docker.json", "[]")
    assert inspect(docker)["unfinished_restart"]


def test_running_engine(docker: FakeDocker) -> None:
    docker.runs()
    docker.write(DAEMON_JSON, json.dumps({"runtimes": {"nvidia": {"path": NVIDIA}}}))
    with docker.answers():
        late = inspect(docker)
        docker.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
        current = inspect(docker)
    assert late["restart_required"]
    assert current == {
        "engine": "docker",
        "flavor": "system",
        "user": None,
        "target": "docker",
        "inspected": True,
        "readable": True,
        "installed": True,
        "binary": "/usr/bin/dockerd",
        "version": "26.1.5",
        "running": True,
        "service": "docker.service",
        "unit_files": [UNIT],
        "socket": SOCKET,
        "config_path": DAEMON_JSON,
        "runtimes": {"nvidia": NVIDIA},
        "default_runtime": "runc",
        "cdi_directories": None,
        "recorded_files": [],
        "live": {
            "version": "26.1.5",
            "runtimes": {"runc": "runc", "io.containerd.runc.v2": "runc", "nvidia": NVIDIA},
            "default_runtime": "runc",
            "cdi": False,
            "live_restore": True,
            "running_containers": 3,
        },
        "restart_required": False,
        "missed_toolkit": False,
        "unfinished_restart": False,
        "problems": [],
    }
    assert docker.commands == []


def test_stopped_engine(docker: FakeDocker) -> None:
    configure(docker)
    with docker.answers():
        found = inspect(docker)
    assert (found["running"], found["live"], found["restart_required"]) == (False, None, False)
    assert found["version"] == "26.1.5"
    assert found["recorded_files"] == [DAEMON_JSON]


def test_unresponsive_engine_is_a_problem(docker: FakeDocker) -> None:
    docker.runs()
    found = inspect(docker)
    assert found["running"]
    message, advice = f"docker runs but does not answer on {SOCKET}.", "Restart it if it hangs."
    assert found["problems"] == [{"code": "engine-not-responding", "message": message, "advice": advice}]


def test_unknown_command_line_is_a_problem(docker: FakeDocker) -> None:
    docker.write(UNIT, "[Service]\nExecStart=/usr/bin/env dockerd --config-file /srv/x.json\n")
    (problem,) = inspect(docker)["problems"]
    assert "docker.service starts the engine through /usr/bin/env" in problem["message"]


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("{", "file-invalid", "line 1, column 2"),
        # dockerd starts with such a file.
        ('{"runtimes": {}, "runtimes": {}}', "setting-defined-twice", "line 1, column 18"),
    ],
)
def test_broken_file_is_a_problem(docker: FakeDocker, text: str, code: str, place: str) -> None:
    configure(docker)
    docker.write(DAEMON_JSON, text)
    found = inspect(docker)
    assert found["recorded_files"] == [DAEMON_JSON]
    (problem,) = found["problems"]
    assert problem["code"] == code
    assert f"{DAEMON_JSON}, {place}" in problem["message"]


def test_unreadable_records_are_a_problem(monkeypatch: pytest.MonkeyPatch, docker: FakeDocker) -> None:
    configure(docker)
    state = docker.host.real_path(STATE_DIR)
    listdir = os.listdir

    def refusing(path: str) -> list[str]:
        # Other users than root get this error.
        if path == state:
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refusing)
    found = inspect(docker)
    assert found["runtimes"] == {"nvidia": NVIDIA}
    assert found["recorded_files"] == []
    problem = {"code": "permission-denied", "message": f"{STATE_DIR} cannot be read: Permission denied."}
    assert found["problems"] == [{**problem, "advice": "Run the task as root (become: true)."}]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_without_root(docker: FakeDocker) -> None:
    configure(docker)
    docker.root.chmod(0o755)
    try:
        os.seteuid(65534)
        found = inspect(docker)
    finally:
        os.seteuid(0)
    assert found["runtimes"] == {"nvidia": NVIDIA}
    (problem,) = found["problems"]
    assert problem["code"] == "permission-denied"


def _hangs(*_arguments: t.Any) -> t.NoReturn:
    while True:
        # Suppress exceptions, as much of the tested code does, so that only the time limit can end this function.
        with contextlib.suppress(Exception):
            time.sleep(60)


def test_engine_that_hangs_is_a_problem(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines_info, "TIMEOUT", 0.3)
    monkeypatch.setattr(engines_registry, "targets_on", lambda *_args: [Target("docker"), Target("podman")])
    monkeypatch.setattr(type(Target("docker").load()), "live", _hangs)
    before = signal.getsignal(signal.SIGALRM)
    with contextlib.suppress(HungError), within(20):
        found, _needed = engines_info.describe_engines(docker.host, docker.run)
    assert [engine["engine"] for engine in found] == ["docker", "podman"]
    assert found[0]["problems"][-1]["code"] == "inspection-incomplete"
    assert found[1]["problems"] == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_threads_have_no_time_limit(docker: FakeDocker) -> None:
    found: list[t.Any] = []
    thread = threading.Thread(target=lambda: found.append(inspect(docker)))
    thread.start()
    thread.join()
    assert found[0]["installed"] is True


@pytest.mark.parametrize("line", ["EnvironmentFile=/proc/kmsg", "#" * UNIT_BYTES])
def test_refused_unit_is_a_problem(docker: FakeDocker, line: str) -> None:
    docker.write(UNIT, f"[Service]\n{line}\nExecStart=/usr/bin/dockerd\n")
    (problem,) = inspect(docker)["problems"]
    assert problem["message"].startswith(
        ("/proc/kmsg leads to the kernel file /proc/kmsg", f"{UNIT} is larger than 256 KiB")
    )


def test_refused_unit_of_another_containerd() -> None:
    with docker_host() as docker:
        docker.write("/etc/systemd/system/containerd-big.service", "#" * (UNIT_BYTES + 1))
        found, _needed = engines_info.describe_engines(docker.host, docker.run)
    engines = {engine["target"]: engine for engine in found}
    assert engines["docker"]["problems"] == []
    (problem,) = engines["containerd/system/containerd-big.service"]["problems"]
    assert problem["message"].startswith("/etc/systemd/system/containerd-big.service is larger than 256 KiB")


@pytest.mark.parametrize(
    "info",
    [{"Runtimes": [], "ServerVersion": 5}, {"Runtimes": {"a": 5}, "ContainersRunning": None}, {"CDISpecDirs": 1}],
)
def test_answer_with_wrong_types(docker: FakeDocker, info: dict[str, t.Any]) -> None:
    docker.runs()
    docker.info = info
    with docker.answers():
        live = inspect(docker)["live"]
    assert (live["version"], live["runtimes"], live["running_containers"]) == ("", {}, 0)
