"""Shared by the programs in this folder: toolkits to install, the driver, and the report of failed checks.

Ten programs in molecule/cdi use the report too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import elf_programs
from engines import PATIENCE, call, run

DEST = "/usr/local/nvidia/toolkit"
RUNTIME = "nvidia-container-runtime"
SOURCES = Path("/srv/toolkits")
PACKAGES = Path("/srv/packages")
OLD, NEW = "1.19.1", "1.20.0"
# The version that NVIDIA's installer has left on a host.
FORMER = "1.18.2"
CALLS = Path(elf_programs.CALLS)
# A file system is mounted here in place of the kernel's list of modules.
MODULES = Path("/sys/module")
DRIVER = MODULES / "nvidia"
# The name of the directory of a version. Several directories may have the same content.
NAME = re.compile(r"(?:[0-9]+\.[0-9.]+|unknown)-[0-9a-f]{12}(?:-[0-9]+)?\b")
# A stand-in for runc that prints the paths of two programs that it finds in PATH, and config.toml. It starts no
# program, because it runs thousands of times.
LOW_LEVEL = """\
#!/bin/sh
command -v nvidia-container-runtime-hook
command -v nvidia-container-cli
while read -r line; do echo "$line"; done <"$NVIDIA_CTK_CONFIG_FILE_PATH"
"""
LOW_LEVEL_FOLDER = Path("/run/gpufleet-low-level")
# A wrapper as NVIDIA's installer writes it (its versions before 1.18 have another variable).
FORMER_WRAPPER = """\
#! /bin/sh
PATH={dest}:$PATH NVIDIA_CTK_CONFIG_FILE_PATH={dest}/.config/nvidia-container-runtime/config.toml \\
    {dest}/{name}.real "$@"
"""


class Report:
    """Counts the checks, and collects those that failed."""

    def __init__(self) -> None:
        self.tried = 0
        self.wrong: list[str] = []

    def check(self, what: str, true: bool, seen: object = "") -> None:
        """Record a check. If it failed, ``seen`` is added to the report."""
        self.tried += 1
        if not true:
            self.wrong.append(f"{what}: {seen}")

    def failed(self, what: str, result: dict[str, Any], pattern: str) -> None:
        """Check that a module failed with a message that matches ``pattern``."""
        words = str(result.get("msg"))
        clear = "Traceback" not in words and re.search(pattern, words, re.DOTALL) is not None
        self.check(what, bool(result.get("failed")) and clear, result)

    def worked(self, what: str, result: dict[str, Any], changed: bool) -> None:
        """Check that a module succeeded, and whether it reported a change."""
        self.check(what, not result.get("failed") and result.get("changed") is changed, result)

    def print(self, **more: object) -> None:
        """Print the report as JSON."""
        print(json.dumps({"tried": self.tried, "wrong": self.wrong, **more}))


def source(name: str) -> str:
    """Return the directory of a toolkit, which contains the unpacked packages."""
    return str(SOURCES / name)


def toolkit(dest: str = DEST, **options: Any) -> dict[str, Any]:
    """Call nvidia_toolkit_install for a directory."""
    return call("nvidia_toolkit_install", source="directory", dest=dest, **options)


def install(name: str, dest: str = DEST, **options: Any) -> dict[str, Any]:
    """Install a toolkit from its directory. The name of most of them is their version."""
    return toolkit(dest, src=source(name), **options)


def load_driver(*, loaded: bool = True) -> None:
    """Make the kernel module of the driver appear as loaded or not."""
    if loaded:
        DRIVER.mkdir(exist_ok=True)
    elif DRIVER.exists():
        DRIVER.rmdir()


def versions(dest: str = DEST) -> set[str]:
    """Return the installed versions."""
    folder = Path(f"{dest}.versions")
    return {path.name for path in folder.iterdir() if NAME.fullmatch(path.name)} if folder.exists() else set()


def current(dest: str = DEST) -> str:
    """Return the version that the link leads to."""
    return os.path.basename(os.readlink(dest))


def make_low_level() -> None:
    """Install the stand-in for runc in a directory that only start() searches."""
    LOW_LEVEL_FOLDER.mkdir(exist_ok=True)
    program = LOW_LEVEL_FOLDER / "runc"
    program.write_text(LOW_LEVEL)
    program.chmod(0o755)


def start(dest: str) -> tuple[str, str]:
    """Start the runtime as an engine does. Return its version and an empty text, or "" and the error.

    The driver must be loaded. All files that the runtime uses must be of that version. The files of NVIDIA's installer
    have no version and are not checked.
    """
    environment = {"PATH": f"{LOW_LEVEL_FOLDER}:/usr/bin:/bin", "GPUFLEET_CALLS": "/dev/stdout"}
    try:
        ended = subprocess.run(
            [f"{dest}/{RUNTIME}", "state", "a-container"],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=PATIENCE,
        )
    except OSError as error:
        return "", str(error)
    version, _blank, rest = ended.stdout.partition(" ")
    names = set(NAME.findall(rest))
    # The runtime, two variables, two programs that it finds, and three programs in its config.toml.
    mentions = len(NAME.findall(rest))
    whole = version == FORMER or (len(names) == 1 and mentions == 8 and names.pop().startswith(f"{version}-"))
    return (version, "") if not ended.returncode and not ended.stderr and whole else ("", f"{ended}")


def make_former(dest: str) -> None:
    """Create a directory as NVIDIA's installer leaves it."""
    folder, parts = Path(dest), SOURCES / FORMER
    config = folder / ".config" / "nvidia-container-runtime" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[nvidia-container-cli]\npath = "{dest}/nvidia-container-cli"\n')
    for path in (parts / "usr/bin").iterdir():
        if path.name == "nvidia-cdi-hook":
            shutil.copy(path, folder)
            continue
        shutil.copy(path, folder / f"{path.name}.real")
        wrapper = folder / path.name
        wrapper.write_text(FORMER_WRAPPER.format(dest=dest, name=path.name))
        wrapper.chmod(0o755)
    for path in next((parts / "usr/lib").iterdir()).iterdir():
        shutil.copy(path, folder, follow_symlinks=False)
    (folder / "nvidia-container-toolkit").symlink_to("nvidia-container-runtime-hook")


def creations(known: int = 0) -> list[str]:
    """Return the calls of the runtimes that created a container, without the first ``known`` calls."""
    return creating(calls()[known:])


def creating(lines: list[str]) -> list[str]:
    """Return those calls of a low-level runtime that create a container."""
    return [line for line in lines if "create" in line.split()]


def calls() -> list[str]:
    """Return all calls of the runtimes."""
    return CALLS.read_text().splitlines() if CALLS.exists() else []


def of_one_version(line: str) -> str:
    """Return the directory name of the version in a call, empty if the call does not name exactly one version."""
    names = set(NAME.findall(line))
    same = len(names) == 1 and line.startswith(f"{next(iter(names)).split('-')[0]} ")
    return names.pop() if same else ""


def must(*command: str) -> None:
    """Run a command. Exit if it fails."""
    ended = run(*command)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")
