"""Inside a host: tells how it stands with containerd, as observing.py says: observe_containerd.py [options].

config: inode and time of each file below /etc/containerd; files: their texts
plugins: the CRI's plugins and their states; none where the CRI is disabled
dump: what "containerd config dump" prints, None where it fails; complaints: what it says beside that
settings_touched: the settings of that dump that are not as at the last look; settings_left: as on the fresh host
cri: what the CRI says of itself, None where it does not answer
tasks: the running containers of the CRI
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import tomllib
from observing import PATIENCE, identity, observe, service, trees

TREES = ("/etc/containerd", "/etc/systemd", "/var/lib/gpufleet-nvidia")
CONFIG = Path("/etc/containerd")
UNIT = "containerd.service"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that may fail."""
    return subprocess.run(command, check=False, capture_output=True, text=True)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Each setting by its path; containerd 1.6 lists the imports in any order."""
    if isinstance(value, dict) and value:
        return {path: leaf for key in value for path, leaf in flat(value[key], f"{name}.{key}".lstrip(".")).items()}
    return {name: sorted(value) if name == "imports" else value}


def essence(value: Any) -> Any:
    """Leave out what is not set: a built-in runtime has more such entries than the same one that a file has."""
    if not isinstance(value, dict):
        return value
    return {key: kept for key, entry in value.items() if (kept := essence(entry)) not in (None, "", 0, [], {})}


def dump() -> dict[str, Any]:
    """The merged configuration, as a daemon that starts now would read it."""
    printed = run("containerd", "config", "dump")
    data = tomllib.loads(printed.stdout) if printed.returncode == 0 else None
    return {"dump": data, "settings": flat(essence(data or {})), "complaints": printed.stderr.splitlines()}


def plugins() -> dict[str, str]:
    """State of the CRI's plugins."""
    rows = [line.split() for line in run("ctr", "plugins", "ls").stdout.splitlines()]
    return {f"{row[0]}.{row[1]}": row[-1] for row in rows if row[1] == "cri" or ".cri." in row[0]}


def tasks() -> dict[str, list[str]]:
    """Process and state of each container, pods' own ones included."""
    rows = [line.split() for line in run("ctr", "--namespace=k8s.io", "tasks", "ls").stdout.splitlines()[1:]]
    return {row[0]: row[1:] for row in rows}


def ask() -> dict[str, Any] | None:
    """The CRI's status, None where it does not answer; just after a start it is not ready for a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = run("python3", "/fx/cri.py", "status")
        if answer.returncode == 0:
            return dict(json.loads(answer.stdout))
        if answer.stderr.startswith("UNIMPLEMENTED") or time.monotonic() > deadline:
            return None
        time.sleep(0.1)


def daemon() -> dict[str, Any] | None:
    """What the CRI says of its runtimes, and the rest of its configuration, which no run of ours may touch."""
    answer = ask()
    if answer is None:
        return None
    config = answer["config"]
    containerd = config["containerd"]
    runtimes = essence(containerd.pop("runtimes"))
    ours = {name: entry for name, entry in runtimes.items() if name.startswith("nvidia")}
    return {
        "default": containerd.pop("defaultRuntimeName"),
        "ours": sorted(ours),
        "runtimes": ours,
        "handlers": sorted(answer["handlers"]),
        # Containerd 1.6 knows none.
        "cdi": config.pop("enableCDI", None),
        "foreign": {**essence(config), "runtimes": {name: runtimes[name] for name in runtimes.keys() - ours.keys()}},
    }


def look() -> dict[str, Any]:
    """Everything at once."""
    files = [path for path in sorted(CONFIG.rglob("*")) if path.is_file()]
    state = service(UNIT)
    active = state["ActiveState"] == "active"
    return {
        "trees": trees(TREES),
        "config": {str(path): identity(path) for path in files},
        "files": {str(path): path.read_text(errors="backslashreplace") for path in files},
        "service": state,
        "plugins": plugins() if active else {},
        "tasks": tasks() if active else {},
        "cri": daemon() if active else None,
        **dump(),
    }


if __name__ == "__main__":
    observe(look, "cri", [UNIT])
