# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure what the unit tests notice: change the code at places chosen by a seed, and run the tests that execute them.

    python tests/mutation.py --report before.json        # on the commit before tests are removed
    python tests/mutation.py --report after.json --compare before.json

With --compare the script ends with 1 if a change that the earlier tests noticed is not noticed any more. Both reports
need the same code in plugins/, the same seed and the same count.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

import coverage

if t.TYPE_CHECKING:
    import collections.abc as c

_ROOT = Path(__file__).resolve().parents[1]
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
# A test run that takes longer than this many seconds hangs because of the change: the change is noticed.
_TIMEOUT = 300
# pytest's exit status for tests that it cannot find, such as parameters whose name a change alters.
_UNKNOWN_TEST = 4


class Mutant(t.NamedTuple):
    """One change: the file, the line, the code before and after, and the first line of the statement."""

    path: str
    line: int
    column: int
    before: str
    after: str
    statement: int

    @property
    def name(self) -> str:
        """Identify the change in a report."""
        return f"{self.path}:{self.line}:{self.column}: {self.before} -> {self.after}"


def _changed(node: ast.AST) -> ast.AST | None:
    """Return the node with another meaning, or None where this script has no change for it."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _COMPARISONS:
        new.ops[0] = _COMPARISONS[type(new.ops[0])]()
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        return new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
    elif isinstance(new, ast.Constant) and isinstance(new.value, int):
        new.value += 1
    elif isinstance(new, ast.BinOp) and isinstance(new.op, (ast.Add, ast.Sub)):
        new.op = ast.Sub() if isinstance(new.op, ast.Add) else ast.Add()
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
    elif isinstance(new, ast.Return) and new.value is not None and not isinstance(new.value, ast.Constant):
        new.value = ast.Constant(None)
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        return ast.Pass()
    else:
        return None
    return new


def _executed(tree: ast.AST) -> c.Iterator[ast.AST]:
    """Yield the nodes that run and can be changed.

    Not among them are annotations, blocks for type checkers, decorators, and the parts of f-strings, whose place in the
    source is unknown before Python 3.12.
    """
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield child.value
                yield from _executed(child.value)
            continue
        if isinstance(child, (ast.arg, ast.JoinedStr)):
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in (*child.args.defaults, *filter(None, child.args.kw_defaults), *child.body):
                yield statement
                yield from _executed(statement)
            continue
        yield child
        yield from _executed(child)


def _statements(tree: ast.AST) -> dict[int, int]:
    """Return the first line of the innermost statement of each node, by the id of the node."""
    found: dict[int, int] = {}
    # Outer statements come first, and the nodes of inner ones replace them.
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            found.update((id(node), statement.lineno) for node in ast.walk(statement))
    return found


def _mutants(path: Path) -> list[Mutant]:
    """Return every change that this script can make in a file."""
    source = path.read_text(encoding="utf-8")
    found = []
    tree = ast.parse(source)
    statements = _statements(tree)
    for node in _executed(tree):
        new = _changed(node)
        before = ast.get_source_segment(source, node)
        # A change of one line keeps the line numbers of the coverage data.
        if new is not None and before and "\n" not in before:
            after = ast.unparse(ast.fix_missing_locations(new))
            if isinstance(new, ast.expr):
                after = f"({after})"
            place = t.cast("ast.expr", node)
            name = str(path.relative_to(_ROOT))
            found.append(Mutant(name, place.lineno, place.col_offset, before, after, statements[id(node)]))
    return found


def choose(count: int, seed: int) -> list[Mutant]:
    """Choose changes by a seed, one from each file of plugins/ in turn."""
    chance = random.Random(seed)  # noqa: S311  # nothing secret
    pools = [_mutants(path) for path in sorted(_ROOT.glob("plugins/*/**/*.py"))]
    for pool in pools:
        chance.shuffle(pool)
    chance.shuffle(pools)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(pools):
        chosen += [pool.pop() for pool in pools if pool][: count - len(chosen)]
    return chosen


def _measure(database: Path) -> None:
    """Run all unit tests and record which test executes which line."""
    rcfile = database.with_suffix(".rc")
    rcfile.write_text(f"[run]\nsource = {_ROOT}/plugins\ndata_file = {database}\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cov", f"--cov-config={rcfile}",
         "--cov-context=test", "--cov-report=", "tests/unit"],
        cwd=_ROOT, check=True,
    )  # fmt: skip


class Coverage:
    """Which tests execute a line, from a database with one context per test."""

    def __init__(self, database: Path) -> None:
        self._data = coverage.CoverageData(str(database))
        self._data.read()
        self._files = {path.partition("/plugins/")[2]: path for path in self._data.measured_files()}
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the line; for a line that runs at import, those of the whole file."""
        path = self._files.get(mutant.path.partition("plugins/")[2])
        if path is None:
            return []
        if path not in self._lines:
            self._lines[path] = self._data.contexts_by_lineno(path)
        lines = self._lines[path]
        # Lines inside a constant of several lines have no data of their own.
        contexts = set(lines.get(mutant.line) or lines.get(mutant.statement) or ())
        if "" in contexts:
            contexts = {context for found in lines.values() for context in found}
        tests = {context.rpartition("|")[0] for context in contexts if context}
        # The tests named after the file come first: one of them is likely to fail.
        return sorted(tests, key=lambda test: (Path(mutant.path).stem not in test, test))


