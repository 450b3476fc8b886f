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
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import (
    peer_pid,
    runs_program,
    send_sighup,
)

HOST = HostFS()


@pytest.fixture
def folder() -> t.Iterator[Path]:
    """Its path is short enough for that of a socket."""
    path = Path(tempfile.mkdtemp(prefix="gpf-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def sleeper(folder: Path) -> t.Iterator[t.Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a process of a program with that name."""
    started: list[subprocess.Popen[bytes]] = []
    # The tests themselves may run under nohup, and children inherit that.
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


def test_the_program_gets_the_signal(sleeper: t.Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = sleeper("dockerd")
    send_sighup(HOST, process.pid, "dockerd")
    assert process.wait(10) == -signal.SIGHUP


def test_one_that_was_upgraded_meanwhile_gets_it_too(
    sleeper: t.Callable[[str], subprocess.Popen[bytes]], folder: Path
) -> None:
    process = sleeper("dockerd")
    (folder / "dockerd").unlink()
    send_sighup(HOST, process.pid, "dockerd")
    assert process.wait(10) == -signal.SIGHUP


def test_no_other_program_gets_it(sleeper: t.Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = sleeper("dockerd-proxy")
    with pytest.raises(HostError, match="is not dockerd of this host"):
        send_sighup(HOST, process.pid, "dockerd")
    assert process.poll() is None


def test_init_never_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readlink", lambda _path: "/usr/bin/dockerd")
    assert runs_program(HOST, os.getpid(), "dockerd")
    assert not runs_program(HOST, 1, "dockerd")
    assert not runs_program(HOST, 0, "dockerd")
    with pytest.raises(HostError, match="gets no signal"):
        send_sighup(HOST, 1, "dockerd")


def test_a_number_that_means_another_process_on_the_host_is_not_used(
    sleeper: t.Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = sleeper("dockerd")
    other = HostFS(str(tmp_path))
    assert runs_program(HOST, process.pid, "dockerd")
    assert not runs_program(other, process.pid, "dockerd")
    (tmp_path / "proc" / str(process.pid)).mkdir(parents=True)
    assert not runs_program(other, process.pid, "dockerd")


def test_a_process_that_is_gone_gets_none(sleeper: t.Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = sleeper("dockerd")
    process.kill()
    process.wait()
    with pytest.raises(HostError):
        send_sighup(HOST, process.pid, "dockerd")


# A daemon whose socket was made by somebody else, as systemd does it: only whoever answers is the daemon.
_CHILD = """
import socket, sys
listening = socket.socket(fileno=int(sys.argv[1]))
connection = listening.accept()[0]
connection.recv(100)
connection.sendall(b"pong")
connection.recv(100)
"""


def test_the_one_that_answers_is_found_not_the_one_that_listened(folder: Path) -> None:
    path = str(folder / "x.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(5)
        number = listening.fileno()
        with subprocess.Popen([sys.executable, "-c", _CHILD, str(number)], pass_fds=[number]) as child:
            assert peer_pid(path, b"ping") == child.pid
            assert child.pid != os.getpid()


def test_nobody_answers(folder: Path) -> None:
    assert peer_pid(str(folder / "none.sock"), b"ping") is None
    path = str(folder / "x.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
    assert peer_pid(path, b"ping") is None
