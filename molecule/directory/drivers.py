"""Inside a host: starts containers of both engines, with and without the driver. Prints JSON, as Report does."""

from __future__ import annotations

from pathlib import Path

from engines import ENGINES, start
from toolkits import DEST, OLD, Report, calls, creating, creations, current, install, load_driver, of_one_version

# A low-level runtime that is not one of the usual ones.
OTHER = Path("/srv/other-runtime")
OTHER_CALLS = Path("/run/gpufleet-other-runtime.calls")
UNLOADED = "nvidia-container-runtime: the kernel module nvidia is not loaded, a low-level runtime takes over"
OTHER_TEXT = f"""\
#!/bin/sh
echo "$*" >>{OTHER_CALLS}
exec runc "$@"
"""


def others() -> int:
    """Return how many containers the other runtime has created."""
    lines = OTHER_CALLS.read_text().splitlines() if OTHER_CALLS.exists() else []
    return len(creating(lines))


def try_engines(report: Report, *, loaded: bool, other: bool) -> None:
    """Start a container of each engine. With ``other``, the other runtime runs on hosts without the driver."""
    load_driver(loaded=loaded)
    for name, engine in ENGINES.items():
        known, before = len(calls()), others()
        title = f"{name}, driver loaded: {loaded}, another runtime: {other}"
        complaint = start(engine)
        # Docker prints the messages of a runtime to the user who runs the container.
        unexpected = complaint if loaded else complaint.replace(UNLOADED, "")
        report.check(f"{title}, start", not unexpected, complaint)
        made = [of_one_version(line) for line in creations(known)]
        report.check(f"{title}, calls", made == ([current()] if loaded else []), calls()[known:])
        report.check(f"{title}, other calls", others() - before == int(other and not loaded), others() - before)


def main() -> None:
    """Run all checks. At the end, OLD is installed with the usual low-level runtimes."""
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
