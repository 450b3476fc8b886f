"""Inside a host: containers that start at boot: at_boot.py STEP ENGINE..., where STEP is before, after, hang or hung.

Nothing orders these containers after the specification: units of Quadlet of the system and of a user whose services
start at boot, a container that podman-restart.service starts, and one of Docker. After the restart of "before", the
device nodes do not exist, and nvidia-uvm gets another number. After that of "hang", nvidia-ctk hangs, and the limits of
the service are shorter than on other hosts. "after" and "hung" print JSON, as Report does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import checks
import generator
import load_busybox
import simulated_gpus
from engines import IMAGE, PATIENCE, run
from observing import STARTED
from toolkits import Report, must

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNIT = "gpufleet-nvidia-cdi.service"
# These hosts have no useradd. Only sid has the programs for services and containers of users.
USER, UID = "gpufleet-boot", 1700
ACCOUNT = {
    "passwd": f"{USER}:x:{UID}:{UID}::/home/{USER}:/bin/sh",
    "shadow": f"{USER}:*:20000:0:99999:7:::",
    "group": f"{USER}:x:{UID}:",
    "subuid": f"{USER}:{UID}00000:65536",
    "subgid": f"{USER}:{UID}00000:65536",
}
AS_USER = ["runuser", "-u", USER, "--", "env", f"HOME=/home/{USER}", f"XDG_RUNTIME_DIR=/run/user/{UID}"]
NAME, QUADLET = "at-boot", "gpufleet-quadlet"
QUADLET_FILE = Path(f"/etc/containers/systemd/{QUADLET}.container")
# Exists if this program has enabled podman-restart.service.
ENABLED = simulated_gpus.HOME / "enabled-podman-restart"
# Prints the number of nvidia-uvm, so that each start of a container adds a line.
SCRIPT = "stat -c %t:%T /dev/nvidia-uvm; exec sleep 2147483647"
OPTIONS = [f"--device={checks.KIND}=all", "--stop-signal=KILL", "--network=none"]
UNIT_OF_QUADLET = f"""\
[Container]
Image={IMAGE}
ContainerName={QUADLET}
AddDevice={checks.KIND}=all
Exec=sh -c "{SCRIPT.replace("%", "%%")}"
Network=none
Pull=never
LogDriver=k8s-file
PodmanArgs=--stop-signal=KILL
[Service]
SuccessExitStatus=137
[Install]
WantedBy={{}}
"""
# The major number of nvidia-uvm before and after the restart.
OLD_UVM, NEW_UVM = simulated_gpus.SimulatedHost().uvm, 508
LIMITS = Path(f"/etc/systemd/system/{UNIT}.d/limits.conf")
# The identifiers of systemd's messages "unit is starting" and "unit has started" (sd-messages.h).
STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"


def start_docker() -> None:
    """Create a container that Docker starts again."""
    must("docker", "run", "--detach", f"--name={NAME}", "--restart=always", *OPTIONS, IMAGE, "sh", "-c", SCRIPT)


def start_podman() -> None:
    """Create a container that podman-restart.service starts again. Bookworm has enabled that service already."""
    must("podman", "run", "--detach", f"--name={NAME}", "--restart=always", *OPTIONS, IMAGE, "sh", "-c", SCRIPT)
    if run("systemctl", "is-enabled", "--quiet", "podman-restart.service").returncode:
        must("systemctl", "enable", "--quiet", "podman-restart.service")
        ENABLED.touch()


def write_quadlet() -> None:
    """Write a unit of the system. It is not started before the restart."""
    QUADLET_FILE.write_text(UNIT_OF_QUADLET.format("multi-user.target"))


def write_quadlet_of_user() -> None:
    """Create a user with a unit. Its storage is a plain directory, because the host's root is an overlay already."""
    for name, line in ACCOUNT.items():
        file = Path("/etc", name)
        shutil.copy2(file, simulated_gpus.HOME / name)
        with file.open("a") as stream:
            stream.write(f"{line}\n")
    for place in simulated_gpus.COMPLETE.values():
        place.mkdir()
    folder = Path(f"/home/{USER}/.config/containers")
    (folder / "systemd").mkdir(parents=True)
    (folder / "storage.conf").write_text('[storage]\ndriver = "vfs"\n')
    (folder / f"systemd/{QUADLET}.container").write_text(UNIT_OF_QUADLET.format("default.target"))
    must("chown", "-R", f"{UID}:{UID}", f"/home/{USER}")
    must("loginctl", "enable-linger", USER)
    must("systemctl", "start", f"user@{UID}.service")
    subprocess.run(
        [*AS_USER, "podman", "load", "--quiet"],
        input=load_busybox.image(IMAGE),
        check=True,
        cwd="/",
        stdout=subprocess.DEVNULL,
    )


def remove_user() -> None:
    """Remove the user and all of its files."""
    must("loginctl", "disable-linger", USER)
    run("loginctl", "terminate-user", USER)
    run("systemctl", "stop", f"user@{UID}.service")
    for name in ACCOUNT:
        shutil.copy2(simulated_gpus.HOME / name, Path("/etc", name))
        (simulated_gpus.HOME / name).unlink()
    for place in simulated_gpus.COMPLETE.values():
        must("umount", str(place))
        place.rmdir()
    shutil.rmtree(f"/home/{USER}", ignore_errors=True)


