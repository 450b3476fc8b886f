# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a toolkit in a directory: a tree with sources, tasks, and helpers to compare trees."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import AARCH64, X86_64
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import store as directory_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.directory import (
    DirectoryOptions,
    DirectoryRemoval,
    DirectoryResult,
    Tools,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.install import DirectoryInstallation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.store import (
    VersionStore,
    rename_exchange,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import program, tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kills import Killed

if t.TYPE_CHECKING:
    from pathlib import Path

    import pytest

DEST = "/opt/nvidia/toolkit"
VERSIONS = f"{DEST}.versions"
CONFIG = ".config/nvidia-container-runtime/config.toml"
OLD, NEW = "1.19.1", "1.20.0"
MACHINE = AARCH64 if os.uname().machine == "aarch64" else X86_64

# The number of a version whose name exists already.
_NUMBER = re.compile(r"(-[0-9a-f]{12})-[0-9]+")
# Files that contain times, or exist only if a directory was created.
_PARTICULAR = (".manifest.json", ".created.json")
Tree = t.Dict[str, t.Tuple[t.Any, ...]]


def tree_of(root: Path) -> Tree:
    """Return the type, mode and content of each entry below ``root``."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        status, name = path.lstat(), str(path.relative_to(root))
        if stat.S_ISLNK(status.st_mode):
            found[name] = ("link", os.readlink(str(path)))
        elif stat.S_ISDIR(status.st_mode):
            found[name] = ("folder", stat.S_IMODE(status.st_mode))
        else:
            found[name] = ("file", stat.S_IMODE(status.st_mode), path.read_bytes())
    return found


def plain_tree(root: Path) -> Tree:
    """Return the tree without the parts that differ between equivalent runs."""

    def plain(value: t.Any) -> t.Any:
        if isinstance(value, bytes):
            return _NUMBER.sub(r"\1", value.decode("latin-1"))
        return _NUMBER.sub(r"\1", value) if isinstance(value, str) else value

    names = tree_of(root)
    kept = {name: entry for name, entry in names.items() if name.rsplit("/", 1)[-1] not in _PARTICULAR}
    return {plain(name): tuple(map(plain, entry)) for name, entry in kept.items()}


def stamps_of(root: Path) -> dict[str, tuple[int, ...]]:
    """Return the status of each entry below ``root``, which changes if the entry is written or moved."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_size)
    return found


class Host:
    """A host below ``root`` with sources in /srv, named by their versions."""

    def __init__(self, root: Path, live: bool = False) -> None:
        self.root = root
        self.live = live
        self.labelled: list[tuple[str, str]] = []
        self.ran: list[list[str]] = []
        self.warnings: list[str] = []
        # The results of commands, by the name of the program. Such commands are not run.
        self.answers: dict[str, tuple[int, str, str]] = {}
        shell = root / "bin/sh"
        # A copy of a tree has all of it.
        if not shell.exists():
            for folder in ("run", "tmp", "bin", "opt/nvidia", "srv", "var/lib"):
                (root / folder).mkdir(parents=True)
            if live:
                (root / lock.LOCK[1:]).mkdir(0o700)
            shell.write_bytes(program("", MACHINE))
            shell.chmod(0o755)

    @property
    def host(self) -> HostFS:
        return HostFS.of(str(self.root), live=self.live)

    @property
    def store(self) -> VersionStore:
        return VersionStore(self.host, DEST)

    @property
    def dest(self) -> Path:
        return self.root / DEST[1:]

    @property
    def versions(self) -> Path:
        return self.root / VERSIONS[1:]

    def current(self) -> Path:
        """Return the directory that dest links to."""
        target = os.readlink(str(self.dest))
        assert target.startswith("toolkit.versions/")
        return self.dest.parent / target

    def names(self) -> list[str]:
        """Return the names in the directory of the versions."""
        return sorted(path.name for path in self.versions.iterdir() if path.name != ".created.json")

    def source(self, version: str) -> str:
        """Create the source of a version. Return its path on the host."""
        path = self.root / "srv" / version
        if not path.exists():
            tree(path, version, machine=MACHINE)
        return f"/srv/{version}"

    def installation(self, release: str = NEW, **options: t.Any) -> DirectoryInstallation:
        if not {"src", "files", "controller_source"} & set(options):
            options["src"] = self.source(release)
        return DirectoryInstallation(self._options(options), self.host, self.tools())

    def install(self, release: str = NEW, check: bool = False, **options: t.Any) -> DirectoryResult:
        return self._execute(self.installation(release, **options), check)

    def remove(self, check: bool = False, **options: t.Any) -> DirectoryResult:
        return self._execute(DirectoryRemoval(self._options(options), self.host, self.tools()), check)

    def tools(self) -> Tools:
        return Tools(self._run, self._unpack, lambda path, final: self.labelled.append((path, final)))

    def _options(self, options: dict[str, t.Any]) -> DirectoryOptions:
        return DirectoryOptions(**{"dest": DEST, **options})

    def _execute(self, task: DirectoryInstallation | DirectoryRemoval, check: bool) -> DirectoryResult:
        result = task.execute(check)
        self.warnings = task.warnings
        assert task.module_result(result)["changed"] is result.changed
        return result

    def _unpack(self, files: list[str], folder: str) -> None:
        """Copy a directory in place of a package."""
        for file in files:
            shutil.copytree(f"{file}.content", f"{folder}/usr", symlinks=True)

    def _run(self, argv: list[str]) -> tuple[int, str, str]:
        """Run a program of the tree without chroot."""
        assert argv[:2] == ["chroot", str(self.root)]
        self.ran.append(argv[2:])
        message = [f"{self.root}{word}" if word.startswith("/") else word for word in argv[2:]]
        name = next(word for word in message if word.startswith("/")).rsplit("/", 1)[-1]
        if name in self.answers:
            return self.answers[name]
        done = subprocess.run(message, capture_output=True, text=True, check=False, cwd="/")
        return done.returncode, done.stdout, done.stderr


# Functions that change a file system.
_CHANGES = ("mkdir", "chmod", "fchmod", "fchown", "symlink", "rename", "replace", "unlink", "rmdir", "ftruncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killer:
    """Raises Killed in place of change number ``last`` of a file system and of every later one. ``done`` counts them.

    The later changes are prevented because a killed process does no cleanup.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: int | None = None
        self.done = 0
        for name in _CHANGES:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        # fsync is slow and not needed here.
        monkeypatch.setattr(os, "fsync", lambda _handle: None)
        monkeypatch.setattr(directory_store, "rename_exchange", self._counted(rename_exchange))
        # A killed run holds no lock.
        monkeypatch.setattr(lock, "TIMEOUT", 0.0)
        really_open = os.open

        def counted_open(path: t.Any, flags: int, *others: t.Any, **named: t.Any) -> int:
            if flags & _WRITES:
                self._count()
            return really_open(path, flags, *others, **named)

        monkeypatch.setattr(os, "open", counted_open)

    def kills(self, last: int, work: t.Callable[[], object]) -> bool:
        """Return whether ``work`` was killed."""
        self.last, self.done = last, 0
        try:
            work()
        except Killed:
            return True
        finally:
            self.last = None
        return False

    def _counted(self, change: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def counted(*arguments: t.Any, **named: t.Any) -> t.Any:
            self._count()
            return change(*arguments, **named)

        return counted

    def _count(self) -> None:
        self.done += 1
        if self.last is not None and self.done >= self.last:
            raise Killed


def refusal(work: t.Callable[[], object]) -> str:
    """Return the error of ``work``."""
    try:
        work()
    except NvidiaError as error:
        return str(error)
    raise AssertionError("It succeeded, but an NvidiaError was expected.")
