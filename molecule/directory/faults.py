"""Inside a host: lets an installation go wrong, and what is installed be damaged. Prints JSON, as Report does.

Whatever goes wrong, the version that is there has to stay at work, and nothing may be left beside it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import elf_programs
from observing import describe
from toolkits import (
    NEW,
    OLD,
    SOURCES,
    Report,
    install,
    make_former,
    must,
    start,
    toolkit,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME = Path("/opt/gpufleet-faults")
DEST = str(HOME / "toolkit")
CONFIG = ".config/nvidia-container-runtime/config.toml"
# That of NVIDIA's toolkit container.
LOCK = Path("/run/nvidia/toolkit/toolkit.pid")
# Of ELF headers.
S390X = 22


def tree() -> dict[str, str]:
    """All there is."""
    paths = [os.path.join(folder, name) for folder, folders, files in os.walk(HOME) for name in folders + files]
    return {path: f"{describe(path)} {os.lstat(path).st_ino}" for path in paths}


@contextmanager
def mounted(*options: str) -> Iterator[None]:
    """Mount something over the folder of the installation."""
    HOME.mkdir(exist_ok=True)
    must("mount", *options, str(HOME))
    yield
    must("umount", str(HOME))


def remount(*options: str) -> None:
    """Change what is mounted there."""
    must("mount", "-o", ",".join(("remount", *options)), str(HOME))


def refused(report: Report, name: str, pattern: str, source: str = NEW, **options: Any) -> None:
    """Install what cannot be installed, over what is there and has to stay as it is, at work."""
    before = tree()
    report.failed(name, install(source, DEST, **options), pattern)
    after = tree()
    report.check(f"{name}, untouched", before == after, sorted(set(before.items()) ^ set(after.items()))[:6])
    report.check(f"{name}, at work", start(DEST)[0] == OLD, start(DEST))


def try_file_systems(report: Report) -> None:
    """Disks that are full, read-only, or not for programs."""
    with mounted("-t", "tmpfs", "-o", "size=64m,nr_inodes=10000,mode=755", "tmpfs"):
        report.worked("a disk of its own", install(OLD, DEST), changed=True)
        remount("size=400k")
        refused(report, "no room", "has 0 MiB left.*nothing was changed")
        remount("size=64m", f"nr_inodes={len(tree()) + 12}")
        refused(report, "no room in the middle", "No space left on device. Make room")
        remount("nr_inodes=10000", "noexec")
        before = tree()
        report.failed("noexec", install(NEW, DEST), "mounted noexec.*Choose another dest")
        report.check("noexec, untouched", before == tree())
        remount("exec")
        report.worked("room again", install(NEW, DEST), changed=True)
        report.check("room again, at work", start(DEST)[0] == NEW, start(DEST))
        report.worked("removed", toolkit(DEST, state="absent"), changed=True)
        report.check("removed, nothing left", not tree(), tree())
    with mounted("--bind", str(HOME)):
        install(OLD, DEST)
        remount("bind", "ro")
        refused(report, "read-only", "Read-only file system. Mount")
        report.worked("read-only, unchanged", install(OLD, DEST), changed=False)
        remount("bind", "rw")


def try_sources(report: Report) -> None:
    """Sources that are no toolkit for this host."""
    # Not x86-64, so that it says so on one of AArch64 as well.
    elf_programs.tree(SOURCES / "foreign", NEW, machine=S390X)
    refused(report, "another machine", "Choose|Give", "foreign")
    mixed = SOURCES / "mixed"
    shutil.copytree(SOURCES / NEW, mixed, symlinks=True)
    program = mixed / "usr/bin/nvidia-ctk"
    shutil.copy(SOURCES / OLD / "usr/bin/nvidia-ctk", program)
    refused(report, "several versions", "several versions.*nothing was changed", mixed.name)
    program.write_bytes(elf_programs.program("echo it does not like it here >&2; exit 3", own_machine()))
    refused(report, "a program does not run", "does not run on this host: it does not like it here", mixed.name)
    program.unlink()
    refused(report, "a part is missing", "nvidia-ctk", mixed.name)
    refused(report, "not the version that is asked for", f"{NEW}.*9.9.9.*nothing was changed", version="9.9.9")
    refused(report, "a version that is too old", "1.18.2", "1.18.2", minimum_version_policy="fail")
    refused(report, "no source", "(?i)src", "nowhere")


def try_places(report: Report) -> None:
    """Something stands where the toolkit is to go."""
    place = HOME / "place"
    dest = str(place / "toolkit")
    place.mkdir(parents=True)
    Path(dest).write_text("theirs")
    report.failed("a file", install(NEW, dest), "is a file. Move it away.*nothing was changed")
    Path(dest).unlink()
    make_former(dest)
    stranger = Path(dest, "theirs")
    stranger.write_text("theirs")
    report.failed("a directory with other things", install(NEW, dest), "other things.*theirs.*nothing was changed")
    stranger.unlink()
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        report.failed("the installer runs", install(NEW, dest), "NVIDIA's toolkit container, which runs")
    must("mount", "--bind", dest, dest)
    report.failed("a mount point", install(NEW, dest), "mount point")
    must("umount", dest)
    report.check("places, untouched", [path.name for path in place.iterdir()] == ["toolkit"], list(place.iterdir()))
    before = {path: describe(str(path)) for path in place.rglob("*")}
    report.worked("the place is free", install(NEW, dest), changed=True)
    report.check("the place is free, at work", start(dest)[0] == NEW, start(dest))
    report.worked("given back", toolkit(dest, state="absent"), changed=True)
    after = {path: describe(str(path)) for path in place.rglob("*")}
    report.check("given back, as it was", before == after, set(before.items()) ^ set(after.items()))
    shutil.rmtree(place)


def damages() -> dict[str, Callable[[], object]]:
    """What may be done to the version that is there, by the name of which is said that it was repaired."""
    here = Path(DEST)
    own = here / "nvidia-ctk"
    return {
        "nvidia-ctk": lambda: own.write_text("#!/bin/sh\n"),
        "nvidia-ctk.real": (here / "nvidia-ctk.real").unlink,
        "nvidia-container-cli.real": lambda: (here / "nvidia-container-cli.real").chmod(0o700),
        "libnvidia-container.so.1": lambda: relink(here / "libnvidia-container.so.1", "/dev/null"),
        "nvidia-container-toolkit": lambda: relink(here / "nvidia-container-toolkit", None),
        "theirs": lambda: (here / "theirs").write_text("theirs"),
        ".config/nvidia-container-runtime/config.toml": lambda: (here / CONFIG).write_text("debug = true\n"),
    }


def relink(path: Path, target: str | None) -> None:
    """Let a link lead elsewhere, or to nothing."""
    path.unlink()
    if target:
        path.symlink_to(target)


def try_damage(report: Report) -> None:
    """What is damaged is put right; what is not asked for any more goes; what only looks otherwise stays."""
    install(OLD, DEST)
    for name, damage in damages().items():
        damage()
        result = install(OLD, DEST)
        report.worked(f"damaged {name}", result, changed=True)
        report.check(f"damaged {name}, told", result.get("repaired_files") == [name], result.get("repaired_files"))
        report.check(f"damaged {name}, at work", start(DEST)[0] == OLD, start(DEST))
        report.worked(f"damaged {name}, once more", install(OLD, DEST), changed=False)
        backups = [Path(entry["backup"]).read_text() for entry in result.get("backup_files", [])]
        report.check(f"damaged {name}, kept", backups == (["debug = true\n"] if name == CONFIG else []), backups)
    os.utime(f"{DEST}/nvidia-ctk.real")
    report.worked("touched", install(OLD, DEST), changed=False)
    state = os.stat(f"{DEST}/nvidia-ctk.real")
    same_size = bytearray(Path(f"{DEST}/nvidia-ctk.real").read_bytes())
    same_size[-2] ^= 1
    Path(f"{DEST}/nvidia-ctk.real").write_bytes(same_size)
    os.utime(f"{DEST}/nvidia-ctk.real", ns=(state.st_atime_ns, state.st_mtime_ns))
    report.worked("changed behind the back", install(OLD, DEST), changed=True)
    report.worked("a part less", install(OLD, DEST, components=["runtime", "hook", "cli", "cdi_hook"]), changed=True)
    left = [path.name for path in Path(DEST).iterdir() if path.name.startswith("nvidia-ctk")]
    report.check("a part less, gone", not left, left)
    report.worked("all parts", install(OLD, DEST, verify="full"), changed=True)
    strangers = list(Path(f"{DEST}.versions").glob("*/theirs"))
    report.check("what nobody installed stays", len(strangers) == 1, strangers)
    for stranger in strangers:
        shutil.rmtree(stranger.parent)
    report.check("two versions", len(versions(DEST)) == 2, versions(DEST))


def own_machine() -> int:
    """What the host's shell is for."""
    with open("/bin/sh", "rb") as file:
        return int.from_bytes(file.read(20)[18:], "little")


def main() -> None:
    """Go through all."""
    report = Report()
    try_damage(report)
    try_sources(report)
    try_places(report)
    report.worked("removed", toolkit(DEST, state="absent"), changed=True)
    try_file_systems(report)
    report.worked("removed once more", toolkit(DEST, state="absent"), changed=True)
    report.check("removed once more, nothing left", not tree(), tree())
    shutil.rmtree(HOME, ignore_errors=True)
    report.print()


if __name__ == "__main__":
    main()
