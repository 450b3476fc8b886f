# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: how files are known that NVIDIA's own tools have written, earlier versions included, and
# what else is in them.  The layouts are those of nvidia-container-toolkit 1.8 to 1.20.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    CRI_TABLE,
    DEFAULT,
    LEGACY_DEFAULT,
    RUNTIMES,
    program_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import DEFAULT as CRIO_DEFAULT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import PROGRAM as CRIO_PROGRAM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import RUNTIMES as CRIO_RUNTIMES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import lookup
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import leaves

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument

    KeyPath = t.Tuple[str, ...]

# A runtime that came with 1.12 and went with 1.14.
EXPERIMENTAL = "nvidia-experimental"
# Where the tool of 1.18.0 put its drop-in for containerd, which nothing imports by itself; of 1.18.1 and newer; and of
# up to 1.19.0 for CRI-O, which never looks there.
STRAY_CONTAINERD = "/etc/containerd/config.d/99-nvidia.toml"
CONTAINERD_DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
STRAY_CRIO = "/etc/crio/conf.d/99-nvidia.toml"
# A setting that the tool makes beside its runtimes.
_CDI: KeyPath = ("enable_cdi",)
# Settings that version 2 of containerd's file has in the table of the CRI, and newer versions elsewhere (migrateConfig
# in plugins/cri/images/plugin.go and plugins/cri/runtime/plugin.go of 2.3.4).
_IMAGES: KeyPath = ("plugins", "io.containerd.cri.v1.images")
_MOVED: dict[KeyPath, KeyPath] = {
    ("sandbox_image",): (*_IMAGES, "pinned_images", "sandbox"),
    ("cni", "bin_dir"): (*CRI_TABLE[3], "cni", "bin_dirs"),
    ("containerd", "snapshotter"): (*_IMAGES, "snapshotter"),
    ("containerd", "disable_snapshot_annotations"): (*_IMAGES, "disable_snapshot_annotations"),
    ("containerd", "discard_unpacked_layers"): (*_IMAGES, "discard_unpacked_layers"),
}


class DropIn(t.NamedTuple):
    """What a drop-in of NVIDIA's tool holds beside its runtimes, by dotted names.

    ``copied`` are settings that the main file has too, ``drifted`` those of them that it has otherwise, ``foreign``
    what neither the tool nor the main file would put there.
    """

    runtimes: tuple[str, ...]
    copied: tuple[str, ...] = ()
    drifted: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    def is_alone(self, document: TomlDocument) -> bool:
        """Whether the file holds nothing of others; the tool writes no comments."""
        return not self.foreign and "#" not in document.text


def containerd_drop_in(document: TomlDocument, main: TomlDocument) -> DropIn | None:
    """What a drop-in for containerd holds, beside the main file ``main``; None without runtimes of NVIDIA's."""
    names: list[str] = []
    found: dict[str, list[str]] = {"copied": [], "drifted": [], "foreign": []}
    for path, value in leaves(document.data):
        root = next((root for root in CRI_TABLE.values() if path[: len(root)] == root), None)
        if path == ("version",):
            continue
        inner = path[len(root) :] if root is not None else ()
        owned = root is not None and _is_of_vendor(document, root, inner)
        if owned and inner[: len(RUNTIMES)] == RUNTIMES:
            names.append(inner[len(RUNTIMES)])
        if not owned:
            known = next((main.value(*place) for place in _places(path, inner) if main.has(*place)), None)
            found["foreign" if known is None else "copied"].append(".".join(inner or path))
            if known not in (None, value, [value]):
                found["drifted"].append(".".join(inner))
    if not names:
        return None
    return DropIn(tuple(dict.fromkeys(names)), *(tuple(found[kind]) for kind in ("copied", "drifted", "foreign")))


def _places(path: KeyPath, inner: KeyPath) -> list[KeyPath]:
    """Where the main file may have the setting ``path`` of a drop-in: it may be in another version of the format."""
    if not inner:
        return []
    return [path, *((*root, *inner) for root in CRI_TABLE.values()), _MOVED.get(inner, (*_IMAGES, *inner))]


def _is_of_vendor(document: TomlDocument, root: KeyPath, inner: KeyPath) -> bool:
    """Whether a setting of the CRI is one that the tool writes itself."""
    runtimes = document.value(*root, *RUNTIMES)
    depth = len(RUNTIMES)
    if inner[:depth] == RUNTIMES and len(inner) > depth:
        return is_nvidia_program(program_of(lookup(runtimes, (inner[depth],))))
    if inner == DEFAULT:
        return is_nvidia_program(program_of(lookup(runtimes, (str(document.value(*root, *DEFAULT)),))))
    if inner[: len(LEGACY_DEFAULT)] == LEGACY_DEFAULT:
        return is_nvidia_program(program_of(document.value(*root, *LEGACY_DEFAULT)))
    return inner == _CDI


def crio_drop_in(document: TomlDocument) -> DropIn | None:
    """The same of one for CRI-O."""
    names: list[str] = []
    foreign: list[str] = []
    depth = len(CRIO_RUNTIMES)
    for path, value in leaves(document.data):
        runtime = path[depth] if path[:depth] == CRIO_RUNTIMES and len(path) > depth else None
        program = document.value(*CRIO_RUNTIMES, str(value) if path == CRIO_DEFAULT else runtime or "", CRIO_PROGRAM)
        if not is_nvidia_program(program):
            foreign.append(".".join(path))
        elif runtime is not None:
            names.append(runtime)
    return DropIn(tuple(dict.fromkeys(names)), foreign=tuple(foreign)) if names else None
