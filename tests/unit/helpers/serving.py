# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers on Unix sockets for as long as a test needs them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import typing as t
from pathlib import Path

if t.TYPE_CHECKING:
    import socketserver


@contextlib.contextmanager
def serving(server: socketserver.BaseServer, path: Path) -> t.Iterator[None]:
    """Let the server, whose socket is at ``path``, answer in a thread of its own."""
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
    """The path of a socket must be short, which that of pytest's own folders is not."""
    folder = Path(tempfile.mkdtemp(prefix="gpf-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
