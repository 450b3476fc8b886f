# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: secrets in configuration files, hidden before a text reaches a log.

from __future__ import annotations

import re

from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_parser import JsonSyntaxError, Node, parse

MASK = "********"

_SECRET_NAME = re.compile(
    r"auth\Z|auths\Z|passw(or)?d|passphrase|token|secret|credentials?\Z|api[-_]?key|access[-_]?key|private[-_]?key",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)[^\s/\"'?#]+(?=@)")


def mask_urls(text: str) -> str:
    """``text`` with what stands before the @ of each URL hidden."""
    return _USERINFO.sub(MASK, text)


def mask_json(text: str) -> str:
    """``text`` with the values of secret-looking names and all user information in URLs hidden."""
    try:
        root = parse(text)
    except JsonSyntaxError:
        return mask_urls(text)
    spans: list[tuple[int, int]] = []
    if root is not None:
        _collect(root, spans)
    for start, end in reversed(spans):
        text = f'{text[:start]}"{MASK}"{text[end:]}'
    return mask_urls(text)


def _collect(node: Node, spans: list[tuple[int, int]]) -> None:
    for member in node.members or ():
        if _SECRET_NAME.search(member.name):
            spans.append((member.node.start, member.node.end))
        else:
            _collect(member.node, spans)
    for item in node.items or ():
        _collect(item, spans)
