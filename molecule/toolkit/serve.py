"""Inside a host: serves /srv/repository on 127.0.0.1:8088, and notifies systemd when it listens."""

from __future__ import annotations

import functools
import http.server
import os
import socket

ADDRESS = ("127.0.0.1", 8088)


def main() -> None:
    """Serve until the process is stopped."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="/srv/repository")
    with http.server.ThreadingHTTPServer(ADDRESS, handler) as server:
        notify = os.environ.get("NOTIFY_SOCKET")
        if notify:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
                system.sendto(b"READY=1", notify.replace("@", "\0", 1))
        server.serve_forever()


if __name__ == "__main__":
    main()
