"""The files of a host that are watched: what must come back of each, and what only stays if nobody writes it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from observing import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# What package managers and engines keep for themselves, what systemd notes of units that ran, what Ansible leaves,
# and the modules where a scenario runs them on the host itself.
PRIVATE = (
    *(f"/var/lib/{name}" for name in ("apt", "dpkg", "docker", "containerd", "containers", "systemd")),
    "/etc/docker/key.json",
    "/root/.ansible",
    "/root/gpufleet-collections",
)


def identify(path: str) -> str:
    """What is to come back, and behind a tab what only stays if nobody writes."""
    state = os.lstat(path)
    return f"{describe(path)}\t{state.st_ino} {state.st_mtime_ns}"


def watched(trees: Iterable[str], private: Iterable[str] = (), tell: Callable[[str], str] = identify) -> dict[str, str]:
    """All that lies in the trees, but for what is private and what lies in it."""
    hidden = {*PRIVATE, *private}
    found = {}
    for tree in trees:
        for folder, folders, files in os.walk(tree):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in hidden]
            paths = [os.path.join(folder, name) for name in folders + files]
            found.update({path: tell(path) for path in paths if path not in hidden})
    return found


def lasting(found: dict[str, str]) -> dict[str, str]:
    """The same without what only stays if nobody writes."""
    return {path: words.split("\t")[0] for path, words in found.items()}
