"""Inside a host: starts containers of both engines with the driver and without it. Prints JSON, as Report does."""

from __future__ import annotations

from pathlib import Path

from engines import ENGINES, start
from toolkits import DEST, OLD, Report, calls, creations, current, install, load_driver, of_one_version

# Stands for a low-level runtime that is no usual one.
OTHER = Path("/srv/other-runtime")
OTHER_CALLS = Path("/run/gpufleet-other-runtime.calls")
UNLOADED = "nvidia-container-runtime: the kernel module nvidia is not loaded, a low-level runtime takes over"
OTHER_TEXT = f"""\
#!/bin/sh
echo "$*" >>{OTHER_CALLS}
exec runc "$@"
"""


def others() -> int:
    """How many containers the other runtime made."""
    lines = OTHER_CALLS.read_text().splitlines() if OTHER_CALLS.exists() else []
    return sum("create" in line.split() for line in lines)


def try_engines(report: Report, *, loaded: bool, other: bool) -> None:
    """Start a container of each; ``other``: whether the other runtime is the one for hosts without the driver."""
    load_driver(loaded=loaded)
    for name, engine in ENGINES.items():
        known, before = len(calls()), others()
        title = f"{name}, driver loaded: {loaded}, another runtime: {other}"
        complaint = start(engine)
        # Docker shows what a runtime says to whoever runs the container.
        said = complaint.replace(UNLOADED, "" if not loaded else UNLOADED)
        report.check(f"{title}, start", not said, complaint)
        made = [of_one_version(line) for line in creations(known)]
        report.check(f"{title}, calls", made == ([current()] if loaded else []), calls()[known:])
        report.check(f"{title}, other calls", others() - before == int(other and not loaded), others() - before)


def main() -> None:
    """Do it, and leave the host as it was."""
    report = Report()
    OTHER.write_text(OTHER_TEXT)
    OTHER.chmod(0o755)
    for loaded in (False, True):
        try_engines(report, loaded=loaded, other=False)
    installed = install(OLD, default_runtime_executable=str(OTHER))
    report.worked("another runtime", installed, changed=True)
    for loaded in (False, True):
        try_engines(report, loaded=loaded, other=True)
    report.worked("the usual runtime again", install(OLD), changed=True)
    report.failed("the toolkit itself as the runtime", install(OLD, default_runtime_executable=f"{DEST}/x"), "itself")
    report.print()


if __name__ == "__main__":
    main()
