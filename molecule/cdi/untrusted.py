"""Inside a host: a user creates the path of MPS, and no specification may mount it. Prints JSON, as Report does.

nvidia-ctk mounts /tmp/nvidia-mps if it exists and is no directory. A user who replaces it by a link afterwards chooses
what every container with GPUs gets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import checks
import simulated_gpus
from engines import call, run
from toolkits import Report

MPS = Path("/tmp/nvidia-mps")
USER = 61234
OWN_UNIT = "gpufleet-nvidia-cdi.service"
TOOLKIT_UNIT = "nvidia-cdi-refresh.service"
TOOLKIT_FILES = {
    Path(f"/etc/systemd/system/{TOOLKIT_UNIT}"): """\
[Service]
Type=oneshot
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml
ExecStart=/usr/bin/nvidia-ctk cdi generate
[Install]
WantedBy=multi-user.target
""",
}
TOOLKIT_OUTPUT = Path("/var/run/cdi/nvidia.yaml")
OWN_FILE = Path("/etc/systemd/system", OWN_UNIT)
FLAG = " --feature-flag=disable-ipc-discoverer"
# The attack: a socket, and later a link to the root directory of the host.
SOCKET = "import socket; socket.socket(socket.AF_UNIX).bind('/tmp/nvidia-mps')"
LINK = "import os; os.symlink('/', '/tmp/new'); os.rename('/tmp/new', '/tmp/nvidia-mps')"


def as_user(program: str) -> bool:
    """Run a program of Python as the unprivileged user. Return whether it succeeded."""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, user=USER, group=USER, extra_groups=[], capture_output=True, check=False)
    return ended.returncode == 0


def remove() -> None:
    """Remove what the user has created."""
    if not MPS.is_symlink() and MPS.is_dir():
        shutil.rmtree(MPS)
    else:
        MPS.unlink(missing_ok=True)


def check_file(report: Report, what: str, *, mounted: bool = False) -> None:
    """Check that the specification exists, and whether it mounts the path."""
    text = checks.SPECIFICATION.read_text() if checks.SPECIFICATION.exists() else ""
    report.check(f"{what}, written", simulated_gpus.FOLDER in text, text)
    report.check(f"{what}, mounted", (str(MPS) in text) is mounted, text)


def attack(report: Report, backend: str) -> None:
    """Let the module write the specification while the path belongs to the user."""
    checks.specification(state="absent")
    report.check(f"{backend}, created", as_user(SOCKET))
    written = checks.specification(backend=backend)
    report.worked(backend, written, changed=True)
    check_file(report, backend)
    warned = str(written.get("warnings"))
    # nvidia-ctk gets a flag that leaves out all sockets.
    report.check(f"{backend}, warned", (f"belongs to user {USER}" in warned) is (backend == "native"), written)
    report.check(f"{backend}, replaced", as_user(LINK))
    found = checks.seen("podman", "all")
    report.check(f"{backend}, container", not found.complaint and str(MPS) not in found.mounts, found)
    report.worked(f"{backend}, again", checks.specification(backend=backend), changed=False)
    remove()


def attack_unit(report: Report) -> None:
    """Let the refresh unit write the specification while the path belongs to the user.

    A start of the toolkit's unit starts that of this collection. An nvidia-ctk before 1.19.1 does not know the flag
    that leaves out sockets, so the unit is tried without it, too.
    """
    checks.specification(state="absent")
    # Without a start, the module does not read the file, which would need PyYAML.
    result = call("nvidia_cdi_refresh", hooks="none", start=False)
    report.check("unit, configured", not result.get("failed") and result.get("service") == OWN_UNIT, result)
    for flag in (FLAG, ""):
        OWN_FILE.write_text(OWN_FILE.read_text().replace(FLAG, flag))
        run("systemctl", "daemon-reload")
        for name, program in (("socket", SOCKET), ("link", f"{SOCKET}; {LINK}")):
            checks.SPECIFICATION.unlink(missing_ok=True)
            report.check(f"unit, {name}", as_user(program))
            for unit in (TOOLKIT_UNIT, OWN_UNIT):
                started = run("systemctl", "start", unit)
                report.check(f"{unit}, {name}, started", started.returncode == 0, started.stderr)
            check_file(report, f"unit, {name}, {flag}")
            report.check("file of the toolkit", not TOOLKIT_OUTPUT.exists())
            remove()
    call("nvidia_cdi_refresh", state="absent")
    checks.SPECIFICATION.unlink(missing_ok=True)


def own_socket(report: Report) -> None:
    """A socket of root in the same place stays, because only root can replace it."""
    checks.specification(state="absent")
    subprocess.run([sys.executable, "-c", SOCKET], check=True)
    report.worked("root", checks.specification(), changed=True)
    check_file(report, "root", mounted=True)
    report.check("root, not replaced", not as_user(LINK) and not MPS.is_symlink())
    remove()
    Path("/tmp/new").unlink(missing_ok=True)
    # MPS itself creates a directory, which is never mounted.
    os.mkdir(MPS)
    report.worked("directory", checks.specification(), changed=True)
    check_file(report, "directory")
    remove()


def main() -> None:
    """Run all checks. The specification and the units are removed at the end."""
    report = Report()
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    remove()
    attack(report, "native")
    attack(report, "nvidia-ctk")
    for path, text in TOOLKIT_FILES.items():
        path.write_text(text)
    run("systemctl", "daemon-reload")
    attack_unit(report)
    for path in TOOLKIT_FILES:
        path.unlink()
    run("systemctl", "daemon-reload")
    own_socket(report)
    checks.specification(state="absent")
    report.print()


if __name__ == "__main__":
    main()
