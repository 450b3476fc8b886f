# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the tasks of a tree with one version, and record as text the result of each task and the files that it wrote.

Values that differ between two runs of the same code are left out: times, inodes, and the path of the tree.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.compare_versions.trees import Arguments, Case

WORKER = Path(__file__).with_name("worker.py")
# Where the collection keeps records, backups and its lock.
OWN = ("/var/lib/gpufleet-nvidia", "/run/gpufleet-nvidia")
# Keys that Ansible or AnsibleModule adds to a result.
_LEFT_OUT = ("invocation", "exception", "deprecations")
# Keys whose values are messages for users, in results and in the dictionaries in them.
_MESSAGES = ("msg", "warnings", "reason", "reasons", "limits", "message")
# Keys whose values differ from run to run: in records "checksum", that of the other values; in manifests of a toolkit
# directory "identity", the times and inode of a file.
_VOLATILE = ("checksum", "identity")
# The beginning of Ansible's message about an option that a module does not know.
UNKNOWN_OPTION = "Unsupported parameters for "
# The name of a backup contains the time and a digest of the content. The content itself is compared.
_BACKUP_NAME = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z(\.[0-9a-f]{64})?")

Entry = t.Tuple[str, t.Optional[bytes]]
Snapshot = t.Dict[str, Entry]


