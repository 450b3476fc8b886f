# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module under strace, list its system calls that change a tree, and make one of them fail.

The process is forked from one that has imported everything, and strace attaches to it before it begins. So strace
counts only calls of the module, and they are the same in each run.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import typing as t

from ansible_collections.gpufleet.nvidia.tests.compare_versions import worker

if t.TYPE_CHECKING:
    from pathlib import Path

_ACCESS = ("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat")
# System calls that change files, and the errors that a file system can return for them (man pages, section 2).
_ERRORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("fsync", "fdatasync"), ("EIO", "ENOSPC", "EINVAL")),
    **dict.fromkeys(("write", "pwrite64", "sendfile", "copy_file_range", "ftruncate"), ("ENOSPC", "EIO")),
    **dict.fromkeys(("openat", "open", "creat"), ("ENOSPC", "EROFS", "EIO")),
    **dict.fromkeys(("mkdir", "mkdirat", "symlink", "symlinkat", "link", "linkat"), ("ENOSPC", "EROFS", "EIO")),
    **dict.fromkeys(("rename", "renameat"), ("ENOSPC", "EROFS", "EIO")),
    "renameat2": ("ENOSPC", "EROFS", "EINVAL"),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), ("EROFS", "EIO", "EPERM")),
    **dict.fromkeys(_ACCESS, ("EROFS", "EIO", "EPERM")),
}
# Calls that fail from some point on if the file system becomes read-only. The calls that open a file are not in the
# list, because strace cannot tell those that only read. Those that write use files that are open already.
_NEED_WRITABLE = tuple(name for name, errors in _ERRORS.items() if "EROFS" in errors and "open" not in name)
KILL, READ_ONLY = "KILL", "EROFS from here on"
_OPENS_TO_WRITE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TMPFILE")
# The parts of temporary names and backups that differ from run to run.
_VARIABLE = re.compile(r"\.gpufleet-[a-zA-Z0-9_-]+|#[0-9]+|[0-9]{8}T[0-9]{6}\.[0-9]{6}Z|\.[0-9a-f]{64}(?=\.backup)")
_CALL = re.compile(r"([a-z0-9_]+)\((.*)")
_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
# Seconds that a module may run. It waits at most 30 seconds for a lock.
_LIMIT = 60


class TracerError(Exception):
    """strace does not work here."""


class Call(t.NamedTuple):
    """A system call that changes the tree: its name, its number among the calls of this name, and its arguments."""

    name: str
    number: int
    arguments: str
    # How many calls of each name came before.
    before: t.Mapping[str, int]


class Point(t.NamedTuple):
    """A call at which a fault occurs. ``fault``: the name of an error, KILL or READ_ONLY."""

    call: Call
    fault: str

    @property
    def name(self) -> str:
        """Identify the point on the command line."""
        return f"{self.call.name} {self.call.number} {self.fault}"

    @property
    def prevents_cleaning(self) -> bool:
        """Return whether a file can remain although the module tries to remove it."""
        return self.fault in (KILL, READ_ONLY) or self.call.name in ("unlink", "unlinkat", "rmdir")

    def injections(self) -> list[str]:
        """Return the options of strace for the fault."""
        if self.fault == READ_ONLY:
            places = {name: self.call.before.get(name, 0) + 1 for name in _NEED_WRITABLE}
            return [f"--inject={name}:error=EROFS:when={place}+" for name, place in places.items()]
        effect = "signal=KILL" if self.fault == KILL else f"error={self.fault}"
        return [f"--inject={self.call.name}:{effect}:when={self.call.number}"]


class Outcome(t.NamedTuple):
    """How a run of a module ended. ``result`` is its JSON, None if there is none."""

    output: str
    result: dict[str, t.Any] | None
    killed: bool
    log: list[str]

    def problem(self) -> str:
        """Return what is wrong with the output of the module, whether or not the task failed."""
        if "Traceback (most recent call last)" in self.output:
            return f"the module prints a traceback: {self.output[-1500:]}"
        if self.killed:
            return ""
        if self.result is None:
            return f"the module prints no result: {self.output[-500:]!r}"
        if self.result.get("failed") and not self.result.get("msg"):
            return f"the error has no message: {self.result}"
        return ""


