# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import runtime_config, version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import header
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import Daemon, Pieces, daemons

if t.TYPE_CHECKING:
    from pathlib import Path

    # Type, flags, stream and payload.
    Frame = t.Tuple[int, int, int, bytes]
    Serve = t.Callable[..., "_Daemon"]

# A relative path, because the path of a socket must be short. The tests change the working directory.
SOCKET = "cri.sock"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
CONFIG = {"containerd": {"defaultRuntimeName": "runc", "runtimes": {"n\u00f6": {"options": {"BinaryName": "/b"}}}}}


def _frame(kind: int, flags: int = 0, stream: int = 1, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + _varint(high) if high else bytes((low,))


def _field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _entry(key: bytes, value: bytes) -> bytes:
    return _field(2, _field(1, key) + _field(2, value))


CONDITION = _field(1, _field(1, _field(1, b"RuntimeReady") + _field(2, 1)))
ENTRIES = _entry(b"golang", b'"go1.24"') + _entry(b"config", json.dumps(CONFIG).encode())
HANDLERS = _field(3, _field(2, _field(1, 1))) + _field(3, _field(1, b"nvidia"))
# Unknown fields, of each wire type.
UNKNOWN = _field(4, _field(1, 1)) + _field(5, 1 << 60) + b"\x31" + b"\7" * 8 + b"\x3d" + b"\7" * 4 + _field(2000, b"x")
ANSWER = CONDITION + ENTRIES + HANDLERS + UNKNOWN
STATUS = CONFIG

HELLO = _frame(SETTINGS, 0, 0, b"\x00\x05\x00\x00\x40\x00")
HEAD = _frame(HEADERS, END_HEADERS, 1, b"\x88")
# An error of gRPC comes without a message.
FAILURE = _frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88\x40\x0bgrpc-status\x0212")
TRAILERS = _frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\x0bgrpc-status\x010")


def _message(content: bytes = ANSWER, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(content).to_bytes(4, "big") + content


def _body(content: bytes = ANSWER) -> bytes:
    """Return a reply of gRPC: the headers, the message, the trailers."""
    message = _message(content)
    pieces = (message[start : start + 16384] for start in range(0, len(message), 16384))
    return HELLO + HEAD + b"".join(_frame(DATA, 0, 1, piece) for piece in pieces) + TRAILERS


class _Daemon(Daemon):
    def __init__(self, pieces: Pieces, pause: float) -> None:
        super().__init__(SOCKET, _Handler, pieces)
        self.pause = pause
        self.preface = b""
        self.frames: list[Frame] = []
        self.closed = threading.Event()


class _Handler(socketserver.StreamRequestHandler):
    """Replies to a request with the pieces of its daemon."""

    server: _Daemon

    def handle(self) -> None:
        self.server.preface = self.rfile.read(len(PREFACE))
        while not self.server.frames or self.server.frames[-1][:2] != (DATA, END_STREAM):
            self.server.frames.append(self.frame())
        try:
            for piece in self.server.pieces:
                if piece is None:
                    self.server.over.wait(20)
                    break
                self.wfile.write(piece)
                time.sleep(self.server.pause)
            # Record the remaining frames of the client.
            self.request.shutdown(socket.SHUT_WR)
            while True:
                self.server.frames.append(self.frame())
        except (OSError, IndexError):
            self.server.closed.set()

    def frame(self) -> Frame:
        head = self.rfile.read(9)
        return head[3], head[4], int.from_bytes(head[5:], "big"), self.rfile.read(int.from_bytes(head[:3], "big"))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> t.Iterator[Serve]:
    """Return a function that starts a daemon, which sends the given pieces."""
    monkeypatch.chdir(tmp_path)
    with daemons() as start:
        yield lambda *pieces, pause=0.0: start(_Daemon(pieces, pause))


def test_request(serve: Serve) -> None:
    daemon = serve(_body())
    assert runtime_config(SOCKET) == STATUS
    assert daemon.preface == PREFACE
    settings, window, headers, data = daemon.frames[:4]
    assert settings[:3] == (SETTINGS, 0, 0)
    values = {settings[3][at + 1]: int.from_bytes(settings[3][at + 2 : at + 6], "big") for at in (0, 6)}
    assert values == {2: 0, 4: grpc.LIMIT}
    assert window == (WINDOW_UPDATE, 0, 0, (grpc.LIMIT - 65535).to_bytes(4, "big"))
    assert headers[:3] == (HEADERS, END_HEADERS, 1)
    assert _headers(headers[3]) == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/runtime.v1.RuntimeService/Status",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    assert data == (DATA, END_STREAM, 1, b"\0\0\0\0\2\x08\x01")


def _headers(block: bytes) -> dict[str, str]:
    """Decode literals without indexing, and nothing else."""
    words: list[str] = []
    while block:
        if len(words) % 2 == 0:
            assert block[0] == 0
            block = block[1:]
        size = block[0]
        assert size < 127
        words.append(block[1 : 1 + size].decode())
        block = block[1 + size :]
    return dict(zip(words[::2], words[1::2]))


def _trickled(content: bytes) -> list[bytes]:
    return [content[at : at + 1] for at in range(len(content))]


def _in_frames(size: int) -> bytes:
    message = _message()
    return b"".join(_frame(DATA, 0, 1, message[at : at + size]) for at in range(0, len(message), size))


@pytest.mark.parametrize(
    "pieces",
    [
        [_body()],
        _trickled(_body()),
        [HELLO + HEAD + _frame(DATA, END_STREAM, 1, _message())],
        # The client waits for the message only.
        [HEAD + _frame(DATA, 0, 1, _message()), None],
        [HEAD, _in_frames(1)],
        [HEAD, _in_frames(7), TRAILERS],
        [HEAD + _frame(DATA) + _in_frames(100) + _frame(DATA, END_STREAM)],
        [HEAD + _frame(DATA, PADDED, 1, b"\x05" + _message() + b"\0" * 5)],
        [HEAD + _frame(DATA, PADDED, 1, b"\0" + _message()[:9]) + _frame(DATA, PADDED, 1, b"\0" + _message()[9:])],
        [HEAD + _frame(DATA, PADDED, 1, b"\xff" + b"\0" * 255) + _in_frames(50)],
        [_frame(HEADERS, 0, 1, b"\x88") + _frame(CONTINUATION, END_HEADERS, 1, b"\x88") + _in_frames(9999)],
        [_frame(WINDOW_UPDATE, 0, 0, b"\0\1\0\0"), _frame(0xEE, 0xFF, 7, b"?"), _frame(SETTINGS, ACK, 0), _body()],
        # A daemon that stops, but still replies to this request.
        [_frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff" + b"\0" * 4) + _body()],
        [_frame(GOAWAY, 0, 0, b"\x80\0\0\1" + b"\0" * 4 + b"bye") + _body()],
    ],
    ids=[
        "usual", "trickled", "no trailers", "not closed", "tiny frames", "small frames", "empty frames", "padded",
        "padded by nothing", "only padding", "continued headers", "other frames", "going away", "going away after this",
    ],
)  # fmt: skip
def test_answers(serve: Serve, pieces: Pieces) -> None:
    serve(*pieces)
    started = time.monotonic()
    assert runtime_config(SOCKET) == STATUS
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CONDITION + HANDLERS, {}),
        (_field(1, b"") + _entry(b"config", b'{"sandboxImage": "pause"}'), {"sandboxImage": "pause"}),
        (_entry(b"lastCNILoadStatus", b"OK") + ENTRIES + CONDITION, CONFIG),
        (_field(2, b"") + CONDITION + _field(2, _field(1, b"config") + _field(2, b"[]")), None),
        (CONDITION + _entry(b"config", b"null"), None),
        (CONDITION + _entry(b"config", b"{"), None),
        (CONDITION + _entry(b"config", b""), None),
        (CONDITION + _entry(b"config", b'{"a": "\xff"}'), None),
        (CONDITION + _entry(b"config", b"[" * 200_000), None),
        (CONDITION + b"\x12\x05ab", None),
        (CONDITION + b"\x3d44", None),
        (CONDITION + b"\x13", None),
        (CONDITION + b"\x80", None),
        (CONDITION + b"\x08" + b"\x80" * 20 + b"\0", None),
        (HANDLERS + ENTRIES, None),
        (b"", None),
        (b"<html>No</html>", None),
    ],
    ids=[
        "no config", "CRI-O", "not JSON elsewhere", "an array", "null", "broken JSON", "empty", "not UTF-8", "nested",
        "entry cut", "number cut", "unknown kind", "key cut", "endless number",
        "no status", "nothing", "HTML",
    ],
)  # fmt: skip
def test_messages(serve: Serve, answer: bytes, expected: dict[str, t.Any] | None) -> None:
    serve(_body(answer))
    assert runtime_config(SOCKET) == expected


