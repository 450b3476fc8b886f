"""Inside a host: creates signed repositories of packages: repository.py PACKAGES ROOT --kind deb|rpm...

One is in ROOT/stable/deb/ARCHITECTURE or ROOT/stable/rpm/ARCHITECTURE, as NVIDIA's is below its address. The key that
signs it is ROOT/gpgkey. PACKAGES/second, if it exists, is in ROOT/second/deb/ARCHITECTURE or
ROOT/second/rpm/ARCHITECTURE, and is signed by another key, ROOT/wrongkey. ROOT/fingerprints.json contains the
fingerprints of the keys by these names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from email.utils import formatdate
from pathlib import Path

# The repositories, each with the directory of its packages, and its key.
REPOSITORIES = {"stable": (".", "gpgkey"), "second": ("second", "wrongkey")}


def output(*argv: str) -> str:
    """Return the output of a command."""
    return subprocess.check_output(argv, text=True).strip()


def gpg(*arguments: str) -> str:
    """Return the output of gpg. It uses the keys of this run, and never asks for a passphrase."""
    return output("gpg", "--batch", "--quiet", "--yes", "--pinentry-mode=loopback", "--passphrase=", *arguments)


def make_keys(root: Path) -> None:
    """Create the keys, and write their public parts and fingerprints."""
    fingerprints = {}
    for _packages, name in REPOSITORIES.values():
        gpg("--quick-generate-key", f"{name} <{name}@example.invalid>", "rsa3072", "sign", "never")
        listed = gpg("--with-colons", "--list-keys", f"{name}@").splitlines()
        fingerprints[name] = next(line.split(":")[9] for line in listed if line.startswith("fpr:"))
        (root / name).write_text(gpg("--armor", "--export", f"{name}@") + "\n")
    (root / "fingerprints.json").write_text(json.dumps(fingerprints))


def apt(folder: Path, key: str) -> None:
    """Write and sign the index of a flat repository for apt."""
    entries = []
    for package in sorted(folder.glob("*.deb")):
        content = package.read_bytes()
        fields = {
            "Filename": f"./{package.name}",
            "Size": len(content),
            "SHA256": hashlib.sha256(content).hexdigest(),
        }
        control = output("dpkg-deb", "--field", str(package)).splitlines()
        entries.append("\n".join([*control, *(f"{name}: {value}" for name, value in fields.items())]))
    index = ("\n\n".join(entries) + "\n").encode()
    (folder / "Packages").write_bytes(index)
    release = [
        "Origin: gpufleet test",
        f"Date: {formatdate(usegmt=True)}",
        "SHA256:",
        f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages",
    ]
    (folder / "Release").write_text("\n".join(release) + "\n")
    gpg("--local-user", f"{key}@", "--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release"))


def dnf(folder: Path, key: str) -> None:
    """Sign the packages, then write and sign the index of a repository for dnf."""
    packages = [str(package) for package in sorted(folder.glob("*.rpm"))]
    output("rpmsign", f"--define=_gpg_name {key}@", "--addsign", *packages)
    output("createrepo_c", "--quiet", str(folder))
    gpg("--local-user", f"{key}@", "--armor", "--detach-sign", str(folder / "repodata" / "repomd.xml"))


def main() -> None:
    """Create the keys and the repository."""
    parser = argparse.ArgumentParser()
    parser.add_argument("packages", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--kind", choices=("deb", "rpm"), nargs="+", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["GNUPGHOME"] = home
        arguments.root.mkdir(parents=True)
        make_keys(arguments.root)
        for kind in arguments.kind:
            machine = output("dpkg", "--print-architecture") if kind == "deb" else os.uname().machine
            for name, (packages, key) in REPOSITORIES.items():
                if not (arguments.packages / packages).is_dir():
                    continue
                folder = arguments.root / name / kind / machine
                folder.mkdir(parents=True)
                for package in (arguments.packages / packages).glob(f"*.{kind}"):
                    shutil.copy(package, folder)
                (apt if kind == "deb" else dnf)(folder, key)
        output("gpgconf", "--kill", "gpg-agent")


if __name__ == "__main__":
    main()
