# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers on Unix sockets that end with the test."""

from __future__ import annotations

import contextlib
import shutil
import socketserver
import tempfile
import threading
import typing as t
from pathlib import Path

# The packets that a daemon sends, one after the other. None: it sends nothing more until the test ends.
Pieces = t.Tuple[t.Optional[bytes], ...]
_D = t.TypeVar("_D", bound="Daemon")


@contextlib.contextmanager
def serving(server: socketserver.BaseServer, path: Path) -> t.Iterator[None]:
    """Run the server, whose socket is at ``path``, in a thread. At the end, stop it and remove the socket."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            path.unlink()


@contextlib.contextmanager
def short_folder() -> t.Iterator[Path]:
    """Create a temporary directory with a short path. pytest's directories have paths that are too long for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gpf-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


class Daemon(socketserver.ThreadingUnixStreamServer):
    """A server whose handlers send ``pieces``, and may wait for ``over``, which is set at the end of a test."""

    def __init__(self, path: str, handler: type[socketserver.BaseRequestHandler], pieces: Pieces) -> None:
        super().__init__(path, handler)
        self.pieces = pieces
        self.over = threading.Event()


@contextlib.contextmanager
def daemons() -> t.Iterator[t.Callable[[_D], _D]]:
    """Return a function that starts a daemon in a thread. All daemons end with the context."""
    with contextlib.ExitStack() as ended:

        def start(daemon: _D) -> _D:
            ended.enter_context(serving(daemon, Path(str(daemon.server_address))))
            # Called before the daemon is stopped, which waits for its handlers.
            ended.callback(daemon.over.set)
            return daemon

        yield start
