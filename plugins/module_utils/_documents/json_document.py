# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse JSON with the position of each value, and edit it without changing other bytes.

The parser follows RFC 8259. Python's json module keeps no positions, no order of duplicates and no spelling of numbers.
"""

from __future__ import annotations

import codecs
import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]


_WHITESPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# This function is written in C. Unlike a pattern, it needs no memory for each character.
_parse_string = json.decoder.scanstring  # type: ignore[attr-defined]
_SURROGATE = re.compile("[\ud800-\udfff]")
_LITERALS: tuple[tuple[str, t.Any], ...] = (("true", True), ("false", False), ("null", None))

# Configuration files of daemons are far below these limits. They keep a hostile file from exhausting Python's stack and
# the memory.
MAX_DEPTH = 100
MAX_VALUES = 100_000


# Python refuses to convert integers of more than 4300 digits. This collection needs no such integer exactly.
_LONGEST_INTEGER = 400


class JsonSyntaxError(Exception):
    """A syntax error in JSON at character ``offset``."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


class JsonNode(t.NamedTuple):
    """One value. ``start`` and ``end`` are character offsets, ``end`` exclusive.

    ``members`` is set for objects, ``items`` for arrays, and ``value`` for all other values.
    """

    start: int
    end: int
    value: t.Any
    members: tuple[JsonMember, ...] | None = None
    items: tuple[JsonNode, ...] | None = None

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


class JsonMember(t.NamedTuple):
    """One ``"name": value`` of an object. ``start`` and ``name_end`` are the offsets of the quoted name."""

    name: str
    start: int
    name_end: int
    node: JsonNode


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text

    def skip(self, offset: int) -> int:
        match = _WHITESPACE.match(self.text, offset)
        return match.end() if match else offset

    def value(self, offset: int, depth: int) -> JsonNode:
        if depth > MAX_DEPTH:
            raise JsonSyntaxError(offset, f"objects and arrays are nested more than {MAX_DEPTH} levels deep")
        head = self.text[offset : offset + 1]
        if head == "{":
            return self.object(offset, depth)
        if head == "[":
            return self.array(offset, depth)
        if head == '"':
            return self.string(offset)
        for word, value in _LITERALS:
            if self.text.startswith(word, offset):
                return JsonNode(offset, offset + len(word), value)
        match = _NUMBER.match(self.text, offset)
        if match:
            return JsonNode(offset, match.end(), _number(match.group()))
        raise JsonSyntaxError(offset, self.unexpected(offset, "a value"))

    def string(self, offset: int) -> JsonNode:
        try:
            value, end = _parse_string(self.text, offset + 1, True)  # noqa: FBT003
        except ValueError as error:
            raise JsonSyntaxError(offset, "a string is not terminated or has an invalid escape sequence") from error
        return JsonNode(offset, end, value)

    def object(self, start: int, depth: int) -> JsonNode:
        members: list[JsonMember] = []
        offset = self.skip(start + 1)
        while self.text[offset : offset + 1] != "}" or members:
            if self.text[offset : offset + 1] != '"':
                raise JsonSyntaxError(offset, self.unexpected(offset, "a quoted name"))
            name = self.string(offset)
            offset = self.expect(self.skip(name.end), ":")
            node = self.value(self.skip(offset), depth + 1)
            members.append(JsonMember(name.value, name.start, name.end, node))
            offset = self.skip(node.end)
            if self.text[offset : offset + 1] == "}":
                break
            offset = self.skip(self.expect(offset, ",", "}"))
        return JsonNode(start, offset + 1, None, members=tuple(members))

    def array(self, start: int, depth: int) -> JsonNode:
        items: list[JsonNode] = []
        offset = self.skip(start + 1)
        while self.text[offset : offset + 1] != "]" or items:
            items.append(self.value(offset, depth + 1))
            offset = self.skip(items[-1].end)
            if self.text[offset : offset + 1] == "]":
                break
            offset = self.skip(self.expect(offset, ",", "]"))
        return JsonNode(start, offset + 1, None, items=tuple(items))

    def expect(self, offset: int, *wanted: str) -> int:
        if self.text[offset : offset + 1] == wanted[0]:
            return offset + 1
        raise JsonSyntaxError(offset, self.unexpected(offset, " or ".join(repr(sign) for sign in wanted)))

    def unexpected(self, offset: int, wanted: str) -> str:
        if offset >= len(self.text):
            return f"the file ends, but {wanted} is expected"
        if self.text.startswith(("//", "/*", "#"), offset):
            return "a comment is not allowed in JSON"
        if self.text[offset] in "}]" and self.text[:offset].rstrip().endswith(","):
            return "a comma is not allowed after the last entry"
        return f"{wanted} is expected here"


