# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make texts of a host harmless for a terminal and for a page: no control characters, and no invisible ones.

Only the controller imports this file.
"""

from __future__ import annotations

import re
import typing as t

_BLANK = re.compile(r"[\t\n\r\x0b\x0c\x85\u2028\u2029 ]+")
# Characters that are invisible or change what a terminal or page shows: control characters (C0, DEL, C1), separators
# of lines, writing directions, characters without width, surrogates, tags. All of them make str.isprintable() false.
_HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e007f"
)
_IN_LINE = re.compile(f"[{_HIDDEN}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_HIDDEN}]")


def line(text: str) -> str:
    """Return a text on one line, with escapes such as ``\\x1b`` for characters that are invisible or hide others."""
    return text if text.isprintable() and "  " not in text else _IN_LINE.sub(_escape, _BLANK.sub(" ", text))


def lines(text: str) -> str:
    """Return a text with escapes as line() does, but with its own line breaks, tabs and spaces."""
    return text if text.isprintable() else _IN_LINES.sub(_escape, text)


def is_plain(text: str) -> bool:
    """Return whether a text has no character for which line() and lines() write an escape, and is on one line."""
    return text.isprintable() or not _IN_LINE.search(text)


def _escape(match: t.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
