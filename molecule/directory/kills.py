"""Inside a host: kills the module in the middle of its work, at points where it is about to change something.

kills.py CASE[@POINT,...|@/EACH]...

Without a POINT, each point, or with an EACH of 5 each fifth one, is tried in a run of its own. After each kill the
previous or the new version has to work, and the next run has to produce the same files as a run that is not killed.
Prints as JSON the number of points of each case, and what was wrong at each of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engines import COLLECTIONS, PATIENCE, kill_points, module
from observing import describe
from toolkits import FORMER, NAME, NEW, OLD, PACKAGES, install, make_former, source, start, toolkit

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = str(Path(__file__).with_name("points.py"))
HOME = Path("/opt/gpufleet-kills")
DEST = str(HOME / "toolkit")
KEPT = Path("/run/gpufleet-kills")
SCRATCH = [Path("/tmp"), Path("/var/tmp")]
# The parts of a manifest that differ between two versions with the same content.
PASSING = re.compile(r'"(?:identity|sha256)": (?:\[[^]]*\]|"[^"]*")')
Tree = dict[str, str]


class Case(NamedTuple):
    """One kind of run: a function that prepares the host, the module's options, the version before and after it."""

    before: Callable[[], object]
    options: dict[str, Any]
    old: str | None
    new: str | None


def over_two() -> None:
    """Install two versions, so that a third one removes the first one."""
    install(NEW, DEST)
    install(OLD, DEST)


def over_damaged() -> None:
    """Install two versions, and remove a program of the current one."""
    over_two()
    Path(DEST, "nvidia-ctk").unlink()


def over_former() -> None:
    """Create a directory as NVIDIA's installer leaves it."""
    make_former(DEST)


def over_link() -> None:
    """Create a link to such a directory, which another tool made."""
    make_former(f"{HOME}/theirs")
    Path(DEST).symlink_to("theirs")


def over_taken() -> None:
    """Install two versions in place of such a directory."""
    over_former()
    over_two()


PACKED = {"files": sorted(map(str, PACKAGES.glob("*.deb")))}
CASES = {
    "fresh": Case(lambda: None, {"src": source(NEW)}, None, NEW),
    "packages": Case(over_two, PACKED, OLD, NEW),
    "switch": Case(over_two, {"src": source(NEW)}, OLD, NEW),
    "damage": Case(over_damaged, {"src": source(OLD)}, OLD, OLD),
    "installer": Case(over_former, {"src": source(NEW)}, FORMER, NEW),
    "link": Case(over_link, {"src": source(NEW)}, FORMER, NEW),
    "removal": Case(over_two, {"state": "absent"}, OLD, None),
    "restored": Case(over_taken, {"state": "absent"}, OLD, FORMER),
}


def again(case: str) -> None:
    """Restore the files from before the run of this case. The first call creates and saves them."""
    shutil.rmtree(HOME, ignore_errors=True)
    kept = KEPT / case
    if not kept.exists():
        HOME.mkdir()
        CASES[case].before()
        KEPT.mkdir(exist_ok=True)
        shutil.copytree(HOME, kept, symlinks=True)
    else:
        shutil.copytree(kept, HOME, symlinks=True)


def tree() -> Tree:
    """Return all entries without the parts that differ between two versions with the same content."""
    parts = roles()

    def with_roles(text: str) -> str:
        return NAME.sub(lambda found: parts.get(found.group(), found.group()), text)

    found = {}
    for folder, folders, files in os.walk(HOME):
        for name in folders + files:
            path = os.path.join(folder, name)
            words = describe(path)
            if os.path.isfile(path) and not os.path.islink(path):
                content = PASSING.sub("", with_roles(Path(path).read_text(errors="surrogateescape")))
                words = f"{words.rsplit(' ', 1)[0]} {hash(content)}"
            found[with_roles(path)] = with_roles(words)
    return found


def roles() -> dict[str, str]:
    """Return the role of each version (PREVIOUS or CURRENT) by its name."""
    manifest = Path(DEST, ".manifest.json")
    if not manifest.exists():
        return {}
    fields = json.loads(manifest.read_text())
    return {fields["replaces"]: "PREVIOUS", fields["name"]: "CURRENT"}


def scratch() -> set[Path]:
    """Return the temporary directories of the module."""
    return {path for folder in SCRATCH for path in folder.glob("gpufleet-*")}


def killed(case: Case, point: int) -> bool:
    """Kill the module at this point. Return false if it ended before."""
    options = {"source": "directory", "dest": DEST, **case.options}
    command = module("nvidia_toolkit_install", options, POINTS, str(point))
    ended = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE, cwd=COLLECTIONS)
    return ended.returncode == -signal.SIGKILL


def at_work(case: Case) -> str:
    """Return what is wrong after the kill, empty if the previous or the new version works."""
    if None in (case.old, case.new) and not os.path.lexists(DEST):
        return ""
    version, complaint = start(DEST)
    return "" if version in (case.old, case.new) else complaint or f"{version} is at work"


def wrong_after_next_run(case: Case, expected: Tree) -> str:
    """Run the module twice. Return an error if the first run leaves wrong files or the second changes anything."""
    first, second = toolkit(DEST, **case.options), toolkit(DEST, **case.options)
    left, lost = differing(expected, tree()), sorted(map(str, scratch()))
    for path in lost:
        shutil.rmtree(path)
    failures = [result["msg"] for result in (first, second) if result.get("failed")]
    changed = second.get("changed", False)
    return f"{failures}, changed once more: {changed}, {left}, {lost}" if failures or changed or left or lost else ""


def differing(expected: Tree, found: Tree) -> list[str]:
    """Return the paths that differ from the expected ones."""
    return [path for path in sorted({*expected, *found}) if expected.get(path) != found.get(path)]


def main() -> None:
    """Kill the module at each point, and print the result."""
    chosen = dict(kill_points(word) for word in sys.argv[1:])
    points, wrong = dict.fromkeys(chosen, 0), {}
    shutil.rmtree(KEPT, ignore_errors=True)
    for name, numbers in chosen.items():
        case = CASES[name]
        # The first call creates the files. The second one restores a copy, whose inodes and times are not those of the
        # manifests, as before each killed run.
        again(name)
        again(name)
        toolkit(DEST, **case.options)
        expected = tree()
        for point in numbers:
            again(name)
            if not killed(case, point):
                if isinstance(numbers, list):
                    wrong[f"{name} at {point}"] = ["the run ended before this point"]
                break
            points[name] += 1
            faulty = [text for text in (at_work(case), wrong_after_next_run(case, expected)) if text]
            if faulty:
                wrong[f"{name} at {point}"] = faulty
    shutil.rmtree(HOME)
    print(json.dumps({"tried": sum(points.values()), "points": points, "wrong": wrong}))


if __name__ == "__main__":
    main()
