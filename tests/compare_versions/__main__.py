# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the files and results of two versions of the collection on a fixed list of host trees.

python tests/compare_versions OLD [NEW] [--tree PATTERN]... [--messages]
python tests/compare_versions --list

OLD and NEW are directories of the collection or revisions of this repository. The default of NEW is the working tree.
Each version runs the same tasks on each tree: present, other options, the same again, absent, absent again. Both
versions must write the same files, with the same modes and records, and return the same results and diffs. The texts of
messages are compared only with --messages. Then NEW runs on trees that OLD configured: a task in check mode must
report the same as OLD reports for its own tree, and state: absent must restore the same files as with OLD.

Exit status 1: there are differences that ACCEPTED does not list, or a module does not know an option of a task. Run it
as root, because the trees have device nodes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import difflib
import fnmatch
import os
import re
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

from ansible_collections.gpufleet.nvidia.tests.compare_versions import transcript, trees  # noqa: E402

MIN_TREES = 60
# The maximum number of lines printed for a tree, and of trees whose lines are printed.
MAX_LINES, MAX_SHOWN_TREES = 60, 10


class Accepted(t.NamedTuple):
    """An intended difference.

    ``tree`` is a pattern of the trees' names. ``line`` is a regular expression that matches a whole line of the
    difference, without its + or -.
    """

    tree: str
    line: str
    reason: str


# A file that the collection keeps for itself: a record or a backup.
_OWN = r"(file /var/lib/gpufleet-nvidia/|backup_files: ).*"
# Intended differences from revision b31e5cd. Returned settings and changed keys must be equal in all trees.
ACCEPTED: tuple[Accepted, ...] = (
    Accepted("*", r"cdi: (null|true|false)", "nvidia_runtime_config returns cdi since enable_cdi has the choice auto."),
    Accepted(
        "config.toml: *", rf"diff: .*|file /etc/nvidia-container-runtime/config\.toml\|.*|{_OWN}",
        "A setting is written below its comment. Before, it replaced the comment.",
    ),
    Accepted(
        "refresh: *", r".*",
        "A unit of this collection, which starts before all services, replaces that of the toolkit.",
    ),
    Accepted(
        "containerd: kubespray*", rf'.*[Ss]ystemdCgroup.*|.*"[0-9a-f]{{64}}".*|{_OWN}',
        "Inherited options are written with the names of containerd's fields, not in the spelling of kubespray.",
    ),
    Accepted(
        "*", r"""file /(var/lib/gpufleet-nvidia|usr/local/nvidia)/.*\| +'? *"schema": 1,.*""",
        "Records and manifests have no version of their format.",
    ),
    Accepted("*, purged", r"purged: .*", "purge_legacy removes whole files only, and no entries of main files."),
    Accepted(
        "containerd: an older copy of nvidia-ctk, purged", r".*",
        "purge_legacy keeps a drop-in without which a setting would have another value.",
    ),
)  # fmt: skip


class Version(t.NamedTuple):
    """A version of the collection, and the directory for its trees."""

    checkout: Path
    folder: Path


class Result(t.NamedTuple):
    """The runs on one tree: with OLD, with NEW, and ``both``, in which OLD configures the tree and NEW removes that."""

    old: transcript.Run
    new: transcript.Run
    both: transcript.Run


def checkout_of(name: str, folder: Path) -> Path:
    """Return the directory of a version. A revision is unpacked into ``folder``."""
    if Path(name).is_dir():
        return Path(name).resolve()
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    archive = subprocess.run([*git, "archive", name, "plugins"], stdout=subprocess.PIPE, check=False)
    if archive.returncode:
        sys.exit(f"{name} is neither a directory nor a revision of {ROOT}.")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def run_version(
    version: Version, cases: t.Sequence[trees.Case], messages: bool, copies: Path | None
) -> list[transcript.Run]:
    """Run all tasks with one version. Each tree is copied to ``copies`` before the tasks with state: absent."""
    runs = []
    process = transcript.Worker(version.checkout, version.folder)
    for number, case in enumerate(cases):
        run = transcript.Run(case, version.folder / str(number), messages=messages)
        run.build()
        run.present(process)
        if copies is not None:
            subprocess.run(["cp", "-a", str(run.root), str(copies / str(number))], check=True)
        run.absent(process)
        runs.append(run)
        shutil.rmtree(run.root)
    process.close()
    return runs


