# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t
from urllib.parse import unquote

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER, DOCKER_SNAP
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.info import describe_engines
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
    PID,
    SOCKET,
    UNIT,
    FakeDocker,
    docker_host,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.process_starts import write_start

if t.TYPE_CHECKING:
    from pathlib import Path

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


# -- installation ----------------------------------------------------------------------------------------------------


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
        ("-DHunix:///run/flag.sock", {}, {"socket": "/run/flag.sock"}),
        # A daemon starts in the directory of its unit.
        ("--config-file=srv/../d.json", {}, {"config_path": "/srv/../d.json"}),
        ("--config-file=d.json\nWorkingDirectory=-/srv/%N", {}, {"config_path": "/srv/docker/d.json"}),
    ],
)
def test_socket_and_file(docker: FakeDocker, flags: str, settings: t.Any, expected: dict[str, str]) -> None:
    docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd {flags}\n")
    docker.write(DAEMON_JSON, json.dumps(settings))
    installation = DOCKER.inspect(docker.host)
    assert installation.binary == "/usr/bin/dockerd"
    assert {name: getattr(installation, name) for name in expected} == expected


def test_specifier_in_socket_unit(docker: FakeDocker) -> None:
    docker.write("/usr/lib/systemd/system/docker.socket", "[Socket]\nListenStream=%t/docker.sock\n")
    assert DOCKER.inspect(docker.host).socket == SOCKET


@pytest.mark.parametrize("command", ['/bin/sh -c "exec dockerd $X"', "/usr/bin/env X=1 /usr/bin/dockerd"])
def test_flags_of_the_process_behind_a_wrapper(docker: FakeDocker, command: str) -> None:
    docker.write(UNIT, f"[Service]\nExecStart={command}\n")
    docker.runs()
    docker.write(CONTROL_GROUP, f"{PID}\n")
    docker.path(f"/proc/{PID}/cmdline").write_bytes(b"dockerd\0--config-file=/srv/d.json\0-H\0unix:///run/x.sock\0")
    found = DOCKER.inspect(docker.host)
    assert (found.config_path, found.socket, found.pid) == ("/srv/d.json", "/run/x.sock", PID)
    assert found.unit is not None
    assert found.unit.wrapper == ""


@pytest.mark.parametrize("text", ["{", "[]", "\udcff", '{"hosts": ' + "[" * 5000, '{"pidfile": 1, "hosts": null}'])
def test_invalid_file_is_ignored(docker: FakeDocker, text: str) -> None:
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
def test_process(docker: FakeDocker, flags: str, settings: t.Any, pid_file: str | None) -> None:
    docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd {flags}\n")
    docker.write(DAEMON_JSON, json.dumps(settings))
    assert DOCKER.inspect(docker.host).pid is None
    docker.runs(pid_file)
    assert DOCKER.inspect(docker.host).pid == PID
    assert DOCKER.inspect(docker.host._replace(live=False)).pid is None


def test_pid_of_other_process(docker: FakeDocker) -> None:
    docker.runs("/var/run/docker.pid", name="sshd")
    docker.write(CONTROL_GROUP, f"{PID}\n")
    assert DOCKER.inspect(docker.host).pid is None


