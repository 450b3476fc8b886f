# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse TOML with tomllib or tomlkit, find the positions of its entries, and compare and spell values."""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled, errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


# Configuration files are far below this limit. It is also far from Python's own limit, so that no edit fails halfway.
MAX_DEPTH = 100
_TOO_DEEP = f"tables and arrays are nested more than {MAX_DEPTH} levels deep"

# Files of engines have at most a few thousand lines and values. tomlkit needs about 2 KiB for each of them.
MAX_VALUES = 50_000

# The first characters of messages of tomllib and tomlkit, and the text that replaces each message. The original
# messages may quote the file.
_PROBLEMS = {
    "Cannot declare": "a table is defined twice",
    "Cannot overwrite": "a key is defined twice",
    "Cannot mutate": "a key is defined twice",
    "Cannot redefine": "a key is defined twice",
    "Duplicate": "a key is defined twice",
    "Key ": "a key is defined twice",
    "Redefinition": "a table is defined twice",
    "Expected '='": "a key is not followed by =",
    "Expected ']": "a table header has no closing bracket",
    "Expected newline": "unexpected text after a value",
    "Invalid value": "invalid value; strings need quotes",
    "Invalid initial character": "a line begins with neither a key nor a table header",
    "Unclosed": "an array or inline table has no closing bracket",
    "Unterminated": "a string has no closing quote",
    "Unescaped": "a backslash in a string is not escaped",
    "Illegal character": "invalid character",
    "Found invalid character": "invalid character",
    "TOML key nested": _TOO_DEEP,
    "TOML value nested": _TOO_DEEP,
}
_CORRECT = "Correct the file."
_CORRECT_FOR_TOMLKIT = (
    "Correct the file. If the engine accepts the file, put each table before its subtables"
    " (tomlkit requires this order), or use Python 3.11 or newer for Ansible on this host."
)
# A key begins at the start of a line, or in an inline table.
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\n]*')[ \t]*"""
_DEEP_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_KEY}\.[ \t]*){{{MAX_DEPTH}}}", re.MULTILINE)
_PLACE = re.compile(r"line (\d+),? col(?:umn)? (\d+)")


# A plan reads the same text more than once, and tomlkit takes a tenth of a second for a large one.
@functools.lru_cache(maxsize=16)
def parse(path: str, text: str) -> dict[str, t.Any]:
    """Return the data of ``text``. The caller must not change it, because it is cached.

    Raises ConfigurationError with the position if ``text`` is not TOML.
    """
    if json_data.may_exceed(text, "[{,=\n", MAX_VALUES):
        raise errors.ConfigurationError(path, f"the text has more than {MAX_VALUES} lines and values", _CORRECT)
    # Both parsers need quadratic memory for such a key.
    if _DEEP_KEY.search(text):
        raise errors.ConfigurationError(path, _TOO_DEEP, _CORRECT)
    try:
        tomllib: t.Any = importlib.import_module("tomllib")
    except ImportError:
        data = _parsed_by_tomlkit(path, text)
    else:
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, text, error, _CORRECT) from error
    if json_data.is_too_deep(data, MAX_DEPTH):
        raise errors.ConfigurationError(path, _TOO_DEEP, _CORRECT)
    return data


def _parsed_by_tomlkit(path: str, text: str) -> dict[str, t.Any]:
    tomlkit: t.Any = bundled.import_bundled("tomlkit")
    try:
        # tomllib, too, reads a line end in a multi-line string as a line feed.
        data: dict[str, t.Any] = tomlkit.parse(text.replace("\r\n", "\n")).unwrap()
        # tomlkit loses or rejects some tables that are out of order, so its data is compared with the names in the
        # text.
        if not _agree(_outline(scan(text)), data):
            raise ValueError
    except (
        *(tomlkit.exceptions.TOMLKitError, ValueError, TypeError, LookupError, AttributeError),
        RecursionError,
    ) as error:
        raise _unreadable(path, text, error, _CORRECT_FOR_TOMLKIT) from error
    return data


def _unreadable(path: str, text: str, error: Exception, advice: str) -> errors.ConfigurationError:
    if isinstance(error, RecursionError):
        return errors.ConfigurationError(path, _TOO_DEEP, advice)
    message = str(error)
    what = next((problem for start, problem in _PROBLEMS.items() if message.startswith(start)), "invalid TOML")
    place = _PLACE.search(message)
    if place is not None:
        return errors.ConfigurationError(path, what, advice, int(place.group(1)), int(place.group(2)))
    if "end of document" in message:
        return errors.ConfigurationError(path, what, advice, *core_text.position(text, len(text)))
    return errors.ConfigurationError(path, what, advice)


