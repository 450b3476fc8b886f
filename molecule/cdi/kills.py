"""Inside a host: kills the module in the middle of its work, at points where it is about to change something.

kills.py CASE[@POINT,...]...

Without a POINT it is killed at each of them, one run after the other. After each kill each file is as it was or as it
is to be, and what the next run leaves has to be what an undisturbed one does. Prints JSON, as molecule/directory does.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import checks
import simulated_gpus
from conflicting_specs import OTHER, foreign_specification
from engines import COLLECTIONS, PATIENCE, STATE, kill_points, module
from observing import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNTIL = "/molecule/faults/until.py"
FOLDER = checks.SPECIFICATION.parent
RECORDS = Path(STATE, "state")
KEPT = Path("/run/gpufleet-cdi-kills")
# The next run must parse the files that a killed run left. JSON is used, because no host needs a package for it.
PLACE = {"path": str(checks.JSON_SPECIFICATION)}
Tree = dict[str, str]


class Case(NamedTuple):
    """One kind of run: a function that prepares the host ``before``, and the options of the module."""

    before: Callable[[], object]
    options: Mapping[str, Any]


def described() -> None:
    """Write a specification, then change the version of the driver."""
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    checks.specification(**PLACE)
    simulated_gpus.create(simulated_gpus.SimulatedHost(version=simulated_gpus.NEW))


def contested() -> None:
    """Write a specification with the module, and a file of another tool beside it."""
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    checks.specification(**PLACE)
    OTHER.write_bytes(foreign_specification())


def alone() -> None:
    """Do the same, then let the module move the other file away."""
    contested()
    checks.specification(**PLACE, exclusive=True)


CASES = {
    "fresh": Case(lambda: simulated_gpus.create(simulated_gpus.SimulatedHost()), PLACE),
    "stale": Case(described, PLACE),
    "exclusive": Case(contested, {**PLACE, "exclusive": True}),
    "removal": Case(alone, {"state": "absent"}),
}


def cdi_files() -> list[Path]:
    """Return the specifications and their records. RECORDS also contains other records."""
    return [*FOLDER.glob("*"), *RECORDS.glob("cdi-*")]


def clear() -> None:
    """Remove these files."""
    for path in cdi_files():
        path.unlink()
    if FOLDER.exists():
        FOLDER.rmdir()


def again(name: str) -> None:
    """Restore the files from before the run of this case. The first call creates and saves them."""
    clear()
    kept = KEPT / name
    if not kept.exists():
        CASES[name].before()
        kept.mkdir(parents=True)
        for path in cdi_files():
            shutil.copy2(path, kept)
        return
    for path in kept.iterdir():
        place = RECORDS if path.name.startswith("cdi-") else FOLDER
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)


def tree() -> Tree:
    """Return the directory's entries, and the names of the records without their contents."""
    found = {str(path): describe(str(path)) for path in FOLDER.rglob("*")}
    return {**found, **{str(path): "a record" for path in RECORDS.glob("*")}}


def files() -> Tree:
    """Return the files that engines would read."""
    return {str(path): describe(str(path)) for path in FOLDER.glob("*.*") if path.suffix in (".yaml", ".json")}


def killed(options: Mapping[str, Any], point: int) -> bool:
    """Kill the module at this point. Return false if it ended before."""
    command = module("nvidia_cdi_spec", {**checks.usual_options(), **options}, UNTIL, str(point))
    ended = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, cwd=COLLECTIONS)
    return ended.returncode == -signal.SIGKILL


def torn(before: Tree, expected: Tree) -> list[str]:
    """Return the files that have neither their previous nor their expected content."""
    found = files()
    return [path for path in {*before, *found} if found.get(path) not in (before.get(path), expected.get(path))]


def wrong_after_next_run(options: Mapping[str, Any], expected: Tree) -> str:
    """Run the module twice. Return an error if the first run leaves the change incomplete or the second changes it."""
    first, second = checks.specification(**options), checks.specification(**options)
    left = sorted(path for path, words in (tree().items() ^ expected.items()))
    failures = [result["msg"] for result in (first, second) if result.get("failed")]
    changed = second.get("changed", False)
    return f"{failures}, changed once more: {changed}, {left}" if failures or changed or left else ""


def main() -> None:
    """Kill the module at each point, and print the result. The specification is removed at the end."""
    chosen = dict(kill_points(word) for word in sys.argv[1:])
    points, wrong = dict.fromkeys(chosen, 0), {}
    shutil.rmtree(KEPT, ignore_errors=True)
    checks.specification(state="absent")
    for name, numbers in chosen.items():
        case = CASES[name]
        again(name)
        before = files()
        checks.specification(**case.options)
        expected = tree()
        for point in numbers:
            again(name)
            if not killed(case.options, point):
                if isinstance(numbers, list):
                    wrong[f"{name} at {point}"] = ["the run ended before this point"]
                break
            points[name] += 1
            faulty = [
                str(found) for found in (torn(before, expected), wrong_after_next_run(case.options, expected)) if found
            ]
            if faulty:
                wrong[f"{name} at {point}"] = faulty
    clear()
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    print(json.dumps({"tried": sum(points.values()), "points": points, "wrong": wrong}))


if __name__ == "__main__":
    main()
