# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: values as TOML has them, once they are read.

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


def same(one: t.Any, other: t.Any) -> bool:
    """Equal in type too: true is not 1, and 1 is not 1.0."""
    if one.__class__ is not other.__class__:
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(entry, other[name]) for name, entry in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


def leaves(table: t.Mapping[str, t.Any], path: KeyPath = ()) -> t.Iterator[tuple[KeyPath, t.Any]]:
    """Every entry that is no table, with its path."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value
