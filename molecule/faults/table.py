"""Inside a host: runs rows of vars/rows.yml, and prints their results as JSON: table.py ROWS (as JSON).

message: the message of the failed module, if one failed
now: refused, state, files, live, daemon, disturbed and leftovers, as explained in rows.yml
wrong: the values that differ from those that the row expects
seen: the result of observe.py; seconds: the duration of the row
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

from engines import ENGINES, Engine, call
from faults import FAULTS, remove_faults
from fresh import fresh
from observe import read_state

# The result for a host on which nothing is changed.
ORDINARY = {
    "refused": False,
    "state": "none",
    "files": "old",
    "live": "old",
    "daemon": "same",
    "disturbed": [],
    "leftovers": [],
}


def took_place(row: dict[str, Any], engine: Engine) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configure and restart as the role does. Return both results; the second is empty if the module was not called."""
    fresh(engine, row.get("first", []))
    settings = {"engine": engine.name, "set_as_default": row.get("set_as_default", True)}
    configured = call("nvidia_runtime_config", **settings)
    if configured.get("failed"):
        return configured, {}
    if row.get("twice"):
        configured = {**call("nvidia_runtime_config", **settings), "written": configured["backup_files"]}
    for fault in row.get("between", []):
        FAULTS[fault](engine)
    options = dict(row.get("restart", {}))
    rollback = configured["backup_files"]
    if options.pop("blind", False):
        rollback = [{**entry, "checksum": None} for entry in rollback]
    expect = {"runtimes": list(configured["runtimes"]), "default_runtime": configured["default_runtime"]}
    options = {"timeout": 30, "expect": expect, "rollback": rollback, **options}
    return configured, call("nvidia_runtime_restart", engine=engine.name, **options)


def outcome(row: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Run one row on one engine. Return the result."""
    began = time.monotonic()
    configured, restarted = took_place(row, engine)
    seen = read_state(engine)
    remove_faults()
    changes = configured.get("written", configured.get("backup_files", []))
    written = {entry["path"]: entry["checksum"] for entry in changes}
    message = " ".join(result["msg"] for result in (configured, restarted) if result.get("failed"))
    files = seen["files"]
    now = {
        "refused": configured.get("failed", False),
        "state": restarted.get("state", "none"),
        "files": files if files == "old" else "new" if {**files, **written} == files else "other",
        "live": seen["live"] if seen["sound"] else "none",
        **{name: seen[name] for name in ("daemon", "disturbed", "leftovers")},
    }
    wanted = {**ORDINARY, **row["expect"]}
    wrong = [f"{name}: {now[name]}, not {wanted[name]}" for name in wanted if now[name] != wanted[name]]
    if not re.search(row.get("message", "^$"), message, re.DOTALL):
        wrong.append("the message")
    title = f"{row['row']} ({engine.name})"
    return {
        "row": title,
        "message": message,
        "now": now,
        "wrong": wrong,
        "seen": seen,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Run all rows on all their engines, and print the results."""
    rows = json.loads(sys.argv[1])
    print(json.dumps([outcome(row, ENGINES[engine]) for row in rows for engine in row["engines"]]))


if __name__ == "__main__":
    main()
