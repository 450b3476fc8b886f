# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""./test: install nox into .nox/runner, run sessions of noxfile.py in parallel, and count the results."""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "quickstart.d"))
import nox_support
import venvs

# How much of the output of each failed session is repeated.
_LINES_OF_FAILURE = 60
_LENGTH_OF_LINE = 3000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./test", description="Run the tests of gpufleet.nvidia. Without options: all but the molecule scenarios.",
        epilog="One session with arguments of its own: .nox/runner/bin/nox -s units -- -k toml",
    )  # fmt: skip
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="the inner loop: lint, docs-check, units on one Python")
    choice.add_argument("--ci", action="store_true", help="add some scenarios on booted hosts (root, podman)")
    choice.add_argument("--molecule", action="store_true", help="add all scenarios on booted hosts")
    choice.add_argument("--nightly", action="store_true", help="everything in full, as before a release")
    choice.add_argument("--list", action="store_true", help="list the sessions")
    choice.add_argument("sessions", nargs="*", metavar="SESSION", default=[], help="only these sessions")
    return parser.parse_args()


def _selection(nox: list[str], arguments: argparse.Namespace) -> list[str]:
    """Return the names of the sessions to run."""
    if arguments.sessions:
        return list(arguments.sessions)
    # The scenarios take longest. They come first, so that short sessions are left for the end and all cores stay busy.
    choices = [["--tags", "molecule"]] if arguments.molecule or arguments.nightly else []
    choices += [["--tags", "ci"]] if arguments.ci else []
    choices.append(["--tags", "quick"] if arguments.quick else [])
    if arguments.nightly:
        choices.append(["--tags", "nightly"])
    names: list[str] = []
    for choice in choices:
        # Without tags nox lists the default sessions.
        listing = subprocess.run([*nox, "--list", "--json", *choice], cwd=_ROOT, stdout=subprocess.PIPE, check=True)
        names += [session["session"] for session in json.loads(listing.stdout)]
    return list(dict.fromkeys(names))


def _repeat(log: Path) -> None:
    """Print the errors and the end of the output of a failed session, below the lists of sessions.

    ansible-test goes on after an error, so that its errors can be far from the end.
    """
    if log.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines[:-_LINES_OF_FAILURE] if line.startswith("ERROR")]
        print(f"\nErrors in {log.relative_to(_ROOT)}, and its end:")
        for line in (*errors[-_LINES_OF_FAILURE:], *lines[-_LINES_OF_FAILURE:]):
            print(line[:_LENGTH_OF_LINE])


def _print_skips(results: list[dict[str, str]], skipped: Path) -> None:
    """Print which sessions did not run, and how many unit tests ran in none of the sessions, by reason."""
    # The session "units" comes first: if no test of a file can run, as without Ansible, only the file has a name.
    files = sorted(skipped.glob("*.json"), key=lambda path: (path.stem != "units", path.stem))
    sessions = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    names = [{name for tests in reasons.values() for name in tests} for reasons in sessions]
    counts: collections.Counter[str] = collections.Counter()
    for reason, tests in (sessions[0] if sessions else {}).items():
        counts[reason] += sum(all({test, test.partition("::")[0]} & other for other in names) for test in tests)
    lines = [f"Session {result['name']}: {result['reason']}" for result in results if result["result"] == "skipped"]
    lines += [f"{count} unit tests: {reason}" for reason, count in sorted(counts.items()) if count]
    if lines:
        print("\nSkipped:", *lines, sep="\n  ")


def main() -> int:
    """Run the sessions that the command line asks for, and print the sum as the last line."""
    arguments = _arguments()
    started = time.monotonic()
    # nox asks for the user's HOME before it reads noxfile.py, and fails if the user has none.
    os.environ["HOME"] = str(nox_support.HOME)
    try:
        venv = venvs.ensure(_ROOT / ".nox" / "runner", _ROOT / "requirements" / "nox.txt")
    except venvs.VenvError as error:
        sys.exit(str(error))
    nox = [venv.tool("nox"), "--noxfile", str(_ROOT / "noxfile.py")]
    if arguments.list:
        return subprocess.run([*nox, "--list"], cwd=_ROOT, check=False).returncode
    report = _ROOT / ".nox" / "report.json"
    report.unlink(missing_ok=True)
    failures = _ROOT / ".nox" / "failed"
    skipped = _ROOT / ".nox" / "skipped"
    for folder in (failures, skipped):
        shutil.rmtree(folder, ignore_errors=True)
    environ = venv.environ()
    if arguments.nightly:
        environ["GPUFLEET_NIGHTLY"] = "1"
    subprocess.run(
        [*nox, "--parallel", "auto", "--report", str(report), "--sessions", *_selection(nox, arguments)],
        cwd=_ROOT, env=environ, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if not report.exists():
        print("nox ended without a report.", file=sys.stderr)
        return 1
    results = json.loads(report.read_text(encoding="utf-8"))["sessions"]
    counts = collections.Counter(result["result"] for result in results)
    for result in results:
        _repeat(failures / f"{result['name']}.log")
    _print_skips(results, skipped)
    print(f"\nAll of it took {time.monotonic() - started:.0f} s on {os.cpu_count()} cores.")
    failed = len(results) - counts["success"] - counts["skipped"]
    print(f"{counts['success']} passed, {failed} failed, {counts['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
