# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate planned containerd files with `containerd config dump`.

The dump prints the merged configuration of all files. This module compares the dumps before and after a change, in
which all entries of other tools must be equal. It does not run the commands.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

    KeyPath = t.Tuple[str, ...]


# Entries of the dump that describe the files themselves: the format version and the list of imports.
_ABOUT_FILES = ("version", "imports")


def validation_command(
    binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
) -> engines_base.ValidationCommand:
    """Return the validation command, which dumps copies of ``files`` and of all that they import.

    The command in ``compare`` dumps the present files. Raises NvidiaError if an imported file does not exist.
    """
    planned = containerd_config.ContainerdFiles.of(context, toml_plan.overlay_of(files))
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
        # Without a main file, containerd runs with its built-in defaults, but 1.x refuses to dump them.
        # A snapshot hides later changes of the other files. It belongs to this collection as a whole, so the planned
        # files are compared with the present files without it.
        copies, _paths = _copies(containerd_config.ContainerdFiles.of(context, stale), folder, "before")
        present = f"{folder}/{next(iter(copies))}"
        staged.update(copies)
    return engines_base.ValidationCommand(staged, argv, [binary, "--config", present, "config", "dump"], originals)


def _copies(
    files: containerd_config.ContainerdFiles, folder: str, prefix: str
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return copies of all files by name, the main file first, and the path that each copy represents."""
    names = [f"{prefix}{number}-{posixpath.basename(file.path)}" for number, file in enumerate(files.files)]
    # The copies keep the order, because a later file takes precedence. Nested imports come after those of the level
    # above.
    imports = [f"{folder}/{name}" for name in names[1:]]
    copies = {
        name: _with_imports(file.document, imports if name == names[0] else [])
        for name, file in zip(names, files.files)
    }
    return copies, {name: file.path for name, file in zip(names, files.files)}


def _with_imports(document: toml_document.TomlDocument, paths: list[str]) -> bytes:
    # The entry is deleted first, because an array that contains comments cannot be replaced as a whole.
    document = document.delete(("imports",))
    return (document.set(("imports",), paths) if paths else document).to_bytes()


def _held_back(file: core_plan.PlannedFile) -> bool:
    """Return whether the file is a snapshot of this collection, or a leftover file that is removed for good."""
    leftover = file.purged is not None and file.purged.original is None
    return leftover or (file.before is not None and file.before.startswith(containerd_plan.SNAPSHOT))


def compare_dumps(before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
    """Return the entries of other tools that would change; empty if none would, or if a dump cannot be parsed."""
    roots = set(containerd_config.CRI_TABLE.values())
    names = {name for root in roots for name in toml_plan.changed_tables(files, root + containerd_config.RUNTIMES)}
    if any(_held_back(file) for file in files):
        # The present files are compared without the snapshot, so the entries of this collection are missing there.
        names.update(path[4] for file in files for path in file.keys if path[2:4] == containerd_config.RUNTIMES)

    def is_ours(path: KeyPath) -> bool:
        inner = path[2:] if path[:2] in roots else ()
        ours = (
            inner in (containerd_config.DEFAULT, runtimes.CDI)
            or inner[:2] == containerd_config.LEGACY_DEFAULT
            or (inner[:2] == containerd_config.RUNTIMES and inner[2] in names)
        )
        return ours or path[0] in _ABOUT_FILES

    return toml_plan.compare_dumps(before, after, is_ours)
