"""What the observers have in common: how a host stands now, how it stood at the last look, and how it was when fresh.

Each of them takes [--fresh] [--until JSON] and prints JSON: --fresh makes this look the one to compare with for good;
--until waits a little for a daemon that takes a change over after the signal for it has returned.
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

# Gone with the host, and in no tree that is watched.
MEMORY = Path("/run/gpufleet-observed")
PATIENCE = 8.0
# Of systemd's message that a unit has been started (sd-messages.h).
STARTED = "39f53479d3a045ac8e11786248231fbf"
# What is compared, and how the differences from the last look and from the fresh host are called.
COMPARED = {"trees": ("touched", "left"), "settings": ("settings_touched", "settings_left")}
NOTES = "/state/changes-"
# What is only told of now.
PASSING = ("dump",)


def describe(path: str) -> str:
    """Everything about a file that must come back: kind, mode, owner, content."""
    status = os.lstat(path)
    words = [stat.filemode(status.st_mode), str(status.st_uid), str(status.st_gid)]
    if stat.S_ISLNK(status.st_mode):
        words.append(os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        words.append(hashlib.sha256(Path(path).read_bytes()).hexdigest())
    return " ".join(words)


def identity(path: Path) -> str:
    """What tells a file that was written again from the one before, even with the same bytes."""
    status = path.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def trees(roots: Iterable[str]) -> dict[str, str]:
    """All files of the watched trees; a tree that is not there has no entry."""
    paths = [path for path in roots if os.path.lexists(path)]
    for tree in roots:
        for folder, folders, files in os.walk(tree):
            paths += [os.path.join(folder, name) for name in folders + files]
    return {path: describe(path) for path in sorted(paths)}


def service(name: str) -> dict[str, str]:
    """The unit's state, what is new after each start of it, and how often it was started."""
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
    """The entries that are not the same, before and after."""
    return {path: [old.get(path), new.get(path)] for path in sorted({*old, *new}) if old.get(path) != new.get(path)}


def late(now: dict[str, Any], daemon: str, until: dict[str, Any]) -> bool:
    """Tell whether a running daemon does not say yet what it is to say."""
    if not until or now["service"]["ActiveState"] != "active":
        return False
    return now[daemon] is None or not until.items() <= now[daemon].items()


def observe(look: Callable[[], dict[str, Any]], daemon: str, units: Sequence[str]) -> None:
    """Look, compare with what is remembered, remember. ``daemon``: the entry with what the daemon says of itself."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--until", type=json.loads, default={})
    arguments = parser.parse_args()
    deadline = time.monotonic() + PATIENCE
    now = look()
    while late(now, daemon, arguments.until) and time.monotonic() < deadline:
        time.sleep(0.2)
        now = look()
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
    # What a daemon has not taken over yet is noted until it has, whichever run sees to that.
    changes["touched"] = {path: change for path, change in changes["touched"].items() if NOTES not in path}
    for entry in (fresh, before, now):
        for what in (*COMPARED, *(PASSING if entry is not now else ())):
            entry.pop(what, None)
    print(json.dumps({"now": {**now, **changes}, "before": before, "fresh": fresh}))
    # The steps come faster than systemd lets a service start (three times a minute).
    if now["service"]["ActiveState"] == "active":
        subprocess.check_call(["systemctl", "reset-failed", *units])
