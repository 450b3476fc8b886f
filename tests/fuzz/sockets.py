# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fuzz targets for replies of daemons (Docker over HTTP, a CRI over gRPC), and of hosts to the controller.

A thread replies to each request with the content of a mutated file; the request determines the name of the file. For
any reply, nvidia_container_info must return a description of the engine, and a test container must end with a result
or with ContainerError. The last target makes the report of an audit on the controller from the results of hosts.
"""

from __future__ import annotations

import contextlib
import html.parser
import json
import re
import socket
import tempfile
import threading
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.host_parts import SUBJECTS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import checkpoint
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes.plugins import Probe, device_plugins
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes.pod_resources import ask as ask_kubelet
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import list_plugins, runtime_config, version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import (
    ContainerError,
    ContainerSpec,
    DockerContainers,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.cri_pods import Cri, CriPods
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.page import page_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import lines_of, report_of
from ansible_collections.gpufleet.nvidia.tests.fuzz.reading import described, procfs_seeds, units_seeds
from ansible_collections.gpufleet.nvidia.tests.fuzz.trees import lay
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import DATA, HEADERS, frame, read_request
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    CONTROL_GROUP,
    PID,
    SOCKET,
    UNIT,
)

if t.TYPE_CHECKING:
    import random

    from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import Files

    Answer = t.Callable[[t.BinaryIO], bytes]

_SPEC = ContainerSpec("busybox:1", ("true",), "nvidia", {}, 0.2)
_CRI_SOCKET = "/run/cri.sock"


@contextlib.contextmanager
def _daemon(path: Path, answer: Answer) -> t.Iterator[None]:
    """Reply to each connection to a socket with the bytes that ``answer`` returns for its request."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(8)
        thread = threading.Thread(target=_serve, args=(server, answer), daemon=True)
        thread.start()
        try:
            yield
        finally:
            # This ends accept(), and so the thread.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(server: socket.socket, answer: Answer) -> None:
    while True:
        try:
            connection, _address = server.accept()
        except OSError:
            return
        with contextlib.suppress(OSError, IndexError), connection, connection.makefile("rb") as stream:
            content = answer(stream)
            connection.settimeout(5)
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)


def _content(files: Files, path: str) -> bytes:
    content = files.get(path, b"")
    return content if isinstance(content, bytes) else b""


# -- Docker ----------------------------------------------------------------------------------------------------------

# How a request begins (a regular expression, except for ?), and the name of the file with the reply.
_DOCKER = (
    ("GET /info", "info"),
    ("GET /images/", "image"),
    ("POST /containers/create", "created"),
    ("POST ", "started"),
    ("GET /containers/json?all", "own"),
    ("GET /containers/json", "containers"),
    ("DELETE ", "deleted"),
    (r"GET /containers/[^/]*/logs", "logs"),
    ("GET /containers/", "state"),
)
_HOST: Files = {
    "/usr/bin/dockerd": b"#!/bin/sh\n",
    UNIT: b"[Service]\nExecStart=/usr/bin/dockerd -H fd://\n",
    "/usr/lib/systemd/system/docker.socket": f"[Socket]\nListenStream={SOCKET}\n".encode(),
    f"/proc/{PID}/comm": b"dockerd\n",
    CONTROL_GROUP: f"{PID}\n".encode(),
}


def _docker_request(stream: t.BinaryIO) -> str:
    line = stream.readline().decode("latin-1")
    while stream.readline() not in (b"\r\n", b""):
        pass
    return next((name for start, name in _DOCKER if re.match(start.replace("?", r"\?"), line)), "")


def _ask_docker(folder: Path, answer: Answer) -> None:
    lay(folder, _HOST)
    host = HostFS(str(folder), True)
    with _daemon(folder / SOCKET.lstrip("/"), answer):
        described(folder, True, "engines")
        DOCKER.containers_stopped_by_restart(host, DOCKER.inspect(host, None))
        with contextlib.suppress(ContainerError):
            DockerContainers(host.real_path(SOCKET), SOCKET).run(_SPEC)


def docker(folder: Path, files: Files, _rng: random.Random) -> None:
    """Test replies that are valid HTTP with a mutated body."""
    _ask_docker(folder, lambda stream: b"HTTP/1.0 200 OK\r\n\r\n" + _content(files, _docker_request(stream)))


