# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare two dumps of a TOML configuration, from before and after a planned change."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

    KeyPath = t.Tuple[str, ...]


_SHOWN = 3
# A missing value equals its zero value: programs print all fields of built-in entries, but not of written ones.
_ZERO: tuple[t.Any, ...] = (None, "", 0, False, [])


def overlay_of(files: t.Sequence[core_plan.PlannedFile]) -> dict[str, toml_document.TomlDocument | None]:
    """Return the planned documents by path, None for a file that is removed."""
    return {
        file.path: None if file.after is None else toml_document.TomlDocument.from_bytes(file.path, file.after)
        for file in files
    }


def verdict(before: str, after: str, is_ours: t.Callable[[KeyPath], bool]) -> str:
    """Return what would change besides entries that ``is_ours`` accepts.

    Returns an empty string if nothing would change, or if a dump cannot be parsed.
    """
    try:
        old, new = (
            dict(toml_parser.iter_leaves(toml_document.TomlDocument.from_bytes("output", text.encode()).data))
            for text in (before, after)
        )
    except errors.ConfigurationError:
        return ""
    changed = sorted(path for path in {**old, **new} if _differ(old.get(path), new.get(path)) and not is_ours(path))
    if not changed:
        return ""
    shown = ", ".join(".".join(path) for path in changed[:_SHOWN])
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"take {shown}{more} for something else than now, which is not ours to change"


def changed_tables(files: t.Sequence[core_plan.PlannedFile], path: KeyPath) -> set[str]:
    """Return the names of the tables at ``path`` that a plan adds, changes or removes."""
    found: set[str] = set()
    for file in files:
        documents = (
            toml_document.TomlDocument.from_bytes(file.path, text or b"") for text in (file.before, file.after)
        )
        old, new = (document.value(*path) for document in documents)
        old, new = (table if isinstance(table, dict) else {} for table in (old, new))
        found.update(name for name in {**old, **new} if old.get(name) != new.get(name))
    return found


def _differ(one: t.Any, other: t.Any) -> bool:
    return one != other and not (one in _ZERO and other in _ZERO)
