"""Inside a host: prints the state of the toolkit in its directory as JSON: observe.py [--fresh] [PROBE...]

version: the directory that the link leads to; versions: all versions; daemons: the process of each engine;
touched: files that were written since the last call, even with the same bytes; left: files that differ from those on
the fresh host. The result of each PROBE: "containers" starts one container of each engine without a runtime option;
"survivor" starts a pod that keeps running; "no-survivor" removes it. --fresh saves the state as that of a fresh host.
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
from watched import TREES, lasting, watched


def containers() -> dict[str, Any]:
    """Start a container of each engine. Return the error and the versions of the runtimes that created it."""
    found = {}
    for name, engine in ENGINES.items():
        known = len(toolkits.calls())
        complaint = start(engine)
        found[name] = [complaint, [toolkits.of_one_version(line) for line in toolkits.creations(known)]]
    return found


def survivor() -> str:
    """Start a pod that keeps running."""
    remember("survivor", Cri(SOCKET).start(""))
    return ""


def no_survivor() -> str:
    """Remove this pod."""
    try:
        Cri(SOCKET).remove(remembered("survivor"))
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


PROBES = {"containers": containers, "survivor": survivor, "no-survivor": no_survivor}


def main() -> None:
    """Read and compare the files before any container is started, then print the result."""
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
