# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what took time to find out about a running host and holds as long as its files stay the
# same: versions of engines' programs, and what stands in specifications that others wrote.  It lasts until the next
# boot, and nothing depends on it.

from __future__ import annotations

import contextlib
import json
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# Not on a disk: nothing is written to one by a run that has nothing to do.
PLACE = "/run/gpufleet-nvidia/cdi.json"
# Bytes.  A specification has up to 100,000, and a host two or three.
_MOST = 1 << 20


class Memory(t.NamedTuple):
    """``programs`` as engines_for() has them; ``documents`` are parsed data by the SHA-256 of the files' contents."""

    programs: t.Mapping[str, t.Any]
    documents: t.Mapping[str, t.Any]


def recalled(host: HostRoot) -> Memory:
    """What is remembered, be it nothing."""
    with contextlib.suppress(HostError, AttributeError, TypeError, ValueError):
        fields = load(host.read(PLACE) or b"{}") if host.live else {}
        return Memory(dict(fields.get("programs", {})), dict(fields.get("documents", {})))
    return Memory({}, {})


def remember(host: HostRoot, memory: Memory) -> None:
    """Keep it, for this user's eyes only, where that is possible."""
    if not host.live:
        return
    content = json.dumps(memory._asdict()).encode() + b"\n"
    if len(content) > _MOST:
        return
    # A host of which nothing new was learnt need not wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (  # noqa: PLC0415
        make_directories,
        replace_file,
    )

    with contextlib.suppress(HostError):
        make_directories(host, os.path.dirname(PLACE), 0o700)
        replace_file(host, PLACE, content, 0o600)
