# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send requests to a running Docker over its API."""

from __future__ import annotations

import json
import socket
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket

# Seconds for a whole answer. A busy daemon answers late, but a hung one must not delay a whole fleet.
TIMEOUT = 10.0

# Maximum size of an answer in bytes.
_MOST = 16 << 20


class Answer(t.NamedTuple):
    """An answer of dockerd: the HTTP status and the body."""

    status: int
    body: bytes

    @property
    def refused(self) -> bool:
        return self.status >= 400

    def value(self) -> t.Any:
        """Return the body as JSON.

        Raises ValueError if it is not JSON.
        """
        return json_data.load(self.body)

    def error_message(self) -> str:
        """Return the daemon's message about a request that it refused."""
        try:
            message = json_data.get(self.value(), "message", "")
        except ValueError:
            message = ""
        return (message or self.body.decode("utf-8", "replace")).strip() or f"status {self.status}"


def ask_json(socket_path: str, request: str) -> t.Any:
    """Return the decoded JSON answer to ``GET request``, None if there is no valid answer.

    The caller makes sure that a daemon runs: with socket activation, a connection would start one.
    """
    try:
        answer = ask(socket_path, "GET", request)
        return answer.value() if answer.status == 200 else None
    except (OSError, ValueError):
        return None


def ask(socket_path: str, method: str, request: str, body: t.Any = None, timeout: float | None = None) -> Answer:
    """Return the answer to a request with ``body`` as JSON.

    ``timeout`` in seconds is for the whole exchange. Raises OSError or ValueError if there is no answer in HTTP, or if
    the answer does not end.

    This is HTTP/1.0, which ends an answer by closing the connection. The standard library's client supports more, but
    its import would be the greatest single cost of an unchanged task.
    """
    content = b"" if body is None else json.dumps(body).encode("utf-8")
    about = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n" if method == "POST" else ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        wire = unix_socket.Connection(connection, TIMEOUT if timeout is None else timeout, _MOST)
        wire.open(socket_path)
        wire.send(f"{method} {request} HTTP/1.0\r\nHost: docker\r\n{about}\r\n".encode("ascii") + content)
        answer = b"".join(iter(wire.receive, b""))
    head, separator, found = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError("the answer is not HTTP")
    return Answer(int(words[1]), found)
