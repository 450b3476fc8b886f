# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: values that hosts told, read with care.  A host may be strange, hostile, or of another
# version of this collection: what is missing or odd is nothing, never an error.

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

# Of findings, the worst first.
SEVERITIES = ("critical", "warning", "note")
# In characters; what is longer is a mistake, and would make every page as long.
_LONGEST = 2000
# Python refuses to write numbers with thousands of digits, and no version or count has that many.
_HIGHEST = 10**15
_BLANK = re.compile(r"[\t\n\r\x0b\x0c\x85\u2028\u2029 ]+")
# What is not seen but changes what is seen, in a terminal or on a page: control characters, directions of writing,
# characters without width, halves of characters, tags.
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)
_NUMBERS = re.compile(r"(\d+)")


class Finding(t.NamedTuple):
    """What is wrong with a host, and what to do about it."""

    severity: str
    id: str
    subject: str
    text: str
    advice: str


def table(value: object) -> Mapping[str, t.Any]:
    """``value`` if it is a dictionary, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Mapping[str, t.Any]]:
    """The dictionaries in a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, (list, tuple)) else []


def word(value: object) -> str | None:
    """A text, or a number as one; None for anything else, and for an empty one.  Much too long ones are cut."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _HIGHEST
    if not is_number and not isinstance(value, str):
        return None
    text = str(value).strip()
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") or None


def flag(value: object) -> bool | None:
    """True, False, or None for anything else."""
    return value if isinstance(value, bool) else None


def words(value: object) -> list[str]:
    """The texts in a list."""
    found = [word(item) for item in value] if isinstance(value, (list, tuple)) else []
    return [text for text in found if text is not None]


def findings(value: object) -> list[Finding]:
    """The findings of one host, the worst first, each once.

    One of a severity that nobody knows is a warning: it must not pass unseen.
    """
    found = [
        Finding(
            next((severity for severity in SEVERITIES if severity == row.get("severity")), "warning"),
            word(row.get("id")) or "unnamed",
            word(row.get("subject")) or "host",
            word(row.get("text")) or "It says nothing more.",
            word(row.get("advice")) or "",
        )
        for row in rows(value)
    ]
    return sorted(dict.fromkeys(found), key=lambda finding: SEVERITIES.index(finding.severity))


def shown(text: str) -> str:
    """A text on one line, as somebody sees it: what would be hidden, or hide something else, is spelled out."""
    return _HIDDEN.sub(_spelled, _BLANK.sub(" ", text))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort by: gpu-2 comes before gpu-10."""
    # More digits than any name or version has are no number: Python refuses to read thousands of them.
    return tuple(
        (0, int(part), "") if index % 2 and part.isascii() and len(part) < 19 else (1, 0, part.lower())
        for index, part in enumerate(_NUMBERS.split(text))
    )


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with its word, such as ``1 host`` and ``2 hosts``."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def _spelled(match: t.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
