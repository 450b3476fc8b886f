"""A stand-in for k0s v1.30: k0s worker, k0s version.

It generates the configuration of its containerd (pkg/component/worker/containerd). This is containerd's own default of
the CRI, merged with the drop-ins that have settings of the CRI. Other drop-ins are imported. It starts the real
containerd with it. Three seconds after a change of the drop-ins it generates the file again and stops containerd with a
signal. Its supervisor starts containerd again five seconds later.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import child
import tomllib

MARKER = "# k0s_managed=true"
MAIN, DROP_INS = Path("/etc/k0s/containerd.toml"), Path("/etc/k0s/containerd.d")
MERGED = Path("/run/k0s/containerd-cri.toml")
ADDRESS = "/run/k0s/containerd.sock"
PROGRAMS = "/var/lib/k0s/bin"
CRI = "io.containerd.grpc.v1.cri"
PAUSE = "quay.io/k0sproject/pause:3.9"
# Seconds: from a change to the new file, from the end of containerd to its next start, between two checks.
DEBOUNCE, RESPAWN, POLL = 3.0, 5.0, 0.3


def merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``patch``. Tables are merged."""
    result = dict(base)
    for key, value in patch.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result


def lines(table: dict[str, Any], path: list[str]) -> list[str]:
    """Return the lines of a table in TOML. The values have the same form in JSON."""
    values = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    head = [f"[{'.'.join(map(json.dumps, path))}]"] if path else []
    tables = [(key, value) for key, value in table.items() if isinstance(value, dict)]
    return [*head, *values, *(line for key, value in tables for line in lines(value, [*path, key]))]


def configure() -> None:
    """Write both files, unless the user has removed the mark of k0s from the main file."""
    if MAIN.exists() and not MAIN.read_text().startswith(MARKER):
        return
    DROP_INS.mkdir(parents=True, exist_ok=True)
    printed = subprocess.check_output([f"{PROGRAMS}/containerd", "config", "default"], text=True)
    cri = tomllib.loads(printed)["plugins"][CRI]
    final = {"version": 2, "plugins": {CRI: merged(cri, {"sandbox_image": PAUSE})}}
    imports = [str(MERGED)]
    for path in sorted(DROP_INS.glob("*.toml")):
        drop_in = tomllib.loads(path.read_text())
        if CRI in drop_in.get("plugins", {}):
            final = merged(final, drop_in)
        else:
            imports.append(str(path))
    child.generate(MERGED, "\n".join([*lines(final, []), ""]))
    head = [MARKER, "# This is a placeholder configuration for k0s managed containerd."]
    child.generate(MAIN, "\n".join([*head, f"imports = {json.dumps(imports)}", "version = 2", ""]))


def drop_ins() -> list[str]:
    """Return the current drop-ins with their inodes and times."""
    return [f"{path} {child.written(path)}" for path in sorted(DROP_INS.glob("*"))]


def supervise() -> None:
    """Run containerd until it ends, and stop it after a change of the drop-ins."""
    options = ["--root=/var/lib/k0s/containerd", "--state=/run/k0s/containerd", f"--address={ADDRESS}"]
    containerd = child.start([f"{PROGRAMS}/containerd", *options, f"--config={MAIN}"], [PROGRAMS])
    child.end_on_signal(containerd)
    known, changed = drop_ins(), 0.0
    while containerd.poll() is None:
        time.sleep(POLL)
        now = drop_ins()
        if now != known:
            known, changed = now, time.monotonic()
        elif changed and time.monotonic() - changed > DEBOUNCE:
            configure()
            containerd.send_signal(signal.SIGHUP)
            containerd.wait()
    time.sleep(RESPAWN)


def main() -> None:
    """Run the command of the command line."""
    if sys.argv[1:] == ["version"]:
        print("v1.30.4+k0s.0")
        return
    child.set_process_name("k0s")
    configure()
    while True:
        supervise()
