"""Inside a host: prepares it for the scenario: prepare_host.py deb|rpm [suse]

It adds a GPU on the PCI bus, an image for containers, packages in /srv/packages, and two signed repositories of them at
127.0.0.1:8088. With "rpm", the host, which runs Debian, looks like one of Rocky Linux, or of openSUSE with "suse".
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
ROCKY = """\
NAME="Rocky Linux"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.4"
PRETTY_NAME="Rocky Linux 9.4"
"""
SUSE = """\
NAME="openSUSE Leap"
ID="opensuse-leap"
ID_LIKE="suse opensuse"
VERSION_ID="15.6"
PRETTY_NAME="openSUSE Leap 15.6"
"""


def run(*argv: object) -> None:
    """Run a command. Raise an error if it fails."""
    subprocess.run([str(word) for word in argv], check=True)


def add_gpu() -> None:
    """Create an NVIDIA GPU as the only device on the PCI bus."""
    device = DEVICES / "0000:01:00.0"
    device.mkdir(parents=True)
    for name, value in GPU.items():
        (device / name).write_text(value + "\n")
    run("mount", "--bind", DEVICES, "/sys/bus/pci/devices")


def dress(is_suse: bool) -> None:
    """Make the host look like one of openSUSE or of Rocky Linux."""
    # On Debian this is a link to a file of a package.
    release = Path("/etc/os-release")
    release.unlink()
    release.write_text(SUSE if is_suse else ROCKY)
    # Debian's package of zypper contains its directory.
    for folder in ("/etc/zypp/repos.d",) if is_suse else ("/etc/yum.repos.d", "/etc/pki/rpm-gpg"):
        Path(folder).mkdir(parents=True, exist_ok=is_suse)
    # Debian enables this plugin, which adds a repository of all packages that were installed before.
    Path("/etc/dnf/plugins/local.conf").write_text("[main]\nenabled = 0\n")
    # What scripts of packages need: the name of a shell and the release (packages/contents.py).
    run("rpm", "--install", "--nodeps", *(PACKAGES / "other").glob("gpufleet-release-*.rpm"))


def main() -> None:
    """Prepare the host."""
    kind = sys.argv[1]
    add_gpu()
    # The other package sources of the host cannot be reached.
    sources = Path("/etc/apt/sources.list")
    if sources.exists():
        sources.unlink()
    for name in ("build", "repository"):
        arguments = [PACKAGES, "--second"] if name == "build" else [PACKAGES, REPOSITORY]
        run(sys.executable, "-B", HERE / "packages" / f"{name}.py", *arguments, "--kind", kind)
    if kind == "rpm":
        dress("suse" in sys.argv)
    units = Path("/run/systemd/system")
    units.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "files" / UNIT, units)
    run("systemctl", "daemon-reload")
    run("systemctl", "start", UNIT)
    run("/fx/load-busybox")
    # Some hosts do not have this directory at first.
    Path("/etc/docker").mkdir(exist_ok=True)
    run(sys.executable, "-B", HERE / "observe.py", "--fresh")


if __name__ == "__main__":
    main()
