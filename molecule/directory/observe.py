"""Inside a host: tells as JSON how it stands with the toolkit in its directory: observe.py [--fresh] [PROBE...]

version: the directory that the path leads to; versions: all that lie there; daemons: process of each engine
touched: files that were written since the last look, even with the same bytes; left: those that are not as on the fresh
host. With a PROBE also what became of it: "containers", one of each engine that names no runtime (started); "survivor",
a pod from now on; "no-survivor", its removal. --fresh makes this look the one to compare with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grpc
import toolkits
from cri import SOCKET, Cri
from engines import ENGINES, remember, remembered, start, status
from observing import differences
from watched import lasting, watched

TREES = ("/etc", "/opt", "/root", "/usr/local", "/var/cache", "/var/lib")


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
    now = watched(TREES)
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
        "left": differences(lasting(fresh), lasting(now)),
    }
    print(json.dumps({**seen, **{name: PROBES[name]() for name in sys.argv[1:] if name in PROBES}}))


if __name__ == "__main__":
    main()
