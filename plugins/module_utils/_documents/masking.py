# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hide secrets in JSON and plain text before a text reaches a result, a diff or a log."""

from __future__ import annotations

import re
import typing as t

MASK = "********"
# A shorter secret is not hidden wherever it occurs, because ordinary text may contain it, such as "true" or "runc".
SHORTEST_HIDDEN = 6

_SECRET_NAME = re.compile(
    r"auth\Z|auths\Z|authorization\Z|passw(or)?d|passphrase|(?<![a-z])pass\Z|pwd\Z|token|secret|credentials?\Z"
    r"|api[-_]?key|access[-_]?key|private[-_]?key",
    re.IGNORECASE,
)
# The part of a URL before the @. A password may contain a slash, although it should be written as %2F. A part that
# looks like a port is not a password.
_USERINFO = r"(?<=://)(?:[^\s/?#QUOTE]+|(?!\[)[^\s/?#:@QUOTE]*:(?!\d{1,5}(?:[/?#]|\Z))[^\sQUOTE]*)(?=@)"
# The same without a scheme, which Go accepts in the address of a proxy. The digest of an image has a similar form and
# is excluded. The limits bound the time that a long text without a match takes.
_BARE_USERINFO = (
    r"(?<![^\s\"'=,;(\[{])(?!sha\d+:|mailto:)[^\s/?#:@\"'=,]{1,200}:[^\s/?#QUOTE]{1,500}(?=@(?!sha\d+:)[\w\[])"
)
_PATTERN = f"{_USERINFO}|{_BARE_USERINFO}"
_IN_TEXT = re.compile(_PATTERN.replace("QUOTE", '"'))
# In a parsed string, a quote is an ordinary character.
_IN_STRING = re.compile(_PATTERN.replace("QUOTE", ""))
# A word up to 40 characters behind its last @. Elsewhere the patterns cannot match, and the search takes quadratic
# time.
_AROUND_AT = re.compile(r"(?<!\S)\S*@\S{0,40}")
# password=…, also in the query of a URL.
_ASSIGNMENT = re.compile(r"(?<![\w.-])([\w.-]+)=(\"[^\"]*\"|'[^']*'|[^\s&;,\"']+)")
_WHOLE_ASSIGNMENT = re.compile(r"([\w.-]+)=.")
BYTE_ORDER_MARK = "\ufeff"


def mask_urls(text: str) -> str:
    """Return ``text`` with user information in URLs and the values assigned to secret-looking names hidden."""
    return _without_userinfo(_IN_TEXT, _ASSIGNMENT.sub(_mask_assignment, text))


def mask_urls_in_string(value: str) -> str:
    """Return a parsed string with the same parts hidden as by mask_urls().

    If the whole string is an assignment to a secret-looking name, everything behind the = is hidden, including blanks.
    """
    whole = _WHOLE_ASSIGNMENT.match(value)
    if whole is not None and is_secret(whole.group(1)):
        return f"{whole.group(1)}={MASK}"
    return _without_userinfo(_IN_STRING, _ASSIGNMENT.sub(_mask_assignment, value))


def _without_userinfo(pattern: re.Pattern[str], text: str) -> str:
    return _AROUND_AT.sub(lambda word: pattern.sub(MASK, word.group()), text)


def secrets_in(value: str) -> t.Iterator[str]:
    """Yield what masking hides in a parsed string: each secret as a whole, and the parts that a message may quote."""
    whole = _WHOLE_ASSIGNMENT.match(value)
    if whole is not None and is_secret(whole.group(1)):
        # The parts are not yielded: AnsibleModule would hide one of them, and then no longer find the whole value.
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
    """Return whether the value of an entry with this name must be hidden."""
    return _SECRET_NAME.search(name) is not None


def _mask_assignment(found: re.Match[str]) -> str:
    return f"{found.group(1)}={MASK}" if is_secret(found.group(1)) else found.group()


def secrets_of(value: object, secret: bool = False) -> t.Iterator[str]:
    """Yield the strings and numbers that masking hides in a parsed value.

    These are the values of secret-looking names, of assignments in strings, and the user information in URLs. If
    ``secret`` is true, all strings and numbers in the value are yielded.
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
