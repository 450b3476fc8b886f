"""Inside a host: tells as JSON how it stands with the toolkit: observe.py [--fresh]

packages (name to version, or to dpkg's word for one that is not whole), held, pin (priorities of what is on offer),
requests (how often the repository was asked since the last look), settings (of config.toml, dotted), and the files that
differ from the last look (touched) and from the fresh host (left). --fresh makes this look the one to compare with.
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
    from collections.abc import Iterator

MEMORY = Path("/run/gpufleet-observed/toolkit")
REQUESTS = Path("/run/gpufleet-requests")
CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
NAMES = re.compile("nvidia")
TREES = ("/etc", "/usr", "/opt", "/root", "/var/lib", "/var/cache/gpufleet-nvidia")
# Where a file that was written again with the same content counts as the same.
READ = ("/etc", "/var", "/usr/share/keyrings")
PRIVATE = ("/var/lib/dnf", "/var/lib/rpm", "/etc/dnf/plugins/versionlock.list", "/root/.gnupg")


def output(*argv: str) -> str:
    """What a command says, whatever its end."""
    return subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


class Apt:
    """A host with dpkg and apt."""

    def packages(self) -> dict[str, str]:
        """Names and versions."""
        lines = output("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Abbrev}\\n").splitlines()
        found = (line.split() for line in lines if NAMES.search(line))
        return {name: version if status in ("ii", "hi") else status for name, version, status in found}

    def held(self) -> list[str]:
        """Names."""
        return sorted(output("apt-mark", "showhold").split())

    def pin(self) -> list[str]:
        """The priorities of the versions on offer."""
        text = output("apt-cache", "policy", "nvidia-container-toolkit")
        return sorted(set(re.findall(r"^ (?:\*\*\*|   ) \S+ (\d+)$", text, re.MULTILINE)))


class Dnf:
    """A host with rpm and dnf."""

    def packages(self) -> dict[str, str]:
        """Names and versions."""
        lines = output("rpm", "--query", "--all", "--queryformat=%{NAME} %{VERSION}-%{RELEASE}\\n").splitlines()
        return dict(line.split(" ", 1) for line in lines if NAMES.search(line))

    def held(self) -> list[str]:
        """Names."""
        return sorted(re.findall(r"^(\S+?)-\d+:", output("dnf", "--quiet", "versionlock", "list"), re.MULTILINE))

    def pin(self) -> list[str]:
        """The priority of the repository."""
        files = Path("/etc/yum.repos.d").glob("*.repo")
        return sorted(
            set(re.findall(r"^priority *= *(\d+)", "".join(file.read_text() for file in files), re.MULTILINE))
        )


def flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def trees() -> dict[str, str]:
    """All that is watched, but for the contents of what is large: files that no run of ours rewrites in place."""
    caches = {str(path): describe(str(path)) for path in Path("/var/cache").glob("gpufleet-nvidia-*")}
    return {**caches, **watched(TREES, PRIVATE, tell)}


def tell(path: str) -> str:
    """Everything of a small file, and what tells a large one from another."""
    return describe(path) if path.startswith(READ) else lightly(path)


def lightly(path: str) -> str:
    """What tells a file from another one without reading it."""
    status = os.lstat(path)
    changed = "" if os.path.isdir(path) and not os.path.islink(path) else f" {status.st_size} {status.st_mtime_ns}"
    return f"{status.st_mode} {status.st_uid}{changed}"


def look() -> dict[str, Any]:
    """Everything at once."""
    manager = Apt() if "ID=debian" in Path("/etc/os-release").read_text().splitlines() else Dnf()
    return {
        "packages": manager.packages(),
        "held": manager.held(),
        "pin": manager.pin(),
        "requests": len(REQUESTS.read_text().splitlines()) if REQUESTS.exists() else 0,
        "settings": dict(flat(tomllib.loads(CONFIG.read_text()))) if CONFIG.exists() else {},
        "trees": trees(),
    }


def main() -> None:
    """Look, compare, remember."""
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
