# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules under strace, with one system call that fails, or killed at one system call. Then check the tree.

python tests/faults [--scenario NAME]... [--count N] [--seed N]     N points of each scenario; 0 for all of them
python tests/faults --scenario NAME --point POINT [--keep DIR]       one point again; DIR gets the tree after the fault
python tests/faults --list                                           the names of the scenarios

A point is a call that changes a file, and an error or KILL. After each one: each file is the old or the new one; the
module prints a result and no traceback; the next run completes the work, and a further one changes nothing; a removal
restores the original files, with and without that next run. Exit status 1: a check failed.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import types
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The collection can be imported from a plain clone, as in tests/unit/conftest.py.
for _name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
    sys.modules[_name] = types.ModuleType(_name)
    sys.modules[_name].__path__ = [str(ROOT)] if _name.endswith("nvidia") else []

from ansible_collections.gpufleet.nvidia.tests.compare_versions import worker  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.faults import scenarios  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.faults.calls import Point, TracerError  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.faults.trial import Trial, Unsound  # noqa: E402

DEFAULT_SEED, DEFAULT_COUNT = 1, 0 if os.environ.get("GPUFLEET_NIGHTLY") == "1" else 12
SHOWN_FAILURES = 5


class Report(t.NamedTuple):
    """The result of a scenario: how many points it has and how many were tried, and the failures by point."""

    scenario: str
    points: int
    tried: int
    failures: t.Sequence[tuple[str, str]]
    seconds: float


def run(name: str, options: argparse.Namespace, base: str) -> Report:
    """Try points of a scenario."""
    scenario = next(scenario for scenario in scenarios.scenarios() if scenario.name == name)
    start = time.monotonic()
    failures = []
    folder = Path(tempfile.mkdtemp(dir=base))
    trial = Trial(scenario, folder)
    chosen = []
    try:
        trial.prepare()
        chosen = trial.points
        if options.point:
            chosen = [point for point in chosen if point.name == options.point]
            if not chosen:
                failures.append((options.point, "there is no such point."))
        elif options.count:
            chosen = sample(chosen, options.count, f"{scenario.name}/{options.seed}")
    except Unsound as error:
        failures.append(("", str(error)))
    for point in chosen:
        try:
            trial.try_point(point)
        except Unsound as error:
            failures.append((point.name, str(error)))
        if options.keep:
            print(trial.keep(point).output, end="")
            # Unlike shutil.copytree(), cp copies device nodes.
            subprocess.run(["cp", "-a", str(trial.root), str(options.keep)], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    return Report(scenario.name, len(trial.points), len(chosen), failures, time.monotonic() - start)


def sample(points: t.Sequence[Point], count: int, seed: str) -> list[Point]:
    """Choose points, first one of each system call, then a second one of each, and so on."""
    # A string as the seed gives the same numbers on each Python version and in each process.
    mixed = random.Random(seed).sample(points, len(points))
    seen: collections.Counter[str] = collections.Counter()
    turns = []
    for point in mixed:
        turns.append(seen[point.call.name])
        seen[point.call.name] += 1
    return [point for _turn, point in sorted(zip(turns, mixed), key=lambda pair: pair[0])][:count]


def show(report: Report) -> None:
    """Print the result of a scenario."""
    for point, text in report.failures[:SHOWN_FAILURES]:
        words = [sys.executable, os.path.relpath(Path(__file__).parent), "--scenario", report.scenario]
        command = shlex.join([*words, "--point", point] if point else words)
        print(f"{report.scenario}: {point} failed: {text}\n  Run it again: {command}")
    counts = f"{report.tried} of {report.points} points, {len(report.failures)} failed"
    print(f"{report.scenario}: {counts}, {report.seconds:.0f} s", flush=True)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {scenario.name: scenario.needs_root for scenario in scenarios.scenarios()}
    parser.add_argument("--scenario", action="append", choices=list(known), help="only this scenario")
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="points of each scenario; 0 for all")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="chooses the points")
    parser.add_argument("--point", help="only this point, as a failure names it")
    parser.add_argument("--keep", type=Path, help="with --point: copy the tree after the fault to this directory")
    parser.add_argument("--list", action="store_true", help="only print the names of the scenarios")
    options = parser.parse_args()
    if options.keep and (not options.point or os.path.lexists(options.keep)):
        parser.error("--keep needs --point, and a directory that does not exist.")
    if options.list:
        print("\n".join(known))
        return 0
    os.umask(0o022)
    worker.install(ROOT)
    worker.warm_up(ROOT)
    chosen = [name for name in options.scenario or known if os.geteuid() == 0 or not known[name]]
    for name in (name for name in options.scenario or known if name not in chosen):
        print(f"{name}: skipped, because only root can create the device nodes of its tree")
    if not chosen:
        return 0
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gpufleet-", dir=memory) as base:
        os.environ.update({"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": base, "TMPDIR": base})
        with multiprocessing.get_context("fork").Pool(min(len(chosen), os.cpu_count() or 1)) as pool:
            tasks = [pool.apply_async(run, (name, options, base)) for name in chosen]
            reports = []
            for task in tasks:
                try:
                    reports.append(task.get())
                except TracerError as error:
                    sys.exit(str(error))
                show(reports[-1])
    tried, failed = sum(report.tried for report in reports), sum(len(report.failures) for report in reports)
    print(f"{tried} of {sum(report.points for report in reports)} points in {len(reports)} scenarios, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
