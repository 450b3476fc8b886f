# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A directory tree with a Docker, on which the module runs."""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

DAEMON_JSON = "/etc/docker/daemon.json"
ORIGINAL = b'{\n  "debug": true\n}'


class Tree:
    """A directory tree with a Docker, and runs of the module on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.answers: dict[str, tuple[int, str, str]] = {}
        self.live = False

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def write(self, inner: str, content: bytes | str = b"", mode: int = 0o644) -> Path:
        path = self.path(inner)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
        return next((answer for word, answer in self.answers.items() if word in argv), (0, "", ""))

    def present(
        self, check_mode: bool = False, options: dict[str, t.Any] | None = None, **asked: t.Any
    ) -> ConfigureResult:
        return self._execute(RuntimeRequest(**asked), check_mode, options or {})

    def absent(self, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        return self._execute(None, check_mode, options)

    def _execute(self, request: RuntimeRequest | None, check_mode: bool, options: dict[str, t.Any]) -> ConfigureResult:
        host = HostFS.of(str(self.root), self.live)
        return ConfigureEngine(Options("docker", request, **options), host, self.run).execute(check_mode)

    def snapshot(self) -> dict[str, t.Any]:
        """Return type, mode and content of each path. Inode and mtime show whether a file was written."""
        found: dict[str, t.Any] = {}
        for path in sorted(self.root.rglob("*")):
            status = path.lstat()
            content: t.Any = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
            times = (status.st_ino, status.st_mtime_ns) if path.is_file() else ()
            found[str(path.relative_to(self.root))] = (stat.filemode(status.st_mode), content, times)
        return found

    def bytes_and_modes(self) -> dict[str, t.Any]:
        return {path: entry[:2] for path, entry in self.snapshot().items()}


def live_tree(root: Path) -> Tree:
    """Return a tree of a running host, with answers for its programs."""
    tree = Tree(root)
    tree.live = True
    tree.write("/usr/bin/dockerd", mode=0o755)
    tree.path("/tmp").mkdir()
    tree.answers["--version"] = (0, "Docker version 26.1.5+dfsg1, build 411e817\n", "")
    return tree
