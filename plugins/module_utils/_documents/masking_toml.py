# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hide secrets in TOML.

This is a separate file, so that tasks for JSON files do not import a TOML parser.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking, toml_parser

if t.TYPE_CHECKING:
    Token = t.Tuple[int, int, str]


# An entry that is commented out.
_COMMENTED_ENTRY = re.compile(r"(#)([^=#\n]+)(=[ \t]*)([^\r\n]+)")


def mask_toml(text: str) -> str:
    """Return ``text`` with the values of secret-looking names and user information in URLs hidden, in comments too.

    The names of the surrounding tables are checked, too. The parsed strings are checked, not their spelling.
    mask_urls() masks a text that is not TOML.
    """
    if text.startswith(masking.BYTE_ORDER_MARK):
        return masking.BYTE_ORDER_MARK + mask_toml(text[1:])
    try:
        toml_parser.parse("", text)
        tokens = list(_tokens(text))
    except (errors.NvidiaError, ValueError):
        return masking.mask_urls(text)
    masked = ""
    here = 0
    for start, end, shown in tokens:
        masked += _masked_comments(text[here:start]) + shown
        here = end
    return masked + _masked_comments(text[here:])


def _tokens(text: str) -> t.Iterator[Token]:
    """Yield start, end and masked text of all names and values.

    Between them are only punctuation, blanks and comments.
    """
    for entry in toml_parser.scan(text):
        end = entry.end if entry.node is None else entry.node.start
        yield _names(text, entry.start, end, entry.path[-len(entry.raws) :], entry.raws)
        if entry.node is not None:
            yield from _value(text, entry.node, any(map(masking.is_secret, entry.path)))


def _value(text: str, node: toml_parser.Node, secret: bool) -> t.Iterator[Token]:
    raw = text[node.start : node.end]
    if secret:
        yield node.start, node.end, toml_parser.quote_string(masking.MASK)
    elif node.kind in ("[", "{"):
        for member in node.members:
            if member.names:
                yield _names(text, member.start, member.node.start, member.names, member.raws)
            yield from _value(text, member.node, any(map(masking.is_secret, member.names)))
    else:
        yield node.start, node.end, _string(raw, toml_parser.plain_string(raw)) if node.kind else raw


def _names(text: str, start: int, end: int, names: toml_parser.KeyPath, raws: tuple[str, ...]) -> Token:
    shown = text[start:end]
    for raw, name in zip(raws, names):
        shown = shown.replace(raw, _string(raw, name))
    return start, end, shown


def _string(raw: str, value: str) -> str:
    masked = masking.mask_urls_in_string(value)
    return raw if masked == value else toml_parser.quote_string(masked)


def _masked_comments(text: str) -> str:
    return masking.mask_urls(_COMMENTED_ENTRY.sub(_masked_comment, text))


def _masked_comment(found: re.Match[str]) -> str:
    secret = any(map(masking.is_secret, re.split(r"[.\"'\s]+", found.group(2))))
    return found.group(1) + found.group(2) + found.group(3) + (masking.MASK if secret else found.group(4))
