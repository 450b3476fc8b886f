# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a changed configuration in containerd's own eyes.  `containerd config dump` prints what
# all files amount to; what is not ours must be in it after a change as it was before.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    CRI_TABLE,
    DEFAULT,
    RUNTIMES,
    ContainerdFiles,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import CDI
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import leaves

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, PlannedFile

    KeyPath = t.Tuple[str, ...]

# What no file says: how the format was read, and which files were.
_ABOUT_FILES = ("version", "imports")
_SHOWN = 3
_NOTHING = "nothing.toml"


def trial(binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
    """The dump of copies of ``files`` together with all that they import, and that of the files as they stand."""
    overlay = {
        file.path: None if file.after is None else TomlDocument.from_bytes(file.path, file.after) for file in files
    }
    planned = ContainerdFiles.of(context, overlay)
    if planned.missing:
        raise GpufleetError(
            f"{context.path}: imports names {', '.join(planned.missing)}, which is not there: containerd would not"
            " start. Remove the entry, or put the file there."
        )
    copies = {f"{number}{posixpath.basename(file.path)}": file for number, file in enumerate(planned.files)}
    names = {file.path: f"{folder}/{name}" for name, file in copies.items()}
    staged = {
        # In the same order, for a later file takes precedence; an import that an import names follows all of its kind.
        name: _with_imports(file.document, list(names.values())[1:] if file is planned.files[0] else [])
        for name, file in copies.items()
    }
    argv = [binary, "--config", next(iter(names.values())), "config", "dump"]
    present = context.path
    if context.content is None:
        # Where there is no file containerd runs on what is built in, but 1.x refuses to dump that.
        staged[_NOTHING] = b""
        present = f"{folder}/{_NOTHING}"
    originals = {name: file.path for name, file in copies.items()}
    return Trial(staged, argv, [binary, "--config", present, "config", "dump"], originals)


def _with_imports(document: TomlDocument, paths: list[str]) -> bytes:
    # Taken out first: an array that holds comments cannot be changed as a whole.
    document = document.delete(("imports",))
    return (document.set(("imports",), paths) if paths else document).to_bytes()


def verdict(before: str, after: str, files: t.Sequence[PlannedFile]) -> str:
    """What would change beside our entries; empty if nothing would, or if the dumps cannot be read."""
    try:
        old, new = (dict(leaves(TomlDocument.from_bytes("dump", text.encode()).data)) for text in (before, after))
    except ConfigurationError:
        return ""
    ours = _OurEntries(files)
    lost = sorted(
        ".".join(path)
        for path in {**old, **new}
        if path[0] not in _ABOUT_FILES and _differ(old.get(path), new.get(path)) and not ours.include(path)
    )
    if not lost:
        return ""
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return f"take {', '.join(lost[:_SHOWN])}{more} for something else than now, which is not ours to change"


def _differ(one: t.Any, other: t.Any) -> bool:
    """What is left out is as good as its zero value: containerd prints built-in entries in full, written ones not."""
    return one != other and not (one in _ZERO and other in _ZERO)


_ZERO: tuple[t.Any, ...] = (None, "", 0, False, [])


class _OurEntries:
    """The entries that a plan writes or takes away: the runtimes whose tables it changes."""

    def __init__(self, files: t.Sequence[PlannedFile]) -> None:
        self.names: set[str] = set()
        for file in files:
            before, after = (TomlDocument.from_bytes(file.path, text or b"") for text in (file.before, file.after))
            for root in set(CRI_TABLE.values()):
                old, new = (document.value(*root, *RUNTIMES) for document in (before, after))
                old, new = (table if isinstance(table, dict) else {} for table in (old, new))
                self.names.update(name for name in {**old, **new} if old.get(name) != new.get(name))

    def include(self, path: KeyPath) -> bool:
        inner = path[2:] if path[:2] in CRI_TABLE.values() else ()
        return inner in (DEFAULT, CDI) or (inner[:2] == RUNTIMES and inner[2] in self.names)