def _outline(entries: list[TomlEntry]) -> dict[str, t.Any]:
    """Return the names in a text: tables as dictionaries, arrays of tables as lists, and None for values."""
    root: dict[str, t.Any] = {}
    table = root
    for entry in entries:
        if entry.node is not None:
            _table(table, entry.path[len(entry.table) : -1])[entry.path[-1]] = None
        elif entry.array:
            table = {}
            _table(root, entry.path[:-1]).setdefault(entry.path[-1], []).append(table)
        else:
            table = _table(root, entry.path)
    return root


def _table(outline: dict[str, t.Any], path: KeyPath) -> dict[str, t.Any]:
    for name in path:
        found = outline.setdefault(name, {})
        outline = found[-1] if isinstance(found, list) else found
    return outline


def _agree(outline: t.Any, data: t.Any) -> bool:
    if isinstance(outline, dict):
        return (
            isinstance(data, dict)
            and outline.keys() == data.keys()
            and all(_agree(inner, data[name]) for name, inner in outline.items())
        )
    if isinstance(outline, list):
        return isinstance(data, list) and len(outline) == len(data) and all(map(_agree, outline, data))
    return True


# -- positions -------------------------------------------------------------------------------------------------------


class TomlNode(t.NamedTuple):
    """One value. ``start`` and ``end`` are character offsets, ``end`` exclusive.

    ``kind`` is the first character of strings, arrays and inline tables, else empty. ``commas`` are the offsets of the
    commas behind ``members``.
    """

    start: int
    end: int
    kind: str
    members: tuple[TomlMember, ...] = ()
    commas: tuple[int, ...] = ()


class TomlMember(t.NamedTuple):
    """One entry of an inline table, or one element of an array, which has no names."""

    names: KeyPath
    raws: tuple[str, ...]
    start: int
    node: TomlNode


class TomlEntry(t.NamedTuple):
    """The header of a table (``node`` is None) or one assignment. The positions are character offsets."""

    path: KeyPath
    table: KeyPath  # path of the header above it
    raws: tuple[str, ...]  # the names as they are spelled behind ``[`` or before ``=``
    start: int
    end: int
    first: int  # start of its first line
    last: int  # end of the text on its last line
    array: bool = False
    node: TomlNode | None = None
    equals: str = ""

    def under(self, path: KeyPath) -> bool:
        return self.path[: len(path)] == path


# No pattern repeats a group, because each repetition takes memory until the whole pattern has matched.
_BLANK = re.compile(r"[ \t\r\n]*")
_GAP = re.compile(r"[ \t]*")
_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
# The alternative with a line feed joins two lines.
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|[ \t]*\r?\n\s*|(.))")
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


def scan(text: str) -> list[TomlEntry]:
    """Return every header and assignment of a text that parse() accepts.

    Raises ValueError if this scanner and the parser disagree.
    """
    entries: list[TomlEntry] = []
    table: KeyPath = ()
    here = _skip(text, 0)
    while here < len(text):
        start = here
        first = text.rfind("\n", 0, start) + 1
        if text[here] == "[":
            array = text.startswith("[[", here)
            table, raws, end = _names(text, here + 1 + array)
            if not text.startswith("]]" if array else "]", end):
                raise ValueError(end)
            end += 1 + array
            last = line_end(text, end)
            entries.append(TomlEntry(table, table, raws, start, end, first, last, array))
        else:
            names, raws, end = _names(text, here)
            key_end = start + len(text[start:end].rstrip())
            node = _value(text, _skip(text, end + 1))
            last = line_end(text, node.end)
            equals = text[key_end : node.start]
            entries.append(
                TomlEntry(table + names, table, raws, start, node.end, first, last, False, node, equals)  # noqa: FBT003
            )
        here = _skip(text, last)
    return entries


def line_end(text: str, offset: int) -> int:
    """Return the end of the text on the line at ``offset``, before its line end."""
    end = text.find("\n", offset)
    if end < 0:
        return len(text)
    return end - 1 if text[end - 1 : end] == "\r" and end > offset else end


def _match(pattern: re.Pattern[str], text: str, offset: int) -> re.Match[str]:
    found = pattern.match(text, offset)
    if found is None:
        raise ValueError(offset)
    return found


