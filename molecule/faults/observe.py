"""Inside a host: describes the state of an engine. As a program, it prints the states of both engines as JSON.

A row is one of vars/rows.yml.

unit: the state of its unit in systemd
files: old if they are as before the row; otherwise the digest of each file
live: old or new, by the runtimes that the daemon reports; other runtimes as JSON; none if it does not answer
sound: whether a container starts with the default runtime, through the program that belongs to the state ``live``
through, complaint: NVIDIA's programs that created this container, and its error; both are missing if ``live`` is none
agrees: whether the daemon reports those further NVIDIA runtimes that its files contain
daemon: same or other, by its process ID; none if it does not run
disturbed: what the row affected although it must not: the process of the other engine, pods, the running container
leftovers: temporary files, locks, journals and records that should not exist after the row
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import engines
from observe_containerd import tasks

CALLS = Path("/var/log/nvidia-container-runtime.calls")
OTHERS = ("nvidia-cdi", "nvidia-legacy")
LOCK = "/run/gpufleet-nvidia.lock"


def digests(engine: engines.Engine) -> str | dict[str, str]:
    """Return "old" for unchanged files, otherwise the digest of each file."""
    if engines.files(engine) == engines.remembered("files")[engine.name]:
        return "old"
    paths = [path for path in Path(engine.folder).rglob("*") if path.is_file() and path.name != engines.FILLER]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def works(engine: engines.Engine, live: str) -> dict[str, Any]:
    """Start a container without a runtime option, and return through which programs it started."""
    known = len(calls())
    complaint = engines.start(engine)
    # dockerd and containerd also ask each runtime for its features.
    through = [os.path.basename(call.split()[0]) for call in calls()[known:] if "create" in call.split()]
    sound = not complaint and through == (["nvidia-container-runtime"] if live == "new" else [])
    return {"sound": sound, "through": through, "complaint": complaint}


def calls() -> list[str]:
    """Return all recorded calls of the runtime's programs."""
    return CALLS.read_text().splitlines() if CALLS.exists() else []


def state(engine: engines.Engine) -> str:
    """Return the configuration that the daemon uses: old, new, another one as JSON, or none without an answer."""
    deadline = time.monotonic() + 5
    while True:
        found = engines.live(engine)
        if found is not None or time.monotonic() > deadline or engines.status(engine.unit)["ActiveState"] != "active":
            break
        time.sleep(0.1)
    if found is None:
        return "none"
    if found == engines.remembered("live")[engine.name]:
        return "old"
    return "new" if "nvidia" in found["own"] else json.dumps(found)


def agrees(engine: engines.Engine) -> bool:
    """Return whether the daemon has the same further NVIDIA runtimes as its files."""
    found = engines.live(engine)
    texts = "".join(Path(path).read_text() for path in engines.files(engine) if os.path.isfile(path))
    return found is not None and all((name in found["own"]) == (name in texts) for name in OTHERS)


def process(engine: engines.Engine, found: dict[str, str]) -> str:
    """Return whether the daemon has the same process as before the row."""
    if found["ActiveState"] != "active":
        return "none"
    return "same" if found["MainPID"] == engines.remembered("pids")[engine.name] else "other"


def disturbed(engine: engines.Engine) -> list[str]:
    """Return the units, pods and containers that the row affected although it must not."""
    affected = [
        each.unit
        for each in engines.ENGINES.values()
        if each is not engine and process(each, engines.status(each.unit)) != "same"
    ]
    if engine.name == "containerd" and engines.status(engine.unit)["ActiveState"] == "active":
        pods = engines.remembered("pods")
        running = tasks()
        affected += [f"pod {name}" for name in pods if running.get(name) != pods[name]]
    if engines.at_work() != engines.remembered("at-work"):
        affected.append("container")
    return affected


def leftovers(engine: engines.Engine, *, unchanged: bool) -> list[str]:
    """Return temporary files, a held lock, the journal of a restart, and, with ``unchanged``, records."""
    found = [LOCK] if held() else []
    state = f"{engines.STATE}/state"
    kept = os.listdir(state) if os.path.isdir(state) else []
    if f"restart-{engine.name}.json" in kept:
        # The next run that finds this journal also removes the other files.
        return [*found, "journal"]
    for tree in ("/etc", engines.STATE):
        for folder, _folders, names in os.walk(tree):
            found += [f"{folder}/{name}" for name in names if name.startswith(engines.TEMPORARY)]
    return found + [f"{state}/{name}" for name in kept if unchanged and name.startswith(f"{engine.name}-")]


def held() -> bool:
    """Return whether a process holds the lock."""
    if not os.path.exists(LOCK):
        return False
    folder = os.open(LOCK, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def read_state(engine: engines.Engine) -> dict[str, Any]:
    """Return all properties of the state."""
    unit = engines.status(engine.unit)
    live = state(engine)
    found = digests(engine)
    return {
        "unit": f"{unit['ActiveState']} ({unit['SubState']})",
        "files": found,
        "live": live,
        "agrees": agrees(engine),
        "daemon": process(engine, unit),
        "disturbed": disturbed(engine),
        "leftovers": leftovers(engine, unchanged=found == "old"),
        **(works(engine, live) if live != "none" else {"sound": False}),
    }


if __name__ == "__main__":
    print(json.dumps({name: read_state(engine) for name, engine in engines.ENGINES.items()}))
