# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes as systemd_processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import (
    changed_since_start,
    find_process,
    now,
    peer_pid,
    runs_program,
    send_sighup,
    start_ticks,
    started,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit, load_unit

UNIT = Unit("containerd.service", "/lib/systemd/system/containerd.service")
COMMS = {7: "containerd", 8: "containerd-shim", 9: "nvidia-smi", 10: "containerd"}


def host(root: Path, groups: t.Mapping[str, str], live: bool = True) -> HostFS:
    """Return a tree with the processes COMMS and with control groups, by directory below /sys/fs/cgroup."""
    for pid, comm in COMMS.items():
        put(root, f"proc/{pid}/comm", comm + "\n")
    for folder, processes in groups.items():
        put(root, f"sys/fs/cgroup/{folder}/cgroup.procs", processes)
    return HostFS(str(root), live)


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


# -- find_process ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "pid"),
    [
        ({"system.slice/containerd.service": "7\n"}, 7),
        ({"systemd/system.slice/containerd.service": "7\n"}, 7),
        ({"unified/system.slice/containerd.service": "7\n"}, 7),
        # Shims stay in the group without their engine.
        ({"system.slice/containerd.service": "8\n9\n7\n"}, 7),
        ({"system.slice/containerd.service": "8\n9\n"}, None),
        # On both hierarchies at once, one of them is empty.
        ({"unified/system.slice/containerd.service": "", "systemd/system.slice/containerd.service": "7\n"}, 7),
        # The process of another unit, such as Docker's own containerd.
        ({"system.slice/docker.service": "10\n"}, None),
        ({"containerd.service": "7\n"}, None),
        ({"system.slice/containerd.service": "a\n../proc/7\n\u00b2\n7\n"}, 7),
        # A process that has ended, and one of another namespace.
        ({"system.slice/containerd.service": "4711\n0\n7\n"}, 7),
        ({"system.slice/containerd.service": ""}, None),
        ({}, None),
    ],
)
def test_finds_the_process_in_the_control_group(tmp_path: Path, groups: dict[str, str], pid: int | None) -> None:
    assert find_process(host(tmp_path, groups), UNIT, "containerd") == pid


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("runtime.slice", "runtime.slice"),
        ("pods-burst-a.slice", "pods.slice/pods-burst.slice/pods-burst-a.slice"),
        ("-.slice", ""),
    ],
)
def test_finds_the_process_in_another_slice(tmp_path: Path, name: str, folder: str) -> None:
    tree = host(tmp_path, {f"{folder}/containerd.service": "7\n"})
    assert find_process(tree, UNIT._replace(slice=name), "containerd") == 7


@pytest.mark.parametrize(
    ("folder", "pid"),
    [
        ("system.slice", 7),
        ("systemd/pods.slice/pods-burst.slice", 7),
        # The unit of a container with a systemd of its own.
        ("machine.slice/x.scope/system.slice", None),
        ("pods.slice/x.service", None),
    ],
)
def test_a_changed_slice_takes_effect_at_the_next_start(tmp_path: Path, folder: str, pid: int | None) -> None:
    tree = host(tmp_path, {f"{folder}/containerd.service": "8\n7\n"})
    unit = UNIT._replace(slice="new.slice")
    assert find_process(tree, unit, "containerd") == pid
    # The unit is in the new slice now, and stops.
    put(tmp_path, "sys/fs/cgroup/new.slice/containerd.service/cgroup.procs", "8\n")
    assert find_process(tree, unit, "containerd") is None


def test_the_control_group_of_an_alias_is_that_of_its_unit(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "containerd.service").write_text("[Service]\nExecStart=/usr/bin/containerd\n")
    (folder / "cd.service").symlink_to("containerd.service")
    group = tmp_path / "sys/fs/cgroup/system.slice/containerd.service"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("7\n")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/comm").write_text("containerd\n")
    host = HostFS(str(tmp_path), live=True)
    assert find_process(host, load_unit(host, "cd.service"), "containerd") == 7


def test_finds_nothing_offline_or_without_a_unit(tmp_path: Path) -> None:
    groups = {"system.slice/containerd.service": "7\n"}
    assert find_process(host(tmp_path, groups, live=False), UNIT, "containerd") is None
    assert find_process(host(tmp_path, groups), None, "containerd") is None


# -- moments ---------------------------------------------------------------------------------------------------------


def test_start_of_a_new_process() -> None:
    before = now(HostFS())
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    try:
        birth = started(HostFS(), child)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    after = now(HostFS())
    assert before is not None
    assert birth is not None
    assert after is not None
    assert before.boot == birth.boot == after.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The kernel counts hundredths.
    assert before.ticks - 5 <= birth.ticks <= after.ticks + 5


