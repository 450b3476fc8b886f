"""Inside a host: prepares it for the release SUITE: prepare_host.py SUITE

It adds a GPU and its driver, images for containers and pods, toolkits in directory trees, and one in packages. In sid,
DEST already contains a toolkit as NVIDIA's own installer leaves it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import elf_programs
import start as pods
import toolkits

# The files of each package, as in NVIDIA's packages.
CONTENTS = {
    "libnvidia-container1": ("usr/lib/*/*",),
    "libnvidia-container-tools": ("usr/bin/nvidia-container-cli",),
    "nvidia-container-toolkit-base": (
        "usr/bin/nvidia-container-runtime",
        "usr/bin/nvidia-container-runtime.*",
        "usr/bin/nvidia-c[dt]*",
    ),
    "nvidia-container-toolkit": ("usr/bin/nvidia-container-runtime-hook",),
}
# The same as in molecule/toolkit/prepare_host.py.
DEVICES = Path("/run/gpufleet-devices")
GPU = {"vendor": "0x10de", "class": "0x030200"}


def add_gpu() -> None:
    """Create an NVIDIA GPU on the PCI bus, and the kernel module."""
    device = DEVICES / "0000:01:00.0"
    device.mkdir(parents=True)
    for name, value in GPU.items():
        (device / name).write_text(value + "\n")
    toolkits.must("mount", "--bind", str(DEVICES), "/sys/bus/pci/devices")
    toolkits.must("mount", "-t", "tmpfs", "tmpfs", str(toolkits.MODULES))
    toolkits.load_driver()


def package(version: str) -> None:
    """Build the packages of a version."""
    tree = Path(toolkits.source(version))
    for name, patterns in CONTENTS.items():
        folder = Path("/run/gpufleet-package") / name
        for path in (path for pattern in patterns for path in tree.glob(pattern)):
            place = folder / path.relative_to(tree)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place, follow_symlinks=False)
        control = folder / "DEBIAN" / "control"
        control.parent.mkdir()
        fields = {
            "Package": name,
            "Version": f"{version}-1",
            "Architecture": subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip(),
            "Maintainer": "gpufleet.nvidia <gpufleet@example.invalid>",
            "Description": "Stand-in for a package of the NVIDIA Container Toolkit",
        }
        control.write_text("".join(f"{field}: {value}\n" for field, value in fields.items()))
        toolkits.PACKAGES.mkdir(exist_ok=True)
        toolkits.must("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(folder), str(toolkits.PACKAGES))
    shutil.rmtree("/run/gpufleet-package")


def main() -> None:
    """Prepare the host."""
    suite = sys.argv[1]
    add_gpu()
    for version in (toolkits.FORMER, toolkits.OLD, toolkits.NEW):
        elf_programs.tree(toolkits.SOURCES / version, version)
    package(toolkits.NEW)
    toolkits.make_low_level()
    if suite == "sid":
        toolkits.make_former(toolkits.DEST)
    Path("/etc/docker").mkdir(exist_ok=True)
    toolkits.must("/fx/load-busybox")
    pods.load_image()
    toolkits.must(sys.executable, "-B", "/molecule/directory/observe.py", "--fresh")


if __name__ == "__main__":
    main()
