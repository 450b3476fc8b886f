# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stages share: paths, virtual environments, the copy of the tree, running a command."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path

import pythons
import venvs

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "output" / "ci"
OLDEST_NODE, NEWEST_NODE = 8, 14
# Controllers of ansible-core 2.17.
OLDEST_CORE = range(10, 13)
_PRIVATE_MODE = 0o600
# The tests make and remove very many small files, which some disks take hundreds of times as long for as memory does.
_MEMORY = "/dev/shm"
_MEMORY_WANTED = 2 << 30


class StageError(Exception):
    """A stage found something; the message says what, where the output does not."""


class Workspace:
    """The tools of one stage. Everything made here lies in the cache, none of it in the clone or in HOME."""

    def __init__(self, stage: str, log: t.TextIO, until: float | None = None) -> None:
        """``until``: after that (time.monotonic()) no molecule scenario begins; ``left_out`` has their names."""
        self.stage = stage
        self.log = log
        self.until = until
        self.left_out: list[str] = []
        cache = os.environ.get("GPUFLEET_CACHE")
        if not cache:
            cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpufleet-nvidia")
        self.cache = Path(cache).absolute()
        # Two clones share the virtual environments, not the copy of the tree, and neither do two stages: they run side
        # by side, and leave something there.
        clone = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:8]
        self.collections = self.cache / "trees" / f"{clone}-{stage}"
        self.tree = self.collections / "ansible_collections" / "gpufleet" / "nvidia"

    @functools.cached_property
    def interpreters(self) -> dict[int, pythons.Python]:
        """The interpreters of this machine by minor version."""
        return pythons.find(OLDEST_NODE, NEWEST_NODE)

    def venv(self, name: str, python: pythons.Python | None = None) -> venvs.Venv:
        """The virtual environment of requirements/NAME.txt, on the interpreter that runs this if not told."""
        requirements = ROOT / "requirements" / f"{name}.txt"
        python = python or pythons.running()
        # The content decides the place: an old clone and a new one do not rebuild each other's.
        digest = venvs.requirement_hash(requirements, [python.path])
        return venvs.ensure(self.cache / "venvs" / f"{name}-{python.name}-{digest}", requirements, python.path)

    @functools.cached_property
    def tests(self) -> venvs.Venv:
        """The virtual environment of the tests' own tools."""
        return self.venv("tests")

    def sync(self) -> None:
        """Bring the copy of the tree, at the physical path that ansible-test demands, up to date.

        It holds what a commit of everything would hold: tracked files and those that git does not ignore.
        """
        listing = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True,
        ).stdout  # fmt: skip
        wanted = {Path(os.fsdecode(name)) for name in listing.split(b"\0") if name}
        wanted = {name for name in wanted if os.path.lexists(ROOT / name)}
        kept = wanted | {parent for name in wanted for parent in name.parents}
        self.tree.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.tree.rglob("*"), reverse=True):
            name = path.relative_to(self.tree)
            if name not in kept and os.path.lexists(path):
                _remove(path)
        for name in wanted:
            _copy(ROOT / name, self.tree / name)

    @staticmethod
    @contextlib.contextmanager
    def scratch() -> t.Iterator[Path]:
        """A directory for what is thrown away at once: in memory, where there is enough that may hold programs."""
        with tempfile.TemporaryDirectory(prefix="gpufleet-scratch-", dir=_memory()) as name:
            scratch = Path(name)
            # Some tests look there as another user.
            scratch.chmod(0o755)
            yield scratch

    def run(
        self,
        command: t.Sequence[str | Path],
        environ: t.Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
    ) -> str:
        """Run a command in the copy of the tree; its output goes to the log and is returned. A failure raises."""
        print(f"$ {' '.join(str(word) for word in command)}", file=self.log, flush=True)
        lines = []
        with subprocess.Popen(
            command, env=environ or self.tests.environ(), cwd=cwd or self.tree, user=user, group=user,
            extra_groups=None if user is None else [], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                print(line, end="", file=self.log, flush=True)
                lines.append(line)
        if process.returncode != 0:
            raise StageError(f"{Path(command[0]).name} ended with {process.returncode}")
        return "".join(lines)

    @functools.cached_property
    def home(self) -> Path:
        """A HOME for ansible-test, which writes to ~/.ansible and hands pip no setting but a file in HOME."""
        home = self.cache / "homes" / self.stage
        pip = home / ".config" / "pip" / "pip.conf"
        pip.parent.mkdir(parents=True, exist_ok=True)
        listing = subprocess.run(
            [self.tests.python, "-m", "pip", "config", "list"], env=self.tests.environ(), capture_output=True,
            text=True, check=True,
        ).stdout  # fmt: skip
        settings = {}
        for line in listing.splitlines():
            name, _equals, value = line.partition("=")
            settings[name.rpartition(".")[2]] = ast.literal_eval(value)
        # An address in it may carry a password.
        pip.touch(_PRIVATE_MODE)
        lines = [f"{name} = {str(value).strip().replace(chr(10), chr(10) + '  ')}" for name, value in settings.items()]
        pip.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
        return home

    def ansible_test_environ(self) -> dict[str, str]:
        """The environment for ansible-test: a HOME of its own, and only interpreters that work in front of PATH."""
        environ = self.tests.ansible_environ(self.collections)
        # It sets these itself, and warns of others.
        environ = {name: value for name, value in environ.items() if not name.startswith("ANSIBLE_")}
        path = [entry for entry in environ["PATH"].split(os.pathsep) if not entry.endswith("/shims")]
        directories = [os.path.dirname(python.path) for python in self.interpreters.values()]
        environ.update(HOME=str(self.home), PATH=os.pathsep.join((path[0], *directories, *path[1:])))
        return environ


def _memory() -> str | None:
    try:
        status = os.statvfs(_MEMORY)
    except OSError:
        return None
    fits = status.f_bavail * status.f_frsize >= _MEMORY_WANTED and not status.f_flag & os.ST_NOEXEC
    return _MEMORY if fits and os.access(_MEMORY, os.W_OK) else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _copy(source: Path, target: Path) -> None:
    status = source.lstat()
    if os.path.lexists(target):
        known = target.lstat()
        if (known.st_mode, known.st_size, known.st_mtime_ns) == (status.st_mode, status.st_size, status.st_mtime_ns):
            return
        _remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)
