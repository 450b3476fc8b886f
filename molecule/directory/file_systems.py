"""Inside a host: installs on mount points and on file systems that refuse writes. Prints JSON, as Report does.

After each failure all files must be as before. Where programs can run, the installed version must still work.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from observing import describe
from toolkits import (
    NEW,
    OLD,
    Report,
    install,
    make_former,
    must,
    start,
    toolkit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = Path("/opt/gpufleet-faults")
DEST = str(HOME / "toolkit")


def tree() -> dict[str, str]:
    """Return a description of each entry below the directory."""
    paths = [os.path.join(folder, name) for folder, folders, files in os.walk(HOME) for name in folders + files]
    return {path: f"{describe(path)} {os.lstat(path).st_ino}" for path in paths}


@contextmanager
def mounted(*options: str) -> Iterator[None]:
    """Mount a file system over the directory of the installation."""
    HOME.mkdir(exist_ok=True)
    must("mount", *options, str(HOME))
    yield
    must("umount", str(HOME))


def remount(*options: str) -> None:
    """Remount it with other options."""
    must("mount", "-o", ",".join(("remount", *options)), str(HOME))


def refused(report: Report, name: str, pattern: str) -> None:
    """Install another version, which must fail. The installed one must stay unchanged and work."""
    before = tree()
    report.failed(name, install(NEW, DEST), pattern)
    after = tree()
    report.check(f"{name}, untouched", before == after, sorted(set(before.items()) ^ set(after.items()))[:6])
    report.check(f"{name}, at work", start(DEST)[0] == OLD, start(DEST))


def try_file_systems(report: Report) -> None:
    """Check file systems that are full, read-only, or mounted with noexec."""
    with mounted("-t", "tmpfs", "-o", "size=64m,nr_inodes=10000,mode=755", "tmpfs"):
        report.worked("a disk of its own", install(OLD, DEST), changed=True)
        remount("size=400k")
        refused(report, "full disk", "has 0 MiB of free space")
        # The installation starts, and needs more than these 12 files.
        remount("size=64m", f"nr_inodes={len(tree()) + 12}")
        refused(report, "disk that fills up", "No space left on device. Free space")
        remount("nr_inodes=10000", "noexec")
        before = tree()
        report.failed("noexec", install(NEW, DEST), "mounted noexec.*Choose another dest")
        report.check("noexec, untouched", before == tree())
        remount("exec")
        report.worked("free space", install(NEW, DEST), changed=True)
        report.check("free space, works", start(DEST)[0] == NEW, start(DEST))
        report.worked("removed", toolkit(DEST, state="absent"), changed=True)
        report.check("removed, nothing left", not tree(), tree())
    with mounted("--bind", str(HOME)):
        install(OLD, DEST)
        remount("bind", "ro")
        refused(report, "read-only", "Read-only file system. Mount")
        report.worked("read-only, unchanged", install(OLD, DEST), changed=False)
        remount("bind", "rw")


def try_mount(report: Report) -> None:
    """Check a destination that is a mount point."""
    place = HOME / "place"
    dest = str(place / "toolkit")
    make_former(dest)
    before = {path: describe(str(path)) for path in place.rglob("*")}
    must("mount", "--bind", dest, dest)
    report.failed("a mount point", install(NEW, dest), "mount point")
    must("umount", dest)
    after = {path: describe(str(path)) for path in place.rglob("*")}
    report.check("a mount point, untouched", before == after, set(before.items()) ^ set(after.items()))
    shutil.rmtree(HOME)


def main() -> None:
    """Run all checks."""
    report = Report()
    try_mount(report)
    try_file_systems(report)
    report.worked("removed once more", toolkit(DEST, state="absent"), changed=True)
    report.check("removed once more, nothing left", not tree(), tree())
    shutil.rmtree(HOME, ignore_errors=True)
    report.print()


if __name__ == "__main__":
    main()
