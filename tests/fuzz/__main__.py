# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the collection's code on mutated files. Each case runs in its own process with limits of memory and time.

python tests/fuzz [--format NAME]... [--seed N] [--count N]      all formats, or some
python tests/fuzz --format NAME --seed N --case N [--keep DIR]   one case again; DIR gets its files
python tests/fuzz --list                                         the names of the formats

A case fails if the code raises an exception that is not an error of this collection, if a property of the format does
not hold, or if the process exceeds a limit. The first cases are the unchanged seeds of the format; they must succeed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import resource
import select
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The collection can be imported from a plain clone, as in tests/unit/conftest.py.
for _name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
    sys.modules[_name] = types.ModuleType(_name)
    sys.modules[_name].__path__ = [str(ROOT)] if _name.endswith("nvidia") else []

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.fuzz.formats import FORMATS, Format  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import Files, mutated  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.fuzz.trees import lay  # noqa: E402

# Limits of one case: memory beyond that of the process before the case, CPU time, and time. The limit of time is much
# longer than that of CPU time, so that a case does not fail on a slow machine.
MEMORY = 256 << 20
PROCESSOR_SECONDS, SECONDS = 5, 60
# The maximum number of characters in an error message, because a message must not quote a whole file.
LONGEST_MESSAGE = 4_000
SHOWN_FAILURES = 5
ACCEPTED, REFUSED, FAILED = b"accepted", b"refused", b"failed"
DEFAULT_SEED, DEFAULT_COUNT = 1, 2_000 if os.environ.get("GPUFLEET_NIGHTLY") == "1" else 10


class FirstChoice(random.Random):
    """A generator that always returns the first choice, so that the seeds of a format run with the simplest options."""

    def choice(self, seq: t.Any) -> t.Any:
        return seq[0]

    def sample(self, population: t.Any, k: int, **_options: t.Any) -> t.Any:
        return population[:k]


class Case(t.NamedTuple):
    """One mutation of one format; ``seed`` and ``number`` determine it."""

    format: Format
    seeds: t.Sequence[Files]
    seed: int
    number: int

    def files(self, rng: random.Random) -> Files:
        """Return the files of the case. The first cases are the unchanged seeds."""
        if self.number < len(self.seeds):
            return dict(self.seeds[self.number])
        chosen = rng.choice(self.seeds)
        free = {path: content for path, content in chosen.items() if path.startswith(self.format.mutable)}
        changed = mutated(rng, free, self.seeds, self.format.syntax, self.format.kinds)
        return {**chosen, **changed}

    def generator(self) -> random.Random:
        if self.number < len(self.seeds):
            return FirstChoice()
        # A string as the seed gives the same numbers on each Python version and in each process.
        return random.Random(f"{self.format.name}/{self.seed}/{self.number}")

    def run(self, folder: Path) -> tuple[bytes, str]:
        """Return the result (ACCEPTED, REFUSED or FAILED), and the error."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            self._run_in_child(folder, write)
        os.close(write)
        with open(read, "rb") as stream:
            if not select.select([stream], [], [], SECONDS)[0]:
                os.kill(child, signal.SIGKILL)
            result, _newline, reason = stream.read().partition(b"\n")
        _child, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return FAILED, f"the case exceeds its limits or crashes: {name}\n{reason.decode('utf-8', 'replace')}"
        if result == REFUSED and self.number < len(self.seeds):
            return FAILED, f"a valid file is refused: {reason.decode('utf-8', 'replace')}"
        return result or FAILED, reason.decode("utf-8", "replace")

    def _run_in_child(self, folder: Path, write: int) -> t.NoReturn:
        result = FAILED
        try:
            _limit(write)
            result, reason = self._attempt(folder)
            os.write(write, result + b"\n" + reason.encode("utf-8", "backslashreplace"))
        finally:
            os._exit(0)

    def _attempt(self, folder: Path) -> tuple[bytes, str]:
        rng = self.generator()
        try:
            self.format.target(folder, self.files(rng), rng)
        except NvidiaError as error:
            message = str(error)
            if len(message) > LONGEST_MESSAGE or not message.strip():
                return FAILED, f"the message has {len(message)} characters: {message[:500]}"
            return REFUSED, message
        # Any other exception is a failure.
        except BaseException:  # noqa: BLE001
            return FAILED, traceback.format_exc(limit=-8)[-4_000:]
        return ACCEPTED, ""


def _limit(report: int) -> None:
    """Set the limits of this process. If it uses too much CPU time, its stack is written to ``report``, and it ends."""
    gc.enable()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    size = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.register(signal.SIGXCPU, report, all_threads=False, chain=True)


def command(case: Case) -> str:
    """Return the command that runs a case again."""
    words = [sys.executable, os.path.relpath(Path(__file__).parent), "--format", case.format.name]
    return shlex.join([*words, "--seed", str(case.seed), "--case", str(case.number)])


def run_format(row: Format, seed: int, numbers: t.Iterable[int]) -> bool:
    """Run cases of one format and print the results. Return whether all passed."""
    seeds = row.seeds()
    counts = {ACCEPTED: 0, REFUSED: 0, FAILED: 0}
    start, slowest = time.monotonic(), 0.0
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="gpf-") as base:
        for number in numbers:
            case, folder = Case(row, seeds, seed, number), Path(base, "c")
            folder.mkdir()
            before = time.monotonic()
            result, reason = case.run(folder)
            slowest = max(slowest, time.monotonic() - before)
            counts[result] += 1
            if result == FAILED and counts[FAILED] <= SHOWN_FAILURES:
                print(f"{row.name}: case {number} failed. Run it again: {command(case)}\n{reason}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    spent = time.monotonic() - start
    print(
        f"{row.name}: {counts[ACCEPTED]} accepted, {counts[REFUSED]} refused, {counts[FAILED]} failed"
        f" in {spent:.0f} s, the slowest in {slowest:.1f} s",
        flush=True,
    )
    return not counts[FAILED]


def warm_up(row: Format) -> None:
    """Run one seed in this process, so that the processes of all cases start with the imported modules."""
    with tempfile.TemporaryDirectory(prefix="gpf-") as base:
        row.target(Path(base), row.seeds()[0], FirstChoice())


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in FORMATS]
    parser.add_argument("--format", action="append", choices=names, help="only this format")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="mutations per format")
    parser.add_argument("--case", type=int, help="only this case")
    parser.add_argument("--list", action="store_true", help="only print the names of the formats")
    parser.add_argument("--keep", type=Path, help="with --case: write the files of the case into this directory")
    options = parser.parse_args()
    if options.list:
        print("\n".join(names))
        return 0
    passed = True
    for row in (row for row in FORMATS if not options.format or row.name in options.format):
        warm_up(row)
        numbers = range(options.count + len(row.seeds())) if options.case is None else [options.case]
        if options.keep and options.case is not None:
            case = Case(row, row.seeds(), options.seed, options.case)
            lay(options.keep, case.files(case.generator()))
        passed = run_format(row, options.seed, numbers) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
