# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write or check the lock files of requirements/: NAME.in is the input, NAME.txt has the versions for every Python.

nox -s lock                  # write them, keeping the versions that still fit
nox -s lock -- --upgrade     # write them with the newest versions
nox -s lock-check            # check that they match their inputs and can be installed
"""

from __future__ import annotations

import concurrent.futures
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nox_support import ROOT, interpreters

_REQUIREMENTS = ROOT / "requirements"
_CONTROLLERS = ("3.11", "3.12", "3.13", "3.14")
# Files for other Python versions than those of a controller. ansible-core 2.16 and 2.17 end with Python 3.12.
_VERSIONS = {
    "core-2.16": ("3.11", "3.12"),
    "core-2.16.3": ("3.11", "3.12"),
    "core-2.17.5": ("3.11", "3.12"),
    "core-2.18.0": ("3.11", "3.12", "3.13"),
    "core-2.19": ("3.11", "3.12", "3.13"),
    "units": ("3.8", "3.9", "3.10", *_CONTROLLERS),
}

# By default, uv trusts only its own certificates.
_COMPILE = [sys.executable, "-m", "uv", "pip", "compile", "--system-certs", "--quiet", "--no-annotate",
            "--custom-compile-command", "nox -s lock"]  # fmt: skip
# Nearly all of the time is spent waiting for the package index.
_AT_ONCE = 8


def _write(source: Path, target: Path, *options: str) -> None:
    """Resolve for all versions at once. Versions that the target already has stay where they fit."""
    lowest = _VERSIONS.get(source.stem, _CONTROLLERS)[0]
    # The name without a directory: uv would write an absolute path into the file.
    command = [*_COMPILE, source.name, "--universal", "--python-version", lowest, "--output-file", str(target)]
    subprocess.run([*command, *options], cwd=source.parent, stdout=subprocess.DEVNULL, check=True)


def _check(source: Path) -> list[str]:
    """Return what is wrong with a lock file."""
    locked = source.with_suffix(".txt")
    with tempfile.TemporaryDirectory() as name:
        # uv compares the versions of the output file with the input and changes only those that do not fit.
        copy = Path(shutil.copy(locked, name))
        _write(source, copy)
        if copy.read_bytes() != locked.read_bytes():
            return [f"{locked.name} does not match {source.name}. Run `nox -s lock`."]
    return []


def _resolve(locked: Path, version: str, interpreter: str | None) -> list[str]:
    """Return why a lock file cannot be installed on a Python version.

    uv stands in for pip where the machine has no such interpreter.
    """
    if interpreter:
        command = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--dry-run", "--quiet",
                   "--ignore-installed", "--break-system-packages", "--requirement", str(locked)]  # fmt: skip
    else:
        command = [*_COMPILE, str(locked), "--python-version", version]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [f"{locked.name} cannot be installed on Python {version}: {done.stderr}"] if done.returncode else []


def main() -> None:
    """Do what the first argument says; the others go to uv."""
    sources = sorted(_REQUIREMENTS.glob("*.in"))
    if sys.argv[1] == "write":
        for source in sources:
            _write(source, source.with_suffix(".txt"), *sys.argv[2:])
        return
    found = interpreters()
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = [pool.submit(_check, source) for source in sources]
        for source in sources:
            for version in _VERSIONS.get(source.stem, _CONTROLLERS):
                # pip does not run on the older versions, which only hosts have.
                interpreter = found.get(version) if version in _CONTROLLERS else None
                runs.append(pool.submit(_resolve, source.with_suffix(".txt"), version, interpreter))
        problems = [problem for done in runs for problem in done.result()]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
