# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""./test: runs the stages, tells how each went, and ends with the sum."""

from __future__ import annotations

import argparse
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
from workspace import ROOT, StageError, Workspace

_LOGS = ROOT / "tests" / "output" / "ci"


class Stage(t.NamedTuple):
    """A stage, and when it runs if it is not asked for by name."""

    name: str
    function: t.Callable[[Workspace], None]
    when: t.Literal["quick", "always", "ci", "molecule"]


# The quick ones first: what fails early is read early.
_STAGES = (
    Stage("ruff", stages.ruff, "quick"),
    Stage("mypy", stages.mypy, "quick"),
    Stage("unit", stages.unit, "quick"),
    Stage("unit-nodes", stages.unit_nodes, "always"),
    Stage("lint", stages.lint, "always"),
    Stage("docs", stages.docs, "always"),
    Stage("package", stages.package, "always"),
    Stage("sandbox", stages.sandbox_host, "always"),
    Stage("quickstart", stages.quickstart, "always"),
    Stage("integration", stages.integration, "always"),
    Stage("sanity", stages.sanity, "always"),
    Stage("importer", stages.importer, "ci"),
    Stage("molecule", stages.molecule, "molecule"),
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


def _run(stage: Stage) -> str:
    """What is wrong, or nothing."""
    with (_LOGS / f"{stage.name}.log").open("w", encoding="utf-8") as file:
        log = t.cast("t.TextIO", _Tee(file))
        print(f"\n=== {stage.name}: {stage.function.__doc__}", file=log, flush=True)
        complaint = ""
        try:
            work = Workspace(log)
            work.sync()
            stage.function(work)
        except (StageError, SandboxError, VenvError) as error:
            complaint = str(error)
        except Exception as error:  # noqa: BLE001  # the other stages still run
            complaint = repr(error)
            print(traceback.format_exc(), file=log)
        if complaint:
            print(f"FAILED: {complaint}", file=log, flush=True)
        return complaint


def main() -> int:
    """Run the stages that the command line asks for."""
    names = [stage.name for stage in _STAGES]
    parser = argparse.ArgumentParser(prog="./test", description="The tests of gpufleet.nvidia.")
    parser.add_argument("--quick", action="store_true", help="the inner loop: ruff, mypy, unit tests on one Python")
    parser.add_argument("--molecule", action="store_true", help="add the molecule scenarios on booted hosts (root)")
    parser.add_argument("--stage", action="append", choices=names, metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--list", action="store_true", help="name the stages")
    arguments = parser.parse_args()
    if arguments.list:
        for stage in _STAGES:
            print(f"{stage.name:12} {stage.when:9} {stage.function.__doc__}")
        return 0
    _LOGS.mkdir(parents=True, exist_ok=True)
    results = []
    for stage in _selected(arguments):
        started = time.monotonic()
        complaint = _run(stage)
        results.append((stage.name, complaint, time.monotonic() - started))
    print()
    for name, complaint, seconds in results:
        print(f"{name:12} {'FAILED' if complaint else 'ok':6} {seconds:6.1f} s  {complaint}".rstrip())
    print(f"\nLogs: {_LOGS.relative_to(ROOT)}/; all of it took {sum(result[2] for result in results):.0f} s.")
    failed = sum(bool(complaint) for _name, complaint, _seconds in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