@pytest.mark.parametrize(("uid", "expected"), [(0, PID), (1000, None)])
def test_pid_file_with_process_of_user(docker: FakeDocker, uid: int, expected: int | None) -> None:
    docker.runs("/var/run/docker.pid")
    docker.write(f"/proc/{PID}/status", f"Name:\tdockerd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    assert DOCKER.inspect(docker.host).pid == expected


def test_wrapper(docker: FakeDocker) -> None:
    docker.write(UNIT, '[Service]\nExecStart=/bin/sh -c "exec /usr/bin/dockerd $OPTS" --config-file=/x\n')
    docker.write("/bin/sh", mode=0o755)
    docker.runs()
    installation = DOCKER.inspect(docker.host)
    assert (installation.binary, installation.config_path, installation.pid) == ("/usr/bin/dockerd", DAEMON_JSON, PID)
    (warning,) = [warning for warning in configure(docker).warnings if "/bin/sh" in warning]
    assert "flags cannot be read" in warning
    assert docker.commands[0][2:] == ["/usr/bin/dockerd", "--version"]
    (validation,) = [argv for argv in docker.commands if "--validate" in argv]
    assert validation[2:-1] == ["/usr/bin/dockerd", "--validate", "--config-file"]


# -- the running daemon -----------------------------------------------------------------------------------------------


def test_live_state(docker: FakeDocker) -> None:
    docker.runs()
    docker.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
    docker.info["Runtimes"]["odd"] = None
    # A restart stops a paused container too.
    docker.info.update(ContainersRunning=2, ContainersPaused=1)
    with docker.answers():
        live = DOCKER.live(docker.host, DOCKER.inspect(docker.host))
    assert live is not None
    assert live.runtimes == {"runc": "runc", "io.containerd.runc.v2": "runc", "nvidia": NVIDIA}
    assert (live.version, live.default_runtime, live.cdi) == ("26.1.5", "runc", False)
    assert (live.live_restore, live.running_containers, live.runtimes_unknown) == (True, 3, False)


@pytest.mark.parametrize(("directories", "cdi"), [(None, False), (["/etc/cdi"], True), (..., None)])
def test_live_cdi(docker: FakeDocker, directories: t.Any, cdi: bool | None) -> None:
    docker.runs()
    docker.info["CDISpecDirs"] = directories
    if directories is ...:
        del docker.info["CDISpecDirs"]
    with docker.answers():
        live = DOCKER.live(docker.host, DOCKER.inspect(docker.host))
    assert live is not None
    assert live.cdi is cdi
    assert live.cdi_folders == (("/etc/cdi",) if cdi else None)


def test_containers_that_a_restart_stops_on_a_large_host(docker: FakeDocker) -> None:
    docker.runs()
    docker.info.update(LiveRestoreEnabled=False, ContainersRunning=4990, ContainersPaused=10)
    docker.containers = [{"Names": [f"/web-{number}"], "Labels": {"a": "x" * 4096}} for number in range(5000)]
    installation = DOCKER.inspect(docker.host)
    with docker.answers():
        stopped = DOCKER.containers_stopped_by_restart(docker.host, installation)
    assert stopped is not None
    assert (len(stopped), stopped[:2]) == (5000, ["web-0", "web-1"])
    assert docker.requests[-1].count(b"limit=20") == 1
    assert json.loads(unquote(docker.requests[-1].decode().split("filters=")[1])) == {
        "status": ["running", "paused", "restarting"]
    }


def test_a_number_of_containers_that_no_host_runs(docker: FakeDocker) -> None:
    docker.runs()
    docker.info.update(LiveRestoreEnabled=False, ContainersRunning=10**12, ContainersPaused=-5)
    docker.containers = [{"Names": [f"/web-{number}"]} for number in range(20)]
    with docker.answers():
        stopped = DOCKER.containers_stopped_by_restart(docker.host, DOCKER.inspect(docker.host))
    assert stopped is not None
    assert len(stopped) == 100_020


@pytest.mark.parametrize(("count", "stopped"), [(7, ["7 containers, which docker does not list"]), (0, None)])
def test_a_list_that_is_too_long_does_not_hide_containers(
    docker: FakeDocker, count: int, stopped: list[str] | None
) -> None:
    docker.runs()
    docker.info.update(LiveRestoreEnabled=False, ContainersRunning=count)
    docker.containers = [{"Names": ["/web"], "Labels": {"a": "x" * (17 << 20)}}]
    with docker.answers():
        assert DOCKER.containers_stopped_by_restart(docker.host, DOCKER.inspect(docker.host)) == stopped


def test_stopped_daemon_is_not_contacted(docker: FakeDocker) -> None:
    """A connection to its socket would start it."""
    with docker.answers():
        assert DOCKER.live(docker.host, DOCKER.inspect(docker.host)) is None


def test_daemon_that_does_not_answer(docker: FakeDocker) -> None:
    docker.runs()
    assert DOCKER.live(docker.host, DOCKER.inspect(docker.host)) is None
    outcome = configure(docker)
    assert outcome.pending_action is None
    assert outcome.restart_action is Action.RELOAD
    assert any("does not answer on /run/docker.sock" in warning for warning in outcome.warnings)


# -- required action -------------------------------------------------------------------------------------------------


def test_pending_action_until_reload(docker: FakeDocker) -> None:
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


def test_pending_action_of_reverted_change(docker: FakeDocker) -> None:
    docker.runs()
    docker.info.update(CDISpecDirs=["/etc/cdi"])
    docker.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
    docker.write(DAEMON_JSON, json.dumps({"features": {"cdi": True}, "runtimes": {"nvidia": {"path": NVIDIA}}}))
    with docker.answers():
        off = configure(docker, enable_cdi=False)
        assert (off.restart_action, off.pending_action) == (Action.RESTART, Action.RESTART)
        on = configure(docker, enable_cdi=True)
        assert (on.changed, on.restart_action, on.pending_action) == (True, Action.RESTART, Action.NONE)


def test_no_pending_action_without_daemon(docker: FakeDocker) -> None:
    with docker.answers():
        outcome = configure(docker)
    assert (outcome.restart_action, outcome.pending_action) == (Action.RELOAD, None)


def test_no_action_for_unused_file(docker: FakeDocker) -> None:
    docker.runs()
    with docker.answers():
        options = Options("docker", RuntimeRequest(), config_path="/srv/other.json")
        outcome = ConfigureEngine(options, docker.host, docker.run).execute(check_mode=False)
        assert (outcome.changed, outcome.restart_action, outcome.pending_action) == (True, Action.NONE, None)
        removal = ConfigureEngine(Options("docker", None), docker.host, docker.run).execute(check_mode=False)
    assert [file.path for file in removal.files] == ["/srv/other.json"]
    assert (removal.restart_action, removal.pending_action) == (Action.NONE, Action.NONE)


# -- the snap --------------------------------------------------------------------------------------------------------

SNAP_SERVICE = "snap.docker.dockerd.service"
SNAP_GROUP = f"/sys/fs/cgroup/system.slice/{SNAP_SERVICE}/cgroup.procs"
SNAP_FILE = "/var/snap/docker/2932/config/daemon.json"
SNAP_ORIGINAL = '{\n    "log-level":        "error"\n}\n'


@pytest.fixture
def snap(tmp_path: Path) -> FakeDocker:
    """Revision 2932, without another Docker."""
    snap = FakeDocker(tmp_path)
    for path in ("/usr/bin/dockerd", "/usr/lib/systemd/system/docker.service"):
        snap.path(path).unlink()
    snap.write(f"/etc/systemd/system/{SNAP_SERVICE}", "[Service]\nExecStart=/usr/bin/snap run docker.dockerd\n")
    snap.write("/snap/docker/2932/bin/dockerd", mode=0o755)
    snap.path("/snap/docker/current").symlink_to("2932")
    snap.write(SNAP_FILE, SNAP_ORIGINAL)
    snap.path("/var/snap/docker/current").symlink_to("2932")
    return snap


def run_snap(snap: FakeDocker, request: RuntimeRequest | None, check_mode: bool = False) -> ConfigureResult:
    return ConfigureEngine(Options("docker", request), snap.host, snap.run).execute(check_mode)


@pytest.mark.parametrize("check_mode", [True, False])
def test_snap_is_refused(snap: FakeDocker, check_mode: bool) -> None:
    with pytest.raises(NvidiaError, match=r"^Docker is installed as a snap, which this collection"):
        run_snap(snap, RuntimeRequest(), check_mode)
    assert snap.path(SNAP_FILE).read_text(encoding="utf-8") == SNAP_ORIGINAL
    assert snap.commands == []


def test_snap_is_reported(snap: FakeDocker) -> None:
    snap.runs(SNAP_GROUP)
    ((entry,), _needed) = describe_engines(snap.host, snap.run)
    assert (entry["target"], entry["flavor"]) == ("docker/snap", "snap")
    assert (entry["installed"], entry["running"]) == (True, True)
    assert (entry["binary"], entry["version"], entry["service"]) == (None, None, SNAP_SERVICE)
    assert entry["problems"][0]["message"].startswith("Docker is installed as a snap, which")
    assert snap.commands == []


def test_snap_keeps_its_own_runtime(snap: FakeDocker) -> None:
    text = json.dumps({"runtimes": {"nvidia": {"path": "/snap/docker/2932/usr/bin/nvidia-container-runtime"}}})
    snap.write(SNAP_FILE, text)
    assert not run_snap(snap, None).changed
    assert snap.path(SNAP_FILE).read_text(encoding="utf-8") == text


def test_snap_file_and_socket(snap: FakeDocker) -> None:
    installation = DOCKER_SNAP.inspect(snap.host)
    assert installation.config_path == "/var/snap/docker/current/config/daemon.json"
    assert (installation.service, installation.socket) == (SNAP_SERVICE, "/var/run/docker.sock")


# -- the programs of --gpus --------------------------------------------------------------------------------------------

HOOK, CDI_HOOK = "/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-cdi-hook"
LIST = "/var/lib/gpufleet-nvidia/state/installed-packages.json"
STARTED = 100


def install(docker: FakeDocker, ticks: int, boot: str = "this-boot") -> None:
    """Write when the packages were installed. The time of the list does not matter."""
    docker.write(LIST, json.dumps({"packages": [], "boot": boot, "ticks": ticks}))
    os.utime(docker.path(LIST), (2**31, 2**31))


@pytest.fixture
def idle(docker: FakeDocker) -> t.Iterator[FakeDocker]:
    """A Docker without containers that was started before the toolkit was installed."""
    docker.runs()
    write_start(docker.root, PID, STARTED)
    docker.info.update({"ContainersRunning": 0, "LiveRestoreEnabled": False, "CDISpecDirs": []})
    docker.write(NVIDIA, mode=0o755)
    docker.write(HOOK, mode=0o755)
    install(docker, STARTED + 1)
    with docker.answers():
        yield docker


def pending(docker: FakeDocker, **asked: t.Any) -> tuple[Action | None, bool]:
    result = configure(docker, **asked)
    return result.pending_action, result.missed_toolkit


def test_a_toolkit_that_was_installed_after_the_start_needs_a_restart(idle: FakeDocker) -> None:
    """Docker searches the program of --gpus when it starts, and then refuses the option."""
    assert pending(idle) == (Action.RESTART, True)
    # A reload by another program does not help.
    idle.info["Runtimes"]["nvidia"] = {"path": NVIDIA}
    assert pending(idle) == (Action.RESTART, True)
    assert describe_engines(idle.host, idle.run)[0][0]["missed_toolkit"] is True
    install(idle, STARTED + 1, boot="last-boot")
    assert pending(idle) == (Action.NONE, False)
    install(idle, STARTED - 1)
    assert pending(idle) == (Action.NONE, False)
    assert describe_engines(idle.host, idle.run)[0][0]["missed_toolkit"] is False


def test_containers_are_not_stopped_for_the_option_gpus(idle: FakeDocker) -> None:
    idle.info["ContainersRunning"] = 1
    idle.containers.append({"Names": ["/web"]})
    result = configure(idle)
    assert (result.pending_action, result.missed_toolkit) == (Action.RELOAD, False)
    (warning,) = result.warnings
    assert "refuses --gpus until it is restarted. It runs web. Restart it" in warning
    idle.info["LiveRestoreEnabled"] = True
    idle.write(DAEMON_JSON, json.dumps({**json.loads(idle.path(DAEMON_JSON).read_text()), "live-restore": True}))
    assert pending(idle) == (Action.RESTART, True)


@pytest.mark.parametrize(
    ("version", "programs", "expected"),
    [
        ("26.1.5", [], False),
        ("26.1.5", [CDI_HOOK], False),
        ("28.5.2", [CDI_HOOK], False),
        ("29.1.5", [CDI_HOOK], False),
        ("29.2.0", [CDI_HOOK], True),
        ("29.2.0", [HOOK, CDI_HOOK], True),
    ],
)
def test_the_programs_that_a_release_searches(
    idle: FakeDocker, version: str, programs: list[str], expected: bool
) -> None:
    idle.path(HOOK).unlink()
    # CDI is on from 28.2 on. Otherwise Docker would need a restart for that.
    idle.info.update({"ServerVersion": version, "CDISpecDirs": [] if version == "26.1.5" else ["/etc/cdi"]})
    for path in programs:
        idle.write(path, mode=0o755)
    assert pending(idle)[1] is expected


def test_no_restart_for_gpus_without_a_unit_or_in_a_removal(idle: FakeDocker) -> None:
    idle.write(DAEMON_JSON, '{"runtimes": {"other": {"path": "/x"}}}')
    idle.info["Runtimes"].update({"other": {"path": "/x"}, "nvidia": {"path": NVIDIA}})
    configure(idle)
    removal = ConfigureEngine(Options("docker", None), idle.host, idle.run).execute(check_mode=True)
    assert (removal.pending_action, removal.missed_toolkit) == (Action.RELOAD, False)
    installation = DOCKER.inspect(idle.host)
    assert "refuses --gpus" in DOCKER.missed_toolkit(idle.host, installation, "26.1.5")
    for other in (installation._replace(unit=None), installation._replace(pid=None)):
        assert DOCKER.missed_toolkit(idle.host, other, "26.1.5") == ""


def test_check_mode_predicts_the_restart(idle: FakeDocker) -> None:
    idle.path(HOOK).unlink()
    idle.path(LIST).unlink()
    assert pending(idle) == (Action.RELOAD, False)
    idle.host = idle.host.with_programs("1.19.1", [HOOK])
    assert pending(idle) == (Action.RESTART, True)
    # An upgrade needs no restart.
    idle.write(HOOK, mode=0o755)
    assert pending(idle) == (Action.RELOAD, False)