def run(module: str, arguments: t.Mapping[str, t.Any], point: Point | None = None, *, traced: bool = False) -> Outcome:
    """Run a module in a forked process, with a fault at ``point``. Its log is kept with ``traced`` or a point."""
    log: list[str] = []
    with tempfile.TemporaryFile() as output:
        gate, opened = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(opened)
            # Yama lets only ancestors trace a process, unless it allows others.
            ctypes.CDLL(None).prctl(_PTRACER, _ANY, 0, 0, 0)
            os.read(gate, 1)
            worker.run_and_exit(module, dict(arguments), output.fileno())
        os.close(gate)
        if traced or point:
            status, log = _attached(child, opened, point.injections() if point else [])
        else:
            os.close(opened)
            status = _wait(child)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return Outcome(text, result if isinstance(result, dict) else None, killed, log)


def _attached(child: int, gate: int, injections: list[str]) -> tuple[int, list[str]]:
    """Attach strace to a process, let it run, and return its status and the lines of strace."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
        # Names that this architecture lacks are ignored because of the question mark.
        traced = "trace=" + ",".join(f"?{name}" for name in _ERRORS)
        command = ["strace", "-y", "-s", "0", "-e", traced, "-e", "signal=none", "-o", log.name]
        known = [option.replace("--inject=", "--inject=?") for option in injections]
        with subprocess.Popen([*command, *known, "-p", str(child)], stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            first = tracer.stderr.readline()
            if "attached" not in first:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise TracerError(f"strace cannot trace a module: {first}{tracer.stderr.read()}")
            os.close(gate)
            status = _wait(child)
        return status, log.read().splitlines()


def _wait(child: int) -> int:
    """Return the status of a process. It is killed after a time."""
    timer = threading.Timer(_LIMIT, os.kill, (child, signal.SIGKILL))
    timer.start()
    try:
        return os.waitpid(child, 0)[1]
    finally:
        timer.cancel()
        timer.join()


def points(log: t.Iterable[str], root: Path) -> list[Point]:
    """Return all points of a run from the lines of strace: each call that changes a file below ``root``."""
    found: list[Point] = []
    counts: collections.Counter[str] = collections.Counter()
    for line in log:
        match = _CALL.match(line)
        if not match:
            continue
        name, rest = match.groups()
        before = dict(counts)
        counts[name] += 1
        changes = "open" not in name or _OPENS_TO_WRITE.search(rest)
        if changes and f"{root}/" in rest:
            call = Call(name, counts[name], _plain(rest, root), before)
            later = (READ_ONLY,) if name in _NEED_WRITABLE else ()
            found += [Point(call, fault) for fault in (KILL, *_ERRORS[name], *later)]
    return found


def missed(point: Point, outcome: Outcome, root: Path) -> str:
    """Return why the fault did not occur where it should, empty if it did."""
    hit = [line for line in outcome.log if "(INJECTED)" in line]
    if outcome.killed:
        hit = [line for line in outcome.log if _CALL.match(line)][-1:]
    match = _CALL.match(hit[0]) if hit else None
    if (point.fault == KILL) == outcome.killed and match and match.group(1) == point.call.name:
        seen = _plain(match.group(2), root)
        if seen == point.call.arguments:
            return ""
    return f"the fault did not occur at {point.call.name}({point.call.arguments}), but at {hit[:1] or 'no call'}"


def _plain(arguments: str, root: Path) -> str:
    """Return the arguments of a call without the result and the parts that differ from run to run."""
    shown = re.sub(r"\)\s+= .*", "", arguments).replace(str(root), "")
    # The length of what is written differs, because a manifest contains inodes and times.
    return re.sub(r"\b[0-9]+<|, [0-9]+\Z", "<", _VARIABLE.sub("*", shown))
