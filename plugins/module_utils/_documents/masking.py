# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hide secrets in JSON and plain text before a text reaches a result, a diff or a log."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document

MASK = "********"
# A shorter secret is not hidden wherever it occurs, because it may occur in ordinary text, such as "true" or "runc".
SHORTEST_HIDDEN = 6

_SECRET_NAME = re.compile(
    r"auth\Z|auths\Z|authorization\Z|passw(or)?d|passphrase|(?<![a-z])pass\Z|pwd\Z|token|secret|credentials?\Z"
    r"|api[-_]?key|access[-_]?key|private[-_]?key",
    re.IGNORECASE,
)
# What stands before the @ of a URL.  A password may hold a slash, although it should be written as %2F; what looks like
# a port is none.
_USERINFO = r"(?<=://)(?:[^\s/?#QUOTE]+|(?!\[)[^\s/?#:@QUOTE]*:(?!\d{1,5}(?:[/?#]|\Z))[^\sQUOTE]*)(?=@)"
# The same without a scheme, as Go takes a proxy's address; a digest of an image looks alike.  The limits bound the time
# that a long text without a match takes.
_BARE_USERINFO = (
    r"(?<![^\s\"'=,;(\[{])(?!sha\d+:|mailto:)[^\s/?#:@\"'=,]{1,200}:[^\s/?#QUOTE]{1,500}(?=@(?!sha\d+:)[\w\[])"
)
_PATTERN = f"{_USERINFO}|{_BARE_USERINFO}"
_IN_TEXT = re.compile(_PATTERN.replace("QUOTE", '"'))
# Inside a string that has been read, a quote is a character like any other.
_IN_STRING = re.compile(_PATTERN.replace("QUOTE", ""))
# A word up to a little behind its last @: elsewhere the patterns would search in vain, and in quadratic time.
_AROUND_AT = re.compile(r"(?<!\S)\S*@\S{0,40}")
# password=…, also in the query of a URL.
_ASSIGNMENT = re.compile(r"(?<![\w.-])([\w.-]+)=(\"[^\"]*\"|'[^']*'|[^\s&;,\"']+)")
_WHOLE_ASSIGNMENT = re.compile(r"([\w.-]+)=.")
BYTE_ORDER_MARK = "\ufeff"


def mask_urls(text: str) -> str:
    """``text`` with what stands before the @ of each URL hidden, and what is assigned to secret-looking names."""
    return _without_userinfo(_IN_TEXT, _ASSIGNMENT.sub(_mask_assignment, text))


def mask_urls_in_string(value: str) -> str:
    """The same for a string that has been read; one that is an assignment itself is hidden to its end, with blanks."""
    whole = _WHOLE_ASSIGNMENT.match(value)
    if whole is not None and is_secret(whole.group(1)):
        return f"{whole.group(1)}={MASK}"
    return _without_userinfo(_IN_STRING, _ASSIGNMENT.sub(_mask_assignment, value))


def _without_userinfo(pattern: re.Pattern[str], text: str) -> str:
    return _AROUND_AT.sub(lambda word: pattern.sub(MASK, word.group()), text)


def secrets_in(value: str) -> t.Iterator[str]:
    """What is hidden in a string that has been read, as a whole and in the pieces that somebody may quote of it."""
    whole = _WHOLE_ASSIGNMENT.match(value)
    if whole is not None and is_secret(whole.group(1)):
        # The pieces are not given: AnsibleModule would hide one of them, and then no longer find the whole value.
        yield value[len(whole.group(1)) + 1 :].strip("\"'")
        return
    for word in _AROUND_AT.finditer(value):
        for found in _IN_STRING.finditer(word.group()):
            yield found.group()
            password = found.group().partition(":")[2]
            yield from (password, *re.split(r"[/?#]", password))
    for found in _ASSIGNMENT.finditer(value):
        if is_secret(found.group(1)):
            yield found.group(2).strip("\"'")


def is_secret(name: str) -> bool:
    """Whether the value of an entry with this name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def _mask_assignment(found: re.Match[str]) -> str:
    return f"{found.group(1)}={MASK}" if is_secret(found.group(1)) else found.group()


def mask_json(text: str) -> str:
    """``text`` with the values of secret-looking names and all user information in URLs hidden.

    Strings are judged by what they mean, not by how they are spelled: JSON may write / and @ as escapes.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + mask_json(text[1:])
    try:
        root = json_document.parse(text)
    except json_document.JsonSyntaxError:
        return mask_urls(text)
    for start, end, masked in reversed(list(_masked(root)) if root is not None else []):
        text = text[:start] + json_document.spelled(masked) + text[end:]
    return text


def _masked(node: json_document.Node) -> t.Iterator[tuple[int, int, str]]:
    """Start, end and replacement of each value that must not be shown, in the order of the text."""
    for member in node.members or ():
        yield from _masked_string(member.start, member.name_end, member.name)
        if is_secret(member.name):
            yield member.node.start, member.node.end, MASK
        else:
            yield from _masked(member.node)
    for item in node.items or ():
        yield from _masked(item)
    if isinstance(node.value, str):
        yield from _masked_string(node.start, node.end, node.value)


def _masked_string(start: int, end: int, value: str) -> t.Iterator[tuple[int, int, str]]:
    masked = mask_urls_in_string(value)
    if masked != value:
        yield start, end, masked


def secrets_of(value: object, secret: bool = False) -> t.Iterator[str]:
    """The strings and numbers that masking hides in a value that has been read.  ``secret``: all of them.

    These are the values of secret-looking names, of assignments in strings, and the user information in URLs.
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from secrets_of(name)
            yield from secrets_of(inner, secret or is_secret(str(name)))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from secrets_of(inner, secret)
    elif isinstance(value, str):
        if secret:
            yield value
        yield from secrets_in(value)
    elif secret and value is not None and not isinstance(value, bool):
        yield str(value)
