"""Inside a host: what became of it; as a program, of both engines as JSON.

files: old, if they are again as they were; else the digest of each file
live: old or new, by the runtimes that the daemon names; none, if it does not answer
sound: whether a container starts through the default runtime, and by the program that it would have in that state
agrees: whether the daemon and its files have the same second runtime
daemon: same or other, by its process; none if it does not run
disturbed: what else should be as it was and is not: the other engine's process, the pods, the container at work
leftovers: what nobody should find afterwards
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
LOCK = "/run/gpufleet-nvidia/lock"


def digests(engine: engines.Engine) -> str | dict[str, str]:
    """What the files are."""
    if engines.files(engine) == engines.remembered("files")[engine.name]:
        return "old"
    paths = [path for path in Path(engine.folder).rglob("*") if path.is_file() and path.name != engines.FILLER]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def works(engine: engines.Engine, live: str) -> dict[str, Any]:
    """Start a container, as a user who names no runtime."""
    known = len(calls())
    complaint = engines.start(engine)
    # dockerd and containerd also ask each runtime for its features.
    through = [os.path.basename(call.split()[0]) for call in calls()[known:] if "create" in call.split()]
    sound = not complaint and through == (["nvidia-container-runtime"] if live == "new" else [])
    return {"sound": sound, "through": through, "complaint": complaint}


def calls() -> list[str]:
    """All calls of our programs so far."""
    return CALLS.read_text().splitlines() if CALLS.exists() else []


def state(engine: engines.Engine) -> str:
    """Which state the daemon is in."""
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
    return "new" if "nvidia" in found["ours"] else json.dumps(found)


def agrees(engine: engines.Engine) -> bool:
    """Whether the daemon has those of our runtimes that its files have."""
    found = engines.live(engine)
    texts = "".join(Path(path).read_text() for path in engines.files(engine) if os.path.isfile(path))
    return found is not None and all((name in found["ours"]) == (name in texts) for name in OTHERS)


def process(engine: engines.Engine, found: dict[str, str]) -> str:
    """Whether the daemon is still the one from before."""
    if found["ActiveState"] != "active":
        return "none"
    return "same" if found["MainPID"] == engines.remembered("pids")[engine.name] else "other"


def disturbed(engine: engines.Engine) -> list[str]:
    """What has nothing to do with the row, and has noticed it all the same."""
    strange = [
        each.unit
        for each in engines.ENGINES.values()
        if each is not engine and process(each, engines.status(each.unit)) != "same"
    ]
    if engine.name == "containerd" and engines.status(engine.unit)["ActiveState"] == "active":
        pods = engines.remembered("pods")
        running = tasks()
        strange += [f"pod {name}" for name in pods if running.get(name) != pods[name]]
    if engines.at_work() != engines.remembered("at-work"):
        strange.append("container")
    return strange


def leftovers(engine: engines.Engine, *, unchanged: bool) -> list[str]:
    """Temporary files, a lock that is held, a note of a restart; and records, where nothing is changed any more."""
    found = [LOCK] if held() else []
    state = f"{engines.STATE}/state"
    kept = os.listdir(state) if os.path.isdir(state) else []
    if f"restart-{engine.name}.json" in kept:
        # Who finds the note clears the rest away.
        return [*found, "note"]
    for tree in ("/etc", engines.STATE):
        for folder, _folders, names in os.walk(tree):
            found += [f"{folder}/{name}" for name in names if name.startswith(engines.TEMPORARY)]
    return found + [f"{state}/{name}" for name in kept if unchanged and name.startswith(f"{engine.name}-")]


def held() -> bool:
    """Whether the lock is not free; a file that nobody holds is none."""
    if not os.path.exists(LOCK):
        return False
    with open(LOCK, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def look(engine: engines.Engine) -> dict[str, Any]:
    """Everything at once."""
    unit = engines.status(engine.unit)
    live = state(engine)
    found = digests(engine)
    # Asked, a Docker that does not run is started through its socket, so what it is like comes first.
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
    print(json.dumps({name: look(engine) for name, engine in engines.ENGINES.items()}))
