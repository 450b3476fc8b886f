# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Format names, lists and versions for messages."""

from __future__ import annotations

import json
import re
import typing as t

# Names that a message lists, of many.
_NAMED = 5


def few(names: t.Sequence[str]) -> str:
    """``names`` for a message, the first of them if there are many."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# Longer texts are cut where a message shows them.
_SHOWN = 60


def quoted(text: str) -> str:
    """``text`` for a message: in one line, in ASCII, and not too long."""
    return json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def parse_version(text: str) -> tuple[int, ...] | None:
    """The leading dotted number in ``text`` (``20.10.24+dfsg1`` is 20.10.24), None where there is none."""
    match = re.match(r"\s*v?([0-9]{1,9}(?:\.[0-9]{1,9})*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None
