# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Try a scenario with a fault at one point, and check the tree after it, after the next run, and after a removal.

What a record contains is not read. Whether it exists and is right shows in the removal, which needs it to restore the
original bytes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import typing as t

from ansible_collections.gpufleet.nvidia.tests.compare_versions import transcript
from ansible_collections.gpufleet.nvidia.tests.faults import calls

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.tests.faults.scenarios import Arguments, Scenario

_OWN = "/var/lib/gpufleet-nvidia"
# What may remain: backups, and empty directories for records, since the last record must go before they do.
_OWN_DIRECTORIES = (_OWN, f"{_OWN}/state")
# Files that contain times or inodes. Only their names are compared.
_VOLATILE = re.compile(rf"{_OWN}/state/|.*/\.(manifest|created)\.json\Z")
# The number of a version of the toolkit whose name exists already.
_NUMBER = re.compile(r"(-[0-9a-f]{12})-[0-9]+\b")
# The directory in which a toolkit is unpacked before its link is switched.
_STAGED = re.compile(r".*\.versions(/|\Z)")
_SHOWN, _WIDTH = 6, 200

Tree = transcript.Snapshot


class Unsound(Exception):  # noqa: N818
    """A check failed. The text says which."""


class Expected(t.NamedTuple):
    """The trees of a scenario without a fault: at first, before and after the task, and after the removal."""

    original: Tree
    old: Tree
    new: Tree
    gone: Tree


