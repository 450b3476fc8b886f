# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Set, insert and remove keys of a TOML text, in tables, inline tables and dotted keys.

The edits change the text and not tomlkit's tree, because the tree moves tables that are out of order, writes headers
for dotted keys, and does not know the indentation of a file.
"""

from __future__ import annotations

import difflib
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (
    masking,
    toml_layout,
    toml_parser,
)

_REST_OF_LINE = re.compile(r"[ \t]*(#[^\n]*?)?(?=\r?\n|\Z)")


class UneditableError(ValueError):
    """An edit would remove a user's comment inside a value.

    ``comment`` is one of these comments, with secrets in URLs masked.
    """

    def __init__(self, comments: t.Collection[str]) -> None:
        super().__init__()
        self.comment = masking.mask_urls(min(comments))


class Editor(toml_layout.Layout):
    """One text that is edited in place. Each edit replaces ``text`` and scans it again."""

    # -- removal ---------------------------------------------------------------------------------------------------

    def remove(self, path: toml_parser.KeyPath) -> None:
        """Remove everything at ``path``, in all places of the file.

        Raises UneditableError if a removed value in an inline table contains a comment.
        """
        inline = self._inline_member(path)
        while inline is not None:
            self._remove_member(*inline)
            inline = self._inline_member(path)
        runs: list[tuple[int, int]] = []
        previous: toml_parser.TomlEntry | None = None
        for entry in self.entries:
            if entry.under(path):
                if previous is not None and _within(previous, path) and _within(entry, path):
                    runs[-1] = (runs[-1][0], entry.last)
                else:
                    runs.append((entry.first, entry.last))
            previous = entry
        for start, end in reversed(runs):
            self._cut_lines(start, end)
        self._changed()

    def remove_bare_header(self, path: toml_parser.KeyPath) -> None:
        """Remove the header of a table that contains only tables."""
        header = self.bare_header(path)
        if header is not None:
            self._cut_lines(header.first, header.last)
            self._changed()

    def bare_header(self, path: toml_parser.KeyPath) -> toml_parser.TomlEntry | None:
        """Return the header of the table at ``path`` if the table has no assignments of its own, or None."""
        header = self.header(path)
        own = any(entry.node is not None and entry.table == path for entry in self.entries)
        return None if own else header

    def trailing_comment(self, entry: toml_parser.TomlEntry) -> str:
        """Return the text behind an entry or a header on its line."""
        return self.text[entry.end : entry.last].strip()

    def _inline_member(self, path: toml_parser.KeyPath) -> tuple[toml_parser.TomlNode, int] | None:
        for entry in self.entries:
            if entry.node is not None and len(entry.path) < len(path) and path[: len(entry.path)] == entry.path:
                found = _member_in(entry.node, path[len(entry.path) :])
                if found is not None:
                    return found
        return None

    def _cut_lines(self, start: int, end: int) -> None:
        """Remove whole lines. If two blank lines would then follow each other, remove one of them."""
        before, after = self.text[:start], self.text[end:]
        if not before:
            after = after[len(self._line_break(after)) :]
            self.text = after[len(self._line_break(after)) :]
            return
        before = before[: -len(self.newline)] if before.endswith(self.newline) else before[:-1]
        following = after[len(self._line_break(after)) :].split("\n", 1)[0]
        lead, newline, last = before.rpartition("\n")
        if not following.strip() and newline and not last.strip():
            before = lead[:-1] if lead.endswith("\r") else lead
        self.text = before + after

    @staticmethod
    def _line_break(text: str) -> str:
        return "\r\n" if text.startswith("\r\n") else text[:1] if text.startswith("\n") else ""

    def _remove_member(self, node: toml_parser.TomlNode, index: int) -> None:
        """Remove one element of an array, or one entry of an inline table, with its comma and its line.

        Raises UneditableError if its value contains a comment.
        """
        text, members, commas = self.text, node.members, node.commas
        member = members[index]
        if self.comments(member.node):
            raise UneditableError(self.comments(member.node))
        if len(members) == 1 and not self.comments(node):
            return self._splice((node.start + 1, node.end - 1, ""))
        end = commas[index] + 1 if index < len(commas) else member.node.end
        blank = len(text[: member.start].rstrip(" \t"))
        rest = _REST_OF_LINE.match(text, end)
        if rest is not None and text[blank - 1] == "\n":
            cut = (blank - 2 if text[blank - 2] == "\r" else blank - 1, rest.end())
        elif index + 1 < len(members) and not text[end : members[index + 1].start].strip(" \t"):
            cut = (member.start, members[index + 1].start)
        else:
            cut = (blank, end)
        last = index and index >= len(commas)
        comma = [(commas[index - 1], commas[index - 1] + 1, "")] if last else []
        return self._splice((*cut, ""), *comma)

    # -- insertion -------------------------------------------------------------------------------------------------

    def replace(self, path: toml_parser.KeyPath, old: t.Any, value: t.Any) -> None:
        """Replace the value ``old`` of the entry at ``path`` by ``value``. At most one of them may be a table.

        If both are tables, the caller replaces their entries one by one.

        Raises UneditableError if a comment inside the old value would be lost.
        """
        member = self.member(path)
        if member is None:
            self.remove(path)
            return self.insert(path, value)
        node = member.node
        source = self._source_node(path)
        lost = self.comments(node) - (self.source.comments(source) if self.source and source else set())
        if isinstance(old, list) and isinstance(value, list) and (source is None or lost):
            kept, surplus = _common_start(old, value)
            if lost and old and value:
                if self._replace_changed_elements(path, old, value):
                    return None
            elif kept or not old or not value:
                return self._replace_elements(path, surplus, value[kept:])
        if lost:
            raise UneditableError(lost)
        return self._splice((node.start, node.end, self._spelled(path, value)))

    def _replace_elements(self, path: toml_parser.KeyPath, surplus: list[int], items: list[t.Any]) -> None:
        for index in reversed(surplus):
            member = self.member(path)
            if member is not None:
                self._remove_member(member.node, index)
        member = self.member(path)
        if member is not None and items:
            self._append(member.node, [self._value(item) for item in items])

    def _replace_changed_elements(self, path: toml_parser.KeyPath, old: list[t.Any], value: list[t.Any]) -> bool:
        """Replace elements of an array, and keep the others with their comments. Return False if no element is kept."""
        before, after = ([self._value(item) for item in items] for items in (old, value))
        steps = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if all(kind != "equal" for kind, *_places in steps):
            return False
        for _kind, first, last, start, end in reversed([step for step in steps if step[0] != "equal"]):
            for index in reversed(range(first, last)):
                self._remove_member(self._array(path), index)
            items = [self._value(item) for item in value[start:end]]
            node = self._array(path)
            if items and first < len(node.members):
                self._insert_before(node, first, items)
            elif items:
                self._append(node, items)
        return True

    def _array(self, path: toml_parser.KeyPath) -> toml_parser.TomlNode:
        member = self.member(path)
        if member is None:
            raise ValueError(path)
        return member.node

    def _insert_before(self, node: toml_parser.TomlNode, index: int, items: list[str]) -> None:
        """Insert items before an element of an array, and before the comments above it."""
        element = node.members[index]
        at = node.commas[index - 1] + 1 if index else node.start + 1
        lead, newline, indent = self.text[at : element.start].rpartition("\n")
        if not newline:
            return self._splice((element.start, element.start, "".join(f"{item}, " for item in items)))
        rest = _REST_OF_LINE.match(self.text, at)
        if rest is None:
            raise ValueError(lead)
        added = "".join(f"{self.newline}{indent}{item}," for item in items)
        return self._splice((rest.end(), rest.end(), added))

    def insert(self, path: toml_parser.KeyPath, value: t.Any) -> None:
        """Write ``value`` at ``path``, where no entry exists yet."""
        depth = max(d for d in range(len(path)) if not d or self.start_of(path[:d]) is not None)
        parent, rest = path[:depth], path[depth:]
        inline = self.member(parent) if depth else None
        if inline is not None:
            assignment = f"{self._name(rest[0])} = {self._value(core_text.nest(rest[1:], value))}"
            return self._append(inline.node, [assignment])
        header = self.header(parent)
        dotted = [e for e in self.entries if e.node is not None and e.under(parent) and len(e.table) < depth]
        if dotted:
            lines = self._dotted_lines(path, dotted[-1].table, value)
            return self._insert_after(dotted[-1], lines, dotted[-1])
        own = [e for e in self.entries if e.node is not None and e.table == parent]
        tables = [e for e in self.entries if e.node is None and e.under(parent) and e.path != parent]
        leaf = len(rest) == 1 and not isinstance(value, dict)
        as_inline = bool(depth and own and own[-1].node and own[-1].node.kind == "{" and not tables)
        if leaf or (as_inline and header is not None):
            line = self._assignment(path[: depth + 1], core_text.nest(rest[1:], value))
            return self._insert_assignment(parent, header, own, line)
        return self._insert_tables(path, value, depth)

    def _insert_assignment(
        self,
        parent: toml_parser.KeyPath,
        header: toml_parser.TomlEntry | None,
        own: list[toml_parser.TomlEntry],
        line: str,
    ) -> None:
        example = own[-1] if own else header
        name = line.split("=", 1)[0].rstrip()
        commented = self._commented_out(parent, name)
        if commented is not None:
            at = toml_parser.line_end(self.text, commented)
            lead = self.text[commented:at].partition("#")[0]
            return self._splice((at, at, self.newline + lead + line))
        if example is not None:
            return self._insert_after(example, [line], own[-1] if own else None)
        first = next((e for e in self.entries if not parent or e.under(parent)), None)
        if first is None:
            return self._insert_block(self._last_line(len(self.text)), [line])
        lines = [line]
        if parent:
            indent = self._indent_of(first)
            lines = [indent + "[" + self._names(parent) + "]", indent + self._key_indent(first) + line]
        return self._insert_block(self._last_line(self._lead(first)), lines)

    def _insert_after(
        self, entry: toml_parser.TomlEntry, lines: list[str], example: toml_parser.TomlEntry | None
    ) -> None:
        indent = self._indent_of(entry if example is None else example)
        if example is None:
            indent += self._key_indent(entry)
        self._splice((entry.last, entry.last, "".join(self.newline + indent + line for line in lines)))

    def _insert_tables(self, path: toml_parser.KeyPath, value: t.Any, depth: int) -> None:
        """Insert a new table behind its last sibling, else behind its parent, else at the end.

        The parent is at the first ``depth`` names of ``path``.
        """
        parent = path[:depth]
        inside = [e for e in self.entries if e.under(parent)]
        tables = [e for e in inside if e.node is None and len(e.path) > depth]
        siblings = [e for e in tables if len(e.path) == depth + 1] or tables
        header = self.header(parent)
        indent = ""
        if siblings:
            indent = self._indent_of(siblings[-1])
        elif header is not None:
            indent = self._indent_of(header) + self._nesting()
        if not isinstance(value, dict):
            path, value = path[:-1], {path[-1]: value}
        example = siblings[-1] if siblings else next((e for e in reversed(self.entries) if e.node is None), None)
        at = self._block_end(inside[-1]) if depth else self._last_line(len(self.text))
        blank = self._blank_inside(example, self._blank_before(at))
        self._insert_block(at, self._table_lines(path, value, indent, example, blank))

    def _insert_block(self, at: int, lines: list[str]) -> None:
        if not self.text[:at].strip():
            rest = self.newline if self.text else ""
            return self._splice((0, 0, self.newline.join(lines) + self.newline + rest))
        blank = self.newline if self._blank_before(at) else ""
        return self._splice((at, at, blank + "".join(self.newline + line for line in lines)))

    def _append(self, node: toml_parser.TomlNode, items: list[str]) -> None:
        if not node.members:
            return self._fill(node, items)
        last, count = node.members[-1], len(node.members)
        trailing = len(node.commas) >= count
        before = self.text[node.members[-2].node.end if count > 1 else node.start + 1 : last.start]
        at = end = node.commas[count - 1] + 1 if trailing else last.node.end
        if "\n" in before:
            gap = self.newline + before.rpartition("\n")[2]
            rest = _REST_OF_LINE.match(self.text, end)
            at = rest.end() if rest is not None else end
        else:
            gap = " " if before[-1:] in (" ", "\t") or count == 1 else ""
        added = ",".join(gap + item for item in items) + ("," if trailing else "")
        between = self.text[end:at]
        return self._splice((end, at, ("" if trailing else ",") + between + added))

    def _fill(self, node: toml_parser.TomlNode, items: list[str]) -> None:
        """Insert items into an empty array or inline table, below any comments in it."""
        inside = self.text[node.start + 1 : node.end - 1]
        if self.comments(node):
            at = self._last_line(node.end - 1)
            *lines, closing = inside.split("\n")
            comments = [line.partition("#")[0] for line in lines[1:] if line.strip()]
            lead = self.newline + (comments[-1] if comments else closing + "  ")
            return self._splice((at, at, lead + ("," + lead).join(items)))
        padding = "" if "\n" in inside else inside or (" " if node.kind == "{" else "")
        return self._splice((node.start + 1, node.end - 1, padding + ", ".join(items) + padding))

    # -- changes of the text ---------------------------------------------------------------------------------------

    def _splice(self, *changes: tuple[int, int, str]) -> None:
        for start, end, new in sorted(changes, reverse=True):
            self.text = self.text[:start] + new + self.text[end:]
        self._changed()

    def _changed(self) -> None:
        self.entries = toml_parser.scan(self.text)


def _within(entry: toml_parser.TomlEntry, path: toml_parser.KeyPath) -> bool:
    return entry.table[: len(path)] == path


def _member_in(node: toml_parser.TomlNode, path: toml_parser.KeyPath) -> tuple[toml_parser.TomlNode, int] | None:
    """Return the inline table with the entry at ``path``, and the index of this entry in the table, or None.

    If there is no such entry, the first entry below ``path`` is used, such as ``a.b`` for ``a``. ``path`` is relative
    to ``node``.
    """
    for index, member in enumerate(node.members):
        if member.names and member.names[: len(path)] == path:
            return node, index
        if member.names and member.names == path[: len(member.names)]:
            found = _member_in(member.node, path[len(member.names) :])
            if found is not None:
                return found
    return None


def _common_start(old: list[t.Any], value: list[t.Any]) -> tuple[int, list[int]]:
    """Return how many of the first elements of ``value`` are in ``old``, and the indexes of the others in ``old``.

    The elements must be in the same order.
    """
    kept = 0
    surplus = []
    for index, item in enumerate(old):
        if kept < len(value) and toml_parser.equal(item, value[kept]):
            kept += 1
        else:
            surplus.append(index)
    return kept, surplus