def _number(spelling: str) -> t.Any:
    digits = spelling.lstrip("-")
    return int(spelling) if digits.isdigit() and len(digits) < _LONGEST_INTEGER else float(spelling)


def parse(text: str) -> JsonNode | None:
    """Return the tree of ``text``, or None if it contains only whitespace.

    Raises JsonSyntaxError, also for NaN, Infinity, comments and trailing commas, which daemons refuse.
    """
    if json_data.may_exceed(text, "[{,", MAX_VALUES):
        raise JsonSyntaxError(0, f"the text has more than {MAX_VALUES} values")
    parser = _Parser(text)
    offset = parser.skip(0)
    if offset == len(text):
        return None
    root = parser.value(offset, 0)
    rest = parser.skip(root.end)
    if rest != len(text):
        raise JsonSyntaxError(rest, "unexpected text after the end of the document")
    return root


def to_json(value: t.Any) -> str:
    """Return ``value`` as JSON that UTF-8 can encode. A lone surrogate is written as an escape sequence."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(value, ensure_ascii=False))


def plain(node: JsonNode | None) -> t.Any:
    """Return the value as Python's json module does. Of duplicate names, the last one is used."""
    if node is None:
        return None
    if node.members is not None:
        return {member.name: plain(member.node) for member in node.members}
    if node.items is not None:
        return [plain(item) for item in node.items]
    return node.value


# dockerd's documentation and NVIDIA's own tool use this indentation. It applies only to files without indentation.
DEFAULT_INDENT = "    "


class _Layout(t.NamedTuple):
    """The layout of one object. A new entry is written in the same layout."""

    newline: str  # "" if the entries share a line
    indent: str  # before an entry
    closing: str  # before the closing brace
    unit: str  # one more level of indentation
    colon: str
    gap: str  # between entries that share a line

    def separator(self) -> str:
        return self.newline + self.indent if self.newline else self.gap

    def deeper(self) -> _Layout:
        return _Layout(self.newline, self.indent + self.unit, self.indent, self.unit, self.colon, self.gap)

    def inline(self) -> _Layout:
        return _Layout("", "", "", self.unit, self.colon, " ")


