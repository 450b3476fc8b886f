"""Inside a host: checks that containers of all engines get what the specification describes: containers.py ENGINE...

Prints JSON, as Report does.
"""

from __future__ import annotations

import subprocess
import sys

import checks
import simulated_gpus
from toolkits import Report

# The names of the hooks of each container, in the order in which they must run.
HOOKS = [
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
]


def try_write(report: Report) -> None:
    """Check the check mode, a write, and a second write without change. A previous file of a play is removed first."""
    checks.specification(state="absent")
    report.worked("check mode", checks.specification(_ansible_check_mode=True), changed=True)
    report.check("check mode, nothing there", not checks.SPECIFICATION.exists())
    written = checks.specification()
    report.worked("written", written, changed=True)
    names = {"0", "1", "all", simulated_gpus.uuid(0), simulated_gpus.uuid(1)}
    report.check("written, devices", set(written.get("devices", [])) == names, written)
    state = checks.SPECIFICATION.stat()
    report.worked("again", checks.specification(), changed=False)
    after = checks.SPECIFICATION.stat()
    same = (state.st_ino, state.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    report.check("again, the same file", same, (state, after))
    report.check("mode of the file", checks.mode(checks.SPECIFICATION) == "0644 0:0", checks.mode(checks.SPECIFICATION))
    folder = checks.SPECIFICATION.parent
    report.check("mode of the folder", checks.mode(folder) == "0755 0:0", checks.mode(folder))
    read = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", str(checks.SPECIFICATION)],
        check=False,
        capture_output=True,
    )
    report.check("read by others", read.stdout == checks.SPECIFICATION.read_bytes(), read.stderr)


def try_devices(report: Report, host: simulated_gpus.SimulatedHost, engines: list[str]) -> None:
    """Start containers with each name of a device."""
    wanted = {"all": (0, 1), "1": (1,), simulated_gpus.uuid(0): (0,)}
    for engine in engines:
        for name, gpus in wanted.items():
            found = checks.seen(engine, name)
            report.check(f"{engine}, {name}", found == checks.whole(host, *gpus), found)
        found = checks.seen(engine, "0", "1")
        report.check(f"{engine}, two of them", found == checks.whole(host, 0, 1), found)
        found = checks.seen(engine, "2")
        report.check(f"{engine}, one that is not there", "2" in found.complaint, found)
        report.check(f"{engine}, no hooks", not checks.hook_calls())


def try_hooks(report: Report, host: simulated_gpus.SimulatedHost, engines: list[str]) -> None:
    """Check the hooks with a program that only records its arguments."""
    refused = checks.specification(hooks="toolkit")
    report.failed("hooks without their program", refused, "nvidia-cdi-hook.*hooks: none")
    checks.install_hook()
    written = checks.specification(hooks="toolkit")
    report.worked("hooks", written, changed=True)
    report.check("hooks, reported", any("hooks" in reason for reason in written.get("reasons", [])), written)
    checks.hook_calls()
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, with hooks", found == checks.whole(host, 0, 1), found)
        calls = checks.hook_calls()
        words = [call.split() for call in calls]
        report.check(f"{engine}, hooks", [word[0] for word in words] == HOOKS, calls)
        links = f"libcuda.so.1::{simulated_gpus.FOLDER}/libcuda.so"
        report.check(f"{engine}, links", bool(words) and links in words[0], calls)
        report.check(f"{engine}, cache", f"update-ldcache --folder {simulated_gpus.FOLDER}" in calls, calls)
        report.check(f"{engine}, version", f"enable-cuda-compat --host-driver-version={host.version}" in calls, calls)
    checks.HOOK.unlink()
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, hooks that are gone", checks.fails_with(engine, found, "nvidia-cdi-hook"), found)
    report.worked("no hooks again", checks.specification(), changed=True)


def main() -> None:
    """Run all checks. The specification is removed at the end."""
    report, engines = Report(), sys.argv[1:]
    host = simulated_gpus.create(simulated_gpus.SimulatedHost(gpus=2))
    try_write(report)
    try_devices(report, host, engines)
    try_hooks(report, host, engines)
    report.worked("absent", checks.specification(state="absent"), changed=True)
    report.check("absent, no file", not checks.SPECIFICATION.exists())
    for engine in engines:
        found = checks.seen(engine, "all")
        report.check(f"{engine}, no specification", checks.KIND in found.complaint, found)
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    report.print()


if __name__ == "__main__":
    main()
