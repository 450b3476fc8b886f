"""Inside a host: gives it its starting point: begin.py deb|rpm

A GPU on its PCI bus, an image for containers, packages in /srv/packages and a signed repository of them behind
127.0.0.1:8088. With "rpm" the host, a Debian one, passes for one of Red Hat's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path("/molecule/toolkit")
PACKAGES = Path("/srv/packages")
REPOSITORY = Path("/srv/repository")
UNIT = "gpufleet-repository.service"
DEVICES = Path("/run/gpufleet-devices")
GPU = {"vendor": "0x10de", "class": "0x030200"}
RELEASE = """\
NAME="Rocky Linux"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.4"
PRETTY_NAME="Rocky Linux 9.4"
"""


def run(*argv: object) -> None:
    """Run a command that must not fail."""
    subprocess.run([str(word) for word in argv], check=True)


def add_gpu() -> None:
    """Let the PCI bus have one device, a GPU of NVIDIA's."""
    device = DEVICES / "0000:01:00.0"
    device.mkdir(parents=True)
    for name, value in GPU.items():
        (device / name).write_text(value + "\n")
    run("mount", "--bind", DEVICES, "/sys/bus/pci/devices")


def dress() -> None:
    """Pass for a host of Red Hat's."""
    # On Debian it is a link to what a package has.
    release = Path("/etc/os-release")
    release.unlink()
    release.write_text(RELEASE)
    for folder in ("/etc/yum.repos.d", "/etc/pki/rpm-gpg"):
        Path(folder).mkdir(parents=True)
    # Debian has it on: a repository of whatever was installed before.
    Path("/etc/dnf/plugins/local.conf").write_text("[main]\nenabled = 0\n")
    run("rpm", "--install", "--nodeps", *(PACKAGES / "other").glob("gpufleet-release-*.rpm"))


def main() -> None:
    """Do it."""
    kind = sys.argv[1]
    add_gpu()
    # There is nothing to be had from elsewhere.
    sources = Path("/etc/apt/sources.list")
    if sources.exists():
        sources.unlink()
    for name in ("build", "repository"):
        arguments = [PACKAGES] if name == "build" else [PACKAGES, REPOSITORY]
        run(sys.executable, "-B", HERE / "packages" / f"{name}.py", *arguments, "--kind", kind)
    if kind == "rpm":
        dress()
    units = Path("/run/systemd/system")
    units.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "files" / UNIT, units)
    run("systemctl", "daemon-reload")
    run("systemctl", "start", UNIT)
    run("/fx/load-busybox")
    # Some engines lack it at first.
    Path("/etc/docker").mkdir(exist_ok=True)
    run(sys.executable, "-B", HERE / "observe.py", "--fresh")


if __name__ == "__main__":
    main()
