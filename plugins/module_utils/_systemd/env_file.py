# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and write files of EnvironmentFile= with systemd's own rules, which are not those of unit files or of a shell.

The rules are those of parse_env_file_internal() in src/basic/env-file.c (240 to 258), compared with units on systemd
252 and 257.
"""

from __future__ import annotations

import re

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

_BLANKS = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"[^\r\n]*")
_OLD_COMMENT = re.compile(r"(?:[^\\\r\n]|\\.)*", re.DOTALL)
_CONTINUED_COMMENT = re.compile(r"^[ \t]*[#;].*\\\r?$", re.MULTILINE)
# The first character may be any, even the sign.
_KEY = re.compile(r"[^\r\n][^=\r\n]*")
# The part of a value before the next quotation mark, and between quotation marks. A value without them at its beginning
# extends to the end of the line.
_INDENT = re.compile(r"[ \t]*")
_SINGLE = re.compile(r"[^']*")
_DOUBLE = re.compile(r'(?:[^"\\]|\\.)*\\?', re.DOTALL)
_PLAIN_RUN = re.compile(r"[^\\\r\n]*")
# Between double quotation marks, a backslash before one of these characters is removed, and an escaped end of line too.
_ESCAPED = re.compile(r"\\([\"\\`$])|\\\n|\\\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def read(path: str, text: str) -> dict[str, str]:
    """Return the variables that the file ``path`` with the content ``text`` sets.

    Raises HostError if that depends on the release of systemd: 253 and older take the line after a comment that ends
    with a backslash for a part of the comment, 254 and newer do not (src/basic/env-file.c).
    """
    found = parse(text)
    continued = _CONTINUED_COMMENT.search(text)
    if continued is not None and parse(text, joins_comments=True) != found:
        line, _column = core_text.position(text, continued.start())
        raise errors.with_advice(
            errors.HostError,
            f"{path}, line {line}: this comment ends with a backslash, so it includes the next line before systemd 254,"
            " and not since then.",
            "Remove the backslash.",
        )
    return found


def parse(text: str, joins_comments: bool = False) -> dict[str, str]:
    """Return the variables in ``text``. ``joins_comments``: a backslash continues a comment on the next line."""
    variables: dict[str, str] = {}
    position = _end(_BLANKS, text, 0)
    while position < len(text):
        if text[position] in "#;":
            position = _end(_OLD_COMMENT if joins_comments else _COMMENT, text, position)
        else:
            end = _end(_KEY, text, position)
            name = text[position:end].rstrip(" \t")
            position = end
            if text[end : end + 1] == "=":
                value, position = _value(text, end + 1)
                if _NAME.match(name):
                    variables[name] = value
        position = _end(_BLANKS, text, position)
    return variables


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _value(text: str, position: int) -> tuple[str, int]:
    """Return the value that begins at ``position``, and the position after it."""
    pieces: list[str] = []
    while True:
        position = _end(_INDENT, text, position)
        mark = text[position : position + 1]
        if mark not in ("'", '"') or not mark:
            rest, position = _unquoted(text, position)
            return "".join([*pieces, rest]), position
        end = _end(_SINGLE if mark == "'" else _DOUBLE, text, position + 1)
        quoted = text[position + 1 : end]
        pieces.append(quoted if mark == "'" else _ESCAPED.sub(_unescaped, quoted))
        position = end + 1


def _unescaped(match: re.Match[str]) -> str:
    return match.group(1) or ""


def _unquoted(text: str, position: int) -> tuple[str, int]:
    """Return the rest of a value up to the end of its line, in which quotation marks have no meaning."""
    pieces: list[str] = []
    while True:
        end = _end(_PLAIN_RUN, text, position)
        run = text[position:end]
        if text[end : end + 1] != "\\":
            # Blanks at the end of a line are removed, but not those before an escaped character.
            return "".join([*pieces, run.rstrip(" \t")]), end
        escaped = text[end + 1 : end + 2]
        pieces += [run, "" if escaped in ("\r", "\n") else escaped]
        position = end + 2