def remove_podman() -> None:
    """Remove what start_podman() created."""
    if ENABLED.exists():
        must("systemctl", "disable", "--quiet", "podman-restart.service")
        ENABLED.unlink()
    must("podman", "rm", "--force", NAME)


def remove_quadlet() -> None:
    """Remove what write_quadlet() created."""
    must("systemctl", "stop", f"{QUADLET}.service")
    QUADLET_FILE.unlink()
    must("systemctl", "daemon-reload")


# What creates a container, what removes it, the command that prints its log, and whether it has run before the restart.
STARTERS: dict[str, tuple[Callable[[], object], Callable[[], object], list[str], bool]] = {
    "docker": (start_docker, lambda: must("docker", "rm", "--force", NAME), ["docker", "logs", NAME], True),
    "podman-restart": (start_podman, remove_podman, ["podman", "logs", NAME], True),
    "quadlet": (write_quadlet, remove_quadlet, ["podman", "logs", QUADLET], False),
    "user": (write_quadlet_of_user, remove_user, [*AS_USER, "podman", "logs", QUADLET], False),
}


def before(starters: Sequence[str]) -> None:
    """Create the containers. The next start of the host creates no nodes, and nvidia-uvm gets another number."""
    for name in starters:
        STARTERS[name][0]()
    must(sys.executable, "-B", "/molecule/cdi/simulated_gpus.py", "later", f"uvm={NEW_UVM}", "late=1")


def moment(unit: str, message: str) -> int:
    """Return the time of systemd's last such message about a unit in microseconds since the boot, or 0."""
    words = [f"UNIT={unit}", f"MESSAGE_ID={message}"]
    entry = subprocess.check_output(["journalctl", "--quiet", "--output=json", "--lines=1", *words], text=True)
    return int(json.loads(entry)["__MONOTONIC_TIMESTAMP"]) if entry else 0


def numbers(command: Sequence[str], starts: int) -> list[str]:
    """Return the number of nvidia-uvm in each start of a container. Wait until there are so many."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = run(*command).stdout.split()
        if len(found) >= starts or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def after(starters: Sequence[str]) -> None:
    """Check which number the containers got, and that the specification was written before a service started."""
    report = Report()
    report.check("the number of the host", simulated_gpus.now().uvm == NEW_UVM, simulated_gpus.now())
    expected = {False: [f"{NEW_UVM:x}:0"], True: [f"{OLD_UVM:x}:0", f"{NEW_UVM:x}:0"]}
    for name in starters:
        _create, _remove, command, ran_before = STARTERS[name]
        found = numbers(command, len(expected[ran_before]))
        log = "" if found == expected[ran_before] else run("journalctl", "--boot", "--lines=200", "--no-pager").stdout
        report.check(name, found == expected[ran_before], (found, log))
    subprocess.check_call(["journalctl", "--sync"])
    made = moment(UNIT, STARTED)
    for unit in ("docker.service", "containerd.service", "systemd-user-sessions.service"):
        report.check(f"before {unit}", 0 < made < moment(unit, STARTING), (made, moment(unit, STARTING)))
    for path in (*simulated_gpus.DEV.glob("nvidia*"), *simulated_gpus.DEV.glob("dri/*")):
        status = path.stat()
        # nvidia-modprobe gives a node to a group. Without CAP_CHOWN in the service this fails.
        group = simulated_gpus.gpu_tree.VIDEO if path.parent.name == "dri" else 0
        report.check(f"group of {path}", status.st_gid == group, status)
    analyzed = run("systemd-analyze", "security", "--offline=true", "--threshold=70", f"/etc/systemd/system/{UNIT}")
    report.check("exposure of the service", analyzed.returncode == 0, analyzed.stdout[-200:])
    for name in starters:
        STARTERS[name][1]()
    must(sys.executable, "-B", "/molecule/cdi/simulated_gpus.py", "late=0", f"uvm={NEW_UVM}")
    report.print(made=made)


def hang() -> None:
    """Let nvidia-ctk hang after the next start of the host."""
    LIMITS.parent.mkdir()
    LIMITS.write_text("[Unit]\nJobRunningTimeoutSec=4\n[Service]\nTimeoutStartSec=3\nTimeoutStopSec=1\n")
    generator.HANG.touch()


def hung() -> None:
    """Check that the boot has continued after the limit, with the specification of the last boot."""
    report = Report()
    shown = run("systemctl", "show", "--property=Result", UNIT).stdout
    report.check("the service was ended", shown == "Result=timeout\n", shown)
    report.check("the specification stays", checks.SPECIFICATION.exists())
    started = moment("docker.service", STARTED) - moment(UNIT, STARTING)
    report.check("docker.service has waited", 2_000_000 < started < 20_000_000, started)
    generator.HANG.unlink()
    shutil.rmtree(LIMITS.parent)
    must("systemctl", "daemon-reload")
    must("systemctl", "restart", UNIT)
    report.print(waited=started)


def main() -> None:
    """Run the step."""
    step, *starters = sys.argv[1:]
    os.chdir("/")
    if step in ("hang", "hung"):
        {"hang": hang, "hung": hung}[step]()
    else:
        {"before": before, "after": after}[step](starters)


if __name__ == "__main__":
    main()
