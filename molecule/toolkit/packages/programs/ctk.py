"""A stand-in for nvidia-ctk: --version, and "config", which writes config.toml as the real program does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import tomllib

VERSION = "@VERSION@"
# Table, key, value, and whether the default is written as a comment, in the order of the file.
DEFAULTS: list[tuple[str, str, Any, bool]] = [
    ("", "accept-nvidia-visible-devices-as-volume-mounts", False, True),
    ("", "accept-nvidia-visible-devices-envvar-when-unprivileged", True, True),
    ("", "disable-require", False, False),
    ("", "supported-driver-capabilities", "compat32,compute,display,graphics,ngx,utility,video", False),
    ("", "swarm-resource", "DOCKER_RESOURCE_GPU", True),
    ("nvidia-container-cli", "debug", "/var/log/nvidia-container-toolkit.log", True),
    ("nvidia-container-cli", "environment", [], False),
    ("nvidia-container-cli", "ldcache", "/etc/ld.so.cache", True),
    ("nvidia-container-cli", "ldconfig", "@/sbin/ldconfig", False),
    ("nvidia-container-cli", "load-kmods", True, False),
    ("nvidia-container-cli", "no-cgroups", False, True),
    ("nvidia-container-cli", "path", "/usr/bin/nvidia-container-cli", True),
    ("nvidia-container-cli", "root", "/run/nvidia/driver", True),
    ("nvidia-container-cli", "user", "root:video", True),
    ("nvidia-container-runtime", "debug", "/var/log/nvidia-container-runtime.log", True),
    ("nvidia-container-runtime", "log-level", "info", False),
    ("nvidia-container-runtime", "mode", "auto", False),
    ("nvidia-container-runtime", "runtimes", ["runc", "crun"], False),
    ("nvidia-container-runtime.modes.cdi", "annotation-prefixes", ["cdi.k8s.io/"], False),
    ("nvidia-container-runtime.modes.cdi", "default-kind", "nvidia.com/gpu", False),
    ("nvidia-container-runtime.modes.cdi", "spec-dirs", ["/etc/cdi", "/var/run/cdi"], False),
    (
        "nvidia-container-runtime.modes.csv",
        "mount-spec-path",
        "/etc/nvidia-container-runtime/host-files-for-container.d",
        False,
    ),
    ("nvidia-container-runtime.modes.legacy", "cuda-compat-mode", "ldconfig", False),
    ("nvidia-container-runtime-hook", "path", "nvidia-container-runtime-hook", False),
    ("nvidia-container-runtime-hook", "skip-mode-detection", False, False),
    ("nvidia-ctk", "path", "nvidia-ctk", False),
]
# Before this version, an explicit value that equals a commented default becomes a comment again.
MENDED = (1, 20, 0)


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the tables by their full names, each with its own keys."""
    found: dict[str, dict[str, Any]] = {prefix: {}}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}.{key}" if prefix else key))
        else:
            found[prefix][key] = value
    return found


def line(key: str, value: Any) -> str:
    """Return the line of one key. Booleans, strings, numbers and lists have the same form in JSON and TOML."""
    return f"{key} = {json.dumps(value)}"


def render(data: dict[str, Any] | None) -> str:
    """Return the text of the file. ``data`` is the previous content, None if there was no file."""
    tables = flat(data or {})
    forgetful = tuple(int(part) for part in VERSION.split(".")) < MENDED
    lines: dict[str, dict[str, str]] = {
        table: {key: line(key, value) for key, value in keys.items()} for table, keys in tables.items()
    }
    for table, key, value, commented in DEFAULTS:
        there = lines.setdefault(table, {})
        if key in there:
            if commented and forgetful and tables[table][key] == value:
                there[key] = "#" + line(key, value)
        elif commented or data is None:
            there[key] = ("#" if commented else "") + line(key, value)
    blocks = []
    for table in sorted(lines, key=lambda table: table.split(".")):
        if lines[table]:
            header = [f"[{table}]"] if table else []
            blocks.append("\n".join([*header, *(lines[table][key] for key in sorted(lines[table]))]))
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(prog="nvidia-ctk")
    version = f"NVIDIA Container Toolkit CLI version {VERSION}\ncommit: 0123456789abcdef"
    parser.add_argument("--version", "-v", action="store_true")
    parser.add_argument("--quiet", "-q", action="store_true")
    commands = parser.add_subparsers(dest="command")
    config = commands.add_parser("config")
    config.add_argument("--config-file", "--config", "-c", type=Path)
    config.add_argument("--in-place", "-i", action="store_true")
    arguments = parser.parse_args()
    if arguments.version:
        print(version)
    elif arguments.command == "config":
        file = arguments.config_file
        text = render(tomllib.loads(file.read_text()) if file and file.exists() else None)
        if arguments.in_place:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        else:
            sys.stdout.write(text)


main()
