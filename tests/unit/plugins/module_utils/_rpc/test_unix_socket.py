# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import threading
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.unix_socket import Connection
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import within


@pytest.fixture
def pair() -> t.Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_the_deadline_is_that_of_all_reads(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, daemon = pair
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.02):
            daemon.sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with within(20), pytest.raises(OSError, match=r"too slow|timed out"):
            Connection(ours, 0.3, 1 << 20).read(1 << 19)
    finally:
        over.set()
        thread.join()


def test_more_than_may_come(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, daemon = pair
    wire = Connection(ours, 20.0, 10)
    daemon.sendall(b"x" * 10)
    assert wire.read(4) + wire.read(6) == b"x" * 10
    daemon.sendall(b"x")
    with pytest.raises(ValueError, match="the answer does not end"):
        wire.receive()


def test_fewer_bytes_than_are_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, daemon = pair
    daemon.sendall(b"x")
    daemon.close()
    with pytest.raises(ValueError, match="ends in the middle"):
        Connection(ours, 20.0, 10).read(2)


def test_a_daemon_that_reads_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    started = time.monotonic()
    with within(20), pytest.raises(OSError, match=r"timed out"):
        Connection(pair[0], 0.2, 10).send(b"x" * (16 << 20))
    assert time.monotonic() - started >= 0.2