def test_changed_since_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = int((1000.0 - boot) * os.sysconf("SC_CLK_TCK"))
    monkeypatch.setattr(systemd_processes, "start_ticks", lambda _host, _pid: ticks)
    tree = HostFS(str(tmp_path))
    for name, changed in (("older", 999.0), ("younger", 1000.5)):
        put(tmp_path, name, "")
        os.utime(tmp_path / name, (changed, changed))
    assert not changed_since_start(tree, 7, ["/older", "/none"])
    assert changed_since_start(tree, 7, ["/older", "/younger"])
    assert not changed_since_start(tree, 7, [])
    monkeypatch.setattr(systemd_processes, "start_ticks", lambda _host, _pid: None)
    assert not changed_since_start(tree, 7, ["/younger"])


def test_start_with_brackets_in_the_name(tmp_path: Path) -> None:
    """The name ends with the last bracket (proc(5))."""
    columns = ["S", "1", *["0"] * 17, "4711", "99", "98"]
    put(tmp_path, "proc/7/stat", f"7 (a) b (c 1 2) {' '.join(columns)}\n")
    assert start_ticks(HostFS(str(tmp_path)), 7) == 4711
    # The boot is unknown.
    assert started(HostFS(str(tmp_path)), 7) is None


@pytest.mark.parametrize("text", [None, "", "7 (x)", "7 (x) S 1 2"])
def test_no_start_of_an_ended_process(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        put(tmp_path, "proc/7/stat", text)
    tree = HostFS(str(tmp_path))
    assert start_ticks(tree, 7) is None
    assert not changed_since_start(tree, 7, ["/proc/7/stat"])


# -- signals ---------------------------------------------------------------------------------------------------------

HOST = HostFS()


@pytest.fixture
def folder() -> t.Iterator[Path]:
    """A directory with a path that is short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="gpf-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def sleeper(folder: Path) -> t.Iterator[t.Callable[[str], subprocess.Popen[bytes]]]:
    """Start a process of a program with the given name."""
    started: list[subprocess.Popen[bytes]] = []
    # Child processes inherit the setting of nohup, under which the tests may run.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(name: str) -> subprocess.Popen[bytes]:
        program = folder / name
        shutil.copy(shutil.which("sleep") or "", program)
        started.append(subprocess.Popen([str(program), "60"]))
        return started[-1]

    yield start
    signal.signal(signal.SIGHUP, before)
    for process in started:
        process.kill()
        process.wait()


def test_sends_sighup(sleeper: t.Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = sleeper("dockerd")
    send_sighup(HOST, process.pid, "dockerd")
    assert process.wait(10) == -signal.SIGHUP


def test_sends_sighup_after_an_upgrade_of_the_program(
    sleeper: t.Callable[[str], subprocess.Popen[bytes]], folder: Path
) -> None:
    process = sleeper("dockerd")
    (folder / "dockerd").unlink()
    send_sighup(HOST, process.pid, "dockerd")
    assert process.wait(10) == -signal.SIGHUP


def test_sends_no_signal_to_another_program(sleeper: t.Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = sleeper("dockerd-proxy")
    with pytest.raises(HostError, match="is not dockerd of this host"):
        send_sighup(HOST, process.pid, "dockerd")
    assert process.poll() is None


def test_sends_no_signal_to_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readlink", lambda _path: "/usr/bin/dockerd")
    assert runs_program(HOST, os.getpid(), "dockerd")
    assert not runs_program(HOST, 1, "dockerd")
    assert not runs_program(HOST, 0, "dockerd")
    with pytest.raises(HostError, match="No signal was sent"):
        send_sighup(HOST, 1, "dockerd")


def test_rejects_a_pid_of_another_namespace(
    sleeper: t.Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = sleeper("dockerd")
    other = HostFS(str(tmp_path))
    assert runs_program(HOST, process.pid, "dockerd")
    assert not runs_program(other, process.pid, "dockerd")
    (tmp_path / "proc" / str(process.pid)).mkdir(parents=True)
    assert not runs_program(other, process.pid, "dockerd")


def test_error_for_an_ended_process(sleeper: t.Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = sleeper("dockerd")
    process.kill()
    process.wait()
    with pytest.raises(HostError):
        send_sighup(HOST, process.pid, "dockerd")


# A daemon that got its socket from another process, as with socket activation.
_CHILD = """
import socket, sys
listening = socket.socket(fileno=int(sys.argv[1]))
connection = listening.accept()[0]
connection.recv(100)
connection.sendall(b"pong")
connection.recv(100)
"""


def test_peer_is_the_process_that_replies(folder: Path) -> None:
    path = str(folder / "x.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(5)
        number = listening.fileno()
        with subprocess.Popen([sys.executable, "-c", _CHILD, str(number)], pass_fds=[number]) as child:
            assert peer_pid(path, b"ping") == child.pid
            assert child.pid != os.getpid()


def test_no_peer_without_a_reply(folder: Path) -> None:
    assert peer_pid(str(folder / "none.sock"), b"ping") is None
    path = str(folder / "x.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
    assert peer_pid(path, b"ping") is None
