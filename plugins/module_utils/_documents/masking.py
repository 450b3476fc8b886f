# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hide secrets in parsed values and plain text before a text reaches a result, a diff or a log.

``secret_names`` decides which names have secret values. JSON and TOML are masked by their parsers with the functions of
this file. No function changes what is written to a file.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import secret_names

if t.TYPE_CHECKING:
    # Start and end of a secret in a text.
    Span = t.Tuple[int, int]

MASK = "********"
# A shorter secret is not hidden wherever it occurs, because ordinary text may contain it, such as "true" or "runc".
SHORTEST_HIDDEN = 6
BYTE_ORDER_MARK = "\ufeff"
# A string that contains JSON may contain strings that contain JSON.
_MAX_DEPTH = 100

is_secret = secret_names.is_secret
PAIR_MEMBERS = secret_names.PAIR_MEMBERS


def mask_urls(text: str) -> str:
    """Return ``text`` with the values of secret-looking names, user information in URLs and known tokens hidden."""
    return _replaced(text, [*_secrets(text), *_userinfo(_IN_TEXT, text)])


def mask_urls_in_string(value: str) -> str:
    """Return a parsed string with the same parts hidden as by mask_urls().

    If the whole string is an assignment to a secret-looking name, or a header with such a name, everything behind the
    name is hidden, including blanks. A string that contains JSON is masked as such.
    """
    nested = _nested(value)
    if nested is not None:
        masked = mask_value(nested)
        if masked != nested:
            return json.dumps(masked, ensure_ascii=False)
    return _replaced(value, _string_secrets(value))


