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

import looks
import machine
from engines import COLLECTIONS, PATIENCE, STATE, kill_points, module
from observing import describe
from rivals import OTHER, theirs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNTIL = "/molecule/faults/until.py"
FOLDER = looks.SPECIFICATION.parent
RECORDS = Path(STATE, "state")
KEPT = Path("/run/gpufleet-cdi-kills")
# What a killed run leaves may be known to nobody but a parser, and for JSON no host needs a package.
PLACE = {"path": str(looks.SPECIFICATION.with_suffix(".json"))}
Tree = dict[str, str]


class Case(NamedTuple):
    """One kind of run: what is there ``before``, and what the module is told."""

    before: Callable[[], object]
    options: Mapping[str, Any]


def described() -> None:
    """A specification for another driver."""
    machine.become(machine.Machine())
    looks.specification(**PLACE)
    machine.become(machine.Machine(version=machine.NEW))


def contested() -> None:
    """A specification of ours, and somebody else's beside it."""
    machine.become(machine.Machine())
    looks.specification(**PLACE)
    OTHER.write_bytes(theirs())


def alone() -> None:
    """The same, after the other one had to go."""
    contested()
    looks.specification(**PLACE, exclusive=True)


CASES = {
    "fresh": Case(lambda: machine.become(machine.Machine()), PLACE),
    "stale": Case(described, PLACE),
    "exclusive": Case(contested, {**PLACE, "exclusive": True}),
    "removal": Case(alone, {"state": "absent"}),
}


def ours() -> list[Path]:
    """Specifications, and what is recorded of them; others have records too."""
    return [*FOLDER.glob("*"), *RECORDS.glob("cdi-*")]


def clear() -> None:
    """Let there be none."""
    for path in ours():
        path.unlink()
    if FOLDER.exists():
        FOLDER.rmdir()


def again(name: str) -> None:
    """Let it be as it was before."""
    clear()
    kept = KEPT / name
    if not kept.exists():
        CASES[name].before()
        kept.mkdir(parents=True)
        for path in ours():
            shutil.copy2(path, kept)
        return
    for path in kept.iterdir():
        place = RECORDS if path.name.startswith("cdi-") else FOLDER
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)


def tree() -> Tree:
    """The folder, and which files have a record; records and backups tell the time, or who made which folder."""
    found = {str(path): describe(str(path)) for path in FOLDER.rglob("*")}
    return {**found, **{str(path): "a record" for path in RECORDS.glob("*")}}


def files() -> Tree:
    """What engines would read."""
    return {str(path): describe(str(path)) for path in FOLDER.glob("*.*") if path.suffix in (".yaml", ".json")}


def killed(options: Mapping[str, Any], point: int) -> bool:
    """Run the module to that point; false if it came to its end before."""
    command = module("nvidia_cdi_spec", {"hooks": "none", "use_nvml": False, **options}, UNTIL, str(point))
    ended = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, cwd=COLLECTIONS)
    return ended.returncode == -signal.SIGKILL


def torn(before: Tree, expected: Tree) -> list[str]:
    """Files that are neither as they were nor as they are to be."""
    found = files()
    return [path for path in {*before, *found} if found.get(path) not in (before.get(path), expected.get(path))]


def healed(options: Mapping[str, Any], expected: Tree) -> str:
    """What is wrong after the next run, and with the one after that."""
    first, second = looks.specification(**options), looks.specification(**options)
    left = sorted(path for path, words in (tree().items() ^ expected.items()))
    failures = [result["msg"] for result in (first, second) if result.get("failed")]
    changed = second.get("changed", False)
    return f"{failures}, changed once more: {changed}, {left}" if failures or changed or left else ""


def main() -> None:
    """Kill it at each of the points, and leave no specification."""
    chosen = dict(kill_points(word) for word in sys.argv[1:])
    points, wrong = dict.fromkeys(chosen, 0), {}
    shutil.rmtree(KEPT, ignore_errors=True)
    looks.specification(state="absent")
    for name, numbers in chosen.items():
        case = CASES[name]
        again(name)
        before = files()
        looks.specification(**case.options)
        expected = tree()
        for point in numbers:
            again(name)
            if not killed(case.options, point):
                if isinstance(numbers, list):
                    wrong[f"{name} at {point}"] = ["the run ended before this point"]
                break
            points[name] += 1
            faulty = [str(found) for found in (torn(before, expected), healed(case.options, expected)) if found]
            if faulty:
                wrong[f"{name} at {point}"] = faulty
    clear()
    machine.become(machine.Machine())
    print(json.dumps({"tried": sum(points.values()), "points": points, "wrong": wrong}))


if __name__ == "__main__":
    main()
