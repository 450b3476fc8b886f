"""The contents of the packages: NVIDIA's four names with small programs in place of the real ones, and other packages.

Names, directories, dependencies and the effects of the scripts are those of the real packages of 1.18 and later.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
VERSIONS = ("1.18.2", "1.19.1", "1.20.0")
# A version that needs a package which only the second source has.
NEEDY_VERSION = "1.17.8"
# The second source has one version of the first one, with other contents, and a newer one.
OTHER_VERSIONS = ("1.20.0", "1.21.0")
REVISION = "1"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
LINK = "/usr/bin/nvidia-container-toolkit"
DEPENDENCY = "gpufleet-dependency"
# The scripts of the toolkit's packages of the second source create it.
MARK = "/run/gpufleet-other-source"


class Package(NamedTuple):
    """The description of one package.

    depends: names of packages that it needs in the same version; needs: packages that it needs in any version;
    files: path to text, all with mode 0755;
    installed: shell lines that run after it is unpacked; purged: shell lines that run after it is purged;
    provides: other names that it provides; replaces: names of former packages, which it also provides for rpm;
    other: whether it is not for the repository; second: whether it is for the second source.
    """

    name: str
    version: str
    files: dict[str, str]
    depends: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    installed: str = ""
    purged: str = ""
    provides: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    other: bool = False
    second: bool = False


def python(name: str, version: str) -> str:
    """Return the text of a program in the directory programs."""
    text = (HERE / "programs" / f"{name}.py").read_text().replace("@VERSION@", version)
    return "#!/usr/bin/python3\n" + text


def speaking(words: str) -> str:
    """Return a program that only prints its version."""
    return f"#!/bin/sh\ncase \"$1\" in -version | --version) printf '%s\\n' {words} ;; esac\n"


def toolkit(version: str) -> list[Package]:
    """Return the four packages in one version."""
    runtime = python("runtime", version)
    return [
        Package("libnvidia-container1", version, {"/usr/lib/libnvidia-container.so." + version: "not a library\n"}),
        Package(
            "libnvidia-container-tools",
            version,
            {"/usr/bin/nvidia-container-cli": speaking(f"'cli-version: {version}' 'lib-version: {version}'")},
            depends=("libnvidia-container1",),
            needs=(DEPENDENCY,) if version == NEEDY_VERSION else (),
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


def second_source() -> list[Package]:
    """Return the packages of the second source."""
    toolkits = [package for version in OTHER_VERSIONS for package in toolkit(version)]
    marked = [package._replace(installed=f"{package.installed}touch {MARK}\n") for package in toolkits]
    return [package._replace(second=True) for package in (*marked, Package(DEPENDENCY, "2.0", {}))]


def packages(kind: str) -> list[Package]:
    """Return all packages except those of the second source. ``kind`` is deb or rpm."""
    found = [
        *(package for version in (NEEDY_VERSION, *VERSIONS) for package in toolkit(version)),
        # Packages that the toolkit replaces.
        Package("nvidia-docker2", "2.13.0", {}),
        Package("nvidia-container-runtime", "3.4.0", {}),
        # A foreign package that needs the toolkit, for the tests of removals.
        Package("gpufleet-bystander", "1.0", {}, needs=("nvidia-container-toolkit",), other=True),
    ]
    if kind == "rpm":
        # The rpm packages that a host of Rocky Linux needs: a shell for scripts, and the version of the release.
        found.append(Package("gpufleet-release", "9.4", {}, provides=("/bin/sh", "system-release = 9.4"), other=True))
    return found
