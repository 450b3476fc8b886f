"""Inside a host: checks that containers of all engines get what the specification describes: containers.py ENGINE...

Prints JSON, as Report does.
"""

from __future__ import annotations

import subprocess
import sys

import looks
import machine
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
    looks.specification(state="absent")
    report.worked("check mode", looks.specification(_ansible_check_mode=True), changed=True)
    report.check("check mode, nothing there", not looks.SPECIFICATION.exists())
    written = looks.specification()
    report.worked("written", written, changed=True)
    names = {"0", "1", "all", machine.uuid(0), machine.uuid(1)}
    report.check("written, devices", set(written.get("devices", [])) == names, written)
    state = looks.SPECIFICATION.stat()
    report.worked("again", looks.specification(), changed=False)
    after = looks.SPECIFICATION.stat()
    same = (state.st_ino, state.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    report.check("again, the same file", same, (state, after))
    report.check("mode of the file", looks.mode(looks.SPECIFICATION) == "0644 0:0", looks.mode(looks.SPECIFICATION))
    folder = looks.SPECIFICATION.parent
    report.check("mode of the folder", looks.mode(folder) == "0755 0:0", looks.mode(folder))
    read = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", str(looks.SPECIFICATION)],
        check=False,
        capture_output=True,
    )
    report.check("read by others", read.stdout == looks.SPECIFICATION.read_bytes(), read.stderr)


def try_devices(report: Report, host: machine.Machine, engines: list[str]) -> None:
    """Start containers with each name of a device."""
    wanted = {"all": (0, 1), "1": (1,), machine.uuid(0): (0,)}
    for engine in engines:
        for name, gpus in wanted.items():
            found = looks.seen(engine, name)
            report.check(f"{engine}, {name}", found == looks.whole(host, *gpus), found)
        found = looks.seen(engine, "0", "1")
        report.check(f"{engine}, two of them", found == looks.whole(host, 0, 1), found)
        found = looks.seen(engine, "2")
        report.check(f"{engine}, one that is not there", "2" in found.complaint, found)
        report.check(f"{engine}, no hooks", not looks.hook_calls())


def try_hooks(report: Report, host: machine.Machine, engines: list[str]) -> None:
    """Check the hooks with a program that only records its arguments."""
    refused = looks.specification(hooks="toolkit")
    report.failed("hooks without their program", refused, "nvidia-cdi-hook.*hooks: none")
    looks.install_hook()
    written = looks.specification(hooks="toolkit")
    report.worked("hooks", written, changed=True)
    report.check("hooks, reported", any("hooks" in reason for reason in written.get("reasons", [])), written)
    looks.hook_calls()
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(f"{engine}, with hooks", found == looks.whole(host, 0, 1), found)
        calls = looks.hook_calls()
        words = [call.split() for call in calls]
        report.check(f"{engine}, hooks", [word[0] for word in words] == HOOKS, calls)
        links = f"libcuda.so.1::{machine.FOLDER}/libcuda.so"
        report.check(f"{engine}, links", bool(words) and links in words[0], calls)
        report.check(f"{engine}, cache", f"update-ldcache --folder {machine.FOLDER}" in calls, calls)
        report.check(f"{engine}, version", f"enable-cuda-compat --host-driver-version={host.version}" in calls, calls)
    looks.HOOK.unlink()
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(f"{engine}, hooks that are gone", looks.blames(engine, found, "nvidia-cdi-hook"), found)
    report.worked("no hooks again", looks.specification(), changed=True)


def main() -> None:
    """Run all checks. The specification is removed at the end."""
    report, engines = Report(), sys.argv[1:]
    host = machine.become(machine.Machine(gpus=2))
    try_write(report)
    try_devices(report, host, engines)
    try_hooks(report, host, engines)
    report.worked("absent", looks.specification(state="absent"), changed=True)
    report.check("absent, no file", not looks.SPECIFICATION.exists())
    for engine in engines:
        found = looks.seen(engine, "all")
        report.check(f"{engine}, no specification", looks.KIND in found.complaint, found)
    machine.become(machine.Machine())
    report.print()


if __name__ == "__main__":
    main()
