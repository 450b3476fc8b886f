# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: JSON (RFC 8259) parsed into a tree that remembers where each value stands.
# Python's json module forgets positions, order of duplicates and number spellings; an editor needs all three.

from __future__ import annotations

import json
import re
import typing as t

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# In C, and without memory for each character, as a pattern would need it.
_parse_string = json.decoder.scanstring  # type: ignore[attr-defined]
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS: tuple[tuple[str, t.Any], ...] = (("true", True), ("false", False), ("null", None))

# No daemon's configuration comes near; the limit keeps a hostile file from exhausting Python's stack.
MAX_DEPTH = 100


# Python refuses to convert integers of more than 4300 digits; nothing here ever needs one exactly.
_LONGEST_INTEGER = 400


class JsonSyntaxError(Exception):
    """Broken JSON at character ``offset``."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


class Node(t.NamedTuple):
    """One value; ``start`` and ``end`` are character offsets, end exclusive."""

    start: int
    end: int
    value: t.Any
    members: tuple[Member, ...] | None = None
    items: tuple[Node, ...] | None = None

    @property
    def is_object(self) -> bool:
        return self.members is not None

    @property
    def kind(self) -> str:
        """The JSON name of this value's type, for messages."""
        if self.members is not None:
            return "object"
        if self.items is not None:
            return "array"
        if self.value is None:
            return "null"
        if isinstance(self.value, bool):
            return "boolean"
        return "string" if isinstance(self.value, str) else "number"


class Member(t.NamedTuple):
    """One ``"name": value`` of an object; ``start`` is where the quoted name begins."""

    name: str
    start: int
    name_end: int
    node: Node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text

    def skip(self, offset: int) -> int:
        match = _WHITESPACE.match(self.text, offset)
        return match.end() if match else offset

    def value(self, offset: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise JsonSyntaxError(offset, f"nested deeper than {MAX_DEPTH} levels")
        head = self.text[offset : offset + 1]
        if head == "{":
            return self.object(offset, depth)
        if head == "[":
            return self.array(offset, depth)
        if head == '"':
            return self.string(offset)
        for word, value in _LITERALS:
            if self.text.startswith(word, offset):
                return Node(offset, offset + len(word), value)
        match = _NUMBER.match(self.text, offset)
        if match:
            return Node(offset, match.end(), _number(match.group()))
        raise JsonSyntaxError(offset, self.unexpected(offset, "a value"))

    def string(self, offset: int) -> Node:
        try:
            value, end = _parse_string(self.text, offset + 1, True)  # noqa: FBT003
        except ValueError as error:
            raise JsonSyntaxError(offset, "a string that does not end on its line or has an invalid escape") from error
        return Node(offset, end, value)

    def object(self, start: int, depth: int) -> Node:
        members: list[Member] = []
        offset = self.skip(start + 1)
        while self.text[offset : offset + 1] != "}" or members:
            if self.text[offset : offset + 1] != '"':
                raise JsonSyntaxError(offset, self.unexpected(offset, "a quoted name"))
            name = self.string(offset)
            offset = self.expect(self.skip(name.end), ":")
            node = self.value(self.skip(offset), depth + 1)
            members.append(Member(name.value, name.start, name.end, node))
            offset = self.skip(node.end)
            if self.text[offset : offset + 1] == "}":
                break
            offset = self.skip(self.expect(offset, ",", "}"))
        return Node(start, offset + 1, None, members=tuple(members))

    def array(self, start: int, depth: int) -> Node:
        items: list[Node] = []
        offset = self.skip(start + 1)
        while self.text[offset : offset + 1] != "]" or items:
            items.append(self.value(offset, depth + 1))
            offset = self.skip(items[-1].end)
            if self.text[offset : offset + 1] == "]":
                break
            offset = self.skip(self.expect(offset, ",", "]"))
        return Node(start, offset + 1, None, items=tuple(items))

    def expect(self, offset: int, *wanted: str) -> int:
        if self.text[offset : offset + 1] == wanted[0]:
            return offset + 1
        raise JsonSyntaxError(offset, self.unexpected(offset, " or ".join(repr(sign) for sign in wanted)))

    def unexpected(self, offset: int, wanted: str) -> str:
        if offset >= len(self.text):
            return f"the file ends where {wanted} is expected"
        if self.text.startswith(("//", "/*", "#"), offset):
            return f"a comment where {wanted} is expected; JSON has no comments"
        if self.text[offset] in "}]" and self.text[:offset].rstrip().endswith(","):
            return "a comma after the last entry"
        return f"{wanted} is expected here"


def _number(spelled: str) -> t.Any:
    digits = spelled.lstrip("-")
    return int(spelled) if digits.isdigit() and len(digits) < _LONGEST_INTEGER else float(spelled)


def parse(text: str) -> Node | None:
    """The tree of ``text``, or None where it holds nothing but whitespace.

    Raises JsonSyntaxError, also for NaN, Infinity, comments and trailing commas, which daemons refuse.
    """
    parser = _Parser(text)
    offset = parser.skip(0)
    if offset == len(text):
        return None
    root = parser.value(offset, 0)
    rest = parser.skip(root.end)
    if rest != len(text):
        raise JsonSyntaxError(rest, "something stands after the end of the document")
    return root


def spelled(value: t.Any) -> str:
    """``value`` as JSON that UTF-8 can encode: a lone surrogate is written as an escape sequence."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))


def plain(node: Node | None) -> t.Any:
    """The value as Python's json module would return it (of duplicate names the last)."""
    if node is None:
        return None
    if node.members is not None:
        return {member.name: plain(member.node) for member in node.members}
    if node.items is not None:
        return [plain(item) for item in node.items]
    return node.value
