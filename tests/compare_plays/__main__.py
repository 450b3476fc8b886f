# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare whole plays of two versions of the collection on a fixed list of hosts.

python tests/compare_plays OLD [NEW] [--host PATTERN]... [--run PATTERN]... [--results]

OLD and NEW are directories of the collection or revisions of this repository. The default of NEW is the working tree.
Both versions run the same plays. Most hosts answer from a table instead of running a module, the others are directory
trees, on which the modules run. For each host, the versions must run the same modules with the same options in the same
order, and return the same results: changes, skipped tasks, restarts, warnings and errors. The trees must be equal, too.
No result may contain the password of a proxy or a key, or be the error about an option that a module does not know.

Exit status 1: there are differences.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The collection can be imported from a plain clone, as in tests/unit/conftest.py.
for _name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
    sys.modules[_name] = types.ModuleType(_name)
    sys.modules[_name].__path__ = [str(ROOT)] if _name.endswith("nvidia") else []

from ansible_collections.gpufleet.nvidia.tests.compare_plays import hosts  # noqa: E402
from ansible_collections.gpufleet.nvidia.tests.compare_versions import transcript  # noqa: E402

MAX_LINES = 40
PARTS = ("playbooks", "plugins", "roles", "meta")
_ROLES = ("nvidia_toolkit", "nvidia_cdi", "nvidia_runtime")
# Values that differ from run to run: times in backups, the identifiers of the plan, and temporary files.
_VOLATILE = re.compile(
    r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z(\.[0-9a-f]{64})?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|ansible-(tmp|local)-[\w.-]+(/tmp\w+)?|\b[0-9a-f]{2}-[0-9a-f-]+-[0-9a-f]{12}\b|\"_?ansible_\w+\": \w+,?"
)


class Play(t.NamedTuple):
    """A playbook, or a role in a play of its own, with the arguments of ansible-playbook."""

    name: str
    arguments: tuple[str, ...] = ()


# They run in this order, so that the trees are configured, configured again, and restored.
RUNS = {
    "site, check": Play("site", ("--check", "--diff")),
    "site": Play("site"),
    "site, again": Play("site"),
    "site, toolkit and cdi": Play("site", ("--tags=toolkit,cdi",)),
    "site, without runtime": Play("site", ("--skip-tags=runtime", "--check")),
    "rolling": Play("rolling", ("-e", "nvidia_serial=40%")),
    "verify": Play("verify"),
    **{f"{role}, check": Play(role, ("--check",)) for role in _ROLES},
    **{role: Play(role) for role in _ROLES},
    "remove, check": Play("remove", ("--check", "-e", "nvidia_hosts=all")),
    "remove": Play("remove", ("-e", "nvidia_hosts=all")),
    "remove, again": Play("remove", ("-e", "nvidia_hosts=all")),
}


