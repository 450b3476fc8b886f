"""Inside a host: stand-ins for GPUs and their driver, also after each restart: simulated_gpus.py [PROPERTY=NUMBER...]

Device nodes without a driver, libraries without code, and the files of the driver in /proc and /sys. Where GPUs have
MIG devices, an NVML that reports them; the library comes from the controller.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gpu_tree

# A directory that the checks of changed files ignore, and that a restart keeps.
HOME = Path("/opt/gpufleet-simulation")
NVML = HOME / "libnvidia-ml.so"
UNIT = "gpufleet-simulation.service"
# The unit starts as early as kernel modules are loaded.
UNIT_TEXT = f"""\
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service systemd-tmpfiles-setup-dev.service
Before=sysinit.target systemd-modules-load.service

[Service]
Type=oneshot
Environment=PYTHONPATH=/fx
ExecStart={sys.executable} -B /molecule/cdi/simulated_gpus.py

[Install]
WantedBy=sysinit.target
"""
ROOT = Path("/")
PROC, PCI, DEV, CAPS = (Path(path) for path in ("/proc/driver", "/sys/bus/pci/devices", "/dev", "/dev/nvidia-caps"))
FOLDER = f"/{gpu_tree.LIBRARIES}"
OLD, NEW = "575.57.08", "580.95.05"
CAPS_MAJOR = 511
# A user may mount these file systems only if the host has another one over which nothing is mounted. They are mounted
# here if the directories exist.
COMPLETE = {"proc": Path("/srv/proc"), "sysfs": Path("/srv/sysfs")}
# The refresh unit only runs if this program succeeds. The scenario "flavors" has no such program.
SMI = "/usr/bin/nvidia-smi"


class SimulatedHost(NamedTuple):
    """A host. ``uvm`` is the major number of nvidia-uvm, ``migs`` the number of MIG devices on each GPU.

    With ``late``, a start of the host creates no nodes. The stand-in for nvidia-ctk creates them.
    """

    version: str = OLD
    gpus: int = 1
    uvm: int = 510
    migs: int = 0
    late: int = 0

    def nodes(self, *gpus: int) -> dict[str, str]:
        """Return the nodes that a container with these GPUs must have: paths, and numbers as stat(1) prints them."""
        found = {}
        for name, major, minor in (*control(self.uvm), *(node for gpu in gpus for node in gpu_nodes(gpu))):
            found[f"/dev/{name}"] = f"{major:x}:{minor:x}"
        return found

    def mig_nodes(self, *migs: tuple[int, int]) -> dict[str, str]:
        """Return the nodes for MIG devices. Each is a pair of a GPU and the number of the device on it."""
        found = self.nodes()
        for gpu, mig in migs:
            found[f"/dev/nvidia{gpu}"] = f"c3:{gpu:x}"
            for minor in capabilities(gpu, mig):
                found[f"{CAPS}/nvidia-cap{minor}"] = f"{CAPS_MAJOR:x}:{minor:x}"
        return found

    def libraries(self) -> list[str]:
        """Return the libraries that a container must have."""
        programs = [SMI] if Path(SMI).exists() else []
        return [*programs, *sorted(f"{FOLDER}/{name}.so.{self.version}" for name in gpu_tree.SONAMES)]


def control(uvm: int) -> list[tuple[str, int, int]]:
    """Return the nodes that exist once for all GPUs."""
    numbers = {"nvidia-uvm": uvm, "nvidia-uvm-tools": uvm}
    return [(name, numbers.get(name, major), minor) for name, major, minor in gpu_tree.NODES]


def gpu_nodes(gpu: int) -> list[tuple[str, int, int]]:
    """Return the nodes of one GPU."""
    dri = gpu_tree.DRI
    return [(f"nvidia{gpu}", 195, gpu), (f"dri/card{gpu}", dri, gpu), (f"dri/renderD{128 + gpu}", dri, 128 + gpu)]


def capabilities(gpu: int, mig: int) -> tuple[int, int]:
    """Return the minor numbers of the capabilities of a GPU instance and of its only compute instance."""
    first = 3 + 14 * gpu + 2 * mig
    return first, first + 1


def uuid(gpu: int) -> str:
    """Return the UUID that gpu_tree gives the GPU."""
    return f"GPU-{gpu:08d}-0000-0000-0000-000000000000"


def mig_uuid(gpu: int, mig: int) -> str:
    """Return the UUID that the library reports for a MIG device."""
    return f"MIG-{gpu:08d}-0000-0000-0000-{mig:012d}"


def create(host: SimulatedHost) -> SimulatedHost:
    """Create the files of this host now and after each restart. Return the host."""
    HOME.mkdir(exist_ok=True)
    (HOME / "host.json").write_text(json.dumps(host))
    for place in (PROC, PCI):
        if not os.path.ismount(str(place)):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(place)], check=True)
        for entry in place.iterdir():
            shutil.rmtree(entry)
    for kind, place in COMPLETE.items():
        if place.is_dir() and not os.path.ismount(str(place)):
            subprocess.run(["mount", "-t", kind, kind, str(place)], check=True)
    remove_nodes()
    gpu_tree.driver(ROOT, host.version)
    for gpu in range(host.gpus):
        gpu_tree.gpu(ROOT, gpu, host.version)
    if host.late:
        remove_nodes()
    else:
        create_nodes(host)
    create_mig_devices(host)
    return host


def create_nodes(host: SimulatedHost) -> None:
    """Create the nodes that do not exist, with the owner and the mode that Debian's driver gives them."""
    for name, major, minor in (*control(host.uvm), *(node for gpu in range(host.gpus) for node in gpu_nodes(gpu))):
        mode, group = (0o660, gpu_tree.VIDEO) if name.startswith("dri/") else (0o666, 0)
        gpu_tree.node(DEV / name, major, minor, mode, group)


