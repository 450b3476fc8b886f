"""Inside a host: lets the real containerd read configurations that were changed without being used.

compare_containerd.py prepare [NAME...]: writes them, one directory each, and prints the expected result of those named
    (by default all) for this version as JSON
compare_containerd.py present: checks that containerd reads the new entries, and everything else as before
compare_containerd.py absent: checks that files and settings are restored

The last two exit with 1 if anything is wrong, and print it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from difflib import ndiff
from pathlib import Path
from typing import Any

import tomllib
from observe_containerd import essence, flat
from observing import differences

FILES = Path("/molecule/containerd/files")
STOCK = Path("/root/containerd-as-packaged.toml")
PLACE = Path("/root/configurations")
MEMORY = Path("/root/configurations.json")

# Configurations that must be refused: by this version of containerd and newer, by older ones than this, the message.
REFUSED = {
    "broken": (0, 9, r"config\.toml, line 4, column 17"),
    "missing": (0, 9, r"do not exist, and containerd would not start: .*gone\.toml"),
    "version-1": (2, 9, "file in configuration version 1"),
    "imports-3": (0, 2, "does not support configuration version 3"),
    # containerd 2 does not skip a byte order mark.
    "windows": (2, 9, "containerd refuses the new content"),
}
# The CRI is disabled.
LEFT_ALONE = ("docker",)

PROGRAMS = {"nvidia": "/usr/bin/nvidia-container-runtime", "nvidia-cdi": "/usr/bin/nvidia-container-runtime.cdi"}
# The sections of the dump that contain runtimes, newest first.
SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
# Empty in the dump for a runtime in a file, but not for the built-in one. The running daemon sets them.
FILLED_IN = ("sandbox_mode", "sandboxer")
OWN_ENTRIES = re.compile(
    r"version|imports|.*\.containerd\.(default_runtime_name|runtimes\.nvidia(-cdi)?\..*|runtimes\.runc\.sandbox_mode)"
)
# The built-in runtime, which appears in the dump if a file of an earlier tool no longer hides it.
BUILT_IN = re.compile(r".*\.containerd\.runtimes\.runc\..*")
# Lines that may change.
REWRITTEN = re.compile(r"default_runtime_name|imports|runtimes = \{")


def put(name: str, text: str) -> None:
    """Write a configuration that consists of one file."""
    (PLACE / name).mkdir(parents=True)
    (PLACE / name / "config.toml").write_text(text, newline="")


def lay_out() -> None:
    """Write the configurations: test files, those of containerd and its package, and those that other tools produce."""
    for source in FILES.iterdir():
        if source.is_dir():
            shutil.copytree(source, PLACE / source.name)
        else:
            put(source.stem, source.read_text())
    stock = STOCK.read_text()
    runtime = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia'
    vendors = f'[{runtime}]\nruntime_type = "io.containerd.runc.v2"\n[{runtime}.options]\nBinaryName = "{{nvidia}}"\n'
    put("stock", stock)
    put("vendor", stock + vendors.format(**PROGRAMS))
    put("default", subprocess.check_output(["containerd", "config", "default"], text=True))
    put("windows", "\ufeff" + (FILES / "kubeadm.toml").read_text().replace("\n", "\r\n"))
    (PLACE / "none").mkdir()
    for folder in PLACE.iterdir():
        for file in folder.rglob("*.toml"):
            # The imported files are in the same directory.
            file.write_bytes(file.read_bytes().replace(b"/etc/containerd/", f"{folder}/".encode()))


def dump(folder: Path) -> dict[str, Any] | None:
    """Return the settings that containerd reads; None if it reports an error, as 1.x does for a missing file."""
    file = folder / "config.toml"
    command = ["containerd", "--config", str(file) if file.exists() else "/dev/null", "config", "dump"]
    printed = subprocess.run(command, check=False, capture_output=True, text=True)
    return dict(essence(tomllib.loads(printed.stdout))) if printed.returncode == 0 else None


def contents(folder: Path) -> dict[str, list[str]]:
    """Return the mode and the lines of each file in the directory."""
    return {
        str(path): [
            oct(path.stat().st_mode),
            *(path.read_bytes().decode().splitlines(keepends=True) if path.is_file() else []),
        ]
        for path in sorted(folder.rglob("*"))
    }


def prepare(names: list[str]) -> list[dict[str, Any]]:
    """Write and remember the configurations ``names``, by default all. Return the expected results."""
    lay_out()
    version = re.search(r" (?:v2 )?v?(\d+)\.", subprocess.check_output(["containerd", "--version"], text=True))
    major = int(version[1]) if version else 0
    rows: list[dict[str, Any]] = []
    unknown = {*names} - {folder.name for folder in PLACE.iterdir()}
    if unknown:
        raise SystemExit(f"There are no configurations {', '.join(sorted(unknown))}.")
    for folder in sorted(folder for folder in PLACE.iterdir() if not names or folder.name in names):
        since, before, words = REFUSED.get(folder.name, (0, 0, ""))
        refusal = words if since <= major < before else ""
        changes = not refusal and folder.name not in LEFT_ALONE
        rows.append({"name": folder.name, "folder": str(folder), "refusal": refusal, "changes": changes})
    folders = [Path(row["folder"]) for row in rows]
    memory = [{**row, "contents": contents(f), "dump": dump(f)} for row, f in zip(rows, folders)]
    MEMORY.write_text(json.dumps(memory))
    return rows


def cri(data: dict[str, Any]) -> dict[str, Any]:
    """Return the default runtime and all runtimes of a dump."""
    return next(dict(data["plugins"][name]["containerd"]) for name in SECTIONS if name in data["plugins"])


def inheritance(runtime: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a runtime may inherit from another one. containerd ignores the case of options."""
    settings = {path.lower() if path.startswith("options.") else path: value for path, value in flat(runtime).items()}
    return {path: value for path, value in settings.items() if path and path not in ("options.binaryname", *FILLED_IN)}


