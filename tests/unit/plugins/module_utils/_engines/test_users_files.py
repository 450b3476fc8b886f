# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root opens no file, directory or socket that an unprivileged user controls: each could block or mislead it."""

from __future__ import annotations

import json
import os
import sys
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.host_info import describe_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import RestartOptions, restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.usage import (
    configured_programs,
    engines_still_using,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.verify import Verification, VerifyOptions
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import FakeDocker

if t.TYPE_CHECKING:
    from pathlib import Path

# Not the user who runs the tests.
UID = os.geteuid() + 4321
HOME, RUNTIME = "/home/mallory", f"/run/user/{UID}"
UNIT_FOLDER = f"{HOME}/.config/systemd/user"
ROOTLESSKIT = 4242
_EVENTS = ("open", "os.listdir", "os.scandir", "socket.connect", "os.chmod", "os.chown", "os.rename", "os.remove")
_recorded: list[str] | None = None


def _record(event: str, arguments: tuple[t.Any, ...]) -> None:
    if _recorded is not None and event in _EVENTS:
        path = arguments[1] if event == "socket.connect" else arguments[0]
        if isinstance(path, (str, bytes)):
            _recorded.append(os.fsdecode(path))


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    """Add one audit hook for all tests, because an audit hook cannot be removed."""
    sys.addaudithook(_record)


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    """A host on which the user mallory has the files, sockets and processes of a rootless Docker."""
    docker = FakeDocker(tmp_path)
    docker.write("/etc/passwd", f"root:x:0:0::/root:/bin/sh\nmallory:x:{UID}:{UID}::{HOME}:/bin/sh\n")
    docker.write(f"{UNIT_FOLDER}/docker.service", "[Service]\nExecStart=/usr/bin/dockerd-rootless.sh\n")
    docker.write(f"{HOME}/.config/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "/usr/bin/x"}}}')
    docker.write(f"{RUNTIME}/docker.pid", f"{ROOTLESSKIT}\n")
    docker.write(f"{RUNTIME}/docker.sock")
    for pid, name, uid in ((ROOTLESSKIT, "rootlesskit", UID), (ROOTLESSKIT + 1, "dockerd", UID), (7, "dockerd", 0)):
        docker.write(f"/proc/{pid}/comm", f"{name}\n")
        docker.write(f"/proc/{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    return docker


def opened(docker: FakeDocker, work: t.Callable[[], t.Any]) -> list[str]:
    """Return the paths below mallory's directories that ``work`` opens, lists, connects to or changes."""
    global _recorded  # noqa: PLW0603
    _recorded = []
    try:
        work()
    finally:
        found, _recorded = _recorded, None
    folders = tuple(f"{docker.root}{folder}/" for folder in (HOME, RUNTIME))
    return [path for path in found if f"{path}/".startswith(folders)]


def create_environment_file(docker: FakeDocker) -> None:
    """Make the unit read /proc/kmsg, which blocks."""
    docker.write(
        f"{UNIT_FOLDER}/docker.service",
        "[Service]\nEnvironmentFile=/proc/kmsg\nExecStart=/usr/bin/dockerd-rootless.sh $X\n",
    )


def create_link(docker: FakeDocker) -> None:
    docker.path(f"{HOME}/.config/docker/daemon.json").unlink()
    docker.path(f"{HOME}/.config/docker/daemon.json").symlink_to("/proc/kmsg")


def create_fifo(docker: FakeDocker) -> None:
    for path in (f"{UNIT_FOLDER}/docker.service", f"{HOME}/.config/docker/daemon.json", f"{RUNTIME}/docker.pid"):
        docker.path(path).unlink()
        os.mkfifo(docker.path(path))


CHANGES_BY_USER = [create_environment_file, create_link, create_fifo, lambda _docker: None]


@pytest.mark.parametrize("change", CHANGES_BY_USER)
def test_report_opens_no_user_file(docker: FakeDocker, change: t.Callable[[FakeDocker], None]) -> None:
    change(docker)
    found: dict[str, t.Any] = {}
    subjects = ("engines", "toolkit", "cdi", "findings")
    assert opened(docker, lambda: found.update(describe_host(docker.host, docker.run, subjects))) == []
    (entry,) = [engine for engine in found["engines"] if engine["flavor"] == "rootless"]
    assert (entry["target"], entry["user"], entry["inspected"]) == ("docker/rootless/mallory", "mallory", False)
    assert (entry["installed"], entry["running"]) == (True, True)
    assert (entry["config_path"], entry["runtimes"], entry["live"], entry["problems"]) == (None, {}, None, [])
    findings = {(finding["id"], finding["subject"]): finding for finding in found["findings"]}
    finding = findings["not-inspected", "docker/rootless/mallory"]
    assert finding["severity"] == "info"
    assert "--become-user" in finding["advice"]
    assert [subject for _id, subject in findings if "mallory" in subject] == ["docker/rootless/mallory"]
    assert all(engine["inspected"] for engine in found["engines"] if engine is not entry)


@pytest.mark.parametrize("change", CHANGES_BY_USER)
@pytest.mark.parametrize("remove", [False, True])
def test_change_opens_no_user_file(docker: FakeDocker, change: t.Callable[[FakeDocker], None], remove: bool) -> None:
    change(docker)

    def work() -> None:
        for request in (RuntimeRequest(), None) if remove else (RuntimeRequest(),):
            ConfigureEngine(Options("docker", request), docker.host, docker.run).execute(check_mode=False)
        configured_programs(docker.host, ["/usr/bin"])
        engines_still_using(docker.host, ["/usr/bin"])

    assert opened(docker, work) == []


@pytest.mark.parametrize("user", ["mallory", None])
@pytest.mark.parametrize("change", CHANGES_BY_USER)
def test_refuses_engine_of_user(docker: FakeDocker, change: t.Callable[[FakeDocker], None], user: str | None) -> None:
    change(docker)
    advice = f"become: true and become_user: {user or 'NAME'}"

    def configure() -> None:
        for request in (RuntimeRequest(), None):
            options = Options("docker", request, flavor="rootless", user=user)
            with pytest.raises(NvidiaError, match=advice):
                ConfigureEngine(options, docker.host, docker.run)

    def take_over() -> None:
        with pytest.raises(NvidiaError, match=advice):
            restart(RestartOptions("docker", flavor="rootless", user=user), docker.host, docker.run, True)
        with pytest.raises(NvidiaError, match=advice):
            Verification(VerifyOptions("docker", flavor="rootless", user=user), docker.host, docker.run)

    assert opened(docker, configure) == []
    assert opened(docker, take_over) == []
    assert docker.commands == []


def test_recorder(docker: FakeDocker) -> None:
    """The hook must record an opened file. Otherwise the other tests could not fail."""
    path = f"{HOME}/.config/docker/daemon.json"
    assert opened(docker, lambda: json.loads(docker.host.read(path) or b"")) == [str(docker.path(path))]
