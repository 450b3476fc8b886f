"""A stand-in for nvidia-container-runtime. It records its arguments, then executes the low-level runtime.

In legacy mode it adds the hook to the bundle first, as the real one does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tomllib

VERSION = "@VERSION@"
# molecule/examples/fleet.py and molecule/toolkit/tamper.sh read this file.
CALLS = "/var/log/nvidia-container-runtime.calls"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
HOOK = "/usr/bin/nvidia-container-runtime-hook"


def settings() -> dict[str, Any]:
    """Read the runtime's part of config.toml."""
    path = Path(os.environ.get("NVIDIA_CTK_CONFIG_FILE_PATH", CONFIG))
    if not path.exists():
        return {}
    table: dict[str, Any] = tomllib.loads(path.read_text()).get("nvidia-container-runtime", {})
    return table


def bundle(arguments: list[str]) -> Path:
    """Find the bundle of a call that creates a container."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in ("--bundle", "-bundle", "-b"):
            return Path(value if equals else arguments[number + 1])
    return Path.cwd()


def add_hook(file: Path) -> None:
    """Let the low-level runtime call the hook before the container's own process."""
    config = json.loads(file.read_text())
    hooks = config.setdefault("hooks", {}).setdefault("prestart", [])
    if not any(hook["path"] == HOOK for hook in hooks):
        hooks.append({"path": HOOK, "args": [os.path.basename(HOOK), "prestart"]})
        file.write_text(json.dumps(config))


def main() -> None:
    """Record the call, then execute the low-level runtime."""
    arguments = sys.argv[1:]
    chosen = settings()
    with open(CALLS, "a") as file:
        file.write(" ".join(sys.argv) + "\n")
    if chosen.get("debug"):
        with open(chosen["debug"], "a") as file:
            file.write(json.dumps({"level": "debug", "msg": f"Running with arguments: {sys.argv}"}) + "\n")
    if "--version" in arguments:
        print(f"NVIDIA Container Runtime version {VERSION}\ncommit: 0123456789abcdef\nspec: 1.2.1\n", flush=True)
    legacy = sys.argv[0].endswith(".legacy") or chosen.get("mode") == "legacy"
    if legacy and "create" in arguments:
        add_hook(bundle(arguments) / "config.json")
    for runtime in chosen.get("runtimes", ["runc"]):
        try:
            os.execvp(runtime, [runtime, *arguments])
        except FileNotFoundError:
            continue
    sys.exit("no low-level runtime found")


main()
