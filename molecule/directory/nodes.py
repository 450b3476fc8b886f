"""Inside a host: checks that the module creates the driver's device nodes. Prints JSON, as Report does."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from toolkits import OLD, Report, install, must, toolkit

DEST = "/opt/gpufleet-nodes/toolkit"
DRIVER = Path("/proc/driver")
MAJOR, MAJOR_UVM = 195, 511
DEVICES = f"Character devices:\n  1 mem\n{MAJOR} nvidia\n{MAJOR_UVM} nvidia-uvm\n\nBlock devices:\n  7 loop\n"
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:15:56 UTC 2025\n"
PARAMETERS = "ModifyDeviceFiles: 1\n"
# nvidia-modeset is only listed in /proc/modules, which not every kernel has.
NODES = {
    "/dev/nvidiactl": (MAJOR, 255, 0o660, 44),
    "/dev/nvidia-uvm": (MAJOR_UVM, 0, 0o666, 0),
    "/dev/nvidia-uvm-tools": (MAJOR_UVM, 1, 0o666, 0),
}

# A stand-in for NVIDIA's program, with the same arguments and effect.
MODPROBE = Path("/usr/bin/nvidia-modprobe")
MODPROBE_TEXT = f"""\
#!/bin/sh
make() {{ rm -f "$1" && mknod -m "$4" "$1" c "$2" "$3" && chgrp "$5" "$1"; }}
case "$*" in
    "-c 255") make /dev/nvidiactl {MAJOR} 255 660 44 ;;
    "-u -c 0") make /dev/nvidia-uvm {MAJOR_UVM} 0 666 0 && make /dev/nvidia-uvm-tools {MAJOR_UVM} 1 666 0 ;;
    *) exit 1 ;;
esac
"""


def nodes() -> dict[str, tuple[int, int, int, int]]:
    """Return the existing nodes with their numbers, mode and group."""
    found = {}
    for path in NODES:
        if os.path.exists(path):
            state = os.stat(path)
            mode = stat.S_IMODE(state.st_mode)
            found[path] = (os.major(state.st_rdev), os.minor(state.st_rdev), mode, state.st_gid)
    return found


def main() -> None:
    """Run all checks."""
    report = Report()
    options = {"create_device_nodes": True}
    report.check("no driver", bool(install(OLD, DEST, **options).get("warnings")))
    report.check("no driver, no nodes", nodes() == {}, nodes())
    must("mount", "-t", "tmpfs", "tmpfs", str(DRIVER))
    (DRIVER / "nvidia").mkdir()
    (DRIVER / "nvidia/version").write_text(VERSION)
    (DRIVER / "nvidia/params").write_text(PARAMETERS)
    devices = Path("/run/gpufleet-proc-devices")
    devices.write_text(DEVICES)
    must("mount", "--bind", str(devices), "/proc/devices")
    report.failed(
        "no program", install(OLD, DEST, **options), "nvidia-modprobe, which creates .* is not installed below /"
    )
    MODPROBE.write_text(MODPROBE_TEXT)
    MODPROBE.chmod(0o755)
    made = install(OLD, DEST, **options)
    report.worked("nodes", made, changed=True)
    report.check("nodes, reported", sorted(made.get("device_nodes", [])) == sorted(NODES), made)
    report.check("nodes, there", nodes() == NODES, nodes())
    report.worked("once more", install(OLD, DEST, **options), changed=False)
    os.unlink("/dev/nvidia-uvm")
    os.mknod("/dev/nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(MAJOR_UVM - 1, 0))
    report.worked("other numbers", install(OLD, DEST, **options), changed=True)
    report.check("other numbers, right again", nodes() == NODES, nodes())
    must("umount", "/proc/devices")
    must("umount", str(DRIVER))
    report.worked("absent", toolkit(DEST, state="absent"), changed=True)
    report.check("absent, the nodes stay", nodes() == NODES, nodes())
    for path in NODES:
        os.unlink(path)
    MODPROBE.unlink()
    report.print()


if __name__ == "__main__":
    main()
