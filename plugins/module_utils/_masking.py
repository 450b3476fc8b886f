# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: secrets in configuration files, hidden before a text reaches a log.

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_parser import JsonSyntaxError, Node, parse

MASK = "********"

_SECRET_NAME = re.compile(
    r"auth\Z|auths\Z|passw(or)?d|passphrase|token|secret|credentials?\Z|api[-_]?key|access[-_]?key|private[-_]?key",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^\s/\"?#]+(?=@)")
# Inside a string that has been read, a quote is a character like any other.
_USERINFO_IN_STRING = re.compile(r"(?<=://)[^\s/?#]+(?=@)")
_BYTE_ORDER_MARK = "\ufeff"


def mask_urls(text: str) -> str:
    """``text`` with what stands before the @ of each URL hidden."""
    return _USERINFO.sub(MASK, text)


def mask_json(text: str) -> str:
    """``text`` with the values of secret-looking names and all user information in URLs hidden.

    Strings are judged by what they mean, not by how they are spelled: JSON may write / and @ as escapes.
    """
    if text.startswith(_BYTE_ORDER_MARK):
        return _BYTE_ORDER_MARK + mask_json(text[1:])
    try:
        root = parse(text)
    except JsonSyntaxError:
        return mask_urls(text)
    for start, end, masked in reversed(list(_masked(root)) if root is not None else []):
        text = text[:start] + json.dumps(masked, ensure_ascii=False) + text[end:]
    return text


def _masked(node: Node) -> t.Iterator[tuple[int, int, str]]:
    """Start, end and replacement of each value that must not be shown, in the order of the text."""
    for member in node.members or ():
        yield from _masked_string(member.start, member.name_end, member.name)
        if _SECRET_NAME.search(member.name):
            yield member.node.start, member.node.end, MASK
        else:
            yield from _masked(member.node)
    for item in node.items or ():
        yield from _masked(item)
    if isinstance(node.value, str):
        yield from _masked_string(node.start, node.end, node.value)


def _masked_string(start: int, end: int, value: str) -> t.Iterator[tuple[int, int, str]]:
    masked = _USERINFO_IN_STRING.sub(MASK, value)
    if masked != value:
        yield start, end, masked
