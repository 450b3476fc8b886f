# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the text of a CDI specification, before anything is made of it.

from __future__ import annotations

import re

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError

# A specification of 56 MIG devices has 100 kB.
MOST_BYTES = 4 << 20
# No field of a specification lies deeper than eight levels.
MOST_LEVELS = 32

ADVICE = "Correct the file, or remove it if nobody needs it."
TOO_DEEP = f"lists and mappings lie in each other more than {MOST_LEVELS} levels deep"

# What YAML does not allow, in ASCII and Latin 1, and beyond.  One expression for all would take long to compile.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
# The first, a byte order mark in between, is a blank to some readers, and a part of the text to others.
_BEYOND = "\ufeff\ufffe\uffff"
_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
# A backslash and what follows: the library knows no escaped slash, which JSON has, and no halves of characters.
_ESCAPE = re.compile(r"\\(?:(/|u[dD][89a-fA-F])|.)", re.DOTALL)


def decoded(path: str, content: bytes) -> str:
    """The text of a file without its byte order mark.  Raises ConfigurationError."""
    if len(content) > MOST_BYTES:
        problem = f"the file is larger than {MOST_BYTES >> 20} MiB, which no CDI specification has to be"
        raise ConfigurationError(path, problem, ADVICE)
    encoding = "utf-8"
    for mark, with_mark in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            content, encoding = content[len(mark) :], with_mark
            break
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8" else "UTF-16"
        raise error_at(path, f"a byte that is not {name}", content[: error.start].decode(encoding)) from error
    control = _CONTROL.search(text)
    places = [text.find(character) for character in _BEYOND] + ([control.start()] if control is not None else [])
    first = min((place for place in places if place >= 0), default=None)
    if first is not None:
        raise error_at(path, f"the character U+{ord(text[first]):04X}, which is not allowed there", text[:first])
    return text


def check_escapes(path: str, text: str, start: int = 0, end: int | None = None) -> None:
    """Raises ConfigurationError for an escape between ``start`` and ``end``, in quotes, that the library refuses."""
    for found in _ESCAPE.finditer(text, start, len(text) if end is None else end):
        if found.group(1):
            what = found.group() if found.group(1) == "/" else "of half a character"
            raise error_at(path, f"the escape {what}, which engines refuse", text[: found.start()])


def error_at(path: str, problem: str, before: str) -> ConfigurationError:
    """The error about what stands behind ``before``."""
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return ConfigurationError(path, problem, ADVICE, line, column)
