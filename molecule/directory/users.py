"""Inside a host: checks that a version is kept while something uses it. Prints JSON, as Report does."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import elf_programs
from engines import IMAGE, PATIENCE, run
from toolkits import FORMER, NEW, OLD, RUNTIME, SOURCES, Report, current, install, load_driver, must, toolkit, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    User = Callable[[], AbstractContextManager[str]]

HOME = Path("/opt/gpufleet-users")
DEST = str(HOME / "toolkit")
SPECIFICATION = Path("/etc/cdi/gpufleet.yaml")
# Three toolkits whose hook is the program sleep. The other stand-ins are scripts, which the kernel lists as sh.
SLEEPERS = ("sleeper-1", "sleeper-2", "sleeper-3")
HOOK = "nvidia-container-runtime-hook"


def make_sleepers() -> None:
    """Create these toolkits. Their library has no other purpose than to be loaded."""
    for name in SLEEPERS:
        elf_programs.tree(SOURCES / name, "1.20.0")
        program = SOURCES / name / "usr/bin" / HOOK
        shutil.copy("/bin/sleep", program)
        with program.open("ab") as file:
            file.write(name.encode())


def switch(name: str) -> dict[str, Any]:
    """Install one of them with the hook and the library only, because sleep reports a version of its own."""
    return toolkit(DEST, src=str(SOURCES / name), components=["hook"], minimum_version_policy="ignore")


@contextmanager
def program() -> Iterator[str]:
    """Run a program of the version."""
    with subprocess.Popen([f"{DEST}/{HOOK}", "1000"]) as process:
        try:
            until(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith(".real"))
            yield f"process {process.pid} "
        finally:
            process.kill()


@contextmanager
def specification() -> Iterator[str]:
    """Write a CDI specification that names a file of the version."""
    SPECIFICATION.parent.mkdir(exist_ok=True)
    SPECIFICATION.write_text(
        f"containerEdits: {{hooks: [{{path: {HOME}/toolkit.versions/{current(DEST)}/nvidia-cdi-hook}}]}}"
    )
    yield f"file {SPECIFICATION}"
    SPECIFICATION.unlink()
    SPECIFICATION.parent.rmdir()


@contextmanager
def container() -> Iterator[str]:
    """Run a container whose configuration contains the path of a hook of the version."""
    hook = f"HOOK={HOME}/toolkit.versions/{current(DEST)}/nvidia-cdi-hook"
    must("docker", "run", "--detach", "--network=none", f"--env={hook}", "--stop-signal=KILL", "--name=user", IMAGE)
    name = run("docker", "inspect", "--format={{.Id}}", "user").stdout
    yield f"container docker/{name[:12]}"
    must("docker", "rm", "--force", "user")


@contextmanager
def script() -> Iterator[str]:
    """Run a wrapper whose shell blocks, because it writes to a full pipe."""
    hearing, speaking = os.pipe()
    os.set_blocking(speaking, False)
    try:
        while True:
            os.write(speaking, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(speaking, True)
    load_driver(loaded=False)
    with subprocess.Popen([f"{DEST}/{RUNTIME}", "--version"], stdout=subprocess.DEVNULL, stderr=speaking) as process:
        os.close(speaking)
        try:
            until(lambda: "pipe_write" in Path(f"/proc/{process.pid}/wchan").read_text() or scripts(process.pid))
            yield f"process {process.pid} "
        finally:
            os.close(hearing)
    load_driver()


def scripts(process: int) -> bool:
    """Return whether the process has the wrapper open."""
    folder = f"/proc/{process}/fd"
    return any(RUNTIME in os.readlink(f"{folder}/{name}") for name in os.listdir(folder))


def until(true: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"users.py: the process was not ready after {PATIENCE} s")
        os.sched_yield()


def try_user(
    report: Report, user: Callable[[], AbstractContextManager[str]], switches: Sequence[Callable[[], dict[str, Any]]]
) -> None:
    """Install two other versions while the first one is used, and one more when it is no longer used."""
    name = getattr(user, "__name__", "")
    report.check(f"{name}, before", not switches[0]().get("failed"))
    used = current(DEST)
    with user() as words:
        report.worked(f"{name}, first", switches[1](), changed=True)
        second = switches[2]()
        report.worked(f"{name}, second", second, changed=True)
        kept = second.get("kept_paths", {})
        right = any(each.startswith(words) for path, found in kept.items() if path.endswith(used) for each in found)
        report.check(f"{name}, kept", right and used in versions(DEST), (words, kept))
        report.worked(f"{name}, still there", switches[2](), changed=False)
    third = switches[2]()
    report.worked(f"{name}, no longer", third, changed=True)
    gone = any(path.endswith(f"/{used}") for path in third.get("removed_paths", []))
    report.check(f"{name}, gone", gone and used not in versions(DEST), third)


def main() -> None:
    """Run the check for each kind of use."""
    report = Report()
    make_sleepers()
    try_user(report, program, [partial(switch, name) for name in SLEEPERS])
    toolkit(DEST, state="absent")
    report.check("nothing is left", not list(HOME.parent.glob("gpufleet-users*")), list(HOME.parent.iterdir()))
    plain = [partial(install, version, DEST) for version in (FORMER, OLD, NEW)]
    for user in (script, specification, container):
        try_user(report, user, plain)
    toolkit(DEST, state="absent")
    report.print()


if __name__ == "__main__":
    main()