def test_version(serve: Serve) -> None:
    daemon = serve(_body(_field(1, b"0.1.0") + _field(2, b"containerd") + _field(3, b"1.7.24~ds1") + _field(4, b"v1")))
    assert version(SOCKET) == "1.7.24~ds1"
    headers, data = daemon.frames[2:4]
    assert _headers(headers[3])[":path"] == "/runtime.v1.RuntimeService/Version"
    assert data == (DATA, END_STREAM, 1, b"\0\0\0\0\0")


@pytest.mark.parametrize("answer", [b"", _field(3, b"\xff"), b"\x1a\x05ab", _field(2, b"containerd")])
def test_no_version(serve: Serve, answer: bytes) -> None:
    serve(_body(answer))
    assert not version(SOCKET)


@pytest.mark.parametrize("content", [b"\x0a\x00", b"\x08\x00", b"\x0d\0\0\0\0"])
def test_many_fields_are_refused(content: bytes) -> None:
    for read in (grpc.fields, grpc.numbers):
        assert len(list(read(content * 100_000))) in (0, 100_000)
        with pytest.raises(ValueError, match="more than 100000 fields"):
            list(read(content * 100_001))


@pytest.mark.parametrize("excess", [0, 1])
def test_large_answer(serve: Serve, excess: int) -> None:
    # The limit includes the five bytes that gRPC puts before a message.
    rest = grpc.LIMIT + excess - 5 - len(CONDITION + _entry(b"config", b'{"x": ""}' + b"x" * 65536)) + 65536
    config = {"x": "x" * rest}
    answer = CONDITION + _entry(b"config", json.dumps(config).encode())
    assert len(_message(answer)) == grpc.LIMIT + excess
    serve(_body(answer))
    assert runtime_config(SOCKET) == (None if excess else config)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [HELLO],
        [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"],
        [b"\0" * 5000],
        [b"\xff" * 5000],
        [HELLO + FAILURE, None],
        [HELLO + HEAD + TRAILERS, None],
        [HELLO + HEAD + _frame(DATA, END_STREAM, 1, _message()[:-1]), None],
        [(HELLO + HEAD + _frame(DATA, 0, 1, _message()))[:-1]],
        [HELLO[:-1]],
        [HELLO + HEAD + _frame(RST_STREAM, 0, 1, b"\0\0\0\2"), None],
        [_frame(GOAWAY, 0, 0, b"\0" * 8) + _body(), None],
        # The first bit of the stream ID is reserved.
        [_frame(GOAWAY, 0, 0, b"\x80" + b"\0" * 7) + _body(), None],
        [_frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2\x88") + _body(), None],
        [HEAD + _frame(DATA, 0, 1, _message(compressed=1)), None],
        [HEAD + _frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"), None],
        [HEAD + _frame(DATA, PADDED, 1, b""), None],
        [HEAD + _frame(DATA, PADDED, 1, b"\4" + b"\0" * 3), None],
        [_frame(SETTINGS, 0, 0, b"\0" * 16386) + _body(), None],
    ],
    ids=[
        "nothing", "only settings", "HTTP/1", "zeros", "ones", "an error", "no message", "message cut", "frame cut",
        "settings cut", "reset", "going away before this", "going away at once", "a promise", "compressed", "too long",
        "no padding", "too much padding", "long frame",
    ],
)  # fmt: skip
def test_no_proper_answer(serve: Serve, pieces: Pieces) -> None:
    daemon = serve(*pieces)
    started = time.monotonic()
    assert runtime_config(SOCKET) is None
    # The client does not wait for a response that cannot arrive.
    assert time.monotonic() - started < 4
    assert daemon.preface == PREFACE


def test_frames_that_require_a_reply(serve: Serve) -> None:
    ping = _frame(PING, 0, 0, b"12345678")
    daemon = serve(HELLO + ping, _frame(PING, ACK, 0, b"87654321") + _frame(SETTINGS, ACK, 0) + _body())
    assert runtime_config(SOCKET) == STATUS
    assert daemon.closed.wait(10)
    # The client replies to both SETTINGS frames and to the ping, and not to frames that are replies.
    assert daemon.frames[4:] == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678"), (SETTINGS, ACK, 0, b"")]


def _endless(frame: bytes) -> list[bytes]:
    return [frame] * 1000


@pytest.mark.parametrize(
    ("pieces", "pause"),
    [
        ([None], 0.0),
        ([HELLO + HEAD, None], 0.0),
        ([(HELLO + HEAD + _frame(DATA, 0, 1, _message()))[:-1], None], 0.0),
        (_trickled(HELLO + HEAD + _in_frames(1)), 0.01),
        (_endless(_frame(PING, 0, 0, b"12345678")), 0.01),
        (_endless(_frame(DATA)), 0.01),
        ([HEAD + _frame(DATA, 0, 1, b"\0\0\0\xff\xff"), *_endless(_frame(DATA, 0, 1, b"\0"))], 0.01),
    ],
    ids=["silence", "no message", "cut message", "trickle", "pings", "empty frames", "slow message"],
)
def test_hung_daemon(monkeypatch: pytest.MonkeyPatch, serve: Serve, pieces: Pieces, pause: float) -> None:
    monkeypatch.setattr(grpc, "TIMEOUT", 0.3)
    serve(*pieces, pause=pause)
    started = time.monotonic()
    assert runtime_config(SOCKET) is None
    assert 0.3 <= time.monotonic() - started < 3


def test_one_deadline_for_all(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    # Each wait ends before the timeout, but all of them together take 15 s.
    monkeypatch.setattr(grpc, "TIMEOUT", 0.5)
    serve(*[HELLO] * 50, pause=0.3)
    started = time.monotonic()
    assert runtime_config(SOCKET) is None
    assert 0.5 <= time.monotonic() - started < 10


def test_daemon_that_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grpc, "TIMEOUT", 0.3)
    started = time.monotonic()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(SOCKET)
        deaf.listen(1)
        assert runtime_config(SOCKET) is None
    assert 0.3 <= time.monotonic() - started < 3


def test_standard_timeout() -> None:
    assert 1 <= grpc.TIMEOUT <= 10


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("dead.sock")
    (tmp_path / "file").write_text("")
    for path in ("dead.sock", "file", "none.sock", ".", "x" * 200, "a\0b", ""):
        assert runtime_config(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_without_permission(serve: Serve) -> None:
    serve(_body())
    os.chmod(SOCKET, 0o600)
    try:
        os.seteuid(65534)
        assert runtime_config(SOCKET) is None
    finally:
        os.seteuid(0)
    assert runtime_config(SOCKET) == STATUS


def test_no_connection_stays_open(serve: Serve) -> None:
    serve(HELLO + FAILURE)
    before = len(os.listdir("/proc/self/fd"))
    for path in (SOCKET, "none.sock"):
        runtime_config(path)
    deadline = time.monotonic() + 10
    # The daemon closes its sockets a moment later.
    while len(os.listdir("/proc/self/fd")) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before


# -- HPACK -----------------------------------------------------------------------------------------------------------

# Headers as containerd 1.6.20 and 2.1.9 send them after a call that failed, with Huffman codes.
START = "885f8b1d75d0620d263d4c4d656440889acac8b21234da8f01"
NO_RUNTIME_1_6 = START + (
    "3240899acac8b5254207317fb49466a0b22893a93152a20754919fca965b524d496e2951d4b2da926a4aa4a7b14fe6a56f32add72b2ff2a1"
    "90a10f54a69adb0b27"
)
NO_RUNTIME_2_1 = START + (
    "3240899acac8b5254207317feab6a1c7415449d498a95355ec8a596d4935255253d8a20754919fca9fccaf362134f3e17003211a70446651"
    "10849642bf28dc78807237a408091bf1b657c124a4924238cb6595995f1bbfcdc52a3a965b524d495494f629fcd4ade655bae565fe54321"
    "421ea94d35b6164"
)
NO_CONTAINER = START + (
    "3540899acac8b5254207317fb21d4a16cb0f6287212db2c2c8a789cb5289b3d2893a929aa91421ea48cd516c53f9a95bccab75cacbfcdc52"
    "a3a5494f6d527f"
)


@pytest.mark.parametrize(
    ("block", "status", "message"),
    [
        (
            NO_RUNTIME_1_6,
            "2",
            'failed to get sandbox runtime: no runtime for "n%C3%B6pe" is configured',
        ),
        (
            NO_RUNTIME_2_1,
            "2",
            (
                "unable to get OCI runtime for sandbox"
                ' "f8522489160acc462c3f2cccfde9fa68c06b8d10cb9b5e90dfcddc635ef3f9a7":'
                ' no runtime for "n%C3%B6pe" is configured'
            ),
        ),
        (NO_CONTAINER, "5", 'an error occurred when try to find container "n%C3%B6pe": not found'),
    ],
)
def test_real_headers(block: str, status: str, message: str) -> None:
    assert header(bytes.fromhex(block), "grpc-status") == status
    assert header(bytes.fromhex(block), "grpc-message") == message
    assert header(bytes.fromhex(block), "grpc-other") is None


LITERAL = b"\x01a\x03b c"


@pytest.mark.parametrize(
    "block",
    [
        b"\x40" + LITERAL,
        b"\x00" + LITERAL,
        b"\x10" + LITERAL,
        # An indexed header, a change of the table size, and an indexed name with a literal value.
        b"\x88" + b"\x3f\x09" + b"\x5f\x01x" + b"\x0f\x10\x01y" + b"\x40" + LITERAL,
        b"\x40\x01b\x00" + b"\x40" + LITERAL,
        b"\x40\x01b\x7f\x01" + b"x" * 128 + b"\x40" + LITERAL,
    ],
)
def test_forms_of_headers(block: bytes) -> None:
    assert header(block, "a") == "b c"


def test_no_headers() -> None:
    assert header(b"", "a") is None
    assert header(b"\x88", ":status") is None


@pytest.mark.parametrize(
    "block",
    [
        b"\x40",
        b"\x40\x01",
        b"\x40\x01a",
        b"\x40\x01a\x02b",
        b"\x7f",
        b"\x7f\xff\xff\xff\xff\xff\xff",
        b"\x40\x01a\x84\xff\xff\xff\xff",
    ],
    ids=["nothing", "no name", "no value", "cut", "number cut", "endless number", "end in a string"],
)
def test_broken_headers(block: bytes) -> None:
    with pytest.raises(ValueError):
        header(block, "b")
