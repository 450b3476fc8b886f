"""Inside a host: tells how it stands with Docker, as observing.py says: observe_docker.py [options]."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from observing import identity, observe, service, trees

TREES = ("/etc/docker", "/etc/systemd", "/var/lib/gpufleet-nvidia")
CONFIG = Path("/etc/docker/daemon.json")
BUILT_IN = ("runc", "io.containerd.")
# What no run of ours may touch, of all that the daemon says of itself.
FOREIGN = ("LoggingDriver", "LiveRestoreEnabled", "CgroupDriver")


class Docker(http.client.HTTPConnection):
    """The daemon's socket."""

    def connect(self) -> None:
        """Connect to the socket, not to a port."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")


def ask(path: str) -> Any:
    """Get the daemon's answer."""
    connection = Docker("localhost", timeout=10)
    connection.request("GET", path)
    return json.load(connection.getresponse())


def daemon() -> dict[str, Any] | None:
    """What "docker info" says, and the container that prepare started; None while the daemon does not run.

    Whoever asks a stopped daemon starts it, through its socket.
    """
    if service("docker.service")["ActiveState"] != "active":
        return None
    info = ask("/info")
    runtimes = {
        name: {key: value for key, value in entry.items() if key != "status"}
        for name, entry in info["Runtimes"].items()
        if not name.startswith(BUILT_IN)
    }
    state = ask("/containers/survivor/json").get("State", {})
    return {
        "default": info["DefaultRuntime"],
        "ours": sorted(name for name in runtimes if name.startswith("nvidia")),
        "foreign": {
            "runtimes": {name: entry for name, entry in runtimes.items() if not name.startswith("nvidia")},
            "labels": sorted(info["Labels"]),
            **{key: info[key] for key in FOREIGN},
        },
        "cdi": info.get("CDISpecDirs"),
        "survivor": [state.get(key) for key in ("Running", "Pid", "StartedAt")],
    }


def look() -> dict[str, Any]:
    """Everything at once."""
    return {
        "trees": trees(TREES),
        "config": identity(CONFIG) if CONFIG.exists() else None,
        "service": service("docker.service"),
        "docker": daemon(),
    }


if __name__ == "__main__":
    observe(look, "docker", ["docker.service", "docker.socket"])
