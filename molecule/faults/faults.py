"""The faults of a host, by the names that vars/rows.yml uses.

A function removes those that are mounts or missing programs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from engines import ENGINES, FILLER, IMAGE, MEMORY, STATE, Engine, at_work, remember, remembered, run, status

if TYPE_CHECKING:
    from collections.abc import Callable

REAL = Path("/run/gpufleet-real")
PROGRAM = Path("/usr/bin/nvidia-container-runtime")

# A script in place of a daemon. It runs ACTION if CONDITION is true. Otherwise, or if the program is called to print
# or validate something, it executes the real program, which has the same name.
STAND_IN = """\
#!/bin/sh
case " $* " in *" config "* | *" --validate "* | *" --version "*) exec REAL "$@" ;; esac
if CONDITION; then
    ACTION
fi
exec REAL "$@"
"""
WITH_NEW = "grep -qrs nvidia FOLDER"
# A read from a pipe that no process writes to. The shell itself reads, because a child process would have another name.
HANG = "[ -p MEMORY/pipe ] || mkfifo MEMORY/pipe; exec 3<>MEMORY/pipe; read -r nothing <&3"
REFUSE = 'echo "the site does not like it" >&2; exit 1'
FILL = f"dd if=/dev/zero of=FOLDER/{FILLER} bs=512 2>/dev/null;"
LOCK = "mount --bind /etc /etc; mount -o remount,bind,ro /etc;"


def mount(*words: str) -> None:
    """Call mount(8) with these arguments. remove_faults() unmounts it."""
    subprocess.check_call(["mount", *words])
    remember_mount(words[-1])


def remember_mount(place: str) -> None:
    """Record a path on which something is mounted, or may be mounted later by a stand-in."""
    remember("mounts", [*(remembered("mounts") or []), place])


def stand_in(engine: Engine, condition: str, action: str) -> None:
    """Mount a script over the program of the daemon. It runs ``action`` while ``condition`` is true."""
    real, fake = REAL / engine.name, REAL / f"{engine.name}.fake"
    real.mkdir(parents=True, exist_ok=True)
    real /= os.path.basename(engine.program)
    real.touch()
    mount("--bind", engine.program, str(real))
    text = STAND_IN.replace("ACTION", action).replace("CONDITION", condition)
    for word, meaning in (("REAL", real), ("FOLDER", engine.folder), ("MEMORY", MEMORY)):
        text = text.replace(word, str(meaning))
    fake.write_text(text)
    fake.chmod(0o755)
    mount("--bind", str(fake), engine.program)


def tmpfs(folder: str, size: str) -> None:
    """Mount a tmpfs of this size on the directory, and copy the previous content into it."""
    kept = MEMORY / "moved"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, symlinks=True)
    mount("-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder)
    subprocess.check_call(["cp", "--archive", f"{kept}/.", folder])


def fill(folder: str) -> None:
    """Fill the disk of a directory."""
    run("dd", "if=/dev/zero", f"of={folder}/{FILLER}", "bs=512")


# -- the files


def written(engine: Engine) -> list[Path]:
    """Return the files of the engine that contain entries of this collection."""
    return [path for path in Path(engine.folder).rglob("*") if path.is_file() and "nvidia" in path.read_text()]


def garbled(engine: Engine) -> None:
    """Make the files that this collection wrote invalid."""
    for path in written(engine):
        path.write_text("{ [ broken\n")


def undefined(engine: Engine) -> None:
    """Set a default runtime that is not defined."""
    for path in written(engine):
        text = path.read_text()
        path.write_text(re.sub(r"""(default[-_]runtime(_name)?["']?\s*[:=]\s*)["']nvidia["']""", r'\1"nope"', text))


def runcless(engine: Engine) -> None:
    """Remove the table of runc. containerd 1.x then has no runtime runc."""
    path = Path(engine.file)
    tables = re.split(r"(?m)^(?=\s*\[)", path.read_text())
    path.write_text("".join(table for table in tables if not re.match(r"\s*\[[^]\n]*runtimes\.runc[].]", table)))


def gone(_engine: Engine) -> None:
    """Remove the program of the runtime."""
    PROGRAM.unlink()


# -- the daemon


def hanging(engine: Engine) -> None:
    """Make the daemon hang when it starts with the new configuration."""
    stand_in(engine, WITH_NEW, HANG)


def stubborn(engine: Engine) -> None:
    """Make the daemon hang when it starts with the new configuration, and ignore SIGTERM."""
    stand_in(engine, WITH_NEW, "trap '' TERM; " + HANG)


def refusing(engine: Engine) -> None:
    """Make the daemon exit when it starts with the new configuration, although validators accept the files."""
    stand_in(engine, WITH_NEW, REFUSE)


def dead(engine: Engine) -> None:
    """Make the daemon exit at every start."""
    stand_in(engine, "true", REFUSE)


# -- the disk


def full(engine: Engine) -> None:
    """Fill the disk of the engine's files."""
    tmpfs(engine.folder, "64k")
    fill(engine.folder)


def full_state(_engine: Engine) -> None:
    """Fill the disk of records and backups."""
    os.makedirs(STATE, exist_ok=True)
    tmpfs(STATE, "64k")
    fill(STATE)


def filling(engine: Engine) -> None:
    """Make the daemon fill the disk and exit when it starts with the new configuration."""
    tmpfs(engine.folder, "64k")
    stand_in(engine, WITH_NEW, f"{FILL} {REFUSE}")


def readonly(_engine: Engine) -> None:
    """Make /etc read-only."""
    mount("--bind", "/etc", "/etc")
    mount("-o", "remount,bind,ro", "/etc")


def locking(engine: Engine) -> None:
    """Make the daemon remount /etc read-only and exit when it starts with the new configuration."""
    remember_mount("/etc")
    stand_in(engine, WITH_NEW, f"{LOCK} {REFUSE}")


# -- what runs


def live_restore(engine: Engine) -> None:
    """Set live-restore, with which containers keep running while dockerd restarts."""
    path = Path(engine.file)
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({"live-restore": True, **settings}))
    subprocess.check_call(["systemctl", "restart", engine.unit])


