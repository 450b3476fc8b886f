# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake CRI with images and pods, behind a socket with the required part of gRPC."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields, numbers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import serving, short_folder

if t.TYPE_CHECKING:
    import io
    from pathlib import Path

SOCKET = "/run/cri.sock"
PREFACE = 24
# The largest frame that a peer accepts by default.
FRAME = 16384
# The largest reply of containerd and CRI-O, in bytes.
LARGEST = 16 << 20
DATA, HEADERS, SETTINGS = 0, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header without compression. Long values need a size of more than one byte."""
    size = bytes((len(value),)) if len(value) < 127 else b"\x7f" + _rest(len(value) - 127)
    return b"\x40" + bytes((len(name),)) + name + size + value


def _rest(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((number & 127 | 128,)) + _rest(number >> 7)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    cri: FakeCri


def read_request(stream: io.BufferedIOBase | t.BinaryIO) -> tuple[str, bytes]:
    """Return the method and the message of one gRPC request. Raises IndexError if the client sends nothing more."""
    stream.read(PREFACE)
    method = ""
    while True:
        head = stream.read(9)
        payload = stream.read(int.from_bytes(head[:3], "big"))
        if head[3] == HEADERS:
            method = payload[8 : 8 + payload[7]].decode().rsplit("/", 1)[1]
        elif head[3] == DATA:
            return method, payload[5:]


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        # A client that only tests the socket sends nothing.
        with contextlib.suppress(OSError, IndexError):
            method, message = read_request(self.rfile)
            self.wfile.write(frame(SETTINGS, 0, 0) + self.server.cri.answer(method, message))
            self.rfile.read()


def _failed(status: bytes, message: str) -> bytes:
    trailers = literal(b"grpc-status", status) + literal(b"grpc-message", message.encode())
    return frame(HEADERS, 5, 1, b"\x88" + trailers)


class FakeCri:
    """The CRI in a directory tree. Its containers end at once with ``status`` (None: they still run) and write ``log``.

    Containers that get GPUs, by the runtime handler nvidia or as a CDI device, also write ``gpu_log``. ``registry``
    contains the images that can be pulled. ``errors`` maps methods to error messages, and the method ``silent`` gets no
    reply. ``pid`` is the first process of the container, ``pod_info`` and ``handler`` are what the CRI reports about a
    pod, and ``ended`` says that no pod is ready.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = HostFS(str(root), live=True)
        self.config: dict[str, t.Any] = {"sandboxImage": "pause:1", "containerd": {"runtimes": {"nvidia": {}}}}
        self.images = {"pause:1": "sha256:aa", "busybox:1": "sha256:bb"}
        self.pods: dict[str, bytes] = {}
        self.made: list[bytes] = []
        self.containers: list[bytes] = []
        self.calls: list[str] = []
        self.errors: dict[str, str] = {}
        self.silent = ""
        self.status: int | None = 0
        self.statuses: list[int] = []
        self.log = "2026-01-01T00:00:00.0Z stdout F hello\n"
        self.gpu_log = ""
        self.registry: dict[str, str] = {}
        self.pid = 0
        self.pod_info: dict[str, t.Any] = {}
        self.handler = ""
        self.ended = False
        (root / "run").mkdir()

    def answer(self, method: str, message: bytes) -> bytes:
        self.calls.append(method)
        if method == self.silent:
            time.sleep(1)
            return b""
        if method in self.errors:
            return _failed(b"2", self.errors[method])
        content = getattr(self, "do" + re.sub("([A-Z])", r"_\1", method).lower())(message)
        if len(content) > LARGEST:
            return _failed(b"8", f"trying to send message larger than max ({len(content)} vs. {LARGEST})")
        message = b"\0" + len(content).to_bytes(4, "big") + content
        frames = (message[start : start + FRAME] for start in range(0, len(message), FRAME))
        return frame(HEADERS, 4, 1, b"\x88") + b"".join(frame(DATA, 0, 1, each) for each in frames)

    def do_status(self, _message: bytes) -> bytes:
        return field(1, b"") + field(2, field(1, "config") + field(2, json.dumps(self.config)))

    def do_version(self, _message: bytes) -> bytes:
        return field(3, "1.7.24")

    def do_plugins(self, _message: bytes) -> bytes:
        return field(1, field(1, "io.containerd.grpc.v1") + field(2, "cri"))

    def do_image_status(self, message: bytes) -> bytes:
        name = dict(fields(dict(fields(message))[1]))[1].decode()
        return field(1, field(1, self.images[name])) if name in self.images else b""

    def do_list_images(self, _message: bytes) -> bytes:
        return b"".join(field(1, field(1, identifier)) for identifier in self.images.values())

    def do_pull_image(self, message: bytes) -> bytes:
        name = dict(fields(dict(fields(message))[1]))[1].decode()
        self.images[name] = self.registry[name]
        return field(1, self.registry[name])

    def do_remove_image(self, message: bytes) -> bytes:
        """Remove all names of the image, as containerd does (internal/cri/server/images/image_remove.go)."""
        name = dict(fields(dict(fields(message))[1]))[1].decode()
        removed = self.images.get(name)
        self.images = {other: identifier for other, identifier in self.images.items() if identifier != removed}
        return b""

    def do_run_pod_sandbox(self, message: bytes) -> bytes:
        name = f"pod{len(self.calls)}"
        self.pods[name] = message
        self.made.append(message)
        return field(1, name)

    def do_create_container(self, message: bytes) -> bytes:
        self.containers.append(message)
        return field(1, "container1")

    def do_start_container(self, message: bytes) -> bytes:
        assert dict(fields(message)) == {1: b"container1"}
        pod, config = (dict(fields(dict(fields(self.containers[-1]))[number])) for number in (3, 2))
        folder = self.root / pod[3].decode().lstrip("/")
        variables = [dict(fields(content)) for number, content in _parts(self.containers[-1], 2) if number == 6]
        handler = dict(fields(self.made[-1])).get(2)
        by_runtime = handler == b"nvidia" and {1: b"NVIDIA_VISIBLE_DEVICES", 2: b"all"} in variables
        by_cdi = b"nvidia.com/gpu=all" in [
            dict(fields(content))[1] for number, content in _parts(self.containers[-1], 2) if number == 17
        ]
        (folder / config[11].decode()).write_text(self.log + (self.gpu_log if by_runtime or by_cdi else ""))
        return b""

    def do_container_status(self, _message: bytes) -> bytes:
        status = self.statuses.pop(0) if self.statuses else self.status
        status_fields = b"" if status is None else field(3, 2) + (field(7, status) if status else b"")
        return field(1, field(1, "container1") + status_fields) + _info({"pid": self.pid})

    def do_pod_sandbox_status(self, _message: bytes) -> bytes:
        return field(1, field(9, self.handler)) + _info(self.pod_info)

    def do_list_pod_sandbox(self, message: bytes) -> bytes:
        selector = dict(fields(dict(fields(message))[1]))
        # The state of the selector is a message, empty for the state 0.
        if 2 in selector and self.ended:
            return b""
        labelled = [name for name, pod in self.pods.items() if _label(pod) == selector[3]]
        return b"".join(field(1, field(1, name) + field(3, 1)) for name in labelled)

    def do_stop_pod_sandbox(self, message: bytes) -> bytes:
        assert dict(fields(message))[1].decode() in self.pods
        return b""

    def do_remove_pod_sandbox(self, message: bytes) -> bytes:
        del self.pods[dict(fields(message))[1].decode()]
        return b""

    @contextlib.contextmanager
    def answers(self) -> t.Iterator[None]:
        path = self.root / SOCKET.lstrip("/")
        server = _Server(str(path), _Handler)
        server.cri = self
        with serving(server, path):
            yield


def _parts(message: bytes, number: int) -> list[tuple[int, bytes]]:
    return list(fields(dict(fields(message))[number]))


def _info(data: dict[str, t.Any]) -> bytes:
    """Return the map of a verbose reply."""
    return field(2, field(1, "info") + field(2, json.dumps(data)))


def _label(pod: bytes) -> bytes:
    return dict(fields(dict(fields(pod))[1]))[6]


def network_of(pod: bytes) -> int:
    """Return the NamespaceMode of a pod's network."""
    linux = dict(fields(dict(fields(dict(fields(pod))[1]))[8]))
    return dict(numbers(dict(fields(linux[2]))[1]))[1]


def parent_of(pod: bytes) -> str:
    """Return the parent of a pod's control groups."""
    return dict(fields(dict(fields(dict(fields(pod))[1]))[8])).get(1, b"").decode()


@contextlib.contextmanager
def cri_host() -> t.Iterator[FakeCri]:
    with short_folder() as root:
        yield FakeCri(root)
