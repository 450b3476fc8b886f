# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Connections to Unix sockets, and HTTP requests over them.

A whole exchange has one deadline and one size limit.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data

# Seconds for a whole HTTP response. A busy daemon responds late, but a hung one must not delay a whole fleet.
HTTP_TIMEOUT = 10.0

# Maximum size of an HTTP response in bytes.
_MAX_RESPONSE = 16 << 20
_CHUNK = 65536


class Connection:
    """A connection that ends at its deadline, even if the daemon sends its reply slowly.

    All methods raise OSError if the daemon does not reply in time.
    """

    def __init__(self, connection: socket.socket, timeout: float, limit: int) -> None:
        """Set the timeout in seconds, and the maximum number of bytes to receive."""
        self._connection = connection
        self._deadline = time.monotonic() + timeout
        self._left = limit
        self._buffer = bytearray()

    def _timed(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("the daemon does not reply in time")
        self._connection.settimeout(left)
        return self._connection

    def send(self, content: bytes) -> None:
        self._timed().sendall(content)

    def receive(self) -> bytes:
        """Return the next received bytes, empty at the end.

        Raises ValueError if the daemon sends more than the limit.
        """
        chunk = self._timed().recv(_CHUNK)
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError("the reply is too long")
        return chunk

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes.

        Raises ValueError if the daemon sends fewer.
        """
        while len(self._buffer) < size:
            chunk = self.receive()
            if not chunk:
                raise ValueError("the reply ends early")
            self._buffer += chunk
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content


@contextlib.contextmanager
def connect(path: str, timeout: float, limit: int) -> t.Iterator[Connection]:
    """Connect to the socket ``path``, and close the connection at the end of the context.

    Raises OSError if that is not possible within ``timeout`` seconds.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        opened.settimeout(timeout)
        connection = Connection(opened, timeout, limit)
        opened.connect(path)
        yield connection


class HttpResponse(t.NamedTuple):
    """The status and the body of an HTTP response."""

    status: int
    body: bytes

    @property
    def refused(self) -> bool:
        return self.status >= 400

    def json(self) -> t.Any:
        """Return the body as JSON.

        Raises ValueError if it is not JSON.
        """
        return json_data.load(self.body)

    def error_message(self) -> str:
        """Return the daemon's message about a request that it refused."""
        try:
            message = json_data.get(self.json(), "message", "")
        except ValueError:
            message = ""
        return (message or self.body.decode("utf-8", "replace")).strip() or f"status {self.status}"


def http_get_json(socket_path: str, request: str) -> t.Any:
    """Return the decoded JSON response to ``GET request``, None if there is no valid response.

    The caller makes sure that a daemon runs: with socket activation, a connection would start one.
    """
    try:
        response = http_request(socket_path, "GET", request)
        return response.json() if response.status == 200 else None
    except (OSError, ValueError):
        return None


def http_request(
    socket_path: str, method: str, request: str, body: t.Any = None, timeout: float | None = None
) -> HttpResponse:
    """Return the response to a request with ``body`` as JSON, or as an archive if it is bytes.

    ``timeout`` in seconds is for the whole exchange. Raises OSError or ValueError if there is no HTTP response, or if
    it does not end.

    This is HTTP/1.0, which ends a response by closing the connection. The import of the standard library's client
    would take longer than everything else in an unchanged task.
    """
    archive = isinstance(body, bytes)
    content = body if archive else b"" if body is None else json.dumps(body).encode("utf-8")
    kind = "application/x-tar" if archive else "application/json"
    headers = f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n" if method == "POST" else ""
    with connect(socket_path, HTTP_TIMEOUT if timeout is None else timeout, _MAX_RESPONSE) as connection:
        connection.send(f"{method} {request} HTTP/1.0\r\nHost: docker\r\n{headers}\r\n".encode("ascii") + content)
        response = b"".join(iter(connection.receive, b""))
    head, separator, found = response.partition(b"\r\n\r\n")
    status_line = head.split(None, 2)
    is_http = len(status_line) >= 2 and status_line[0].startswith(b"HTTP/") and status_line[1].isdigit()
    if not separator or not is_http:
        raise ValueError("the response is not HTTP")
    return HttpResponse(int(status_line[1]), found)
