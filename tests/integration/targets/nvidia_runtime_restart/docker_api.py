"""docker_api.py TREE...: the API of a Docker for each tree; its settings are those that bin/chroot has loaded last."""

from __future__ import annotations

import http.server
import json
import socketserver
import sys
import threading
from pathlib import Path


class Daemon(socketserver.UnixStreamServer):
    """The Docker of one tree, with its usual socket."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        super().__init__(str(tree / "var/run/docker.sock"), Answers)


class Answers(http.server.BaseHTTPRequestHandler):
    """The answers: information about the Docker, and no containers."""

    def do_GET(self) -> None:
        settings = json.loads((self.server.tree / "loaded.json").read_text())
        info = {
            "ServerVersion": "26.1.5",
            "DefaultRuntime": settings.get("default-runtime", "runc"),
            "Runtimes": {"runc": {"path": "runc"}, **settings.get("runtimes", {})},
            "CDISpecDirs": ["/etc/cdi"] if settings.get("features", {}).get("cdi") else [],
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(info if self.path.endswith("/info") else []).encode())

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_arguments: object) -> None:
        """Requests are not logged."""


if __name__ == "__main__":
    daemons = [threading.Thread(target=Daemon(Path(name)).serve_forever) for name in sys.argv[1:]]
    for daemon in daemons:
        daemon.start()
    for daemon in daemons:
        daemon.join()
