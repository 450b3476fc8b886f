# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A running Docker in a directory tree: unit, process, and a socket that answers."""

from __future__ import annotations

import contextlib
import json
import socketserver
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import serving, short_folder

if t.TYPE_CHECKING:
    from pathlib import Path

PID = 4711
UNIT = "/usr/lib/systemd/system/docker.service"
CONTROL_GROUP = "/sys/fs/cgroup/system.slice/docker.service/cgroup.procs"
SOCKET = "/run/docker.sock"


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False
    info: t.ClassVar[dict[str, t.Any]] = {}
    containers: t.ClassVar[list[dict[str, t.Any]]] = []
    requests: t.ClassVar[list[bytes]] = []


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        request = self.rfile.readline()
        for _line in iter(self.rfile.readline, b"\r\n"):
            pass
        self.server.requests.append(request.split()[1])
        listed = self.server.containers[: 20 if b"limit=20" in request else None]
        answer: t.Any = listed if b"/containers/json" in request else self.server.info
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(answer).encode())


class FakeDocker:
    """The directory tree. ``info`` is the daemon's answer about itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = HostFS(str(root), live=True)
        self.info: dict[str, t.Any] = {
            "ServerVersion": "26.1.5",
            "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
            "DefaultRuntime": "runc",
            "CDISpecDirs": [],
            "LiveRestoreEnabled": True,
            "ContainersRunning": 3,
        }
        self.containers: list[dict[str, t.Any]] = []
        self.requests: list[t.Any] = []
        self.commands: list[list[str]] = []
        self.write("/usr/bin/dockerd", mode=0o755)
        self.write(UNIT, "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n")
        self.write("/usr/lib/systemd/system/docker.socket", f"[Socket]\nListenStream={SOCKET}\n")
        self.path("/tmp").mkdir()

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def write(self, inner: str, content: str = "", mode: int = 0o644) -> None:
        path = self.path(inner)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        path.chmod(mode)

    def runs(self, pid_file: str | None = None, name: str = "dockerd") -> None:
        """Add the process, found by its pid file or else by its control group."""
        self.write(f"/proc/{PID}/comm", f"{name}\n")
        self.write(pid_file or CONTROL_GROUP, f"{PID}\n")

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
        return 0, "Docker version 26.1.5, build 411e817\n" if "--version" in argv else "", ""

    @contextlib.contextmanager
    def answers(self, socket: str = SOCKET) -> t.Iterator[None]:
        self.path(socket).parent.mkdir(parents=True, exist_ok=True)
        server = _Server(str(self.path(socket)), _Handler)
        server.info = self.info  # type: ignore[misc]
        server.containers = self.containers  # type: ignore[misc]
        server.requests = self.requests  # type: ignore[misc]
        with serving(server, self.path(socket)):
            yield


@contextlib.contextmanager
def docker_host() -> t.Iterator[FakeDocker]:
    with short_folder() as root:
        yield FakeDocker(root)
