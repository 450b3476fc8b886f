# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host trees as releases of the collection left them, and the files before the first task of the release.

As root, `python tests/unit/helpers/released_trees.py` runs the modules of each release in RELEASES on trees of
tests/compare_versions, and writes the result to tests/unit/files/released_trees.txt: JSON, compressed, in base64. Run
it again only to add states.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import types
import typing as t
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "tests/unit/files/released_trees.txt"
# Releases and their commits.
RELEASES = {"1.0.0": "646835fa", "1.1.0": "a1531980", "1.2.0": "fcf16761"}
# Names of trees in tests/compare_versions.
CHOSEN = (
    "docker: kubeadm guide",
    "docker: a file that the unit names",
    "docker: no file",
    "containerd: missing, 1.7.24",
    "containerd: kubeadm, 1.7.24, drop_in",
    "containerd: version 3, 2.3.4",
    "containerd: EKS, 2.3.4, in_place",
    "containerd: a copy of nvidia-ctk, purged",
    "containerd: a copy of nvidia-ctk that is not read, purged",
    "containerd: a runtime of the GPU operator, purged",
    "containerd: k3s server",
    "containerd: k0s, version 3",
    "containerd: MicroK8s",
    "crio: bundled",
    "crio: generated, in place",
    "crio: hook",
    "crio: hooks, purged",
    "crio: drop-ins of CRI-O, purged",
    "podman: other folders, 5.8.0",
    "podman: packaged hook, 5.8.0",
    "config.toml: by hand",
    "config.toml: no file",
    "directory: Docker and containerd",
    "CDI: exclusive",
    "CDI: debian",
    "refresh: toolkit",
    "refresh: edited environment",
    "refresh: nvidia-ctk without units",
)

# The time in the name of a backup, and the identity of a file in a manifest.
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z")
_IDENTITY = re.compile(rb'"identity": \[[^]]*\]')

# An entry of a tree: its mode with the type, and the content of a file, the target of a link or the numbers of a node.
Entry = t.Tuple[int, bytes]
Tree = t.Dict[str, Entry]


class State(t.NamedTuple):
    """A tree that releases configured, each with the same result.

    ``present`` are the arguments of the last task, and ``before`` is the tree before the first one. ``removed`` is the
    tree after the removal by the release itself, without records and backups. It equals ``before``, except where a
    release does not bring back what it removed.
    """

    releases: list[str]
    name: str
    module: str
    common: dict[str, t.Any]
    present: dict[str, t.Any]
    before: Tree
    after: Tree
    removed: Tree


def read_tree(root: Path) -> Tree:
    """Return all entries below ``root`` by their paths."""
    found: Tree = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            status = path.lstat()
            content = b""
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            elif stat.S_ISCHR(status.st_mode):
                content = f"{os.major(status.st_rdev)} {os.minor(status.st_rdev)}".encode()
            found[str(path.relative_to(root))] = (status.st_mode, content)
    return found


def write_tree(root: Path, tree: Tree) -> None:
    """Write the entries to an empty directory. Run as root: a tree may have device nodes, and records name user 0."""
    for name in sorted(tree):
        (mode, content), path = tree[name], root / name
        if stat.S_ISLNK(mode):
            path.symlink_to(os.fsdecode(content))
            continue
        if stat.S_ISDIR(mode):
            path.mkdir()
        elif stat.S_ISCHR(mode):
            major, minor = map(int, content.split())
            os.mknod(path, mode, os.makedev(major, minor))
        else:
            path.write_bytes(content)
        path.chmod(stat.S_IMODE(mode))


def without_own(tree: Tree) -> Tree:
    """Return the tree without what the collection keeps for itself: records and backups."""
    return {path: entry for path, entry in tree.items() if not path.startswith("var/lib/gpufleet-nvidia")}


# -- the file with all states ------------------------------------------------------------------------------------------


def load() -> list[State]:
    """Return the states of FILE."""
    stored = json.loads(zlib.decompress(base64.b64decode(FILE.read_bytes())))
    contents = [base64.b64decode(content) for content in stored["contents"]]

    def tree(named: dict[str, list[int]]) -> Tree:
        return {path: (mode, contents[number]) for path, (mode, number) in named.items()}

    return [State(*fields, *map(tree, trees)) for *fields, trees in stored["states"]]


def _store(states: t.Sequence[State]) -> None:
    numbers: dict[bytes, int] = {}

    def named(tree: Tree) -> dict[str, list[int]]:
        return {path: [mode, numbers.setdefault(content, len(numbers))] for path, (mode, content) in tree.items()}

    rows = [[*state[:-3], list(map(named, state[-3:]))] for state in states]
    contents = [base64.b64encode(content).decode() for content in numbers]
    text = json.dumps({"contents": contents, "states": rows})
    FILE.write_bytes(base64.encodebytes(zlib.compress(text.encode(), 9)))


# -- making the states -------------------------------------------------------------------------------------------------


def main() -> None:
    for name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(ROOT)] if name.endswith("nvidia") else []
    found: list[State] = []
    for release, commit in RELEASES.items():
        with tempfile.TemporaryDirectory() as folder:
            for state in _states(release, commit, Path(folder)):
                same = [other for other in found if other._replace(releases=[]) == state._replace(releases=[])]
                if same:
                    same[0].releases.append(release)
                else:
                    found.append(state)
    _store(found)


def _states(release: str, commit: str, folder: Path) -> t.Iterator[State]:
    """Run a release on its trees in ``folder``."""
    from ansible_collections.gpufleet.nvidia.tests.compare_versions import transcript, trees  # noqa: PLC0415

    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "plugins"], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    cases = {case.name: case for case in trees.cases()}
    worker = transcript.Worker(folder, folder)
    for number, case in enumerate(cases[name] for name in CHOSEN):
        run = transcript.Run(case, folder / "trees" / str(number))
        run.build()
        before = read_tree(run.root)
        present = {}
        for arguments in case.present:
            answer = worker.run(case.module, run.root, {**case.common, **arguments})
            if "msg" in answer:
                # A task for another release, which this one refuses, changes nothing.
                print(release, case.name, arguments, answer["msg"], sep="\n  ")
            else:
                present = arguments
        after = read_tree(run.root)
        worker.run(case.module, run.root, {**case.common, "state": "absent"})
        removed = without_own(read_tree(run.root))
        yield State([release], case.name, case.module, case.common, present, before, _stable(after, run.root), removed)
    worker.close()


def _stable(tree: Tree, root: Path) -> Tree:
    """Return the tree with the same times and paths in each run, so that equal states of two releases are found.

    The manifests of a directory installation contain inodes and times, which show that a file has not changed since.
    They are valid for the trees of this run only.
    """
    times = sorted({found for name in tree for found in _TIME.findall(name)})
    stable: Tree = {}
    for name, (mode, content) in tree.items():
        for number, time in enumerate(times):
            name = name.replace(time, f"20260101T000000.{number:06}Z")
        if name.endswith(".manifest.json"):
            content = _IDENTITY.sub(b'"identity": [0, 0, 0, 0]', content.replace(os.fsencode(root), b"/tree"))
        stable[name] = (mode, content)
    return stable


if __name__ == "__main__":
    main()
