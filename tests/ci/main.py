# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""./test: runs the stages, some side by side, tells how each went, and ends with the sum."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
import time
import traceback
import typing as t
from pathlib import Path

# The virtual environments and the sandbox are those of ./quickstart.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "quickstart.d"))

import stages
from sandbox import SandboxError
from venvs import VenvError
from workspace import LOGS, ROOT, StageError, Workspace


class Stage(t.NamedTuple):
    """A stage, and when it runs if it is not asked for by name."""

    name: str
    function: t.Callable[[Workspace], None]
    when: t.Literal["quick", "always", "ci", "molecule"]
    # It does several things at once itself, and nothing runs beside it.
    alone: bool = False


class Result(t.NamedTuple):
    """How a stage went: what is wrong, or nothing, its time in seconds, and the parts for which there was no time."""

    complaint: str
    seconds: float
    left_out: t.Sequence[str]

    def __str__(self) -> str:
        missing = f"without {', '.join(self.left_out)}, for lack of time" if self.left_out else ""
        words = "; ".join(filter(None, (self.complaint, missing)))
        return f"{'FAILED' if self.complaint else 'ok':6} {self.seconds:6.1f} s  {words}".rstrip()


# The quick ones first: what fails early is read early. Then the long ones: none of them is the last to run.
_STAGES = (
    Stage("ruff", stages.ruff, "quick"),
    Stage("mypy", stages.mypy, "quick"),
    Stage("unit", stages.unit, "quick"),
    Stage("integration", stages.integration, "always"),
    Stage("sanity", stages.sanity, "always"),
    Stage("sandbox", stages.sandbox_host, "always"),
    Stage("quickstart", stages.quickstart, "always"),
    Stage("browser", stages.browser, "always"),
    Stage("lint", stages.lint, "always"),
    Stage("importer", stages.importer, "ci"),
    Stage("docs", stages.docs, "always"),
    Stage("package", stages.package, "always"),
    Stage("unit-nodes", stages.unit_nodes, "always", alone=True),
    Stage("molecule", stages.molecule, "molecule", alone=True),
)


class _Tee:
    """The terminal and a file at once."""

    def __init__(self, file: t.TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        sys.stdout.write(text)
        return self._file.write(text)

    def flush(self) -> None:
        sys.stdout.flush()
        self._file.flush()

    def isatty(self) -> bool:
        return False


def _selected(arguments: argparse.Namespace) -> list[Stage]:
    if arguments.stage:
        return [stage for stage in _STAGES if stage.name in arguments.stage]
    wanted = {"quick"} if arguments.quick else {"quick", "always"}
    if arguments.molecule:
        wanted.add("molecule")
    if os.environ.get("CI") == "true" and not arguments.quick:
        wanted.add("ci")
    return [stage for stage in _STAGES if stage.when in wanted]


def _log(stage: Stage) -> Path:
    return LOGS / f"{stage.name}.log"


def _run(stage: Stage, until: float | None, terminal: bool) -> Result:
    """Run a stage; what it writes goes to its log, and at once to the terminal if that is to be."""
    work = None
    started = time.monotonic()
    with _log(stage).open("w", encoding="utf-8") as file:
        log = t.cast("t.TextIO", _Tee(file)) if terminal else file
        print(f"\n=== {stage.name}: {stage.function.__doc__}", file=log, flush=True)
        complaint = ""
        try:
            work = Workspace(stage.name, log, until)
            work.sync()
            stage.function(work)
        except (StageError, SandboxError, VenvError) as error:
            complaint = str(error)
        except Exception as error:  # noqa: BLE001  # the other stages still run
            complaint = repr(error)
            print(traceback.format_exc(), file=log)
        if complaint:
            print(f"FAILED: {complaint}", file=log, flush=True)
    return Result(complaint, time.monotonic() - started, work.left_out if work else ())


def _run_all(selected: t.Sequence[Stage], until: float | None) -> dict[str, Result]:
    """Run the stages that need one core side by side, each with its output in one piece, and then the others."""
    results = {}
    narrow = [stage for stage in selected if not stage.alone]
    at_once = min(os.cpu_count() or 1, len(narrow))
    if at_once > 1:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            runs = {pool.submit(_run, stage, until, terminal=False): stage for stage in narrow}
            for done in concurrent.futures.as_completed(runs):
                stage = runs[done]
                results[stage.name] = done.result()
                print(_log(stage).read_text(encoding="utf-8"), end="", flush=True)
    for stage in selected:
        if stage.name not in results:
            results[stage.name] = _run(stage, until, terminal=True)
    return results


def main() -> int:
    """Run the stages that the command line asks for."""
    names = [stage.name for stage in _STAGES]
    parser = argparse.ArgumentParser(prog="./test", description="The tests of gpufleet.nvidia.")
    parser.add_argument("--quick", action="store_true", help="the inner loop: ruff, mypy, unit tests on one Python")
    parser.add_argument("--molecule", action="store_true", help="add the molecule scenarios on booted hosts (root)")
    parser.add_argument("--stage", action="append", choices=names, metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no molecule scenario after so many minutes")
    parser.add_argument("--list", action="store_true", help="name the stages")
    arguments = parser.parse_args()
    if arguments.list:
        for stage in _STAGES:
            print(f"{stage.name:12} {stage.when:9} {stage.function.__doc__}")
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    selected = _selected(arguments)
    results = _run_all(selected, None if arguments.minutes is None else started + 60 * arguments.minutes)
    print()
    for stage in selected:
        print(f"{stage.name:12} {results[stage.name]}")
    print(f"\nLogs: {LOGS.relative_to(ROOT)}/; all of it took {time.monotonic() - started:.0f} s.")
    failed = sum(bool(result.complaint) for result in results.values())
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