def mask_value(value: t.Any) -> t.Any:
    """Return a parsed value with the same parts hidden as in the text of its document."""
    if isinstance(value, dict):
        named = secret_member((str(name), inner) for name, inner in value.items())
        return {
            mask_urls_in_string(name) if isinstance(name, str) else name: MASK
            if name == named or is_secret(str(name), inner)
            else mask_value(inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        hidden = secret_items(value)
        return [MASK if number in hidden else mask_value(inner) for number, inner in enumerate(value)]
    return mask_urls_in_string(value) if isinstance(value, str) else value


def secrets_of(value: object, secret: bool = False) -> t.Iterator[str]:
    """Yield the strings and numbers that masking hides in a parsed value.

    These are the values of secret-looking names, of assignments in strings, and the user information in URLs. If
    ``secret`` is true, all strings and numbers in the value are yielded.
    """
    if isinstance(value, dict):
        named = secret_member((str(name), inner) for name, inner in value.items())
        for name, inner in value.items():
            yield from secrets_of(name)
            yield from secrets_of(inner, secret or name == named or is_secret(str(name), inner))
    elif isinstance(value, (list, tuple)):
        hidden = secret_items(value)
        for number, inner in enumerate(value):
            yield from secrets_of(inner, secret or number in hidden)
    elif isinstance(value, str):
        if secret:
            yield value
        yield from _secrets_in(value)
    elif secret and value is not None and not isinstance(value, bool):
        yield str(value)


def _secrets_in(value: str) -> t.Iterator[str]:
    """Yield what masking hides in a parsed string: each secret as a whole, and the parts that a message may quote."""
    nested = _nested(value)
    if nested is not None:
        yield from secrets_of(nested)
    whole = _whole_secret(value)
    if whole is not None:
        # The parts are not yielded: AnsibleModule would hide one of them, and then no longer find the whole value.
        yield value[whole:].strip("\"'")
        return
    for start, end in _userinfo(_IN_STRING, value):
        yield value[start:end]
        password = value[start:end].partition(":")[2]
        yield from (password, *re.split(r"[/?#]", password))
    for start, end in _secrets(value):
        yield value[start:end].strip("\"'")


# -- lists and objects -------------------------------------------------------------------------------------------------

_BARE_NAME = re.compile(r"-{0,2}[\w./-]{1,100}[=:]?")
# --name, --name=value, -n.
_OPTION_WORD = re.compile(r"--?[A-Za-z][a-z]*(?:-[a-z]+)*(?:=.*)?", re.DOTALL)


def secret_items(items: t.Sequence[object]) -> set[int]:
    """Return the indexes of the items of a list that are values of secret-looking names.

    These are the item behind an option ("--token"), and the second one of each pair of a list that consists of pairs.
    """
    found = set()
    for number, (item, following) in enumerate(zip(items, items[1:]), 1):
        if not isinstance(item, str) or not _BARE_NAME.fullmatch(item):
            continue
        if isinstance(following, str):
            follows = _follows(item, following)
        else:
            follows = isinstance(following, (int, float)) and not isinstance(following, bool)
        is_pair = item.startswith("-") or (len(items) % 2 == 0 and number % 2 == 1)
        if follows and is_pair and is_secret(item.lstrip("-").rstrip("=:"), following):
            found.add(number)
    return found


def _follows(name: str, value: str) -> bool:
    """Return whether ``value`` can be the value of the item ``name`` before it in a list."""
    if name.startswith("-"):
        return not _OPTION_WORD.fullmatch(value)
    return not (value.startswith("-") or is_secret(value))


def secret_member(members: t.Iterable[tuple[str, object]]) -> str | None:
    """Return the name of the member that is a secret in an object with a name and a value, as of Kubernetes."""
    found = {name.lower(): (name, value) for name, value in members if name.lower() in secret_names.PAIR_MEMBERS}
    original, value = found.get("value", ("", None))
    names = (found.get(member, ("", None))[1] for member in secret_names.NAME_MEMBERS)
    return original if original and any(isinstance(name, str) and is_secret(name, value) for name in names) else None


def _nested(value: str) -> t.Any:
    """Return the data of a string that contains a JSON object or array, None for another string."""
    stripped = value.strip()
    if not (stripped.startswith(("{", "[")) and stripped.endswith(("}", "]")) and '"' in stripped):
        return None
    try:
        return json_data.load(stripped, _MAX_DEPTH)
    except ValueError:
        return None


# -- text --------------------------------------------------------------------------------------------------------------

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

_WHOLE = re.compile(r"([\w.-]{1,200})(?:=(?=.)|:[ \t]+(?=\S))", re.DOTALL)
# NAME=, also in the query of a URL and behind another assignment, and the value behind it. A comma belongs to the value
# if no further assignment follows it.
_NAME = re.compile(r"(?<![\w.%\[\]-])([\w.%\[\]-]+)[ \t]{0,4}(?:=|%3[dD])[ \t]{0,4}")
_VALUE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|[\"']?(?:[^\s&;,\"']|,(?=[^\s,=&;\"']+(?:[,\s\"']|\Z)))+", re.DOTALL)
# A name or an option in quotes, as in JSON and Python. In JSON inside a string, the quotes have backslashes.
_QUOTED_NAME = re.compile(r"(\\{0,7}[\"'])(-{0,2}[\w./-]{1,100})=?\1\s{0,100}([:=,])\s{0,100}")
_SIGN = re.compile(r"\s{0,100}[:=]")
_NAME_AND_VALUE, _VALUE_AND_NAME = (
    re.compile(
        rf"(\\{{0,7}}[\"']){first}\1\s{{0,100}}[:=]\s{{0,100}}\1([^\"'\\]{{1,1000}})\1\s{{0,100}},\s{{0,100}}"
        rf"\1{second}\1\s{{0,100}}[:=]\s{{0,100}}\1([^\"'\\]{{1,1000}})\1",
        re.IGNORECASE,
    )
    for first, second in (("(?:name|key)", "value"), ("value", "(?:name|key)"))
)
_UNQUOTED_VALUE = re.compile(r"\[[^\]]*\]?|\{[^}]*\}?|[^\s,}\]\"']+")
# "NAME: VALUE" as an argument. Elsewhere, a line of YAML, and a header of HTTP, whose value ends with the line.
_QUOTED_HEADER = re.compile(r"([\"'])([\w.-]{1,100}):[ \t]{1,4}")
_LINE = re.compile(
    r"^[ \t#-]{0,40}([\w.-]{1,100}):[ \t]+(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s\"']+))[ \t]*$", re.MULTILINE
)
_HEADER = re.compile(
    r"(?<![\w.-])((?:proxy-)?authorization|(?:set-)?cookie2?|x-[\w-]{1,60}):[ \t]{0,4}([^\"'\r\n]+)", re.IGNORECASE
)
# --name VALUE.
_OPTION = re.compile(
    r"(?<![^\s\"'`=(\[,])(--?[A-Za-z][\w.-]{0,100})[ \t]{1,4}(?!--?[a-z]+[a-z-]*(?:[\s=]|\Z))"
    r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'`]+))"
)
# A scheme of HTTP with a text that is not a word.
_SCHEME = re.compile(
    r"(?<!\w)(?:[Bb]earer|BEARER|[Bb]asic)[ \t]{1,4}((?=\S{0,200}?(?:\d|[a-z][A-Z]|[A-Z]{3}))[\w.~+/-]{6,}={0,2})"
)
# Tokens that have the mark of their issuer, a JSON Web Token, and a private key.
_KNOWN = re.compile(
    r"(?<![\w-])(?:gh[opsur]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|dckr_[op]at_[\w-]{16,}|xox[abeoprs]-[\w-]{10,}"
    r"|nvapi-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|npm_\w{16,}|pypi-[\w-]{16,}|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{2,}\.[\w-]*)"
    r"|(?<=-----BEGIN )[A-Z ]{0,40}PRIVATE KEY-----.*?(?:PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def _replaced(text: str, spans: t.Iterable[Span]) -> str:
    """Return ``text`` with MASK in place of each span. Spans that overlap become one."""
    parts: list[str] = []
    position = 0
    for start, end in sorted(spans):
        if start >= position:
            parts += (text[position:start], MASK)
        position = max(position, end)
    return "".join(parts) + text[position:]


def _string_secrets(value: str) -> list[Span]:
    whole = _whole_secret(value)
    return [(whole, len(value))] if whole is not None else [*_secrets(value), *_userinfo(_IN_STRING, value)]


def _whole_secret(value: str) -> int | None:
    """Return where the secret begins if the whole string is an assignment or a header, None otherwise."""
    whole = _WHOLE.match(value)
    return whole.end() if whole is not None and is_secret(whole.group(1), value[whole.end() :]) else None


def _userinfo(pattern: re.Pattern[str], text: str) -> t.Iterator[Span]:
    for word in _AROUND_AT.finditer(text) if "@" in text else ():
        for found in pattern.finditer(word.group()):
            yield word.start() + found.start(), word.start() + found.end()


def _secrets(text: str) -> t.Iterator[Span]:
    """Yield all secrets in a text except user information. Spans may overlap."""
    if "=" in text or "%3" in text:
        yield from _assigned(text)
    if '"' in text or "'" in text:
        yield from _quoted(text)
    if ":" in text:
        yield from _matched(_LINE, text)
        yield from _matched(_HEADER, text)
    if "-" in text:
        yield from _matched(_OPTION, text)
    yield from (found.span(1) for found in _SCHEME.finditer(text))
    yield from (found.span() for found in _KNOWN.finditer(text))


def _assigned(text: str) -> t.Iterator[Span]:
    """Yield the values behind NAME=, with their quotes."""
    found = _NAME.search(text)
    while found is not None:
        name, position = found.group(1), found.end()
        before = text[found.start() - 1 : found.start()]
        is_parameter = before != "" and before in "?&#;" and secret_names.is_secret_parameter(name)
        # The value is searched only behind such a name, because that would take quadratic time behind each name.
        if is_parameter or is_secret(name):
            value = _VALUE.match(text, position)
            # The value of "NAME=VALUE" ends with the quote.
            quote = text.find(before, position) if before and before in "\"'" else -1
            end = quote if quote >= 0 else value.end() if value is not None else position
            if end > position and (is_parameter or is_secret(name, text[position:end].strip("\"'"))):
                yield position, end
            position = end
        found = _NAME.search(text, position)


def _quoted(text: str) -> t.Iterator[Span]:
    """Yield the values of names in quotes, and of headers in quotes."""
    found = _QUOTED_NAME.search(text)
    while found is not None:
        position, (quote, name, sign) = found.end(), found.groups()
        if is_secret(name.lstrip("-")):
            start, end = _quoted_value(text, position, quote)
            # In a list, both items have quotes, and the second one is not the name of an object's member.
            is_item = start > position and _follows(name, text[start:end]) and not _SIGN.match(text, end + len(quote))
            if sign != "," or is_item:
                if end > start and is_secret(name.lstrip("-"), text[start:end]):
                    yield start, end
                position = max(position, end)
        found = _QUOTED_NAME.search(text, position)
    for header in _QUOTED_HEADER.finditer(text):
        end = _end_of_quoted(text, header.end(), header.group(1))
        if is_secret(header.group(2), text[header.end() : end]):
            yield header.end(), end
    for pattern, name_group, value_group in ((_NAME_AND_VALUE, 2, 3), (_VALUE_AND_NAME, 3, 2)):
        for pair in pattern.finditer(text):
            if is_secret(pair.group(name_group), pair.group(value_group)):
                yield pair.span(value_group)


def _quoted_value(text: str, position: int, quote: str) -> Span:
    """Return the value behind a name in quotes, without its own quotes."""
    if text.startswith(quote, position):
        start = position + len(quote)
        return start, _end_of_quoted(text, start, quote)
    value = _UNQUOTED_VALUE.match(text, position)
    return position, value.end() if value is not None else position


def _end_of_quoted(text: str, start: int, quote: str) -> int:
    """Return the position of the quote that ends a string, the end of the text if there is none."""
    position = text.find(quote, start)
    while position > start and text[position - 1] == "\\":
        position = text.find(quote, position + 1)
    return position if position >= 0 else len(text)


def _matched(pattern: re.Pattern[str], text: str) -> t.Iterator[Span]:
    """Yield the value of each match whose first group is a secret-looking name. The other groups are its spellings."""
    for found in pattern.finditer(text):
        number = found.lastindex or 0
        if number > 1 and is_secret(found.group(1).lstrip("-"), found.group(number)):
            yield found.span(number)
