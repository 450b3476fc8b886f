"""Inside a host: makes it one of the examples: ready.py deb|rpm <NEEDED (the JSON of mirror.py)

It gets a GPU on the PCI bus, and users: admin may become root without a password, ann with the PASSWORD of places. It
reaches the mirror by NVIDIA's name and by that of the documentation, and no other network. With "rpm", the host looks
like one of Rocky Linux.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, "/molecule/toolkit")
import places
import prepare_host

FINGERPRINT = Path("/run/gpufleet-fingerprint")


def run(*argv: str, text: str = "") -> None:
    """Run a command. Raise an error if it fails."""
    subprocess.run(argv, check=True, input=text, text=True, stdout=subprocess.DEVNULL)


def users() -> None:
    """Create the users."""
    for name in ("admin", "ann"):
        run("useradd", "--create-home", "--shell=/bin/bash", name)
    run("chpasswd", text=f"ann:{places.PASSWORD}\n")
    rules = Path("/etc/sudoers.d/examples")
    rules.write_text("admin ALL=(ALL) NOPASSWD: ALL\nann ALL=(ALL) ALL\n")
    rules.chmod(0o440)


def network(needed: dict[str, Any]) -> None:
    """Let the host reach the mirror, and nothing else."""
    with Path("/etc/hosts").open("a") as file:
        file.write(needed["hosts"] + "\n")
    Path("/usr/local/share/ca-certificates/examples.crt").write_text(needed["certificate"])
    run("update-ca-certificates")
    run("ip", "route", "delete", "default")
    for source in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        source.unlink(missing_ok=True)


def main() -> None:
    """Prepare the host."""
    needed = json.load(sys.stdin)
    prepare_host.add_gpu()
    users()
    network(needed)
    FINGERPRINT.write_text(needed["fingerprint"])
    if sys.argv[1] == "rpm":
        prepare_host.PACKAGES = Path("/run/gpufleet-packages")
        package = prepare_host.PACKAGES / "other" / "gpufleet-release-9.4.rpm"
        package.parent.mkdir(parents=True)
        package.write_bytes(base64.b64decode(needed["release"]))
        prepare_host.dress(is_suse=False)


if __name__ == "__main__":
    main()