def wrong_entries(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the errors in the entries of this collection."""
    faults = [] if new["default_runtime_name"] == "nvidia" else ["nvidia is not the default"]
    default = old["default_runtime_name"]
    parent = old["runtimes"].get("runc" if default.startswith("nvidia") else default, {})
    expected = {"runtime_type": "io.containerd.runc.v2", **inheritance(parent)}
    for name, program in PROGRAMS.items():
        runtime = new["runtimes"].get(name, {})
        if runtime.get("options", {}).get("BinaryName") != program:
            faults.append(f"{name} has another program: {runtime}")
        if inheritance(runtime) != expected:
            faults.append(f"{name} has not inherited {expected}: {runtime}")
    return faults


def changed_lines(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Return the lines that were lost or changed, although this collection must not change them."""
    lines = [line for path, text in before.items() for line in ndiff(text, after.get(path, [])) if line[0] == "-"]
    return [line for line in lines if not REWRITTEN.search(line)]


def present(row: dict[str, Any]) -> list[Any]:
    """Return what is wrong with a configuration that must contain the entries of this collection."""
    if not row["changes"]:
        return absent(row)
    folder = Path(row["folder"])
    before, after = row["dump"], dump(folder)
    if before is None or after is None:
        return ["containerd refuses it"]
    old, new = cri(before), cri(after)
    hidden = old["default_runtime_name"] not in old["runtimes"]
    return [
        *(
            {path: values}
            for path, values in differences(flat(before), flat(after)).items()
            if not OWN_ENTRIES.fullmatch(path) and not (hidden and BUILT_IN.fullmatch(path))
        ),
        *wrong_entries(old, new),
        *changed_lines(row["contents"], contents(folder)),
    ]


def absent(row: dict[str, Any]) -> list[Any]:
    """Return what was not restored."""
    folder = Path(row["folder"])
    return [
        *(path for path in differences(row["contents"], contents(folder))),
        *differences(flat(row["dump"] or {}), flat(dump(folder) or {})),
    ]


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(json.dumps(prepare(sys.argv[2:])))
    else:
        compare = {"present": present, "absent": absent}[sys.argv[1]]
        results = {row["name"]: compare(row) for row in json.loads(MEMORY.read_text())}
        faults = {name: found for name, found in results.items() if found}
        sys.exit(json.dumps(faults, indent=2) if faults else 0)
