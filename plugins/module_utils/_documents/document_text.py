# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decode the bytes of JSON and TOML documents, and convert offsets to lines and columns.

This file contains nothing of either syntax.
"""

from __future__ import annotations

import codecs
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors


def decode(path: str, content: bytes, syntax: str, limit: int) -> tuple[str, bool]:
    """Return the text of a file, and whether it begins with a byte order mark.

    ``syntax`` is the name of the format for messages. ``limit`` is the largest size in bytes. Raises ConfigurationError
    if the content is not UTF-8 or is larger than ``limit``.
    """
    if len(content) > limit:
        problem = f"the file is larger than {limit >> 20} MiB, the limit for {syntax}"
        raise errors.ConfigurationError(path, problem, "Remove what is not needed.")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise errors.ConfigurationError(path, "the file is in UTF-16", "Save it as UTF-8.")
    bom = content.startswith(codecs.BOM_UTF8)
    body = content[len(codecs.BOM_UTF8) :] if bom else content
    try:
        return body.decode("utf-8"), bom
    except UnicodeDecodeError as error:
        before = body[: error.start].decode("utf-8")
        line, column = position(before, len(before))
        raise errors.ConfigurationError(
            path, "a byte that is not UTF-8", "Save the file as UTF-8.", line, column
        ) from error


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column, both from 1, of a character offset."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def nest(path: t.Sequence[str], value: t.Any) -> t.Any:
    """Return ``value`` inside nested tables with the names of ``path``."""
    for name in reversed(path):
        value = {name: value}
    return value
