# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Format names, lists and versions for messages."""

from __future__ import annotations

import json
import re
import typing as t

# Maximum number of names that a message lists.
_NAMED = 5


def listed(names: t.Sequence[str]) -> str:
    """Return ``names`` for a message, only the first ones if there are many."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# Maximum number of characters of a quoted text in a message.
_SHOWN = 60


def quoted(text: str) -> str:
    """Return ``text`` for a message: in one line, in ASCII, and cut if it is long."""
    return json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return the leading dotted number in ``text`` (20, 10 and 24 for ``20.10.24+dfsg1``); None if there is none."""
    match = re.match(r"\s*v?([0-9]{1,9}(?:\.[0-9]{1,9})*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def dotted(version: t.Sequence[int]) -> str:
    """Return a version in dotted form: 20.10.24 for 20, 10 and 24."""
    return ".".join(map(str, version))