def container(_engine: Engine) -> None:
    """Start a container in Docker that must not be stopped."""
    # Sleep ignores TERM, for which a stopping daemon would wait ten seconds.
    command = ["docker", "run", "--detach", "--network=none", "--runtime=runc", "--stop-signal=KILL", "--name=at-work"]
    subprocess.check_call([*command, IMAGE], stdout=subprocess.DEVNULL)
    remember("at-work", at_work())


FAULTS: dict[str, Callable[[Engine], None]] = {
    "garbled": garbled,
    "undefined": undefined,
    "runcless": runcless,
    "gone": gone,
    "hanging": hanging,
    "stubborn": stubborn,
    "refusing": refusing,
    "dead": dead,
    "full": full,
    "full_state": full_state,
    "filling": filling,
    "readonly": readonly,
    "locking": locking,
    "live_restore": live_restore,
    "container": container,
}


def remove_faults() -> None:
    """Unmount what the faults mounted, kill daemons that do not run properly, and install the toolkit's programs again.

    fresh() undoes the rest: the changes of files, and the container.
    """
    for engine in ENGINES.values():
        if status(engine.unit)["ActiveState"] != "active":
            run("systemctl", "kill", "--kill-who=main", "--signal=KILL", engine.unit)
            run("systemctl", "stop", engine.unit)
    for place in reversed(remembered("mounts") or []):
        # A daemon that was started more than once has mounted more than once.
        while not run("umount", place).returncode:
            pass
    for name in ("mounts", "at-work"):
        (MEMORY / name).unlink(missing_ok=True)
    subprocess.check_call(["/fx/install-toolkit"])
