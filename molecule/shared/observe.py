"""Inside a host: tells how it stands now, how it stood at the last look, and how it was when it was fresh, as JSON.

observe.py [--fresh] [--until JSON]: --fresh makes this look the one to compare with for good; --until waits a little
for a daemon that takes a change over after the signal for it has returned.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

TREES = ("/etc/docker", "/etc/systemd", "/var/lib/gpufleet-nvidia")
CONFIG = Path("/etc/docker/daemon.json")
# Gone with the host, and in no tree that is watched.
MEMORY = Path("/run/gpufleet-observed")
PATIENCE = 8.0
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


def describe(path: str) -> str:
    """Everything about a file that must come back: kind, mode, owner, content."""
    status = os.lstat(path)
    words = [stat.filemode(status.st_mode), str(status.st_uid), str(status.st_gid)]
    if stat.S_ISLNK(status.st_mode):
        words.append(os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        words.append(hashlib.sha256(Path(path).read_bytes()).hexdigest())
    return " ".join(words)


def trees() -> dict[str, str]:
    """All files of the watched trees; a tree that is not there has no entry."""
    paths = [path for path in TREES if os.path.lexists(path)]
    for tree in TREES:
        for folder, folders, files in os.walk(tree):
            paths += [os.path.join(folder, name) for name in folders + files]
    return {path: describe(path) for path in sorted(paths)}


def service(name: str) -> dict[str, str]:
    """The unit's state, and what is new after each start of it."""
    properties = "ActiveState,MainPID,ActiveEnterTimestampMonotonic"
    output = subprocess.check_output(["systemctl", "show", name, "--property", properties], text=True)
    return dict(line.split("=", 1) for line in output.splitlines())


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
    config = CONFIG.stat() if CONFIG.exists() else None
    return {
        "trees": trees(),
        # A file that was written again is another one, even with the same bytes.
        "config": config and f"{config.st_ino} {config.st_mtime_ns}",
        "service": service("docker.service"),
        "docker": daemon(),
    }


def differences(old: dict[str, str], new: dict[str, str]) -> dict[str, list[str | None]]:
    """The files that are not the same, before and after."""
    return {path: [old.get(path), new.get(path)] for path in sorted({*old, *new}) if old.get(path) != new.get(path)}


def main() -> None:
    """Look, compare with what is remembered, remember."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--until", type=json.loads, default={})
    arguments = parser.parse_args()
    deadline = time.monotonic() + PATIENCE
    now = look()
    while now["docker"] and not arguments.until.items() <= now["docker"].items() and time.monotonic() < deadline:
        time.sleep(0.2)
        now = look()
    MEMORY.mkdir(exist_ok=True)
    if arguments.fresh:
        (MEMORY / "fresh").write_text(json.dumps(now))
        (MEMORY / "before").write_text(json.dumps(now))
    fresh, before = (json.loads((MEMORY / name).read_text()) for name in ("fresh", "before"))
    (MEMORY / "before").write_text(json.dumps(now))
    touched, left = (differences(old["trees"], now["trees"]) for old in (before, fresh))
    for entry in (fresh, before, now):
        del entry["trees"]
    print(json.dumps({"now": {**now, "touched": touched, "left": left}, "before": before, "fresh": fresh}))
    # The steps come faster than systemd lets a service start (three times a minute).
    if now["service"]["ActiveState"] == "active":
        subprocess.check_call(["systemctl", "reset-failed", "docker.service", "docker.socket"])


if __name__ == "__main__":
    main()