def docker_seeds() -> list[Files]:
    """Return the replies of a Docker with runtimes, containers, and a test container that an earlier run left."""
    info = {
        "ServerVersion": "26.1.5",
        "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "/x", "runtimeArgs": []}},
        "DefaultRuntime": "runc",
        "CDISpecDirs": ["/etc/cdi"],
        "LiveRestoreEnabled": True,
        "ContainersRunning": 3,
    }
    answers: dict[str, t.Any] = {
        "info": info,
        "image": {"Id": "sha256:1"},
        "created": {"Id": "1", "Warnings": None},
        "started": {},
        "deleted": {},
        "own": [{"Id": "0123456789abcdef"}],
        "containers": [{"Names": ["/web", "/web/alias"], "Id": "0123456789abcdef"}, {"Names": None, "Id": "1"}],
        "state": {"State": {"Status": "exited", "ExitCode": 0}},
        "logs": {},
    }
    return [{name: json.dumps(answer).encode() for name, answer in answers.items()}]


def raw_http(folder: Path, files: Files, _rng: random.Random) -> None:
    """Test replies that are mutated as a whole, HTTP headers included."""
    _ask_docker(folder, lambda stream: _content(files, _docker_request(stream)))


def raw_http_seeds() -> list[Files]:
    """Return whole replies with HTTP headers."""
    head = b"HTTP/1.0 200 OK\r\nServer: Docker/26.1.5 (linux)\r\nContent-Type: application/json\r\n\r\n"
    (bodies,) = docker_seeds()
    found: Files = {name: head + body for name, body in bodies.items() if isinstance(body, bytes)}
    found["logs"] = head + b"\1\0\0\0\0\0\0\6hello\n\2\0\0\0\0\0\0\4bye\n"
    return [found, {**found, "created": b'HTTP/1.0 500 Internal Server Error\r\n\r\n{"message": "no"}'}]


# -- CRI -------------------------------------------------------------------------------------------------------------


def _ask_cri(folder: Path, answer: Answer) -> None:
    host = HostFS(str(folder), True)
    path = folder / _CRI_SOCKET.lstrip("/")
    with _daemon(path, answer):
        runtime_config(str(path))
        version(str(path))
        list_plugins(str(path))
        pods = CriPods(Cri(host, "containerd", _CRI_SOCKET, "pause:1", True))
        with contextlib.suppress(ContainerError):
            pods.run(_SPEC)


def _framed(content: bytes) -> bytes:
    message = b"\0" + len(content).to_bytes(4, "big") + content
    pieces = (message[start : start + 16384] for start in range(0, len(message), 16384))
    return frame(4, 0, 0) + frame(HEADERS, 4, 1, b"\x88") + b"".join(frame(DATA, 0, 1, piece) for piece in pieces)


def cri(folder: Path, files: Files, _rng: random.Random) -> None:
    """Test valid gRPC replies with mutated messages."""
    _ask_cri(folder, lambda stream: _framed(_content(files, read_request(stream)[0])))


def cri_seeds() -> list[Files]:
    """Return the messages of a CRI that has the images and runs a pod."""
    config = json.dumps({"sandboxImage": "pause:1", "containerd": {"runtimes": {"nvidia": {}}}})
    conditions = field(1, field(1, field(1, "RuntimeReady") + field(2, 1)))
    answers = {
        "Status": conditions + field(2, field(1, "config") + field(2, config)) + field(3, field(1, "nvidia")),
        "Version": field(1, "0.1.0") + field(2, "containerd") + field(3, "1.7.24"),
        "Plugins": field(1, field(1, "io.containerd.grpc.v1") + field(2, "cri") + field(7, field(2, "no"))),
        "ImageStatus": field(1, field(1, "sha256:aa")),
        "RunPodSandbox": field(1, "pod1"),
        "CreateContainer": field(1, "container1"),
        "StartContainer": b"",
        "ContainerStatus": field(1, field(1, "container1") + field(3, 2) + field(7, 3)),
        "ListPodSandbox": field(1, field(1, "pod0") + field(3, 1)),
        "StopPodSandbox": b"",
        "RemovePodSandbox": b"",
    }
    return [dict(answers)]