class Version:
    """One version of the collection, with its own inventory, trees and records."""

    def __init__(self, given: str, folder: Path, patterns: t.Sequence[str], only_results: bool) -> None:
        self.folder, self._only_results = folder, only_results
        place = folder / "ansible_collections/gpufleet/nvidia"
        place.mkdir(parents=True)
        if Path(given).is_dir():
            subprocess.run(["cp", "-r", *(str(Path(given, part)) for part in PARTS), str(place)], check=True)
        else:
            git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "archive", given, *PARTS]
            archive = subprocess.run(git, stdout=subprocess.PIPE, check=False)
            if archive.returncode:
                sys.exit(f"{given} is neither a directory nor a revision of {ROOT}.")
            subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
        self.records = folder / "records"
        self.records.mkdir()
        for name in ("a 1.deb", "b.deb"):
            (folder / name).write_text("package", encoding="utf-8")
        self.failing: list[str] = []
        self.names = self._write_inventory(patterns)
        for role in _ROLES:
            roles = [f"gpufleet.nvidia.{role}"]
            play = [{"hosts": "all", "gather_facts": False, "roles": roles}]
            (folder / f"{role}.json").write_text(json.dumps(play), encoding="utf-8")

    def _write_inventory(self, patterns: t.Sequence[str]) -> list[str]:
        found: dict[str, dict[str, t.Any]] = hosts.trees(self.folder / "trees")
        for name, host in hosts.hosts().items():
            found[name] = host.variables
            (self.records / f"{name}.answers.json").write_text(json.dumps(host.answers), encoding="utf-8")
            self.failing += [name] if host.fails else []
        self.failing += ["tree_broken", "tree_no_gpu"]
        chosen = {name: values for name, values in found.items() if any(fnmatch.fnmatch(name, p) for p in patterns)}
        variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                     "ansible_remote_tmp": str(self.folder / "tmp")}  # fmt: skip
        text = json.dumps({"all": {"hosts": chosen, "vars": variables}}).replace("FOLDER", str(self.folder))
        (self.folder / "hosts.json").write_text(text, encoding="utf-8")
        return list(chosen)

    def run(self, play: Play) -> dict[str, list[str]]:
        """Run a play on all hosts, and return what each of them did, as lines."""
        environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(self.folder),
                   "ANSIBLE_HOME": str(self.folder / "home"), "ANSIBLE_FORKS": "4",
                   "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callback"),
                   "ANSIBLE_CALLBACKS_ENABLED": "recorder", "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000",
                   "COMPARE_PLAYS": str(self.records)}  # fmt: skip
        for path in self.records.glob("*.jsonl"):
            path.unlink()
        program, name = Path(sys.executable).with_name("ansible-playbook"), play.name
        book = f"{name}.json" if name in _ROLES else f"gpufleet.nvidia.{name}"
        left_out = [] if name in _ROLES else ["role_*", *(self.failing if name == "rolling" else ())]
        limit = ["--limit", ":!".join(["all", *left_out])]
        done = subprocess.run(
            [program, "-i", "hosts.json", book, *play.arguments, *limit], cwd=self.folder, env=environ, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        found = {host: self._lines(host) for host in self.names}
        found["output"] = self._output(done.stdout)
        return found

    def _lines(self, host: str) -> list[str]:
        path, lines = self.records / f"{host}.jsonl", []
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry = json.loads(text)
            if self._only_results:
                if "module" in entry:
                    continue
                entry["result"].pop("ahead", None)
            if "result" in entry and hosts.SECRET in text:
                lines.append(f"SECRET in the result of {entry['task']}")
            # A short line, so that a difference shows one value.
            lines += json.dumps(entry, indent=1, sort_keys=True).splitlines()
        root = self.folder / "trees" / host
        for name, (status, content) in sorted(transcript.snapshot(root).items()):
            lines.append(f"{name}: {status}")
            lines += transcript.content_lines(name, content) if content else []
        return [self._plain(line) for line in lines]

    def _output(self, text: str) -> list[str]:
        """Return the warnings and the numbers of each host. The order of the other lines depends on the load."""
        lines = [line for line in text.splitlines() if line.startswith(("[WARNING]", "[ERROR]")) or " ok=" in line]
        return sorted({self._plain(line) for line in [*lines, *(["SECRET"] if hosts.SECRET in text else [])]})

    def _plain(self, line: str) -> str:
        return _VOLATILE.sub("<volatile>", line.replace(str(self.folder), "<folder>"))


def report(run: str, old: dict[str, list[str]], new: dict[str, list[str]]) -> int:
    """Print the differences of a run, and return the number of hosts that have some, at least one if no module ran."""
    failed = 0
    for host in old:
        lines = list(difflib.unified_diff(old[host], new[host], "OLD", "NEW", n=4, lineterm=""))[2:]
        lines += [line for line in new[host] if line.startswith("SECRET") or transcript.UNKNOWN_OPTION in line]
        failed += bool(lines)
        print(*([f"-- {run}: {host}", *lines[:MAX_LINES]] if lines else ()), sep="\n", end="\n" if lines else "")
    modules = sum('"kind": ' in line for lines in new.values() for line in lines)
    changed = sum('"kind": "changed"' in line for lines in new.values() for line in lines)
    print(f"{run}: {len(old) - 1} hosts, {modules} results, {changed} changes; {failed} hosts with differences")
    # Without results, the variables of a host were refused.
    return failed or not modules


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", nargs="?", metavar="NEW", default=str(ROOT))
    parser.add_argument("--host", action="append", default=[], help="only hosts whose names match this pattern")
    parser.add_argument("--run", action="append", default=[], help="only runs whose names match this pattern")
    parser.add_argument("--results", action="store_true", help="compare only results: NEW may run fewer modules")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gpf-") as work, concurrent.futures.ThreadPoolExecutor() as pool:
        # Paths of equal length, since a message may be cut.
        given = {"old": options.old, "new": options.new}
        chosen, only_results = options.host or ["*"], options.results
        old, new = (Version(name, Path(work, part), chosen, only_results) for part, name in given.items())
        for name, play in RUNS.items():
            if any(fnmatch.fnmatch(name, pattern) for pattern in options.run or ["*"]):
                failed += report(name, *pool.map(lambda version, play=play: version.run(play), (old, new)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