class Trial:
    """A scenario in a directory. ``prepare`` runs it without a fault, ``try_point`` with one."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.start, self.root, self.copy = (folder / name for name in ("start", "tree", "copy"))
        self._home = folder / "home"
        self.points: list[calls.Point] = []
        # The warnings of the run in which the fault occurred.
        self._named = ""
        # Digests of trees from which the further runs have been checked.
        self._sound: set[str] = set()

    def prepare(self) -> None:
        """Run the scenario without a fault, and list its points. Raises Unsound if it does not work even then."""
        self._home.mkdir(parents=True, exist_ok=True)
        self.scenario.build(self.root)
        original = self._snapshot()
        for arguments in self.scenario.first:
            self._run(arguments)
        old = self._snapshot()
        self._copy(self.root, self.start)
        # A copy has other inodes. What the task reads depends on them, and the points are tried on copies.
        self._copy(self.start, self.root)
        done = self._call(self.scenario.task, traced=True)
        self._require_success(done, "without a fault")
        if not (done.result or {}).get("changed"):
            raise Unsound("The task changes nothing.")
        self.points = calls.points(done.log, self.root)
        new = self._snapshot()
        self._run(self.scenario.removal)
        self._expected = Expected(original, old, new, self._snapshot())
        self._compare(self._expected.gone, original, "the removal without a fault")

    def try_point(self, point: calls.Point) -> None:
        """Run the task with a fault at ``point``. Raises Unsound if a check fails."""
        self._copy(self.start, self.root)
        done = self._call(self.scenario.task, point)
        problem = calls.missed(point, done, self.root) or done.problem()
        if problem:
            raise Unsound(problem)
        found = self._snapshot()
        self._check_files(found, point)
        self._named = str((done.result or {}).get("warnings", ""))
        if not done.killed and not (done.result or {}).get("failed"):
            self._compare(found, self._expected.new, "the task that reported success")
        state = f"{self._digest()} {self._named}"
        if state not in self._sound:
            self._copy(self.root, self.copy)
            self._check_next_run()
            self._copy(self.copy, self.root)
            self._check_reverse()
            self._sound.add(state)

    def keep(self, point: calls.Point) -> calls.Outcome:
        """Run the task with a fault at ``point``, and leave the tree as it is then."""
        self._copy(self.start, self.root)
        return self._call(self.scenario.task, point)

    # -- checks ------------------------------------------------------------------------------------------------------

    def _check_files(self, found: Tree, point: calls.Point) -> None:
        """Require that each file is the old or the new one, and that a failed task has removed its temporary files."""
        old, new = self._expected.old, self._expected.new
        for path in {*found, *old, *new}:
            here = found.get(path)
            if path in old or path in new:
                allowed = here in (old.get(path), new.get(path))
            else:
                folder = here is not None and here[0].startswith("d")
                allowed = folder or _STAGED.match(path) is not None or point.prevents_cleaning
            if not allowed and not _STAGED.match(path):
                raise Unsound(f"after the fault, {path} is neither the old nor the new one: {here}")

    def _check_next_run(self) -> None:
        """Require that the next run completes the work, that one more changes nothing, and that all can be removed."""
        self._run(self.scenario.task)
        self._compare(self._snapshot(), self._expected.new, "the next run")
        again = self._run(self.scenario.task)
        if again.get("changed"):
            raise Unsound(f"the run after the next one reports a change: {_brief(again)}")
        self._run(self.scenario.removal)
        self._compare(self._snapshot(), self._expected.gone, "the next run and a removal")

    def _check_reverse(self) -> None:
        """Require that a removal restores the tree, after an interrupted removal together with a configuration."""
        if self.scenario.removes:
            self._run(self.scenario.configured)
        self._run(self.scenario.removal)
        middle = "a configuration and " if self.scenario.removes else ""
        self._compare(self._snapshot(), self._expected.gone, f"{middle}a removal directly after the fault")

    def _compare(self, found: Tree, wanted: Tree, event: str) -> None:
        """Require that the tree is ``wanted``, except directories that the warnings of the faulty run name."""
        lines = []
        for path in sorted({*found, *wanted}):
            extra = path not in wanted and found[path][0].startswith("d") and f"{path} " in self._named
            if found.get(path) != wanted.get(path) and not extra:
                lines.append(f"  {path}: {found.get(path)}, not {wanted.get(path)}"[:_WIDTH])
        if lines:
            raise Unsound("\n".join([f"after {event}, the files differ:", *lines[:_SHOWN]]))

    # -- runs --------------------------------------------------------------------------------------------------------

    def _run(self, arguments: Arguments) -> Arguments:
        done = self._call(arguments)
        self._require_success(done, f"in the task {arguments}")
        return done.result or {}

    def _require_success(self, done: calls.Outcome, event: str) -> None:
        problem = done.problem()
        if problem or done.killed or done.result is None or done.result.get("failed"):
            raise Unsound(f"an error {event}: {problem or _brief(done.result or {})}")

    def _call(self, arguments: Arguments, point: calls.Point | None = None, *, traced: bool = False) -> calls.Outcome:
        internal = {"check_mode": False, "diff": False, "no_log": True, "remote_tmp": str(self._home)}
        settings = {f"_ansible_{name}": value for name, value in internal.items()}
        tree = self.scenario.tree
        given = {"host_root": str(self.root), **tree.common, **arguments, **settings}
        return calls.run(tree.module, given, point, traced=traced)

    def _copy(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)

    def _snapshot(self) -> Tree:
        """Return the tree without what may remain, and without contents that differ from run to run."""
        found = transcript.snapshot(self.root)
        return {
            _NUMBER.sub(r"\1", path): (status, None if _VOLATILE.match(path) else _plain(content))
            for path, (status, content) in found.items()
            if not path.startswith(f"{_OWN}/backups") and path not in _OWN_DIRECTORIES
        }

    def _digest(self) -> str:
        """Return a digest of everything that a later run can read."""
        found = transcript.snapshot(self.root)
        return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


def _plain(content: bytes | None) -> bytes | None:
    return content and _NUMBER.sub(r"\1", content.decode("latin-1")).encode("latin-1")


def _brief(result: Arguments) -> str:
    return str({name: result.get(name) for name in ("msg", "changed", "warnings") if result.get(name)})
