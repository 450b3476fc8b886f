# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: questions to a live dockerd over its Unix socket, without the docker client.

from __future__ import annotations

import json
import socket
import typing as t

# Seconds for each answer.  A busy daemon answers late, but a hung one must not hold up a whole fleet.
TIMEOUT = 10.0

_CHUNK = 65536


def get(socket_path: str, request: str) -> t.Any:
    """The decoded JSON answer to ``GET request``, None where nobody answers it properly.

    The caller makes sure that a daemon runs: under socket activation the mere connection would start one.

    HTTP/1.0, which ends an answer by closing: the standard library's client knows more, but importing it would be the
    greatest single expense of an unchanged task.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(socket_path)
            connection.sendall(f"GET {request} HTTP/1.0\r\nHost: docker\r\n\r\n".encode("ascii"))
            answer = b"".join(iter(lambda: connection.recv(_CHUNK), b""))
        head, _separator, body = answer.partition(b"\r\n\r\n")
        return json.loads(body.decode("utf-8")) if head.split(None, 2)[1:2] == [b"200"] else None
    except (OSError, ValueError):
        return None
