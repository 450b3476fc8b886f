"""What may go wrong on a host, each under the name that vars/rows.yml has for it, and how it is put right."""

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

# Stands for a daemon and does what ACTION says where CONDITION holds; else, and for whoever only asks something of the
# program, it becomes the real one, which is called the same.
STAND_IN = """\
#!/bin/sh
case " $* " in *" config "* | *" --validate "* | *" --version "*) exec REAL "$@" ;; esac
if CONDITION; then
    ACTION
fi
exec REAL "$@"
"""
WITH_NEW = "grep -qrs nvidia FOLDER"
# A read from a pipe that nobody writes to, by the process itself: a child would have another name.
HANG = "[ -p MEMORY/pipe ] || mkfifo MEMORY/pipe; exec 3<>MEMORY/pipe; read -r nothing <&3"
REFUSE = 'echo "the site does not like it" >&2; exit 1'
FILL = f"dd if=/dev/zero of=FOLDER/{FILLER} bs=512 2>/dev/null;"
LOCK = "mount --bind /etc /etc; mount -o remount,bind,ro /etc;"


def mount(*words: str) -> None:
    """Mount something that mend() takes away again."""
    subprocess.check_call(["mount", *words])
    to_mend(words[-1])


def to_mend(place: str) -> None:
    """Remember that something is mounted there, or may be."""
    remember("mounts", [*(remembered("mounts") or []), place])


def stand_in(engine: Engine, condition: str, action: str) -> None:
    """Put another program in the daemon's place."""
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
    """Give a folder a disk of its own, with what is in it."""
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
    """The files with our entries."""
    return [path for path in Path(engine.folder).rglob("*") if path.is_file() and "nvidia" in path.read_text()]


def garbled(engine: Engine) -> None:
    """What we wrote is broken."""
    for path in written(engine):
        path.write_text("{ [ broken\n")


def undefined(engine: Engine) -> None:
    """The default runtime is one that nothing defines."""
    for path in written(engine):
        text = path.read_text()
        path.write_text(re.sub(r"""(default[-_]runtime(_name)?["']?\s*[:=]\s*)["']nvidia["']""", r'\1"nope"', text))


def runcless(engine: Engine) -> None:
    """The table of runc is gone, and with it, in containerd 1.x, runc."""
    path = Path(engine.file)
    tables = re.split(r"(?m)^(?=\s*\[)", path.read_text())
    path.write_text("".join(table for table in tables if not re.match(r"\s*\[[^]\n]*runtimes\.runc[].]", table)))


def gone(_engine: Engine) -> None:
    """The program of the runtime is gone."""
    PROGRAM.unlink()


# -- the daemon


def hanging(engine: Engine) -> None:
    """With the new configuration the daemon hangs when it starts."""
    stand_in(engine, WITH_NEW, HANG)


def stubborn(engine: Engine) -> None:
    """The same, and it does not end when it is told to."""
    stand_in(engine, WITH_NEW, "trap '' TERM; " + HANG)


def refusing(engine: Engine) -> None:
    """With the new configuration the daemon ends when it starts, for a reason that no validator knows."""
    stand_in(engine, WITH_NEW, REFUSE)


def dead(engine: Engine) -> None:
    """The daemon always ends when it starts."""
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
    """The daemon does not start with the new configuration, and by then the disk is full."""
    tmpfs(engine.folder, "64k")
    stand_in(engine, WITH_NEW, f"{FILL} {REFUSE}")


def readonly(_engine: Engine) -> None:
    """Nothing below /etc can be written."""
    mount("--bind", "/etc", "/etc")
    mount("-o", "remount,bind,ro", "/etc")


def locking(engine: Engine) -> None:
    """The daemon does not start with the new configuration, and by then /etc cannot be written."""
    to_mend("/etc")
    stand_in(engine, WITH_NEW, f"{LOCK} {REFUSE}")


# -- what runs


def live_restore(engine: Engine) -> None:
    """Containers live on without their daemon."""
    path = Path(engine.file)
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({"live-restore": True, **settings}))
    subprocess.check_call(["systemctl", "restart", engine.unit])


def container(_engine: Engine) -> None:
    """A container runs, in which something is done."""
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


def mend() -> None:
    """Take all faults away, but nothing that came of them, except for a daemon that would do harm once more."""
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
