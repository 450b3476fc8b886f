# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: secrets in TOML, hidden before a text reaches a log.  Not in _masking, so that engines
# without TOML are spared its reader.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._masking import (
    BYTE_ORDER_MARK,
    MASK,
    is_secret,
    mask_urls,
    mask_urls_in_string,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_reader import (
    parse,
    plain_string,
    scan,
    spelled_string,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_reader import KeyPath, Node

    Token = t.Tuple[int, int, str]

# An entry that somebody has commented out.
_COMMENTED_ENTRY = re.compile(r"(#)([^=#\n]+)(=[ \t]*)([^\r\n]+)")


def mask_toml(text: str) -> str:
    """``text`` with the values of secret-looking names and all user information in URLs hidden, in comments too.

    Names are judged with those of the tables around them, and strings by what they mean, not by how they are spelled.
    What is not TOML only has its URLs masked.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + mask_toml(text[1:])
    try:
        parse("", text)
        tokens = list(_tokens(text))
    except (GpufleetError, ValueError):
        return mask_urls(text)
    masked = ""
    here = 0
    for start, end, shown in tokens:
        masked += _masked_comments(text[here:start]) + shown
        here = end
    return masked + _masked_comments(text[here:])


def _tokens(text: str) -> t.Iterator[Token]:
    """Start, end and what may be shown of all names and values: between them are only signs, blanks, and comments."""
    for entry in scan(text):
        end = entry.end if entry.node is None else entry.node.start
        yield _names(text, entry.start, end, entry.path[-len(entry.raws) :], entry.raws)
        if entry.node is not None:
            yield from _value(text, entry.node, any(map(is_secret, entry.path)))


def _value(text: str, node: Node, secret: bool) -> t.Iterator[Token]:
    raw = text[node.start : node.end]
    if secret:
        yield node.start, node.end, spelled_string(MASK)
    elif node.kind in ("[", "{"):
        for member in node.members:
            if member.names:
                yield _names(text, member.start, member.node.start, member.names, member.raws)
            yield from _value(text, member.node, any(map(is_secret, member.names)))
    else:
        yield node.start, node.end, _string(raw, plain_string(raw)) if node.kind else raw


def _names(text: str, start: int, end: int, names: KeyPath, raws: tuple[str, ...]) -> Token:
    shown = text[start:end]
    for raw, name in zip(raws, names):
        shown = shown.replace(raw, _string(raw, name))
    return start, end, shown


def _string(raw: str, value: str) -> str:
    masked = mask_urls_in_string(value)
    return raw if masked == value else spelled_string(masked)


def _masked_comments(text: str) -> str:
    return mask_urls(_COMMENTED_ENTRY.sub(_masked_comment, text))


def _masked_comment(found: re.Match[str]) -> str:
    secret = any(map(is_secret, re.split(r"[.\"'\s]+", found.group(2))))
    return found.group(1) + found.group(2) + found.group(3) + (MASK if secret else found.group(4))
