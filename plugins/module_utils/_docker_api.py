# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: questions to a live dockerd over its Unix socket, without the docker client.

from __future__ import annotations

import http.client
import json
import socket
import typing as t

# Seconds.  A busy daemon answers /info late, but a hung one must not hold up a whole fleet.
TIMEOUT = 10.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(socket_path: str, request: str) -> t.Any:
    """The decoded JSON answer to ``GET request``, None where nobody answers it properly.

    The caller makes sure that a daemon runs: under socket activation the mere connection would start one.
    """
    connection = _UnixConnection(socket_path)
    try:
        connection.request("GET", request)
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
