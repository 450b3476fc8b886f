# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The directory tree of a host with Docker, whose content and metadata can be compared."""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree

if t.TYPE_CHECKING:
    from pathlib import Path

DAEMON_JSON = "/etc/docker/daemon.json"
ORIGINAL = b'{\n  "debug": true\n}'


class Tree(EngineTree):
    """A directory tree, and the module's calls for Docker. The tree passes for a running host if ``live`` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "docker", live=False)

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
    tree.write("/usr/bin/dockerd")
    tree.answers["--version"] = (0, "Docker version 26.1.5+dfsg1, build 411e817\n", "")
    return tree