class Worker:
    """A process that runs the modules of one checkout."""

    def __init__(self, checkout: Path, home: Path) -> None:
        environ = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": str(home), "TMPDIR": str(home)}
        self.home = home
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(WORKER), str(checkout)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environ, umask=0o022,
        )  # fmt: skip

    def run(self, module: str, root: Path, arguments: Arguments, *, check: bool = False) -> Arguments:
        """Run a module on the tree at ``root``, and return its result."""
        internal = {"check_mode": check, "diff": True, "no_log": True, "remote_tmp": str(self.home)}
        settings = {f"_ansible_{name}": value for name, value in internal.items()}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([module, {"host_root": str(root), **arguments, **settings}]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit("The process that runs the modules has ended. Its error is printed above.")
        answer: Arguments = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Run:
    """The tasks of a case on its tree at ``root``, and the lines with their results and changes."""

    def __init__(self, case: Case, root: Path, *, messages: bool = False) -> None:
        self.case = case
        self.root = root
        self.messages = messages
        self.lines: list[str] = []
        # Whether a task changed something, ended without a result, or had an option that the module does not know.
        self.changed = self.crashed = self.unknown = False
        # What task() returned for the repetition of the last task, in present() or in undo().
        self.repeated = ""
        # Lines for the files that the removal did not restore.
        self.left: list[str] = []
        self.original: Snapshot = {}
        self._before: Snapshot = {}

    def build(self) -> None:
        """Make the tree."""
        self.root.mkdir(parents=True)
        self.case.build(self.root)
        for name in ("var/lib", "run", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.original = self._before = snapshot(self.root)

    def present(self, worker: Worker) -> None:
        """Run the task of each entry, the first one also in check mode before, and the last one twice."""
        for asked in self.case.present[:1]:
            self.task(worker, asked, check=True)
        for asked in (*self.case.present, *self.case.present[-1:]):
            self.repeated = self.task(worker, asked)

    def absent(self, worker: Worker) -> None:
        """Run a task with state: absent in check mode, and twice without it."""
        asked = {"state": "absent"}
        self.task(worker, asked, check=True)
        self.task(worker, asked)
        # A second removal may also remove files that this collection did not write.
        self.left = self._differences()
        self.task(worker, asked)

    def undo(self, worker: Worker) -> None:
        """Repeat the last task of another version in check mode, and run a task with state: absent."""
        for asked in self.case.present[-1:]:
            self.repeated = self.task(worker, asked, check=True)
        self.task(worker, {"state": "absent"})
        self.left = self._differences()

    def task(self, worker: Worker, asked: Arguments, *, check: bool = False) -> str:
        """Run a task and record its result. Return whether it changed something and whether it failed, as text."""
        answer = worker.run(self.case.module, self.root, {**self.case.common, **asked}, check=check)
        self.crashed = self.crashed or "crash" in answer
        self.unknown = self.unknown or str(answer.get("msg", "")).startswith(UNKNOWN_OPTION)
        self.changed = self.changed or bool(answer.get("changed"))
        after = snapshot(self.root)
        self.lines.append(f"== {json.dumps(asked)}{' in check mode' if check else ''}")
        self.lines += self._answer_lines(answer)
        self.lines += self._change_lines(self._before, after)
        self._before = after
        return f"changed: {bool(answer.get('changed'))}, failed: {bool(answer.get('failed'))}"

    def _differences(self) -> list[str]:
        """Return the files that differ from those before the first task, except records, backups and the lock."""
        before, after = (
            {path: entry for path, entry in found.items() if not path.startswith(OWN)}
            for found in (self.original, snapshot(self.root))
        )
        return self._change_lines(before, after)

    def _answer_lines(self, answer: Arguments) -> list[str]:
        left_out = _LEFT_OUT if self.messages else (*_LEFT_OUT, *_MESSAGES)
        shown = _without(left_out, answer)
        lines = []
        for key, value in sorted(shown.items()):
            # A diff is easier to read line by line.
            texts = _diff_lines(value) if key == "diff" else json.dumps(value, indent=1, sort_keys=True).splitlines()
            lines += [f"{key}: {text}" for text in texts]
        lines.append(f"number of warnings: {len(answer.get('warnings', ()))}")
        return [self._plain(line) for line in lines]

    def _change_lines(self, before: Snapshot, after: Snapshot) -> list[str]:
        """Return lines for each path whose mode, owner or content differs, with its whole content."""
        lines = []
        for path in sorted({**before, **after}):
            if before.get(path) == after.get(path):
                continue
            status, content = after.get(path, ("gone", None))
            lines.append(f"file {path}: {status}")
            if content is not None:
                lines += [f"file {path}| {line}" for line in content_lines(path, content)]
        return [self._plain(line) for line in lines]

    def _plain(self, line: str) -> str:
        return _BACKUP_NAME.sub("<time>", line.replace(str(self.root), "<tree>"))


def _without(left_out: t.Sequence[str], value: t.Any) -> t.Any:
    """Return a value without the keys ``left_out`` of its dictionaries."""
    if isinstance(value, list):
        return [_without(left_out, entry) for entry in value]
    if isinstance(value, dict):
        return {key: _without(left_out, entry) for key, entry in value.items() if key not in left_out}
    return value


def snapshot(root: Path) -> Snapshot:
    """Return the entries below ``root`` by path: kind, mode, owner, group, and the content of a file or link."""
    found: Snapshot = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            status = path.lstat()
            content = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path).encode()
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            entry = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
            found[str(path)[len(str(root)) :]] = (entry, content)
    return found


def content_lines(path: str, content: bytes) -> list[str]:
    """Return a file as lines that show every byte; a binary file as its digest, a record without volatile values."""
    if b"\0" in content:
        return [f"sha256 {hashlib.sha256(content).hexdigest()}"]
    if (path.startswith(OWN) and not path.endswith(".backup")) or path.endswith(".manifest.json"):
        try:
            return json.dumps(_plain_record(json.loads(content)), indent=1, sort_keys=True).splitlines()
        except ValueError:
            pass
    text = content.decode("utf-8", "backslashreplace").replace("\r", "\\r").replace("\ufeff", "\\ufeff")
    return [*text.split("\n")[:-1], *([f"{text.rpartition(chr(10))[2]} (no line end)"] if text[-1:] != "\n" else [])]


def _plain_record(value: t.Any) -> t.Any:
    """Return a record without the values that differ from run to run, and with the original content as text."""
    if isinstance(value, list):
        return [_plain_record(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    found = {key: _plain_record(entry) for key, entry in value.items() if key not in _VOLATILE}
    if isinstance(found.get("original"), str):
        found["original"] = base64.b64decode(found["original"]).decode("utf-8", "backslashreplace").split("\n")
    return found


def _diff_lines(diff: t.Any) -> list[str]:
    lines = []
    for entry in diff if isinstance(diff, list) else [diff]:
        for key, text in sorted(entry.items()):
            lines += [f"{key}| {line!r}" for line in str(text).splitlines(keepends=True)]
    return lines
