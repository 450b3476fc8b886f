# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: NVIDIA's OCI hook, a file that makes an engine run a program for every container before it
# starts: the way in which GPUs came into containers before there were runtimes and CDI.
#
# oci-hooks(5): CRI-O and Podman (for root) read every .json file of their folders; one in a later folder takes the
# place of another with its name.  A hook whose program is not on the host is an error: Podman then starts no container,
# and CRI-O does not start (containers/common, pkg/hooks/1.0.0/hook.go).

from __future__ import annotations

import contextlib
import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import SERVICE_PATH
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Files
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord

# What NVIDIA's packages and instructions call the file.
HOOK_NAME = "oci-nvidia-hook.json"
# In the order in which they are read.
HOOK_FOLDERS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
HOOK_PROGRAM = "nvidia-container-runtime-hook"
# The second is its former name, which packages keep as a link.
_PROGRAMS = (HOOK_PROGRAM, "nvidia-container-toolkit")

# Among the entries of a record: the program of a hook that was written, and that a hook was removed.
WRITTEN, REMOVED = ("hook", "path"), ("removed",)


def hook_text(directory: str) -> bytes:
    """The hook for the program in ``directory``, byte for byte as nvidia-ctk 1.20 writes it."""
    program = posixpath.join(directory, HOOK_PROGRAM)
    path = [*SERVICE_PATH, *([] if directory in SERVICE_PATH else [directory])]
    hook = {
        "version": "1.0.0",
        "hook": {"path": program, "args": [HOOK_PROGRAM, "prestart"], "env": [f"PATH={':'.join(path)}"]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(hook, indent=2) + "\n").encode("utf-8")


def read_hook(content: bytes) -> t.Any:
    """What a hook's file says, None where it is no JSON."""
    try:
        return load(content)
    except ValueError:
        return None


def is_nvidia_hook(content: bytes) -> bool:
    """Whether a hook runs NVIDIA's program, wherever that is installed."""
    said = read_hook(content)
    hook = said.get("hook") if isinstance(said, dict) else None
    # Version 0.1.0 of the format has the path itself in this place.
    program = hook.get("path") if isinstance(hook, dict) else hook
    return isinstance(program, str) and posixpath.basename(program) in _PROGRAMS


def nvidia_hooks(
    files: Files, folders: t.Iterable[str] = HOOK_FOLDERS, planned: t.Iterable[PlannedFile] = ()
) -> list[str]:
    """The hooks of NVIDIA that an engine runs which reads ``folders``, once ``planned`` is written.

    What cannot be read is not among them.
    """
    later = {file.path: file.after for file in planned}
    paths = {path: files.resolve(path) for folder in folders for path in files.glob(f"{folder}/*.json")}
    found: dict[str, tuple[str, bytes]] = {}
    for path, real in paths.items():
        with contextlib.suppress(HostError):
            content = later[real] if real in later else files.read(real)
            if content is not None:
                found[posixpath.basename(path)] = (path, content)
    return [path for path, content in found.values() if is_nvidia_hook(content)]


def taken_away(path: str, content: bytes) -> PlannedFile:
    """A hook of others that goes until we are gone."""
    return PlannedFile(path, content, None, {REMOVED: True})


def given_back(record: FileRecord, content: bytes | None) -> tuple[PlannedFile, str]:
    """The file that was recorded, as it was before us, and why it is not that; ``content`` is what it is now."""
    path, keys = record.path, record.keys or {}
    if REMOVED in keys:
        undone = content is None
        doubt = f"{path}, which was removed, is there again, and stays; its former content is in the backups."
    else:
        undone = content is not None and is_nvidia_hook(content)
        doubt = f"{path} no longer runs NVIDIA's hook: another program wrote it, so it stays."
    after = record.original if undone else content
    stays = content is not None and after != record.original
    return PlannedFile(path, content, after), doubt if stays else ""


def is_hook_record(record: FileRecord | None) -> bool:
    """Whether a hook was written, or removed."""
    keys = {} if record is None else record.keys or {}
    return WRITTEN in keys or REMOVED in keys


def hook_records(files: Files, paths: t.Iterable[str]) -> list[FileRecord]:
    """Of the files in ``paths`` the records of those that are hooks."""
    records = [files.record(path) for path in paths]
    return [record for record in records if record is not None and is_hook_record(record)]
