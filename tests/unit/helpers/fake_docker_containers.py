# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker with images and containers, behind a socket."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import typing as t
from urllib.parse import parse_qs, unquote, urlsplit

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import SOCKET, FakeDocker
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import serving

if t.TYPE_CHECKING:
    from pathlib import Path

    # Status and body.
    Answered = t.Tuple[int, bytes]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    docker: DockerWithContainers


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, content = self.server.docker.answer(self.command, self.path, body)
        self.send_response(status)
        self.end_headers()
        # The client closes the connection if the answer is too long.
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(content)

    def do_POST(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_request(self, *_args: t.Any) -> None:
        """Log nothing. The address of the peer of a Unix socket is not a pair."""


class DockerWithContainers(FakeDocker):
    """A Docker whose containers exit at once, with ``status`` (None: never) and ``output``.

    Containers with GPUs also print ``gpu_output``: through the runtime nvidia, through CDI, or with --gpus all.
    ``imported`` has the archive of each image with a label, by name.

    ``refused`` has the answer to requests by their beginning, and ``answers_to`` replaces the answer about containers:
    ``list`` of all, ``json`` and ``logs`` of one.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.images = ["gpufleet/busybox:1"]
        self.kept: dict[str, dict[str, t.Any]] = {}
        self.made: list[dict[str, t.Any]] = []
        self.requests: list[str] = []
        self.refused: dict[str, tuple[int, str]] = {}
        self.status: int | None = 0
        self.output = [(1, b"hello\n")]
        self.gpu_output = b""
        self.imported: dict[str, bytes] = {}
        self.archives: list[bytes] = []
        self.answers_to: dict[str, Answered] = {}

    def answer(self, method: str, request: str, body: bytes) -> Answered:
        address = urlsplit(request)
        path, query = unquote(address.path), parse_qs(address.query)
        self.requests.append(f"{method} {path}")
        for beginning, (status, message) in self.refused.items():
            if f"{method} {path}".startswith(beginning):
                return status, json.dumps({"message": message}).encode()
        if path == "/info":
            return _json(self.info)
        if path.startswith("/images/"):
            return self._about_images(method, path, query, body)
        if path == "/containers/create":
            made = json.loads(body)
            assert made["Image"] in [*self.images, *self.imported]
            self.made.append(made)
            self.kept[query["name"][0]] = made
            return 201, b'{"Id": "1"}'
        if path == "/containers/json":
            (label,) = json.loads(query["filters"][0])["label"]
            assert query["all"] == ["1"]
            return self.answers_to.get("list") or _json(
                [{"Id": name} for name, made in self.kept.items() if label in made["Labels"]]
            )
        name = path.split("/")[2]
        if name not in self.kept:
            return _missing()
        if method == "DELETE":
            assert query == {"force": ["1"], "v": ["1"]}
            del self.kept[name]
        return self._about(path.split("/")[3] if path.count("/") == 3 else "")

    def _about_images(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Answered:
        if path == "/images/create":
            return self._import(query, body)
        if path == "/images/json":
            return _json([{"Id": name} for name in self.imported])
        if method == "DELETE":
            assert not self.kept
            del self.imported[path[len("/images/") :]]
            return _json([])
        return _json({}) if path[len("/images/") : -len("/json")] in self.images else _missing()

    def _import(self, query: dict[str, list[str]], body: bytes) -> Answered:
        assert (query["fromSrc"], query["changes"]) == (["-"], ["LABEL gpufleet.nvidia.verify=1"])
        self.imported[f"{query['repo'][0]}:{query['tag'][0]}"] = body
        self.archives.append(body)
        return _json({"status": "sha256:00"})

    def _gpu_output(self) -> bytes:
        made = self.made[-1]
        requests = made["HostConfig"].get("DeviceRequests")
        by_runtime = made["HostConfig"].get("Runtime") == "nvidia" and "NVIDIA_VISIBLE_DEVICES=all" in made["Env"]
        asked = requests in (
            [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}], [{"Count": -1, "Capabilities": [["gpu"]]}],
        )  # fmt: skip
        return self.gpu_output if by_runtime or asked else b""

    def _about(self, what: str) -> Answered:
        if what in self.answers_to:
            return self.answers_to[what]
        if what == "json":
            running = self.status is None
            return _json({"State": {"Status": "running" if running else "exited", "ExitCode": self.status or 0}})
        if what == "logs":
            output = [*self.output, (1, self._gpu_output())]
            pieces = (bytes((stream, 0, 0, 0)) + len(text).to_bytes(4, "big") + text for stream, text in output)
            return 200, b"".join(pieces)
        return 204, b""

    @contextlib.contextmanager
    def answers(self, socket: str = SOCKET) -> t.Iterator[None]:
        self.path(socket).parent.mkdir(parents=True, exist_ok=True)
        server = _Server(str(self.path(socket)), _Handler)
        server.docker = self
        with serving(server, self.path(socket)):
            yield


def _json(content: t.Any) -> Answered:
    return 200, json.dumps(content).encode()


def _missing() -> Answered:
    return 404, b'{"message": "no such thing"}'