def remove_nodes() -> None:
    """Remove the nodes of the driver."""
    for path in (*DEV.glob("nvidia[0-9c-]*"), DEV / "dri"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()


def create_mig_devices(host: SimulatedHost) -> None:
    """Create the MIG devices of each GPU, and an NVML that reports them. Without them the library has no code."""
    place = Path(FOLDER) / f"libnvidia-ml.so.{host.version}"
    nvml_file = Path(FOLDER) / "nvml.conf"
    if nvml_file.exists():
        nvml_file.unlink()
    if not host.migs:
        return
    # The library is replaced, not overwritten, because a program may have loaded it.
    place.unlink()
    shutil.copy(NVML, place)
    minors, lines = ["config 1", "monitor 2"], [f"driver {host.version}"]
    for gpu in range(host.gpus):
        lines.append(f"gpu {uuid(gpu)} {gpu} 00000000:{gpu + 16:02X}:00.0 1 NVIDIA A100-SXM4-40GB")
        for mig in range(host.migs):
            names = (f"gi{mig}/access", f"gi{mig}/ci0/access")
            for name, minor in zip(names, capabilities(gpu, mig)):
                minors.append(f"gpu{gpu}/{name} {minor}")
                gpu_tree.node(CAPS / f"nvidia-cap{minor}", CAPS_MAJOR, minor, 0o444, 0)
            gpu_tree.write(PROC / f"nvidia/capabilities/gpu{gpu}/mig/gi{mig}/ci0/access", b"")
    for gpu in range(host.gpus):
        lines += [f"mig {gpu} {mig} {mig_uuid(gpu, mig)} {mig} 0 0" for mig in range(host.migs)]
    gpu_tree.write(PROC / "nvidia-caps/mig-minors", "\n".join([*minors, ""]).encode())
    nvml_file.write_text("\n".join([*lines, ""]))


def now() -> SimulatedHost:
    """Return the current host."""
    state = HOME / "host.json"
    return SimulatedHost(*json.loads(state.read_text())) if state.exists() else SimulatedHost()


def has_nvml() -> bool:
    """Return whether the host has an NVML with code, which a program can load.

    The dynamic loader of an old glibc crashes when it loads a library without code.
    """
    return now().migs > 0


def enable() -> None:
    """Enable a unit that creates the host's files after a restart."""
    HOME.mkdir(exist_ok=True)
    Path("/etc/systemd/system", UNIT).write_text(UNIT_TEXT)
    subprocess.run(["systemctl", "enable", "--quiet", UNIT], check=True)


def main() -> None:
    """Change the given properties of the host: now, or, with the first argument ``later``, at the next restart."""
    words = sys.argv[1:]
    later = words[:1] == ["later"]
    changes: dict[str, Any] = dict(word.split("=") for word in words[int(later) :])
    host = now()._replace(**{name: value if name == "version" else int(value) for name, value in changes.items()})
    if later:
        (HOME / "host.json").write_text(json.dumps(host))
    else:
        create(host)


if __name__ == "__main__":
    main()