class JsonDocument:
    """The text of one file with its tree. Every edit returns a new document.

    ``bom`` tells whether the file begins with a byte order mark.
    """

    def __init__(self, path: str, text: str, root: JsonNode | None, bom: bool = False) -> None:
        self.path = path
        self.text = text
        self.root = root
        self.bom = bom

    @classmethod
    def from_bytes(cls, path: str, content: bytes) -> JsonDocument:
        """Return the document of ``content``. An empty or blank file is an empty configuration.

        Raises ConfigurationError if ``content`` is larger than JSON_BYTES, is not UTF-8, or is not JSON with an object
        at the top level. The error has the line and column of a syntax error.
        """
        return _parsed(path, *core_text.decode(path, content, "JSON", hostfs.JSON_BYTES))

    def to_bytes(self) -> bytes:
        return (codecs.BOM_UTF8 if self.bom else b"") + self.text.encode("utf-8")

    def error(self, node: JsonNode | JsonMember, problem: str, advice: str) -> errors.ConfigurationError:
        """Return an error with the line and column of ``node``."""
        line, column = core_text.position(self.text, node.start)
        return errors.ConfigurationError(self.path, problem, advice, line, column)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of the value at ``path``, None if there is none."""
        node = self.node(*path)
        return None if node is None else core_text.position(self.text, node.start)[0]

    def value(self, *path: str) -> t.Any:
        """Return the plain value at ``path``, or None if there is no entry or it is null."""
        return plain(self.node(*path))

    def has(self, *path: str) -> bool:
        """Return whether there is an entry at ``path``. A null is an entry, too."""
        return self.node(*path) is not None

    def node(self, *path: str) -> JsonNode | None:
        """Return the node at ``path``, or None. Raises ConfigurationError for a duplicate name on the path."""
        node = self.root
        for name in path:
            member = self._member(node, name) if node is not None else None
            if member is None:
                return None
            node = member.node
        return node

    def set(self, path: KeyPath, value: t.Any) -> JsonDocument:
        """Return the document with ``value`` at ``path``.

        Missing objects on the path are created. A value on the path that is not an object, such as null, is replaced by
        one.
        """
        if self.root is None:
            return self._reparsed("{}\n").set(path, value)
        present = 0
        node = self.root
        while present < len(path):
            member = self._member(node, path[present])
            if member is None:
                break
            node = member.node
            present += 1
            if not node.is_object and present < len(path):
                return self._replace(node, core_text.nest(path[present:], value), path[:present])
        if present == len(path):
            # JSON texts are compared, because in Python True == 1.
            same = json.dumps(plain(node)) == json.dumps(value)
            return self if same else self._replace(node, value, path)
        return self._insert(node, path[: present + 1], core_text.nest(path[present + 1 :], value))

    def delete(self, path: KeyPath) -> JsonDocument:
        """Return the document without the entry at ``path``, its comma and its line, or unchanged if there is none."""
        parent = self.node(*path[:-1])
        member = self._member(parent, path[-1]) if parent is not None else None
        if parent is None or member is None or parent.members is None:
            return self
        index = parent.members.index(member)
        if len(parent.members) == 1:
            start, end = parent.start + 1, parent.end - 1
        elif index:
            start, end = parent.members[index - 1].node.end, member.node.end
        else:
            start, end = member.start, parent.members[1].start
        return self._reparsed(self.text[:start] + self.text[end:])

    def restore(self, path: KeyPath, original: JsonDocument) -> JsonDocument:
        """Return the document with the entry at ``path`` as it is in ``original``.

        If the original has no such entry, the entry is removed. Each object around it that becomes empty, and that is
        not an object in the original, is removed or gets its original value.
        """
        then = original.node(*path)
        if then is not None:
            document = self.set(path, plain(then))
            now = document.node(*path)
            if now is None or not isinstance(then.value, str):
                return document
            # The original may spell the same string with other escape sequences.
            spelling = original.text[then.start : then.end]
            return self._reparsed(document.text[: now.start] + spelling + document.text[now.end :])
        document = self.delete(path)
        for depth in range(len(path) - 1, 0, -1):
            around = path[:depth]
            now, then = document.node(*around), original.node(*around)
            if now is None or now.members or (then is not None and then.is_object):
                break
            document = document.delete(around) if then is None else document.set(around, plain(then))
        return document

    def _member(self, node: JsonNode | None, name: str) -> JsonMember | None:
        found = [member for member in (node.members if node and node.members else ()) if member.name == name]
        if len(found) > 1:
            error = self.error(
                found[1], f"the name {name!r} is used twice in one object", "Remove one of the two entries."
            )
            # The code is not "file-invalid", because a daemon written in Go reads such a file and uses the last entry.
            error.code = "setting-defined-twice"
            raise error
        return found[0] if found else None

    def _reparsed(self, text: str) -> JsonDocument:
        return _parsed(self.path, text, self.bom)

    def _replace(self, node: JsonNode, value: t.Any, path: KeyPath) -> JsonDocument:
        parent = self.node(*path[:-1])
        layout = self._layout(parent, path[:-1]) if parent is not None else self._layout(node, path)
        return self._reparsed(self.text[: node.start] + _serialized(value, layout) + self.text[node.end :])

    def _insert(self, parent: JsonNode, path: KeyPath, value: t.Any) -> JsonDocument:
        layout = self._layout(parent, path[:-1])
        entry = to_json(path[-1]) + layout.colon
        if parent.members:
            sibling = next((m.node for m in reversed(parent.members) if m.node.members), None)
            inline = sibling is not None and "\n" not in self.text[sibling.start : sibling.end]
            entry += _serialized(value, layout.inline() if inline else layout)
            at = parent.members[-1].node.end
            return self._reparsed(self.text[:at] + "," + layout.separator() + entry + self.text[at:])
        entry = layout.newline + layout.indent + entry + _serialized(value, layout) + layout.newline + layout.closing
        return self._reparsed(self.text[: parent.start] + "{" + entry + "}" + self.text[parent.end :])

    def _layout(self, node: JsonNode, path: KeyPath) -> _Layout:
        """Return the layout of the object ``node`` at ``path``, from its own entries or else from outer objects."""
        newline = "\r\n" if "\r\n" in self.text else "\n"
        unit = self._indent_unit()
        if not node.members:
            if not path:
                return _Layout(newline, unit, "", unit, ": ", " ")
            outer = self.node(*path[:-1]) or node
            return self._layout(outer, path[:-1]).deeper()
        first, last = node.members[0], node.members[-1]
        colon = self.text[first.name_end : first.node.start]
        if not colon.isprintable():
            colon = ": "
        before = self.text[: last.start]
        gap = before[len(before.rstrip(" \t\r\n")) :]
        if "\n" not in gap:
            gap = gap if len(node.members) > 1 else (" " if colon.endswith(" ") else "")
            return _Layout("", "", "", unit, colon, gap)
        closing = self.text[: node.end - 1].rpartition("\n")[2]
        return _Layout(newline, gap.rpartition("\n")[2], closing if not closing.strip() else "", unit, colon, " ")

    def _indent_unit(self) -> str:
        """Return one level of indentation, as the file uses it."""
        if self.root is not None and self.root.members:
            before = self.text[: self.root.members[0].start]
            gap = before[len(before.rstrip(" \t\r\n")) :]
            if "\n" in gap and gap.rpartition("\n")[2]:
                return gap.rpartition("\n")[2]
        return DEFAULT_INDENT


def _parsed(path: str, text: str, bom: bool) -> JsonDocument:
    try:
        root = parse(text)
    except JsonSyntaxError as error:
        line, column = core_text.position(text, error.offset)
        raise errors.ConfigurationError(path, error.problem, "Correct the file.", line, column) from error
    document = JsonDocument(path, text, root, bom)
    if root is not None and not root.is_object:
        problem = f"the file contains {_article(root.kind)}, but an object is expected"
        raise document.error(root, problem, "Write all settings in one object: { }.")
    return document


def _article(kind: str) -> str:
    return ("an " if kind[0] in "ao" else "a ") + kind if kind != "null" else kind


def _serialized(value: t.Any, layout: _Layout) -> str:
    """Return ``value`` as the text behind its name in an object with ``layout``."""
    if not isinstance(value, dict) or not value:
        return to_json(value)
    inner = layout.deeper() if layout.newline else layout
    lead = inner.newline + inner.indent
    between = "," + inner.separator()
    entries = between.join(to_json(name) + layout.colon + _serialized(entry, inner) for name, entry in value.items())
    return "{" + lead + entries + inner.newline + (layout.indent if layout.newline else "") + "}"


# -- masking ---------------------------------------------------------------------------------------------------------


def mask_json(text: str) -> str:
    """Return ``text`` with the values of secret-looking names and all user information in URLs hidden.

    The parsed strings are checked, not their spelling, because JSON may write / and @ as escapes. mask_urls() masks a
    text that is not JSON.
    """
    if text.startswith(masking.BYTE_ORDER_MARK):
        return masking.BYTE_ORDER_MARK + mask_json(text[1:])
    try:
        root = parse(text)
    except JsonSyntaxError:
        return masking.mask_urls(text)
    parts: list[str] = []
    position = 0
    for start, end, masked in _masked(root) if root is not None else ():
        parts += (text[position:start], to_json(masked))
        position = end
    return "".join(parts) + text[position:]


def _masked(node: JsonNode) -> t.Iterator[tuple[int, int, str]]:
    """Yield start, end and replacement of each name or value that must be hidden, in the order of the text."""
    members, items = node.members or (), node.items or ()
    named = masking.secret_member((member.name, member.node.value) for member in members)
    for member in members:
        yield from _masked_string(member.start, member.name_end, member.name)
        if member.name == named or masking.is_secret(member.name, member.node.value):
            yield member.node.start, member.node.end, masking.MASK
        else:
            yield from _masked(member.node)
    hidden = masking.secret_items([item.value for item in items])
    for number, item in enumerate(items):
        if number in hidden:
            yield item.start, item.end, masking.MASK
        else:
            yield from _masked(item)
    if isinstance(node.value, str):
        yield from _masked_string(node.start, node.end, node.value)


def _masked_string(start: int, end: int, value: str) -> t.Iterator[tuple[int, int, str]]:
    masked = masking.mask_urls_in_string(value)
    if masked != value:
        yield start, end, masked
