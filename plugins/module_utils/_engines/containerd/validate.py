# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate planned containerd files with `containerd config dump`.

The dump lists what all files amount to. After a change, foreign entries must be in it as before.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

    KeyPath = t.Tuple[str, ...]


# What no file says: how the format was read, and which files were.
_ABOUT_FILES = ("version", "imports")


def trial(
    binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
) -> engines_base.Trial:
    """The dump of copies of ``files`` together with all that they import, and that of the files as they stand."""
    planned = containerd_config.ContainerdFiles.of(context, toml_validate.overlay_of(files))
    if planned.missing:
        raise errors.NvidiaError(
            f"{context.path}: imports names {', '.join(planned.missing)}, which is not there: containerd would not"
            " start. Remove the entry, or put the file there."
        )
    staged, originals = _copies(planned, folder, "after")
    argv = [binary, "--config", f"{folder}/{next(iter(staged))}", "config", "dump"]
    present = context.path
    stale: dict[str, toml_document.TomlDocument | None] = {
        file.path: None for file in files if _held_back(file) and file.path != context.path
    }
    if context.content is None or stale:
        # Where there is no file containerd runs on what is built in, but 1.x refuses to dump that.  And a snapshot
        # holds back what others have changed since; it is all ours, so what stands now is what stands without it.
        copies, _paths = _copies(containerd_config.ContainerdFiles.of(context, stale), folder, "before")
        present = f"{folder}/{next(iter(copies))}"
        staged.update(copies)
    return engines_base.Trial(staged, argv, [binary, "--config", present, "config", "dump"], originals)


def _copies(
    files: containerd_config.ContainerdFiles, folder: str, prefix: str
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Copies of all files by name, the main one first, and the paths that they stand for."""
    names = [f"{prefix}{number}-{posixpath.basename(file.path)}" for number, file in enumerate(files.files)]
    # In the same order, for a later file takes precedence; an import that an import names follows all of its kind.
    imports = [f"{folder}/{name}" for name in names[1:]]
    copies = {
        name: _with_imports(file.document, imports if name == names[0] else [])
        for name, file in zip(names, files.files)
    }
    return copies, {name: file.path for name, file in zip(names, files.files)}


def _with_imports(document: toml_document.TomlDocument, paths: list[str]) -> bytes:
    # Taken out first: an array that holds comments cannot be changed as a whole.
    document = document.delete(("imports",))
    return (document.set(("imports",), paths) if paths else document).to_bytes()


def _held_back(file: core_plan.PlannedFile) -> bool:
    """Whether the file, which holds a copy of settings as they were once, is ours, or goes for good."""
    leftover = file.purged is not None and file.purged.original is None
    return leftover or (file.before is not None and file.before.startswith(containerd_plan.SNAPSHOT))


def verdict(before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
    """What would change beside our entries; empty if nothing would, or if the dumps cannot be read."""
    roots = set(containerd_config.CRI_TABLE.values())
    names = {name for root in roots for name in toml_validate.changed_tables(files, root + containerd_config.RUNTIMES)}
    if any(_held_back(file) for file in files):
        # Compared is with what stands without the snapshot, in which ours are not.
        names.update(path[4] for file in files for path in file.keys if path[2:4] == containerd_config.RUNTIMES)

    def is_ours(path: KeyPath) -> bool:
        inner = path[2:] if path[:2] in roots else ()
        ours = (
            inner in (containerd_config.DEFAULT, runtimes.CDI)
            or inner[:2] == containerd_config.LEGACY_DEFAULT
            or (inner[:2] == containerd_config.RUNTIMES and inner[2] in names)
        )
        return ours or path[0] in _ABOUT_FILES

    return toml_validate.verdict(before, after, is_ours)