def _pytest(tree: Path, tests: c.Sequence[str]) -> int:
    arguments = tree / "arguments.txt"
    arguments.write_text("\n".join(tests), encoding="utf-8")
    with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
        Path(scratch).chmod(0o755)
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
                   f"@{arguments}"]  # fmt: skip
        environ = {**os.environ, "TMPDIR": scratch, "HYPOTHESIS_STORAGE_DIRECTORY": f"{scratch}/hypothesis"}
        try:
            return subprocess.run(
                command, cwd=tree, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                timeout=_TIMEOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1


def notices(mutant: Mutant, tests: c.Sequence[str], tree: Path) -> bool:
    """Apply the change in a copy of the repository and tell whether a test fails."""
    if not tests:
        return False
    path = tree / mutant.path
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    line = lines[mutant.line - 1].encode()
    end = mutant.column + len(mutant.before.encode())
    lines[mutant.line - 1] = (line[: mutant.column] + mutant.after.encode() + line[end:]).decode()
    path.write_text("".join(lines), encoding="utf-8")
    try:
        status = _pytest(tree, tests)
        if status == _UNKNOWN_TEST:
            status = _pytest(tree, sorted({test.partition("::")[0] for test in tests}))
        return status != 0
    finally:
        path.write_text(source, encoding="utf-8")


def _run_all(mutants: c.Sequence[Mutant], covered: Coverage, jobs: int) -> dict[str, bool]:
    results = {}
    with tempfile.TemporaryDirectory(prefix="gpufleet-mutation-", dir="/dev/shm") as name:
        Path(name).chmod(0o755)
        trees = []
        for job in range(jobs):
            trees.append(Path(name, str(job), "tree"))
            shutil.copytree(_ROOT, trees[-1], symlinks=True, ignore=shutil.ignore_patterns(".git", ".nox", "output"))

        def run(job: int) -> None:
            for mutant in mutants[job::jobs]:
                tests = covered.tests_of(mutant)
                results[mutant.name] = notices(mutant, tests, trees[job])
                verdict = "noticed" if results[mutant.name] else "NOT NOTICED"
                print(f"{verdict:11} {mutant.name} ({len(tests)} tests)", flush=True)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, range(jobs)))
    return results


def main() -> int:
    """Run the changes that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many changes (default: 200)")
    parser.add_argument("--seed", type=int, default=8, help="the seed that chooses them (default: 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--coverage", type=Path, help="a coverage database with contexts, instead of a new one")
    parser.add_argument("--report", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--compare", type=Path, help="the report of an earlier run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        database = arguments.coverage or Path(name, "coverage")
        if arguments.coverage is None:
            _measure(database)
        results = _run_all(choose(arguments.count, arguments.seed), Coverage(database), arguments.jobs)
    arguments.report.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{sum(results.values())} of {len(results)} changes are noticed.")
    if arguments.compare is None:
        return 0
    earlier = json.loads(arguments.compare.read_text(encoding="utf-8"))
    if earlier.keys() != results.keys():
        sys.exit("The two reports have different changes: use the same code in plugins/, seed and count.")
    lost = sorted(name for name, noticed in earlier.items() if noticed and not results[name])
    for name in lost:
        print(f"no longer noticed: {name}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
