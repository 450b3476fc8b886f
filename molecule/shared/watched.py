"""The files of a host that are compared: what a removal must restore, and what changes whenever the file is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from observing import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The directories in which a removal must leave nothing.
TREES = ("/etc", "/opt", "/root", "/usr/local", "/var/cache", "/var/lib")
# Data of package managers and engines, systemd's records of units that ran, files of Ansible, and the modules if a
# scenario runs them on the host itself.
PRIVATE = (
    *(f"/var/lib/{name}" for name in ("apt", "dpkg", "docker", "containerd", "containers", "systemd")),
    "/etc/docker/key.json",
    "/root/.ansible",
    "/opt/gpufleet-collections",
)


def identify(path: str) -> str:
    """Return what a removal must restore, a tab, and the inode and time, which change whenever the file is written."""
    state = os.lstat(path)
    return f"{describe(path)}\t{state.st_ino} {state.st_mtime_ns}"


def watched(
    trees: Iterable[str], private: Iterable[str] = (), describe_file: Callable[[str], str] = identify
) -> dict[str, str]:
    """Return all files in the trees without the private ones."""
    hidden = {*PRIVATE, *private}
    found = {}
    for tree in trees:
        for folder, folders, files in os.walk(tree):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in hidden]
            paths = [os.path.join(folder, name) for name in folders + files]
            found.update({path: describe_file(path) for path in paths if path not in hidden})
    return found


def lasting(found: dict[str, str]) -> dict[str, str]:
    """Return the same without inodes and times."""
    return {path: words.split("\t")[0] for path, words in found.items()}
