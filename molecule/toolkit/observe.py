"""Inside a host: prints the state of the toolkit as JSON: observe.py [--fresh]

packages (name to version, or to dpkg's state of an incomplete one), held, pin (priorities of the offered versions),
requests (the number of requests to the repository since the last call), settings (of config.toml, dotted), files that
differ from the last call (touched) and from the fresh host (left), whether scripts of the second source have run
(second). --fresh saves this state as that of the fresh host.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib

sys.path.insert(0, "/molecule/shared")
from observing import describe, differences
from watched import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMORY = Path("/run/gpufleet-observed/toolkit")
REQUESTS = Path("/run/gpufleet-requests")
CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
NAMES = re.compile("nvidia")
TREES = ("/etc", "/usr", "/opt", "/root", "/var/lib", "/var/cache/gpufleet-nvidia")
# In these directories, files are compared by content, so a file that is written again with the same content is equal.
READ = ("/etc", "/var", "/usr/share/keyrings")
PRIVATE = (
    "/var/lib/dnf",
    "/var/lib/rpm",
    "/var/lib/YaST2",
    "/var/lib/zypp",
    "/etc/dnf/plugins/versionlock.list",
    "/etc/zypp/locks",
    "/root/.gnupg",
)


def output(*argv: str) -> str:
    """Return the output of a command, even if it fails."""
    return subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


class Apt:
    """The package manager of a host with dpkg and apt."""

    def packages(self) -> dict[str, str]:
        """Names and versions."""
        lines = output("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Abbrev}\\n").splitlines()
        found = (line.split() for line in lines if NAMES.search(line))
        return {name: version if status in ("ii", "hi") else status for name, version, status in found}

    def held(self) -> list[str]:
        """Names."""
        return sorted(output("apt-mark", "showhold").split())

    def pin(self) -> list[str]:
        """Return the priorities of the offered versions."""
        text = output("apt-cache", "policy", "nvidia-container-toolkit")
        return sorted(set(re.findall(r"^ (?:\*\*\*|   ) \S+ (\d+)$", text, re.MULTILINE)))


class Dnf:
    """The package manager of a host with rpm and dnf."""

    def packages(self) -> dict[str, str]:
        """Names and versions."""
        lines = output("rpm", "--query", "--all", "--queryformat=%{NAME} %{VERSION}-%{RELEASE}\\n").splitlines()
        return dict(line.split(" ", 1) for line in lines if NAMES.search(line))

    def held(self) -> list[str]:
        """Names."""
        return sorted(re.findall(r"^(\S+?)-\d+:", output("dnf", "--quiet", "versionlock", "list"), re.MULTILINE))

    def pin(self) -> list[str]:
        """Return the priority of the repository."""
        files = Path("/etc/yum.repos.d").glob("*.repo")
        return sorted(
            set(re.findall(r"^priority *= *(\d+)", "".join(file.read_text() for file in files), re.MULTILINE))
        )


class Zypper(Dnf):
    """The package manager of a host with rpm and zypper."""

    def held(self) -> list[str]:
        """Names."""
        return sorted(re.findall("<name>(.*?)</name>", output("zypper", "--xmlout", "locks")))

    def pin(self) -> list[str]:
        """Return the priority of the repository."""
        return sorted(set(re.findall(r' priority="(\d+)"', output("zypper", "--xmlout", "repos"))))


def flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings with their dotted names."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def trees() -> dict[str, str]:
    """Return all compared files. Those outside of READ are not read: this collection never overwrites them in place."""
    caches = {str(path): describe(str(path)) for path in Path("/var/cache").glob("gpufleet-nvidia-*")}
    return {**caches, **watched(TREES, PRIVATE, tell)}


def tell(path: str, read: Callable[[str], str] = describe) -> str:
    """Return the description of a file in READ, or the status of any other file."""
    return read(path) if path.startswith(READ) else lightly(path)


def lightly(path: str) -> str:
    """Return the status of a file, which changes if it is replaced."""
    status = os.lstat(path)
    changed = "" if os.path.isdir(path) and not os.path.islink(path) else f" {status.st_size} {status.st_mtime_ns}"
    return f"{status.st_mode} {status.st_uid}{changed}"


def look() -> dict[str, Any]:
    """Return the whole state."""
    release = Path("/etc/os-release").read_text().splitlines()
    manager = Apt() if "ID=debian" in release else Zypper() if 'ID="opensuse-leap"' in release else Dnf()
    return {
        "packages": manager.packages(),
        "held": manager.held(),
        "pin": manager.pin(),
        "requests": len(REQUESTS.read_text().splitlines()) if REQUESTS.exists() else 0,
        "second": Path("/run/gpufleet-other-source").exists(),
        "settings": dict(flat(tomllib.loads(CONFIG.read_text()))) if CONFIG.exists() else {},
        "trees": trees(),
    }


def main() -> None:
    """Compare the state with the saved ones, save it, and print the result."""
    now = look()
    MEMORY.mkdir(parents=True, exist_ok=True)
    if "--fresh" in sys.argv:
        (MEMORY / "fresh").write_text(json.dumps(now))
        (MEMORY / "before").write_text(json.dumps(now))
    fresh, before = (json.loads((MEMORY / name).read_text()) for name in ("fresh", "before"))
    (MEMORY / "before").write_text(json.dumps(now))
    there = now.pop("trees")
    asked = now["requests"] - before["requests"]
    compared = {"touched": differences(before["trees"], there), "left": differences(fresh["trees"], there)}
    print(json.dumps({**now, **compared, "requests": asked}))


if __name__ == "__main__":
    main()
