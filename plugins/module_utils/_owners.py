# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: who else owns the files that it writes, or the toolkit, and what older tools have left,
# found by a few looks at files; nothing is run.

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import (
    _owners_containerd,
    _owners_engines,
    _owners_host,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._owners_look import Look, attempt

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import Described, Finding
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# A new one is a function in the room of its subject, and its name there.
LOOKS: tuple[t.Callable[[Look], t.Iterator[Finding]], ...] = (
    *_owners_containerd.LOOKS,
    *_owners_engines.LOOKS,
    *_owners_host.LOOKS,
)


def owners_of(host: HostRoot, described: Described | None = None) -> list[Finding]:
    """What there is of other owners; ``described`` is what else is known of the host, such as versions of engines.

    Raises MissingPackageError where nothing on this host can read TOML; nothing else is an error.
    """
    look = Look(host, described)
    return [finding for one in LOOKS for finding in attempt(functools.partial(_listed, one, look)) or ()]


def _listed(one: t.Callable[[Look], t.Iterator[Finding]], look: Look) -> list[Finding]:
    return list(one(look))