def _skip(text: str, offset: int) -> int:
    """Return the next offset that is neither blank nor in a comment."""
    while True:
        offset = _match(_BLANK, text, offset).end()
        if text[offset : offset + 1] != "#":
            return offset
        end = text.find("\n", offset)
        offset = len(text) if end < 0 else end


def _string_end(text: str, start: int) -> int:
    """Return the end of the string that begins at ``start``. Raises ValueError if the string has no end."""
    quote = text[start]
    fence = quote * 3 if text.startswith(quote * 3, start) else quote
    here = start + len(fence)
    end = text.find(fence, here)
    escape = text.find("\\", here, end) if quote == '"' else -1
    while escape >= 0 and end >= 0:
        here = escape + 2
        if here > end:
            end = text.find(fence, here)
        escape = text.find("\\", here, end)
    if end < 0 or (len(fence) == 1 and text.find("\n", start, end) >= 0):
        raise ValueError(start)
    end += len(fence)
    # Up to two more quotes belong to the content.
    return end + len(text[end : end + 2]) - len(text[end : end + 2].lstrip(quote)) if len(fence) > 1 else end


def _names(text: str, offset: int) -> tuple[KeyPath, tuple[str, ...], int]:
    raws: list[str] = []
    while True:
        start = _match(_GAP, text, offset).end()
        quoted = text[start : start + 1] in ("'", '"')
        end = _string_end(text, start) if quoted else _match(_BARE_NAME, text, start).end()
        raws.append(text[start:end])
        offset = _match(_GAP, text, end).end()
        if text[offset : offset + 1] != ".":
            return tuple(raw if raw[0] not in "\"'" else plain_string(raw) for raw in raws), tuple(raws), offset
        offset += 1


def plain_string(raw: str) -> str:
    """Return the value of a string or a quoted name."""
    quotes = 3 if raw.startswith(('"""', "'''")) else 1
    inner = raw[quotes:-quotes]
    return _ESCAPE.sub(_unescaped, inner) if raw[0] == '"' else inner


def quote_string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def spell_name(name: str, string: t.Callable[[str], str] = quote_string) -> str:
    """Return a name as it is written to a file. ``string`` quotes it if it needs quotation marks."""
    return name if _BARE_NAME.fullmatch(name) else string(name)


def spell_value(value: t.Any, string: t.Callable[[str], str] = quote_string) -> str:
    """Return a value as it is written to a file, on one line. ``string`` quotes the strings in it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, dict):
        entries = [f"{spell_name(name, string)} = {spell_value(entry, string)}" for name, entry in value.items()]
        return f"{{ {', '.join(entries)} }}" if entries else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(spell_value(entry, string) for entry in value) + "]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _unescaped(found: re.Match[str]) -> str:
    digits = found.group(1) or found.group(2) or found.group(3)
    return chr(int(digits, 16)) if digits else _ESCAPED.get(found.group(4), found.group(4) or "")


def _value(text: str, start: int) -> TomlNode:
    kind = text[start : start + 1]
    if kind and kind in "[{":
        return _sequence(text, start, kind)
    if kind and kind in "\"'":
        return TomlNode(start, _string_end(text, start), kind)
    return TomlNode(start, start + len(_match(_SCALAR, text, start).group().rstrip()), "")


def _sequence(text: str, start: int, kind: str) -> TomlNode:
    closing = "]" if kind == "[" else "}"
    members: list[TomlMember] = []
    commas: list[int] = []
    here = _skip(text, start + 1)
    while text[here : here + 1] != closing:
        if text[here : here + 1] == ",":
            commas.append(here)
            here = _skip(text, here + 1)
            continue
        names: KeyPath = ()
        raws: tuple[str, ...] = ()
        at = here
        if kind == "{":
            names, raws, at = _names(text, here)
            at = _skip(text, at + 1)
        node = _value(text, at)
        members.append(TomlMember(names, raws, here, node))
        here = _skip(text, node.end)
    return TomlNode(start, here + 1, kind, tuple(members), tuple(commas))


def equal(one: t.Any, other: t.Any) -> bool:
    """Return whether two values are equal, in type too: true is not 1, and 1 is not 1.0."""
    if one.__class__ is not other.__class__:
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(entry, other[name]) for name, entry in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


def iter_leaves(table: t.Mapping[str, t.Any], path: KeyPath = ()) -> t.Iterator[tuple[KeyPath, t.Any]]:
    """Yield every entry that is not a table, with its path."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from iter_leaves(value, (*path, name))
        else:
            yield (*path, name), value
