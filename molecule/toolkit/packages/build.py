"""Inside a host: builds the packages that contents.py describes: build.py OUT --kind deb|rpm [--second].

The packages are written to OUT/, those of the second source (with --second) to OUT/second/, and those of no
repository to OUT/other/.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from contents import REVISION, Package, packages, second_source

DESCRIPTION = "Stand-in for a package of the NVIDIA Container Toolkit"


def output(*argv: str) -> str:
    """Return the output of a command."""
    return subprocess.check_output(argv, text=True).strip()


def put(file: Path, text: str, mode: int = 0o755) -> None:
    """Write a file, and create the directories above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def depends(package: Package, exactly: str) -> list[str]:
    """Return the dependencies of a package."""
    return [*(name + exactly for name in package.depends), *package.needs]


def deb(package: Package, folder: Path, out: Path) -> None:
    """Build a package for dpkg."""
    version = f"{package.version}-{REVISION}"
    fields = {
        "Package": package.name,
        "Version": version,
        "Architecture": output("dpkg", "--print-architecture"),
        "Maintainer": "gpufleet.nvidia <gpufleet@example.invalid>",
        "Depends": ", ".join(depends(package, f" (= {version})")),
        "Provides": ", ".join(package.provides),
        "Description": DESCRIPTION,
    }
    for path, text in package.files.items():
        put(folder / path.lstrip("/"), text)
    control = "".join(f"{name}: {value}\n" for name, value in fields.items() if value)
    put(folder / "DEBIAN" / "control", control, 0o644)
    for name, when, text in (("postinst", "configure", package.installed), ("postrm", "purge", package.purged)):
        if text:
            put(folder / "DEBIAN" / name, f'#!/bin/sh\nset -e\n[ "$1" = {when} ] || exit 0\n{text}')
    # Compression would take most of the time.
    output("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(folder), str(out))


def rpm(package: Package, folder: Path, out: Path) -> None:
    """Build a package for rpm."""
    for path, text in package.files.items():
        put(folder / "files" / path.lstrip("/"), text)
    lines = [
        f"Name: {package.name}",
        f"Version: {package.version}",
        f"Release: {REVISION}",
        f"Summary: {DESCRIPTION}",
        "License: GPL-3.0-or-later",
        "AutoReqProv: no",
        *(f"Requires: {name}" for name in depends(package, f" = {package.version}-{REVISION}")),
        *(f"Provides: {name}" for name in (*package.provides, *package.replaces)),
        *(f"Obsoletes: {name} <= 3.5.0-1" for name in package.replaces),
        "%description",
        DESCRIPTION,
        "%install",
        "mkdir -p %{buildroot}",
        *([f"cp -a {folder}/files/. %{{buildroot}}/"] if package.files else []),
    ]
    if package.installed:
        lines += ["%post", package.installed]
    if package.purged:
        lines += ["%postun", 'if [ "$1" = 0 ]; then', package.purged, "fi"]
    lines += ["%files", *package.files]
    put(folder / "package.spec", "\n".join(lines) + "\n", 0o644)
    settings = {
        "_topdir": folder / "top",
        "_rpmdir": out,
        "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        # rpmbuild must not strip or compress these files.
        "__os_install_post": "%{nil}",
        "debug_package": "%{nil}",
        "_binary_payload": "w1.gzdio",
    }
    defines = [f"--define={name} {value}" for name, value in settings.items()]
    output("rpmbuild", "--quiet", "-bb", *defines, str(folder / "package.spec"))


def main() -> None:
    """Build all packages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=BUILDERS, required=True)
    parser.add_argument("--second", action="store_true")
    arguments = parser.parse_args()
    for package in (*packages(arguments.kind), *(second_source() if arguments.second else ())):
        out = arguments.out / ("second" if package.second else "other" if package.other else ".")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            BUILDERS[arguments.kind](package, Path(folder), out)


BUILDERS = {"deb": deb, "rpm": rpm}

if __name__ == "__main__":
    main()
