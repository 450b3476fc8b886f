# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Recognize programs, drop-ins and OCI hooks that NVIDIA's tools install.

The layouts are those of nvidia-container-toolkit 1.8 to 1.20. OCI hooks (oci-hooks(5)): CRI-O and Podman as root read
every .json file of their directories. A file in a later directory replaces one of the same name. A hook whose program
is missing is an error: Podman starts no container and CRI-O does not start (containers/common,
pkg/hooks/1.0.0/hook.go).
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

    KeyPath = t.Tuple[str, ...]


# The file name in NVIDIA's packages and instructions.
HOOK_NAME = "oci-nvidia-hook.json"
# In the order in which engines read them.
HOOK_FOLDERS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
HOOK_PATHS = tuple(f"{folder}/{HOOK_NAME}" for folder in HOOK_FOLDERS)
HOOK_PROGRAM = "nvidia-container-runtime-hook"
# The second is its previous name, which packages keep as a link.
_HOOK_PROGRAMS = (HOOK_PROGRAM, "nvidia-container-toolkit")

# Keys in the record of a hook: the program of a hook that was written, and the mark that a hook was removed.
WRITTEN, REMOVED = ("hook", "path"), ("removed",)


def hook_text(directory: str) -> bytes:
    """Return the hook for the program in ``directory``, byte for byte as nvidia-ctk 1.20 writes it."""
    program = posixpath.join(directory, HOOK_PROGRAM)
    path = [*hostfs.SERVICE_PATH, *([] if directory in hostfs.SERVICE_PATH else [directory])]
    hook = {
        "version": "1.0.0",
        "hook": {"path": program, "args": [HOOK_PROGRAM, "prestart"], "env": [f"PATH={':'.join(path)}"]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(hook, indent=2) + "\n").encode("utf-8")


def read_hook(content: bytes) -> t.Any:
    """Return the content of a hook's file, None if it is not JSON."""
    try:
        return json_data.load(content)
    except ValueError:
        return None


def is_nvidia_hook(content: bytes) -> bool:
    """Return whether a hook runs NVIDIA's program, wherever that is installed."""
    document = read_hook(content)
    hook = document.get("hook") if isinstance(document, dict) else None
    # Version 0.1.0 of the format has the path itself here.
    program = hook.get("path") if isinstance(hook, dict) else hook
    return isinstance(program, str) and posixpath.basename(program) in _HOOK_PROGRAMS


def nvidia_hooks(
    files: engines_base.Files, folders: t.Iterable[str] = HOOK_FOLDERS, planned: t.Iterable[core_plan.PlannedFile] = ()
) -> list[str]:
    """Return NVIDIA's hooks that an engine with the directories ``folders`` runs once ``planned`` is written.

    Files that cannot be read are left out.
    """
    later = {file.path: file.after for file in planned}
    paths = {path: files.resolve(path) for folder in folders for path in files.glob(f"{folder}/*.json")}
    found: dict[str, tuple[str, bytes]] = {}
    for path, real in paths.items():
        with contextlib.suppress(errors.HostError):
            content = later[real] if real in later else files.read(real)
            if content is not None:
                found[posixpath.basename(path)] = (path, content)
    return [path for path, content in found.values() if is_nvidia_hook(content)]


def plan_hook_removal(path: str, content: bytes) -> core_plan.PlannedFile:
    """Return the planned removal of a foreign hook. ``state: absent`` restores it."""
    return core_plan.PlannedFile(path, content, None, {REMOVED: True})


def restore_hook(record: core_records.OriginalFile, content: bytes | None) -> tuple[core_plan.PlannedFile, str]:
    """Return the planned file with its recorded original content, and a warning if another file is kept instead.

    ``content`` is the current content. The warning is empty if the file is restored. It is also empty if a hook that
    this collection wrote no longer exists; that file is not restored.
    """
    path, keys = record.path, record.keys or {}
    if REMOVED in keys:
        is_unchanged = content is None
        warning = f"{path}, which was removed, exists again and was kept. Its previous content is in the backups."
    else:
        is_unchanged = content is not None and is_nvidia_hook(content)
        warning = f"{path} was kept, because another program wrote it and it no longer runs NVIDIA's hook."
    after = record.original if is_unchanged else content
    is_kept = content is not None and after != record.original
    return core_plan.PlannedFile(path, content, after), warning if is_kept else ""


def is_hook_record(record: core_records.OriginalFile | None) -> bool:
    """Return whether the record is about a hook that was written or removed."""
    keys = {} if record is None else record.keys or {}
    return WRITTEN in keys or REMOVED in keys


def hook_records(files: engines_base.Files, paths: t.Iterable[str]) -> list[core_records.OriginalFile]:
    """Return the records of those files in ``paths`` that are hooks."""
    records = [files.record(path) for path in paths]
    return [record for record in records if record is not None and is_hook_record(record)]


# Drop-ins of NVIDIA's tool, in this order: for containerd by 1.18.0 only, which no file imports by default; for
# containerd by 1.18.1 and newer; for CRI-O by 1.18.0 to 1.19.0, in a directory that CRI-O never reads. 1.17.9 has none.
STRAY_CONTAINERD = "/etc/containerd/config.d/99-nvidia.toml"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
STRAY_CRIO = "/etc/crio/conf.d/99-nvidia.toml"
# A setting that the tool writes beside its runtimes.
_CDI: KeyPath = ("enable_cdi",)
# Settings that version 2 of containerd's file has in the table of the CRI plugin, and newer versions elsewhere
# (migrateConfig in plugins/cri/images/plugin.go and plugins/cri/runtime/plugin.go of 2.3.4).
_IMAGES: KeyPath = ("plugins", "io.containerd.cri.v1.images")
_MOVED: dict[KeyPath, KeyPath] = {
    ("sandbox_image",): (*_IMAGES, "pinned_images", "sandbox"),
    ("cni", "bin_dir"): (*containerd_config.CRI_TABLE[3], "cni", "bin_dirs"),
    ("containerd", "snapshotter"): (*_IMAGES, "snapshotter"),
    ("containerd", "disable_snapshot_annotations"): (*_IMAGES, "disable_snapshot_annotations"),
    ("containerd", "discard_unpacked_layers"): (*_IMAGES, "discard_unpacked_layers"),
}


class DropIn(t.NamedTuple):
    """The content of a drop-in of NVIDIA's tool.

    - ``runtimes``: the names of the runtimes in the drop-in.
    - ``copied``: the paths of other settings that other files have too.
    - ``drifted``: those copied settings whose value differs in the other files.
    - ``foreign``: other settings, which the tool does not write and no other file contains.
    """

    runtimes: tuple[str, ...]
    copied: tuple[KeyPath, ...] = ()
    drifted: tuple[KeyPath, ...] = ()
    foreign: tuple[KeyPath, ...] = ()

    def has_only_tool_entries(self, document: toml_document.TomlDocument) -> bool:
        """Return whether the file contains only what the tool wrote. The tool writes no comments."""
        return not self.foreign and "#" not in document.text


def containerd_drop_in(
    document: toml_document.TomlDocument, others: t.Sequence[toml_document.TomlDocument]
) -> DropIn | None:
    """Return the content of a drop-in for containerd, compared with ``others``, the one with precedence first.

    Returns None if the drop-in has no runtimes of NVIDIA's.
    """
    names: list[str] = []
    found: dict[str, list[KeyPath]] = {"copied": [], "drifted": [], "foreign": []}
    for path, value in toml_parser.iter_leaves(document.data):
        if path == ("version",):
            continue
        root = _cri_root(path)
        inner = path[len(root) :] if root is not None else ()
        owned = root is not None and _is_nvidia_setting(document, root, inner)
        if owned and inner[: len(containerd_config.RUNTIMES)] == containerd_config.RUNTIMES:
            names.append(inner[len(containerd_config.RUNTIMES)])
        if not owned:
            keys = _keys_in_other_files(path, inner)
            elsewhere = next((other.value(*key) for other in others for key in keys if other.has(*key)), None)
            found["foreign" if elsewhere is None else "copied"].append(path)
            if elsewhere not in (None, value, [value]):
                found["drifted"].append(path)
    if not names:
        return None
    return DropIn(tuple(dict.fromkeys(names)), *(tuple(found[kind]) for kind in ("copied", "drifted", "foreign")))


def short_name(path: KeyPath) -> str:
    """Return the dotted name of a setting, without the table of containerd's CRI plugin."""
    root = _cri_root(path) or ()
    return ".".join(path[len(root) :])


def _cri_root(path: KeyPath) -> KeyPath | None:
    """Return the table of containerd's CRI plugin that contains ``path``, None if none does."""
    return next((root for root in containerd_config.CRI_TABLE.values() if path[: len(root)] == root), None)


def _keys_in_other_files(path: KeyPath, inner: KeyPath) -> list[KeyPath]:
    """Return where another file may have the setting ``path`` of a drop-in, in any version of the format."""
    if not inner:
        return []
    return [
        path,
        *((*root, *inner) for root in containerd_config.CRI_TABLE.values()),
        _MOVED.get(inner, (*_IMAGES, *inner)),
    ]


def _is_nvidia_setting(document: toml_document.TomlDocument, root: KeyPath, inner: KeyPath) -> bool:
    """Return whether a setting of containerd's CRI plugin is one that the tool writes itself.

    ``root`` is the table of the plugin, and ``inner`` the path of the setting in it.
    """
    runtimes, depth = containerd_config.RUNTIMES, len(containerd_config.RUNTIMES)
    legacy = containerd_config.LEGACY_DEFAULT
    if inner[:depth] == runtimes and len(inner) > depth:
        entry = document.value(*root, *runtimes, inner[depth])
    elif inner == containerd_config.DEFAULT:
        entry = document.value(*root, *runtimes, str(document.value(*root, *inner)))
    elif inner[: len(legacy)] == legacy:
        entry = document.value(*root, *legacy)
    else:
        return inner == _CDI
    return engines_base.is_nvidia_program(containerd_options.program_of(entry))


def crio_drop_in(document: toml_document.TomlDocument) -> DropIn | None:
    """Return the content of a drop-in for CRI-O, None if it has no runtimes of NVIDIA's."""
    names: list[str] = []
    foreign: list[KeyPath] = []
    depth = len(crio_config.RUNTIMES)
    for path, value in toml_parser.iter_leaves(document.data):
        runtime = path[depth] if path[:depth] == crio_config.RUNTIMES and len(path) > depth else None
        program = document.value(
            *crio_config.RUNTIMES, str(value) if path == crio_config.DEFAULT else runtime or "", crio_config.PROGRAM
        )
        if not engines_base.is_nvidia_program(program):
            foreign.append(path)
        elif runtime is not None:
            names.append(runtime)
    return DropIn(tuple(dict.fromkeys(names)), foreign=tuple(foreign)) if names else None
