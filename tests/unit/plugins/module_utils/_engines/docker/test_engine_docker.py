# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
    PID,
    SOCKET,
    UNIT,
    FakeDocker,
    docker_host,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

DAEMON_JSON = "/etc/docker/daemon.json"
NVIDIA = "/usr/bin/nvidia-container-runtime"


@pytest.fixture
def docker() -> t.Iterator[FakeDocker]:
    with docker_host() as made:
        yield made


def configure(docker: FakeDocker, **asked: t.Any) -> ConfigureResult:
    options = Options("docker", RuntimeRequest(**asked))
    return ConfigureEngine(options, docker.host, docker.run).execute(check_mode=False)


# -- where it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "settings", "expected"),
    [
        ("-H fd://", {}, {"socket": SOCKET, "config_path": DAEMON_JSON}),
        ("", {}, {"socket": "/var/run/docker.sock"}),
        ("", {"hosts": ["fd://"]}, {"socket": SOCKET}),
        ("", {"hosts": ["tcp://0.0.0.0:2376", "unix:///run/alt.sock"]}, {"socket": "/run/alt.sock"}),
        ("-H unix:///run/flag.sock", {"hosts": ["unix:///run/alt.sock"]}, {"socket": "/run/flag.sock"}),
        ("", {"hosts": "unix:///run/alt.sock"}, {"socket": "/run/alt.sock"}),
        ("", {"hosts": [1, {}]}, {"socket": "/var/run/docker.sock"}),
        ("--config-file=/srv/d.json", {}, {"socket": "/var/run/docker.sock", "config_path": "/srv/d.json"}),
    ],
)
def test_socket_and_file(docker: FakeDocker, flags: str, settings: t.Any, expected: dict[str, str]) -> None:
    docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd {flags}\n")
    docker.write(DAEMON_JSON, json.dumps(settings))
    installation = DOCKER.inspect(docker.host)
    assert installation.binary == "/usr/bin/dockerd"
    assert {name: getattr(installation, name) for name in expected} == expected


def test_a_socket_unit_may_use_a_specifier(docker: FakeDocker) -> None:
    docker.write("/usr/lib/systemd/system/docker.socket", "[Socket]\nListenStream=%t/docker.sock\n")
    assert DOCKER.inspect(docker.host).socket == SOCKET


@pytest.mark.parametrize("text", ["{", "[]", "\udcff", '{"hosts": ' + "[" * 5000, '{"pidfile": 1, "hosts": null}'])
def test_a_broken_file_hides_no_daemon(docker: FakeDocker, text: str) -> None:
    docker.path("/etc/docker").mkdir(parents=True)
    docker.path(DAEMON_JSON).write_bytes(text.encode("utf-8", "surrogateescape"))
    docker.runs("/var/run/docker.pid")
    installation = DOCKER.inspect(docker.host)
    assert (installation.pid, installation.socket) == (PID, SOCKET)


@pytest.mark.parametrize(
    ("flags", "settings", "pid_file"),
    [
        ("", {}, None),
        ("", {"pidfile": "/run/other.pid"}, None),
        ("", {}, "/var/run/docker.pid"),
        ("", {"pidfile": "/run/other.pid"}, "/run/other.pid"),
        ("-p /run/flag.pid", {}, "/run/flag.pid"),
        ("--pidfile=/run/flag.pid", {}, "/run/flag.pid"),
    ],
)
def test_a_running_daemon_is_found(docker: FakeDocker, flags: str, settings: t.Any, pid_file: str | None) -> None:
    docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd {flags}\n")
    docker.write(DAEMON_JSON, json.dumps(settings))
    assert DOCKER.inspect(docker.host).pid is None
    docker.runs(pid_file)
    assert DOCKER.inspect(docker.host).pid == PID
    assert DOCKER.inspect(docker.host._replace(live=False)).pid is None


def test_another_process_is_not_the_daemon(docker: FakeDocker) -> None:
    docker.runs("/var/run/docker.pid", name="sshd")
    docker.write(CONTROL_GROUP, f"{PID}\n")
    assert DOCKER.inspect(docker.host).pid is None


