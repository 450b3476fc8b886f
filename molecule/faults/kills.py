"""Inside a host: kills a module in the middle of its work, at points where it is about to change something.

kills.py ENGINE config|restart[@POINT,...] [FAULT...]

Without a POINT it is killed at each of them, one run after the other. After each kill the host has to work (only a
fault may keep it from that), and what the role does next has to end in the new state, or in spite of a fault in the old
one, with nothing of the killed run left. Prints as JSON at how many points that was tried, and what was wrong at which.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from engines import (
    COLLECTIONS,
    ENGINES,
    PATIENCE,
    STATE,
    Engine,
    call,
    files,
    kill_points,
    module,
    remembered,
    settled,
    status,
)
from faults import mend
from fresh import fresh
from observe import leftovers, look

UNTIL = str(Path(__file__).with_name("until.py"))
WANTED = {"runtimes": ["nvidia"], "default_runtime": "nvidia"}


class Victim(NamedTuple):
    """A module that is killed; ``new`` are the engine's files as an undisturbed run leaves them."""

    module: str
    engine: Engine
    faults: list[str]
    new: dict[str, str]

    def arguments(self, changes: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the module is told; ``changes`` are for the restart."""
        if changes is None:
            return {"engine": self.engine.name, "set_as_default": True}
        return {"engine": self.engine.name, "expect": WANTED, "rollback": changes, "timeout": 30}

    def configure(self) -> dict[str, Any]:
        """Write the new configuration."""
        return call("nvidia_runtime_config", **self.arguments(None))

    def killed(self, point: int) -> bool:
        """Run it to that point on a fresh host; false if it came to its end before."""
        fresh(self.engine, self.faults)
        changes = self.configure()["backup_files"] if self.module == "restart" else None
        command = module(f"nvidia_runtime_{self.module}", self.arguments(changes), UNTIL, str(point))
        ended = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, cwd=COLLECTIONS)
        return ended.returncode == -signal.SIGKILL

    def left(self) -> str:
        """What is wrong with the host after the kill."""
        if self.faults:
            return ""
        if self.module == "config":
            same = status(self.engine.unit)["MainPID"] == remembered("pids")[self.engine.name]
            whole = files(self.engine) in (remembered("files")[self.engine.name], self.new)
            return "" if same and whole else f"after the kill: {same}, {files(self.engine)}"
        settled(self.engine.unit)
        found = look(self.engine)
        return "" if found["sound"] and not found["disturbed"] else f"after the kill: {found}"

    def healed(self) -> str:
        """What is wrong with the host after the next run of the role."""
        configured = self.configure()
        if self.module == "config":
            left = leftovers(self.engine, unchanged=False)
            done = files(self.engine) == self.new and configured["restart_required"] and not left
            return "" if done else f"after the next run: {configured}, {files(self.engine)}, {left}"
        restarted: dict[str, Any] = {}
        if configured["restart_required"] or Path(f"{STATE}/state/restart-{self.engine.name}.json").exists():
            restarted = call("nvidia_runtime_restart", **self.arguments(configured["backup_files"]))
        found = look(self.engine)
        state = "old" if self.faults else "new"
        kind = "old" if found["files"] == "old" else "new" if files(self.engine) == self.new else "other"
        expected = "rolled_back" if self.faults else "applied"
        reported = restarted.get("state", expected)
        seen = (reported, kind, found["live"], found["sound"], found["disturbed"], found["leftovers"])
        return "" if seen == (expected, state, state, True, [], []) else f"after the next run: {restarted}, {found}"


def main() -> None:
    """Kill it at each of the points."""
    name, word, *faults = sys.argv[1:]
    what, chosen = kill_points(word)
    engine = ENGINES[name]
    fresh(engine, [])
    victim = Victim(what, engine, faults, {})
    victim.configure()
    victim = victim._replace(new=files(engine))
    points, wrong = 0, {}
    for point in chosen:
        if not victim.killed(point):
            if isinstance(chosen, list):
                wrong[point] = ["the run ended before this point"]
            break
        points += 1
        faulty = [text for text in (victim.left(), victim.healed()) if text]
        if faulty:
            wrong[point] = faulty
    mend()
    print(json.dumps({"tried": points, "wrong": wrong}))


if __name__ == "__main__":
    main()
