"""Inside a host: prints the state of containerd, as described in observing.py: observe_containerd.py [options].

config: inode and time of each file below /etc/containerd; files: their texts
plugins: the CRI's plugins and their states; none if the CRI is disabled
dump: the output of "containerd config dump", None if it fails; complaints: its error output
settings_touched: the settings of the dump that differ from the last observation; settings_left: from the fresh host
cri: the status that the CRI reports, None if it does not answer
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
    """Run a command, which may fail."""
    return subprocess.run(command, check=False, capture_output=True, text=True)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return each setting by its path. The imports are sorted, because containerd 1.6 lists them in any order."""
    if isinstance(value, dict) and value:
        return {path: leaf for key in value for path, leaf in flat(value[key], f"{name}.{key}".lstrip(".")).items()}
    return {name: sorted(value) if name == "imports" else value}


def essence(value: Any) -> Any:
    """Return the value without empty entries. A built-in runtime has more of them than the same runtime in a file."""
    if not isinstance(value, dict):
        return value
    return {key: kept for key, entry in value.items() if (kept := essence(entry)) not in (None, "", 0, [], {})}


def dump() -> dict[str, Any]:
    """Return the merged configuration that a daemon would read if it started now."""
    printed = run("containerd", "config", "dump")
    data = tomllib.loads(printed.stdout) if printed.returncode == 0 else None
    return {"dump": data, "settings": flat(essence(data or {})), "complaints": printed.stderr.splitlines()}


def plugins() -> dict[str, str]:
    """Return the states of the CRI's plugins."""
    rows = [line.split() for line in run("ctr", "plugins", "ls").stdout.splitlines()]
    return {f"{row[0]}.{row[1]}": row[-1] for row in rows if row[1] == "cri" or ".cri." in row[0]}


def tasks() -> dict[str, list[str]]:
    """Return the process and the state of each container, including the pause containers of pods."""
    rows = [line.split() for line in run("ctr", "--namespace=k8s.io", "tasks", "ls").stdout.splitlines()[1:]]
    return {row[0]: row[1:] for row in rows}


def ask() -> dict[str, Any] | None:
    """Return the CRI's status, None if it does not answer. The request is repeated while a new daemon is not ready."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = run("python3", "/fx/cri.py", "status")
        if answer.returncode == 0:
            return dict(json.loads(answer.stdout))
        if answer.stderr.startswith("UNIMPLEMENTED") or time.monotonic() > deadline:
            return None
        time.sleep(0.1)


def daemon() -> dict[str, Any] | None:
    """Return the CRI's runtimes, and the rest of its configuration, which this collection must not change."""
    answer = ask()
    if answer is None:
        return None
    config = answer["config"]
    containerd = config["containerd"]
    runtimes = essence(containerd.pop("runtimes"))
    own = {name: entry for name, entry in runtimes.items() if name.startswith("nvidia")}
    return {
        "default": containerd.pop("defaultRuntimeName"),
        "own": sorted(own),
        "runtimes": own,
        "handlers": sorted(answer["handlers"]),
        # containerd 1.6 has no such setting.
        "cdi": config.pop("enableCDI", None),
        "foreign": {**essence(config), "runtimes": {name: runtimes[name] for name in runtimes.keys() - own.keys()}},
    }


def read_state() -> dict[str, Any]:
    """Return the whole state."""
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
    observe(read_state, "cri", [UNIT])
