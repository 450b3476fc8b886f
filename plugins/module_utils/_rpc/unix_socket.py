# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Connect to a Unix socket with one deadline and one size limit for the whole exchange."""

from __future__ import annotations

import socket
import time

_CHUNK = 65536


class Connection:
    """A connection that ends at its deadline, even if the daemon sends its reply slowly.

    All methods raise OSError if the daemon does not answer in time.
    """

    def __init__(self, connection: socket.socket, timeout: float, most: int) -> None:
        """Set the timeout in seconds, and the maximum number of bytes to receive."""
        self._connection = connection
        self._deadline = time.monotonic() + timeout
        self._left = most
        self._buffer = bytearray()

    def _timed(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("the answer is too slow")
        self._connection.settimeout(left)
        return self._connection

    def open(self, path: str) -> None:
        self._timed().connect(path)

    def send(self, content: bytes) -> None:
        self._timed().sendall(content)

    def receive(self) -> bytes:
        """Return the next received bytes, empty at the end.

        Raises ValueError if the daemon sends more than the limit.
        """
        chunk = self._timed().recv(_CHUNK)
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError("the answer does not end")
        return chunk

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes.

        Raises ValueError if the daemon sends fewer.
        """
        while len(self._buffer) < size:
            chunk = self.receive()
            if not chunk:
                raise ValueError("the answer ends in the middle")
            self._buffer += chunk
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content
