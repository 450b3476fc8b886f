# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decode texts, find positions in them, parse versions, and format names and lists for messages.

Nothing here depends on the syntax of a file.
"""

from __future__ import annotations

import codecs
import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

# Maximum number of names that a message lists, and of characters of a text that it quotes.
_MAX_LISTED = 5
_MAX_QUOTED = 60
# The texts that strconv.ParseBool of Go reads as true.
GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")


def is_unicode(text: str) -> bool:
    """Return whether a text can be written in UTF-8, so has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(names: t.Sequence[str]) -> str:
    """Return ``names``, which are not sentences, for a message, only the first ones if there are many."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def joined(sentences: t.Sequence[str]) -> str:
    """Return messages that are sentences as one message, only the first ones if there are many."""
    more = [f"There are {len(sentences) - _MAX_LISTED} more."] if len(sentences) > _MAX_LISTED else []
    return " ".join([*sentences[:_MAX_LISTED], *more])


def quoted(text: str) -> str:
    """Return ``text`` for a message: in one line, in ASCII, and cut if it is long."""
    return json.dumps(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "...")


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return the leading dotted number in ``text`` (20, 10 and 24 for ``20.10.24+dfsg1``); None if there is none."""
    match = re.match(r"\s*v?([0-9]{1,9}(?:\.[0-9]{1,9})*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def dotted(version: t.Sequence[int]) -> str:
    """Return a version in dotted form: 20.10.24 for 20, 10 and 24."""
    return ".".join(map(str, version))


def decode(path: str, content: bytes, syntax: str, limit: int) -> tuple[str, bool]:
    """Return the text of a file, and whether it begins with a byte order mark.

    ``syntax`` is the name of the format for messages. ``limit`` is the largest size in bytes. Raises ConfigurationError
    if the content is not UTF-8 or is larger than ``limit``.
    """
    if len(content) > limit:
        problem = f"the file is larger than {limit >> 20} MiB, the limit for {syntax}"
        raise errors.ConfigurationError(path, problem, "Remove the entries that you do not need.")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise errors.ConfigurationError(path, "the file is in UTF-16", "Save it as UTF-8.")
    bom = content.startswith(codecs.BOM_UTF8)
    body = content[len(codecs.BOM_UTF8) :] if bom else content
    try:
        return body.decode("utf-8"), bom
    except UnicodeDecodeError as error:
        before = body[: error.start].decode("utf-8")
        line, column = position(before, len(before))
        raise errors.ConfigurationError(path, "invalid UTF-8", "Save the file as UTF-8.", line, column) from error


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column, both from 1, of a character offset."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def nest(path: t.Sequence[str], value: t.Any) -> t.Any:
    """Return ``value`` inside nested tables with the names of ``path``."""
    for name in reversed(path):
        value = {name: value}
    return value
