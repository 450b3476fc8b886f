"""What the packages hold: NVIDIA's four names with small programs in place of the real ones, and others beside them.

Names, folders, dependencies and what the scripts do are as in the real packages of 1.18 and later.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
VERSIONS = ("1.18.2", "1.19.1", "1.20.0")
REVISION = "1"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
LINK = "/usr/bin/nvidia-container-toolkit"


class Package(NamedTuple):
    """One package, before it is a file.

    depends: names of packages that must be there in the same version; files: path to text, all of them mode 0755;
    installed: shell lines that run after it was unpacked; purged: after it is gone for good;
    provides: what else it stands for; replaces: names of former packages, for which rpm lets it stand too;
    other: it is not for the repository.
    """

    name: str
    version: str
    files: dict[str, str]
    depends: tuple[str, ...] = ()
    installed: str = ""
    purged: str = ""
    provides: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    other: bool = False


def python(name: str, version: str) -> str:
    """A program of the folder beside this file."""
    text = (HERE / "programs" / f"{name}.py").read_text().replace("@VERSION@", version)
    return "#!/usr/bin/python3\n" + text


def speaking(words: str) -> str:
    """A program that says its version and does nothing else."""
    return f"#!/bin/sh\ncase \"$1\" in -version | --version) printf '%s\\n' {words} ;; esac\n"


def toolkit(version: str) -> list[Package]:
    """The four packages in one version."""
    runtime = python("runtime", version)
    return [
        Package("libnvidia-container1", version, {"/usr/lib/libnvidia-container.so." + version: "not a library\n"}),
        Package(
            "libnvidia-container-tools",
            version,
            {"/usr/bin/nvidia-container-cli": speaking(f"'cli-version: {version}' 'lib-version: {version}'")},
            depends=("libnvidia-container1",),
        ),
        Package(
            "nvidia-container-toolkit-base",
            version,
            {
                "/usr/bin/nvidia-container-runtime": runtime,
                "/usr/bin/nvidia-container-runtime.cdi": runtime,
                "/usr/bin/nvidia-container-runtime.legacy": runtime,
                "/usr/bin/nvidia-ctk": python("ctk", version),
                "/usr/bin/nvidia-cdi-hook": speaking(f"'NVIDIA CDI Hook CLI version {version}'"),
            },
            installed=(
                f"/usr/bin/nvidia-ctk --quiet config --config-file={CONFIG} --in-place\n"
                "if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi\n"
            ),
        ),
        Package(
            "nvidia-container-toolkit",
            version,
            {"/usr/bin/nvidia-container-runtime-hook": speaking(f"'NVIDIA Container Runtime Hook version {version}'")},
            depends=("nvidia-container-toolkit-base", "libnvidia-container-tools"),
            installed=f"ln -sf nvidia-container-runtime-hook {LINK}\n",
            purged=f"rm -f {LINK}\n",
            replaces=("nvidia-container-runtime", "nvidia-container-runtime-hook"),
        ),
    ]


def packages(kind: str) -> list[Package]:
    """All of them; kind: deb or rpm."""
    found = [
        *(package for version in VERSIONS for package in toolkit(version)),
        # Of those that the toolkit replaces.
        Package("nvidia-docker2", "2.13.0", {}),
        Package("nvidia-container-runtime", "3.4.0", {}),
        # Somebody else's, which needs the toolkit: for the tests of removals.
        Package("gpufleet-bystander", "1.0", {}, depends=("nvidia-container-toolkit",), other=True),
    ]
    if kind == "rpm":
        # What a host needs of rpm's packages to pass for one of Red Hat's: a shell for scripts, and its own version.
        found.append(Package("gpufleet-release", "9.4", {}, provides=("/bin/sh", "system-release = 9.4"), other=True))
    return found
