"""Inside a host: tells as JSON how it stands with the toolkit in its directory: observe.py [--fresh] [PROBE...]

version: the directory that the path leads to; versions: all that lie there; daemons: process of each engine
touched: files that were written since the last look, even with the same bytes; left: those that are not as on the fresh
host. With a PROBE also what became of it: "containers", one of each engine that names no runtime (started); "survivor",
a pod from now on; "no-survivor", its removal. --fresh makes this look the one to compare with.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import grpc
import toolkits
from cri import SOCKET, Cri
from engines import ENGINES, remember, remembered, start, status
from observing import describe, differences

TREES = ("/etc", "/opt", "/root", "/usr/local", "/var/cache", "/var/lib")
# What package managers and engines keep for themselves, and what systemd notes of units that ran.
PRIVATE = (
    *(f"/var/lib/{name}" for name in ("apt", "dpkg", "docker", "containerd", "containers", "systemd")),
    "/etc/docker/key.json",
    "/root/.ansible",
    "/root/gpufleet-collections",
)


def trees() -> dict[str, str]:
    """Everything that is watched, and when it was written."""
    found = {}
    for tree in TREES:
        for folder, folders, files in os.walk(tree):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in PRIVATE]
            found.update({path: identify(path) for name in folders + files for path in [os.path.join(folder, name)]})
    return {path: words for path, words in found.items() if path not in PRIVATE}


def identify(path: str) -> str:
    """What is to come back, and behind a tab what only stays if nobody writes."""
    state = os.lstat(path)
    return f"{describe(path)}\t{state.st_ino} {state.st_mtime_ns}"


def contents(found: dict[str, str]) -> dict[str, str]:
    """The same without what only stays if nobody writes."""
    return {path: words.split("\t")[0] for path, words in found.items()}


def containers() -> dict[str, Any]:
    """A container of each engine: what went wrong, and the versions of the runtimes that made it."""
    found = {}
    for name, engine in ENGINES.items():
        known = len(toolkits.calls())
        complaint = start(engine)
        found[name] = [complaint, [toolkits.of_one_version(line) for line in toolkits.creations(known)]]
    return found


def survivor() -> str:
    """Start a pod that stays."""
    remember("survivor", Cri(SOCKET).start(""))
    return ""


def no_survivor() -> str:
    """Remove it."""
    try:
        Cri(SOCKET).remove(remembered("survivor"))
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


PROBES = {"containers": containers, "survivor": survivor, "no-survivor": no_survivor}


def main() -> None:
    """Look, compare, remember, and only then try something."""
    now = trees()
    if "--fresh" in sys.argv:
        remember("fresh", now)
        remember("before", now)
    fresh, before = remembered("fresh"), remembered("before")
    remember("before", now)
    link = Path(toolkits.DEST)
    seen = {
        "version": toolkits.current() if link.is_symlink() else None,
        "versions": sorted(toolkits.versions()),
        "daemons": {name: status(engine.unit)["MainPID"] for name, engine in ENGINES.items()},
        "touched": differences(before, now),
        "left": differences(contents(fresh), contents(now)),
    }
    print(json.dumps({**seen, **{name: PROBES[name]() for name in sys.argv[1:] if name in PROBES}}))


if __name__ == "__main__":
    main()
