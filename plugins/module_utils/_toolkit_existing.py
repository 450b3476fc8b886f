# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: whether a toolkit that somebody else installed will do.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import (
    differences,
    one_version,
    upstream,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_versions import LATEST, is_version

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import Program


def problem_of(
    packages: t.Mapping[str, str], programs: t.Mapping[str, Program], asked: str | None, policy: str
) -> str | None:
    """Why what is there will not do, None if it will; ``packages`` are full versions by name.

    ``asked`` is the version to have, ``policy`` what is done about one that is too old.
    """
    if not packages and not programs:
        return "source is existing, but nothing of the NVIDIA Container Toolkit is on this host. Install it first."
    missing = differences(packages, programs)
    if missing:
        return f"source is existing, but the toolkit that is there is not of one piece: {' '.join(missing)}"
    version = one_version(packages, programs)
    wanted = None if asked == LATEST else asked
    if version is None or upstream(version) is None:
        if wanted is None and policy != "fail":
            return None
        return (
            "source is existing, and the version of the toolkit that is there cannot be told: its programs do not say"
            " it, or cannot be asked in an offline tree. Leave version out and set minimum_version_policy: warn, or"
            " look at the host while it runs."
        )
    if wanted is not None and not _is_asked(version, set(packages.values()), wanted):
        there = version if wanted == upstream(wanted) else ", ".join(sorted(set(packages.values()))) or version
        return f"source is existing, and the toolkit that is there is {there}, not {wanted}. Change one of the two."
    return None


def _is_asked(version: str, full: t.Collection[str], wanted: str) -> bool:
    if version != upstream(wanted):
        return False
    # Only packages have a revision.
    return wanted == version or all(is_version(each, wanted) for each in full)
