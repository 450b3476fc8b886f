# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read values from the answers of hosts.

Private to this collection. A host may be hostile, or use another version of this collection. A missing or wrong value
is treated as unknown and never raises an error.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

# The severities of findings, the highest first.
SEVERITIES = ("critical", "warning", "info")
# The limit in characters. A longer text is a mistake, and would make every page very long.
_LONGEST = 2000
# Python refuses to write numbers with thousands of digits, and no version or count has that many.
_HIGHEST = 10**15
_BLANK = re.compile(r"[\t\n\r\x0b\x0c\x85\u2028\u2029 ]+")
# Invisible characters that change what a terminal or page shows: control characters, writing directions, characters
# without width, surrogates, tags.
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)
_NUMBERS = re.compile(r"(\d+)")


class Finding(t.NamedTuple):
    """A fault of a host, and the advice for it."""

    severity: str
    id: str
    subject: str
    text: str
    advice: str


def table(value: object) -> Mapping[str, t.Any]:
    """Return ``value`` if it is a dictionary; otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Mapping[str, t.Any]]:
    """Return the dictionaries in a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, (list, tuple)) else []


def word(value: object) -> str | None:
    """Return a text, or a number as a text; None for anything else and for an empty text. Long texts are cut."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _HIGHEST
    if not is_number and not isinstance(value, str):
        return None
    text = str(value).strip()
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") or None


def flag(value: object) -> bool | None:
    """Return True or False; None for anything else."""
    return value if isinstance(value, bool) else None


def words(value: object) -> list[str]:
    """Return the texts in a list."""
    found = [word(item) for item in value] if isinstance(value, (list, tuple)) else []
    return [text for text in found if text is not None]


def findings(value: object) -> list[Finding]:
    """Return the findings of one host without duplicates, sorted by severity.

    A finding of an unknown severity becomes a warning, so that it is not missed.
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
    """Return a text on one line, with escapes for characters that are invisible or hide others."""
    return _HIDDEN.sub(_spelled, _BLANK.sub(" ", text))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key with which gpu-2 comes before gpu-10."""
    # A part with more digits is not a number of a name or version, and Python refuses to read thousands of digits.
    return tuple(
        (0, int(part), "") if index % 2 and part.isascii() and len(part) < 19 else (1, 0, part.lower())
        for index, part in enumerate(_NUMBERS.split(text))
    )


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun, such as ``1 host`` and ``2 hosts``."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def _spelled(match: t.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
