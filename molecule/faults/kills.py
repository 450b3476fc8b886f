"""Inside a host: kills a module in the middle of its work, at points where it is about to change something.

kills.py ENGINE config|restart[@POINT,...] [FAULT...]

Without a POINT, each point is tried in a run of its own. After each kill the host has to work, unless a fault prevents
that. The next run of the role has to reach the new state, or with a fault the old state, and has to remove everything
that the killed run left. Prints as JSON the number of points and what was wrong at each of them.
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
from faults import remove_faults
from fresh import fresh
from observe import leftovers, read_state

UNTIL = str(Path(__file__).with_name("until.py"))
WANTED = {"runtimes": ["nvidia"], "default_runtime": "nvidia"}


class KilledModule(NamedTuple):
    """A module that is killed. ``new`` is the content of the engine's files after a run that is not killed."""

    module: str
    engine: Engine
    faults: list[str]
    new: dict[str, str]

    def arguments(self, changes: list[dict[str, Any]] | None) -> dict[str, Any]:
        """Return the arguments of the module. ``changes`` are those of the configuration, for the restart."""
        if changes is None:
            return {"engine": self.engine.name, "set_as_default": True}
        return {"engine": self.engine.name, "expect": WANTED, "rollback": changes, "timeout": 30}

    def configure(self) -> dict[str, Any]:
        """Write the new configuration."""
        return call("nvidia_runtime_config", **self.arguments(None))

    def killed(self, point: int) -> bool:
        """Kill the module at ``point`` on a restored host. Return false if it ended before."""
        fresh(self.engine, self.faults)
        changes = self.configure()["backup_files"] if self.module == "restart" else None
        command = module(f"nvidia_runtime_{self.module}", self.arguments(changes), UNTIL, str(point))
        ended = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, cwd=COLLECTIONS)
        return ended.returncode == -signal.SIGKILL

    def left(self) -> str:
        """Return what is wrong with the host after the kill, empty if nothing is."""
        if self.faults:
            return ""
        if self.module == "config":
            same = status(self.engine.unit)["MainPID"] == remembered("pids")[self.engine.name]
            whole = files(self.engine) in (remembered("files")[self.engine.name], self.new)
            return "" if same and whole else f"after the kill: {same}, {files(self.engine)}"
        settled(self.engine.unit)
        found = read_state(self.engine)
        return "" if found["sound"] and not found["disturbed"] else f"after the kill: {found}"

    def wrong_after_next_run(self) -> str:
        """Return what is wrong with the host after the next run of the role, empty if nothing is."""
        configured = self.configure()
        if self.module == "config":
            left = leftovers(self.engine, unchanged=False)
            done = files(self.engine) == self.new and configured["restart_required"] and not left
            return "" if done else f"after the next run: {configured}, {files(self.engine)}, {left}"
        restarted: dict[str, Any] = {}
        if configured["restart_required"] or Path(f"{STATE}/state/restart-{self.engine.name}.json").exists():
            restarted = call("nvidia_runtime_restart", **self.arguments(configured["backup_files"]))
        found = read_state(self.engine)
        state = "old" if self.faults else "new"
        kind = "old" if found["files"] == "old" else "new" if files(self.engine) == self.new else "other"
        expected = "rolled_back" if self.faults else "applied"
        reported = restarted.get("state", expected)
        seen = (reported, kind, found["live"], found["sound"], found["disturbed"], found["leftovers"])
        return "" if seen == (expected, state, state, True, [], []) else f"after the next run: {restarted}, {found}"


def main() -> None:
    """Kill the module at each point, and print the result."""
    name, word, *faults = sys.argv[1:]
    what, chosen = kill_points(word)
    engine = ENGINES[name]
    fresh(engine, [])
    module_to_kill = KilledModule(what, engine, faults, {})
    module_to_kill.configure()
    module_to_kill = module_to_kill._replace(new=files(engine))
    points, wrong = 0, {}
    for point in chosen:
        if not module_to_kill.killed(point):
            if isinstance(chosen, list):
                wrong[point] = ["the run ended before this point"]
            break
        points += 1
        faulty = [text for text in (module_to_kill.left(), module_to_kill.wrong_after_next_run()) if text]
        if faulty:
            wrong[point] = faulty
    remove_faults()
    print(json.dumps({"tried": points, "wrong": wrong}))


if __name__ == "__main__":
    main()