def pod_resources(folder: Path, files: Files, _rng: random.Random) -> None:
    """Proper frames with any message of a kubelet and of a device plugin."""
    kubelet = folder / "run/kubelet.sock"
    plugin = folder / checkpoint.DIRECTORY.lstrip("/") / "nvidia-gpu.sock"

    def answer(stream: t.BinaryIO) -> bytes:
        return _framed(_content(files, read_request(stream)[0]))

    with _daemon(kubelet, answer), _daemon(plugin, answer):
        with contextlib.suppress(OSError, ValueError):
            json.dumps(ask_kubelet(str(kubelet)))
        host = HostFS(str(folder), True)
        assert [found.listens for found in device_plugins(host, Probe(host))] == [True]


def pod_resources_seeds() -> list[Files]:
    """The answers of a kubelet with a GPU, which a pod holds, and with a device of a DRA driver."""
    devices = field(1, "nvidia.com/gpu") + field(2, "GPU-0::1") + field(3, field(1, field(1, 1)))
    claimed = (
        field(1, field(1, "k8s.gpu.nvidia.com/device=x")) + field(2, "gpu.nvidia.com") + field(3, "n") + field(4, "g")
    )
    container = (
        field(1, "cuda") + field(2, devices) + field(3, b"\x02\x03") + field(5, field(2, "c") + field(4, claimed))
    )
    answers = {
        "GetAllocatableResources": field(1, devices)
        + field(2, b"\x01\x02")
        + field(3, field(1, "memory") + field(2, 9)),
        "List": field(1, field(1, "train-0") + field(2, "ml") + field(3, container)),
        "GetDevicePluginOptions": field(2, 1),
    }
    return [dict(answers)]


def grpc(folder: Path, files: Files, _rng: random.Random) -> None:
    """Test replies that are mutated as a whole, HTTP/2 frames included."""
    _ask_cri(folder, lambda stream: _content(files, read_request(stream)[0]))


def grpc_seeds() -> list[Files]:
    """Return whole replies in frames, and replies with an error status in their trailers."""
    (messages,) = cri_seeds()
    found: Files = {name: _framed(content) for name, content in messages.items() if isinstance(content, bytes)}
    trailers = b"\x88\x40\x0bgrpc-status\x012\x40\x0cgrpc-message\x05no%20"
    refusal = frame(HEADERS, 5, 1, trailers)
    return [found, {**found, "Status": refusal, "RunPodSandbox": refusal}]


# -- results of hosts, on the controller -----------------------------------------------------------------------------


class _Tags(html.parser.HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {(tag, ""), *((tag, name) for name, _value in attrs)}


def answers(_folder: Path, files: Files, _rng: random.Random) -> None:
    """Make the report of an audit. It must be valid JSON, and its page must have no element or attribute of a host."""
    results: dict[str, t.Any] = {"node0": None}
    for name, content in files.items():
        try:
            results[name] = json.loads(content)
        except (ValueError, RecursionError):
            # For a result that is not JSON, Ansible returns this.
            results[name] = {"failed": True, "msg": "MODULE FAILURE", "module_stdout": repr(content)}
    report = report_of(results)
    json.dumps(report)
    page = page_of(report)
    "\n".join([page, *lines_of(report, 50)]).encode("utf-8")
    foreign = {(tag, name) for tag, name in _Tags(page).found if tag in ("img", "iframe") or name.startswith("on")}
    # One script contains the data of the hosts as JSON, the other one is the program of the page.
    scripts = (page.count("<script"), page.lower().count("</script"))
    if foreign or scripts != (2, 2):
        raise AssertionError(f"elements of a host: {foreign}, starts and ends of scripts: {scripts}")


def answers_seeds() -> list[Files]:
    """Return the results of nvidia_container_info for the trees of other formats."""
    found: Files = {}
    for number, files in enumerate((*procfs_seeds(), *units_seeds())):
        with tempfile.TemporaryDirectory(prefix="gpf-") as name:
            lay(Path(name), files)
            found[f"node{number}"] = json.dumps(described(Path(name), False, *SUBJECTS)).encode()
    unreachable = {"unreachable": True, "msg": "Failed to connect"}
    failed = {"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Traceback (most recent call last)\nx"}
    more: Files = {"node7": json.dumps(unreachable).encode(), "node8": json.dumps(failed).encode()}
    return [found, {**found, **more}]
