# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import os
import socket
import socketserver
import threading
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.unix_socket import (
    Connection,
    HttpResponse,
    http_get_json,
    http_request,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import within
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import Daemon, Pieces, daemons

if t.TYPE_CHECKING:
    from pathlib import Path

    Serve = t.Callable[..., "_Daemon"]


@pytest.fixture
def pair() -> t.Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_deadline_covers_all_reads(pair: tuple[socket.socket, socket.socket]) -> None:
    client, daemon = pair
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.02):
            daemon.sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with within(20), pytest.raises(OSError, match=r"does not reply in time|timed out"):
            Connection(client, 0.3, 1 << 20).read(1 << 19)
    finally:
        over.set()
        thread.join()


def test_size_limit(pair: tuple[socket.socket, socket.socket]) -> None:
    client, daemon = pair
    wire = Connection(client, 20.0, 10)
    daemon.sendall(b"x" * 10)
    assert wire.read(4) + wire.read(6) == b"x" * 10
    daemon.sendall(b"x")
    with pytest.raises(ValueError, match="the reply is too long"):
        wire.receive()


def test_reply_ends_too_early(pair: tuple[socket.socket, socket.socket]) -> None:
    client, daemon = pair
    daemon.sendall(b"x")
    daemon.close()
    with pytest.raises(ValueError, match="the reply ends early"):
        Connection(client, 20.0, 10).read(2)


def test_deadline_covers_sending(pair: tuple[socket.socket, socket.socket]) -> None:
    started = time.monotonic()
    with within(20), pytest.raises(OSError, match=r"does not reply in time|timed out"):
        Connection(pair[0], 0.2, 10).send(b"x" * (16 << 20))
    assert time.monotonic() - started >= 0.2


# -- HTTP ------------------------------------------------------------------------------------------------------------

# A relative path, because the path of a socket must be short. The tests change the working directory.
SOCKET = "docker.sock"


class _Daemon(Daemon):
    def __init__(self, handler: type[socketserver.BaseRequestHandler], pieces: Pieces) -> None:
        super().__init__(SOCKET, handler, pieces)
        self.requests: list[str] = []


class _Handler(socketserver.StreamRequestHandler):
    """Replies to every request with the bytes that the test set, which need not be valid HTTP."""

    server: _Daemon

    def handle(self) -> None:
        self.server.requests.append(b"".join(iter(self.rfile.readline, b"\r\n")).decode())
        for piece in self.server.pieces:
            if piece is None:
                self.server.over.wait(20)
                return
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(0.01)


