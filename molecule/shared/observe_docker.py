"""Inside a host: prints the state of Docker, as described in observing.py: observe_docker.py [options]."""

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
# The values of "docker info" that this collection must not change.
FOREIGN = ("LoggingDriver", "LiveRestoreEnabled", "CgroupDriver")


class Docker(http.client.HTTPConnection):
    """A connection to the daemon's socket."""

    def connect(self) -> None:
        """Connect to the socket, not to a port."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")


def ask(path: str) -> Any:
    """Return the daemon's answer to a GET request."""
    connection = Docker("localhost", timeout=10)
    connection.request("GET", path)
    return json.load(connection.getresponse())


def daemon() -> dict[str, Any] | None:
    """Return values of "docker info" and of the container that prepare started; None if the daemon does not run.

    A stopped daemon is not asked, because the request would start it through its socket.
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
        "own": sorted(name for name in runtimes if name.startswith("nvidia")),
        "foreign": {
            "runtimes": {name: entry for name, entry in runtimes.items() if not name.startswith("nvidia")},
            "labels": sorted(info["Labels"]),
            **{key: info[key] for key in FOREIGN},
        },
        "cdi": info.get("CDISpecDirs"),
        "survivor": [state.get(key) for key in ("Running", "Pid", "StartedAt")],
    }


def read_state() -> dict[str, Any]:
    """Return the whole state."""
    return {
        "trees": trees(TREES),
        "config": identity(CONFIG) if CONFIG.exists() else None,
        "service": service("docker.service"),
        "docker": daemon(),
    }


if __name__ == "__main__":
    observe(read_state, "docker", ["docker.service", "docker.socket"])