@pytest.mark.parametrize(("uid", "expected"), [(0, PID), (1000, None)])
def test_a_users_daemon_in_an_old_pid_file_is_not_the_daemon(
    docker: FakeDocker, uid: int, expected: int | None
) -> None:
    docker.runs("/var/run/docker.pid")
    docker.write(f"/proc/{PID}/status", f"Name:\tdockerd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    assert DOCKER.inspect(docker.host).pid == expected


def test_a_shell_around_the_daemon_is_not_the_daemon(docker: FakeDocker) -> None:
    docker.write(UNIT, '[Service]\nExecStart=/bin/sh -c "exec /usr/bin/dockerd $OPTS" --config-file=/x\n')
    docker.write("/bin/sh", mode=0o755)
    docker.runs()
    installation = DOCKER.inspect(docker.host)
    assert (installation.binary, installation.config_path, installation.pid) == ("/usr/bin/dockerd", DAEMON_JSON, PID)
    (warning,) = [words for words in configure(docker).warnings if "/bin/sh" in words]
    assert "flags cannot be read" in warning
    assert docker.commands[0][2:] == ["/usr/bin/dockerd", "--version"]
    (trial,) = [argv for argv in docker.commands if "--validate" in argv]
    assert trial[2:-1] == ["/usr/bin/dockerd", "--validate", "--config-file"]


# -- what it says ----------------------------------------------------------------------------------------------------


def test_what_a_running_daemon_says(docker: FakeDocker) -> None:
    docker.runs()
    docker.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
    docker.info["Runtimes"]["odd"] = None
    with docker.answers():
        live = DOCKER.live(docker.host, DOCKER.inspect(docker.host))
    assert live is not None
    assert live.runtimes == {"runc": "runc", "io.containerd.runc.v2": "runc", "nvidia": NVIDIA}
    assert (live.version, live.default_runtime, live.cdi) == ("26.1.5", "runc", False)
    assert (live.live_restore, live.running_containers, live.runtimes_unknown) == (True, 3, False)


@pytest.mark.parametrize(("said", "cdi"), [(None, False), (["/etc/cdi"], True), (..., None)])
def test_what_it_says_of_cdi(docker: FakeDocker, said: t.Any, cdi: bool | None) -> None:
    docker.runs()
    docker.info["CDISpecDirs"] = said
    if said is ...:
        del docker.info["CDISpecDirs"]
    with docker.answers():
        live = DOCKER.live(docker.host, DOCKER.inspect(docker.host))
    assert live is not None
    assert live.cdi is cdi


def test_a_stopped_daemon_is_not_asked(docker: FakeDocker) -> None:
    """Its socket would start it."""
    with docker.answers():
        assert DOCKER.live(docker.host, DOCKER.inspect(docker.host)) is None


def test_a_daemon_that_does_not_answer(docker: FakeDocker) -> None:
    docker.runs()
    assert DOCKER.live(docker.host, DOCKER.inspect(docker.host)) is None
    outcome = configure(docker)
    assert outcome.pending_action is None
    assert outcome.restart_action is Action.RELOAD
    assert any("does not answer on /run/docker.sock" in warning for warning in outcome.warnings)


# -- what it needs ---------------------------------------------------------------------------------------------------


def test_a_change_that_the_daemon_has_not_taken_over_is_pending_until_it_has(docker: FakeDocker) -> None:
    docker.write(NVIDIA, mode=0o755)
    docker.runs()
    with docker.answers():
        first = configure(docker)
        assert (first.changed, first.restart_action, first.pending_action) == (True, Action.RELOAD, Action.RELOAD)
        assert first.engine_version == "26.1.5"
        again = configure(docker)
        assert (again.changed, again.restart_action, again.pending_action) == (False, Action.NONE, Action.RELOAD)
        docker.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
        done = configure(docker)
        assert (done.changed, done.restart_action, done.pending_action) == (False, Action.NONE, Action.NONE)
        assert done.warnings == []


def test_what_undoes_a_pending_change_needs_nothing(docker: FakeDocker) -> None:
    docker.runs()
    docker.info.update(CDISpecDirs=["/etc/cdi"])
    docker.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
    docker.write(DAEMON_JSON, json.dumps({"features": {"cdi": True}, "runtimes": {"nvidia": {"path": NVIDIA}}}))
    with docker.answers():
        off = configure(docker, enable_cdi=False)
        assert (off.restart_action, off.pending_action) == (Action.RESTART, Action.RESTART)
        on = configure(docker, enable_cdi=True)
        assert (on.changed, on.restart_action, on.pending_action) == (True, Action.RESTART, Action.NONE)


def test_nothing_is_pending_where_nothing_runs(docker: FakeDocker) -> None:
    with docker.answers():
        outcome = configure(docker)
    assert (outcome.restart_action, outcome.pending_action) == (Action.RELOAD, None)


def test_a_file_that_the_daemon_does_not_read_disturbs_nobody(docker: FakeDocker) -> None:
    docker.runs()
    with docker.answers():
        options = Options("docker", RuntimeRequest(), config_path="/srv/other.json")
        outcome = ConfigureEngine(options, docker.host, docker.run).execute(check_mode=False)
        assert (outcome.changed, outcome.restart_action, outcome.pending_action) == (True, Action.NONE, None)
        removal = ConfigureEngine(Options("docker", None), docker.host, docker.run).execute(check_mode=False)
    assert [file.path for file in removal.files] == ["/srv/other.json"]
    assert (removal.restart_action, removal.pending_action) == (Action.NONE, Action.NONE)