def undo(version: Version, old: t.Sequence[transcript.Run], copies: Path) -> list[transcript.Run]:
    """Run ``version`` on the trees that the other version configured: in check mode, then with state: absent."""
    runs = []
    process = transcript.Worker(version.checkout, version.folder)
    for number, configured in enumerate(old):
        run = transcript.Run(configured.case, copies / str(number))
        run.original = configured.original
        run.undo(process)
        runs.append(run)
        shutil.rmtree(run.root)
    process.close()
    return runs


def compare(result: Result) -> list[str]:
    """Return the lines of the differences that ACCEPTED does not list."""
    name = result.old.case.name
    lines = _difference(name, result.old.lines, result.new.lines)
    undone = _difference(name, result.old.left, result.both.left)
    if undone:
        lines += ["After NEW removed the configuration of OLD, other files remain than after OLD:", *undone]
    if result.old.left and not result.old.case.remains:
        lines += ["OLD does not restore all files:", *result.old.left]
    if result.old.repeated != result.both.repeated:
        lines.append(f"The last task again, NEW after OLD: {result.both.repeated}. OLD: {result.old.repeated}")
    if result.old.crashed or result.new.crashed or result.both.crashed:
        lines.append("A module ended without a result in one of the runs. Run it on this tree to see its error.")
    if result.old.unknown or result.new.unknown or result.both.unknown:
        lines.append("A task has an option that its module does not know, so it compares nothing. Correct trees.py.")
    return lines


def _difference(tree: str, old: t.Sequence[str], new: t.Sequence[str]) -> list[str]:
    if old == new:
        return []
    rules = [rule for rule in ACCEPTED if fnmatch.fnmatchcase(tree, rule.tree)]
    lines = list(difflib.unified_diff(old, new, "OLD", "NEW", n=2, lineterm=""))[2:]
    changed = [line[1:] for line in lines if line[0] in "+-"]
    accepted = all(any(re.fullmatch(rule.line, line) for rule in rules) for line in changed)
    return [] if accepted else lines


def report(results: t.Sequence[Result], seconds: float) -> int:
    """Print the differences, and return the exit status."""
    failed = 0
    for result in results:
        lines = compare(result)
        if lines:
            failed += 1
            shown = MAX_LINES if failed <= MAX_SHOWN_TREES else 0
            print(f"-- {result.old.case.name}", *lines[:shown], sep="\n")
            if len(lines) > shown:
                print(f"... and {len(lines) - shown} more lines")
    wrote = sum(result.old.changed for result in results)
    print(f"{len(results)} trees, {wrote} of them changed by OLD; {failed} with differences; {seconds:.0f} s")
    return 1 if failed else 0


def run(old: str, new: str, cases: t.Sequence[trees.Case], messages: bool) -> int:
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpf-", dir=memory)))
        versions = []
        for name, given in (("old", old), ("new", new)):
            (base / name).mkdir()
            versions.append(Version(checkout_of(given, base / f"{name}-checkout"), base / name))
        copies = base / "both"
        copies.mkdir()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            tasks = [
                pool.submit(run_version, version, cases, messages, copies if number == 0 else None)
                for number, version in enumerate(versions)
            ]
            before, after = (task.result() for task in tasks)
        both = undo(versions[1], before, copies)
    return report([Result(*found) for found in zip(before, after, both)], time.monotonic() - start)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", metavar="OLD")
    parser.add_argument("new", nargs="?", metavar="NEW", default=str(ROOT))
    parser.add_argument("--tree", action="append", default=[], help="only trees whose names match this pattern")
    parser.add_argument("--messages", action="store_true", help="compare the wording of warnings and errors, too")
    parser.add_argument("--list", action="store_true", help="only print the names of the trees")
    options = parser.parse_args()
    cases = trees.cases()
    names = [case.name for case in cases]
    if len(set(names)) < MIN_TREES or len(set(names)) < len(names):
        sys.exit(
            f"trees.py defines {len(names)} trees with {len(set(names))} different names. Define at least {MIN_TREES}"
            " trees, each with its own name."
        )
    if options.list:
        print("\n".join(names))
        return 0
    if options.old is None:
        parser.error("OLD is missing. Set it to a directory of the collection or to a revision.")
    if os.geteuid() != 0:
        sys.exit("Run this program as root, because it creates device nodes in the trees with GPUs.")
    patterns = options.tree or ["*"]
    chosen = [case for case in cases if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
    if not chosen:
        sys.exit("No tree matches --tree. Run the program with --list to see the names.")
    return run(options.old, options.new, chosen, options.messages)


if __name__ == "__main__":
    sys.exit(main())