class _HttpHandler(http.server.BaseHTTPRequestHandler):
    """Replies as dockerd does: in HTTP/1.1, and without closing the connection unless the request asks for it."""

    protocol_version = "HTTP/1.1"
    server: _Daemon

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        sent = self.rfile.read(size).decode()
        self.server.requests.append(f"{self.command} {self.path} {self.headers.get('Content-Type')} {sent}")
        self.send_response(500)
        self.end_headers()
        self.wfile.write(b"".join(piece or b"" for piece in self.server.pieces))

    def do_DELETE(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.path} for {self.headers['Host']}")
        body = b"".join(piece or b"" for piece in self.server.pieces)
        self.send_response(200 if self.path == "/info" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_args: t.Any) -> None:
        """Log nothing. The default method fails, because the address of a Unix socket's peer is not a pair."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> t.Iterator[Serve]:
    """Return a function that starts a daemon, which sends the given bytes."""
    monkeypatch.chdir(tmp_path)
    with daemons() as start:
        yield lambda *pieces, handler=_Handler: start(_Daemon(handler, pieces))


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"DefaultRuntime": "runc"}\n', {"DefaultRuntime": "runc"}),
        (b"[1, null]", [1, None]),
        (b"null", None),
        ('{"Name": "n\u00f6de"}'.encode(), {"Name": "n\u00f6de"}),
        (b'{"a": "\\r\\n\\r\\n"}\r\n\r\n', {"a": "\r\n\r\n"}),
        (b'{"a": "' + b"x" * 300_000 + b'"}', {"a": "x" * 300_000}),
    ],
    ids=["object", "array", "null", "UTF-8", "blank lines", "large"],
)
def test_http_get_json(monkeypatch: pytest.MonkeyPatch, serve: Serve, body: bytes, value: t.Any) -> None:
    # If the client waited for the end of the connection, the requests would take until this timeout.
    monkeypatch.setattr(unix_socket, "HTTP_TIMEOUT", 5.0)
    daemon = serve(body, handler=_HttpHandler)
    started = time.monotonic()
    assert http_get_json(SOCKET, "/info") == value
    assert http_get_json(SOCKET, "/none") is None
    assert time.monotonic() - started < 4
    # dockerd refuses a request without the header Host.
    assert [request.partition(" for ")[0] for request in daemon.requests] == ["/info", "/none"]
    assert not any(request.endswith((" ", "None")) for request in daemon.requests)


def test_response_in_pieces(serve: Serve) -> None:
    serve(b"HTTP/1.0 2", b"00 OK\r\nX: 1\r\n\r", b"\n", b'{"a"', b": 1", b"}")
    assert http_get_json(SOCKET, "/info") == {"a": 1}


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"SSH-2.0-OpenSSH_9.6\r\n"],
        [b'{"a": 1}'],
        [_answer(b'{"a": 1}')[:-1]],
        [_answer(b"{}")[:-4]],
        [b"HTTP/1.1 " + b"x" * 70_000],
        [_answer(b"")],
        [_answer(b"OK")],
        [_answer(b'{"a": "\xff"}')],
        [_answer(b"{}", "404 Not Found")],
        [_answer(b"{}", "500 200")],
        [_answer(b"{}", "204 No Content")],
    ],
    ids=[
        "nothing", "not HTTP", "no head", "body cut short", "head cut short", "endless line", "empty", "not JSON",
        "not UTF-8", "404", "500", "204",
    ],
)  # fmt: skip
def test_invalid_response(serve: Serve, pieces: Pieces) -> None:
    daemon = serve(*pieces)
    assert http_get_json(SOCKET, "/info") is None
    assert len(daemon.requests) == 1


@pytest.mark.parametrize("pieces", [[None], [b"HTTP/1.1 200 OK\r\n", None], [_answer(b"{}")[:-1], None]])
def test_hung_daemon(monkeypatch: pytest.MonkeyPatch, serve: Serve, pieces: Pieces) -> None:
    monkeypatch.setattr(unix_socket, "HTTP_TIMEOUT", 0.3)
    daemon = serve(*pieces)
    started = time.monotonic()
    assert http_get_json(SOCKET, "/info") is None
    assert 0.3 <= time.monotonic() - started < 10
    assert len(daemon.requests) == 1


def test_socket_without_listener(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("dead.sock")
    (tmp_path / "file").write_text("")
    for path in ("dead.sock", "file", "none.sock", ".", "x" * 200):
        assert http_get_json(path, "/info") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_without_permission(serve: Serve) -> None:
    daemon = serve(_answer(b"{}"))
    os.chmod(SOCKET, 0o600)
    assert http_get_json(SOCKET, "/info") == {}
    try:
        os.seteuid(65534)
        assert http_get_json(SOCKET, "/info") is None
    finally:
        os.seteuid(0)
    assert len(daemon.requests) == 1


def test_connection_is_closed(serve: Serve) -> None:
    serve(_answer(b"{}", "500 Internal Server Error"))
    before = len(os.listdir("/proc/self/fd"))
    for path in (SOCKET, "none.sock"):
        http_get_json(path, "/info")
    deadline = time.monotonic() + 10
    # The daemon closes its sockets a moment later.
    while len(os.listdir("/proc/self/fd")) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before


def test_http_request(serve: Serve) -> None:
    daemon = serve(b'{"message":"no such thing"}\n', handler=_HttpHandler)
    answer = http_request(SOCKET, "POST", "/a", {"n": "\u00f6"})
    assert answer == HttpResponse(500, b'{"message":"no such thing"}\n')
    assert answer.refused
    assert answer.error_message() == "no such thing"
    http_request(SOCKET, "POST", "/b")
    http_request(SOCKET, "DELETE", "/c")
    assert daemon.requests == [
        'POST /a application/json {"n": "\\u00f6"}',
        "POST /b application/json ",
        "DELETE /c None ",
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"page not found\n", "page not found"),
        (b"", "status 404"),
        (b"[]", "[]"),
        (b'{"message": ""}', '{"message": ""}'),
        (b"\xff", "\ufffd"),
    ],
)
def test_error_message(body: bytes, message: str) -> None:
    assert HttpResponse(404, body).error_message() == message
    assert not HttpResponse(304, body).refused


@pytest.mark.parametrize("piece", [b"", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.0\r\n\r\n", b"SSH-2 200 OK\r\n\r\n"])
def test_response_that_is_not_http(serve: Serve, piece: bytes) -> None:
    serve(piece)
    with pytest.raises(ValueError, match="not HTTP"):
        http_request(SOCKET, "DELETE", "/x")


def test_own_timeout(serve: Serve) -> None:
    serve(None)
    started = time.monotonic()
    with pytest.raises(OSError):
        http_request(SOCKET, "POST", "/x", timeout=0.2)
    assert time.monotonic() - started < 5


def test_deeply_nested_response(serve: Serve) -> None:
    serve(b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 200_000)
    assert http_get_json(SOCKET, "/info") is None
