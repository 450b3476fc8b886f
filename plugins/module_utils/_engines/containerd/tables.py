# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two tables of CRI settings that a file of version 2 can have, and which of them gets a new entry.

containerd 2.x also reads the name of version 3 in such a file, as AKS writes it. It moves the settings of the older
table to the newer one before it uses them. The rules were read in the source of the named releases.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]
    Version = t.Tuple[int, ...]


OLDER: KeyPath = ("plugins", "io.containerd.grpc.v1.cri")
NEWER: KeyPath = ("plugins", "io.containerd.cri.v1.runtime")
# Relative to the CRI settings.
RUNTIMES: KeyPath = ("containerd", "runtimes")
# What this collection reads in the CRI settings.
_USED: tuple[KeyPath, ...] = (RUNTIMES, ("containerd", "default_runtime_name"), ("enable_cdi",), ("cdi_spec_dirs",))

# The first release that reads the newer name in a file of version 2 is 2.0.0, the last that does not is 1.7.34
# (plugins/cri/runtime/plugin.go; 1.x has no plugin of this name).
READS_NEWER_SINCE: Version = (2,)
# From 2.0.2 on, keys of the newer table stay, and the older one adds only missing keys (migrateConfig in
# plugins/cri/runtime/plugin.go). 2.0.1 is the last release in which the older table replaces the whole newer one.
KEEPS_NEWER_SINCE: Version = (2, 0, 2)
# From 2.0.0 on, the image store gets these settings from the older table only if that has the table runtimes
# (migrateConfig in plugins/cri/images/plugin.go). 1.7.34 is the last release that uses them on their own.
IMAGE_SETTINGS = ("snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers")

# What a file has, for one entry: the entry in the newer table; settings of the image store that would get effect with
# this entry in the older table; the newer table alone; anything.
IN_NEWER, IMAGES, NEWER_ALONE, ANY = "entry in newer", "image settings in older", "newer alone", "any"


class TableRow(t.NamedTuple):
    """The table that gets an entry from the release ``since`` on, if a file has ``found``."""

    since: Version
    found: str
    table: KeyPath


# The first row that matches counts.
ROWS = (
    TableRow(KEEPS_NEWER_SINCE, IN_NEWER, NEWER),
    TableRow(KEEPS_NEWER_SINCE, IMAGES, NEWER),
    TableRow(READS_NEWER_SINCE, NEWER_ALONE, NEWER),
    TableRow((1,), ANY, OLDER),
)


def table_of(entry: KeyPath, release: Version | None, newer: t.Any, older: t.Any) -> KeyPath:
    """Return the table in which a new value of ``entry`` has effect.

    ``newer`` and ``older`` are the present tables, None for a missing one. An unknown release (None) reads the newer
    name if a file has it.
    """
    if release is None:
        release = (1,) if newer is None else KEEPS_NEWER_SINCE
    found = (_found(entry, newer, older), ANY)
    return next(row.table for row in ROWS if row.since <= release and row.found in found)


def _found(entry: KeyPath, newer: t.Any, older: t.Any) -> str:
    if newer is not None and older is None:
        return NEWER_ALONE
    if toml_plan.lookup(newer, entry) is not None:
        return IN_NEWER
    return IMAGES if entry == RUNTIMES and ignored_image_settings(older) else ANY


def ignored_image_settings(older: t.Any) -> list[str]:
    """Return the settings in the older table that containerd 2.x would use only beside a table ``runtimes``."""
    if toml_plan.lookup(older, RUNTIMES) is not None:
        return []
    table = toml_plan.lookup(older, RUNTIMES[:1])
    return [name for name in IMAGE_SETTINGS if toml_plan.lookup(table, (name,)) is not None]


def conflict(newer: t.Any, older: t.Any) -> KeyPath | None:
    """Return a used key that both tables define differently, None if there is none."""
    for path, value in toml_parser.iter_leaves(newer or {}):
        other = toml_plan.lookup(older, path)
        is_used = any(path[: len(used)] == used for used in _USED)
        if is_used and other is not None and not toml_parser.equal(value, other):
            return path
    return None
