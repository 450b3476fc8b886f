"""Shared by the observers: the state of a host now, at the last observation, and when the host was fresh.

observe() is the main function of observe_containerd.py and observe_docker.py. They take [--fresh] [--until JSON] and
print JSON. --fresh saves the state as that of the fresh host. --until waits some seconds for a daemon that applies a
change after it has accepted the signal for a reload.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Earlier states. They are lost with the host, and are in no directory that is compared.
MEMORY = Path("/run/gpufleet-observed")
PATIENCE = 8.0
# The identifier of systemd's message "unit has started" (sd-messages.h).
STARTED = "39f53479d3a045ac8e11786248231fbf"
# The values that are compared, and the names of the differences from the last observation and from the fresh host.
COMPARED = {"trees": ("touched", "left"), "settings": ("settings_touched", "settings_left")}
# Records of restarts that any later run may remove: changes that no restart has confirmed, and the files of a daemon.
NOTES = ("/state/changes-", "/state/applied-")
# Values that are only printed for the current state.
PASSING = ("dump",)


def describe(path: str) -> str:
    """Return what a removal must restore of a file: type, mode, owner, and content."""
    status = os.lstat(path)
    words = [stat.filemode(status.st_mode), str(status.st_uid), str(status.st_gid)]
    if stat.S_ISLNK(status.st_mode):
        words.append(os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        words.append(hashlib.sha256(Path(path).read_bytes()).hexdigest())
    return " ".join(words)


def identity(path: Path) -> str:
    """Return the inode and the time of a file, which change if it is written again with the same content."""
    status = path.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def trees(roots: Iterable[str]) -> dict[str, str]:
    """Return all files of the directory trees. A missing tree has no entry."""
    paths = [path for path in roots if os.path.lexists(path)]
    for tree in roots:
        for folder, folders, files in os.walk(tree):
            paths += [os.path.join(folder, name) for name in folders + files]
    return {path: describe(path) for path in sorted(paths)}


def service(name: str) -> dict[str, str]:
    """Return the unit's state, the values that change at each start, and the number of starts."""
    properties = "ActiveState,MainPID,ActiveEnterTimestampMonotonic"
    output = subprocess.check_output(["systemctl", "show", name, "--property", properties], text=True)
    subprocess.check_call(["journalctl", "--sync"])
    entries = subprocess.run(
        ["journalctl", "--quiet", "--output=cat", "--output-fields=UNIT", f"UNIT={name}", f"MESSAGE_ID={STARTED}"],
        check=False,
        capture_output=True,
        text=True,
    )
    return {**dict(line.split("=", 1) for line in output.splitlines()), "starts": str(entries.stdout.count("\n"))}


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the entries that differ, each with its old and new value."""
    return {path: [old.get(path), new.get(path)] for path in sorted({*old, *new}) if old.get(path) != new.get(path)}


def late(now: dict[str, Any], daemon: str, until: dict[str, Any]) -> bool:
    """Return whether a running daemon does not report the expected values yet."""
    if not until or now["service"]["ActiveState"] != "active":
        return False
    return now[daemon] is None or not until.items() <= now[daemon].items()


def observe(read_state: Callable[[], dict[str, Any]], daemon: str, units: Sequence[str]) -> None:
    """Observe the host, compare it with the saved states, and save it. ``daemon`` is the key of the daemon's report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--until", type=json.loads, default={})
    arguments = parser.parse_args()
    deadline = time.monotonic() + PATIENCE
    now = read_state()
    while late(now, daemon, arguments.until) and time.monotonic() < deadline:
        time.sleep(0.2)
        now = read_state()
    memory = MEMORY / daemon
    memory.mkdir(parents=True, exist_ok=True)
    if arguments.fresh:
        (memory / "fresh").write_text(json.dumps(now))
        (memory / "before").write_text(json.dumps(now))
    fresh, before = (json.loads((memory / name).read_text()) for name in ("fresh", "before"))
    (memory / "before").write_text(json.dumps(now))
    changes = {
        name: differences(old[what], now[what])
        for what, names in COMPARED.items()
        if what in now
        for name, old in zip(names, (before, fresh))
    }
    touched = changes["touched"].items()
    changes["touched"] = {path: change for path, change in touched if not any(note in path for note in NOTES)}
    for entry in (fresh, before, now):
        for what in (*COMPARED, *(PASSING if entry is not now else ())):
            entry.pop(what, None)
    print(json.dumps({"now": {**now, **changes}, "before": before, "fresh": fresh}))
    # systemd limits the starts of a service: docker.service permits three in a minute. The steps are faster.
    if now["service"]["ActiveState"] == "active":
        subprocess.check_call(["systemctl", "reset-failed", *units])
