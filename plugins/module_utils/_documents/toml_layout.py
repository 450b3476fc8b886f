# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find where the tables, keys and values of a TOML text begin and end, and spell new ones in the style of the file."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser

_COMMENTED_HEADER = re.compile(r"^[ \t]*#[ \t]*\[", re.MULTILINE)
_COMMENTED_ENTRY = re.compile(r"""[ \t]*#[ \t]*[A-Za-z0-9_."'-]+[ \t]*=""")


class Layout:
    """One text with its entries, and the style in which it is written."""

    def __init__(self, text: str, source: Layout | None = None) -> None:
        self.text = text
        self.source = source  # its spelling is used for entries that it has, too
        self.entries = toml_parser.scan(text)
        self.newline = "\r\n" if "\r\n" in text else "\n"

    # -- search ----------------------------------------------------------------------------------------------------

    def header(self, path: toml_parser.KeyPath) -> toml_parser.TomlEntry | None:
        return next((e for e in self.entries if e.node is None and not e.array and e.path == path), None)

    def member(self, path: toml_parser.KeyPath) -> toml_parser.TomlMember | None:
        """Return the assignment at exactly ``path``, on a line of its own or in an inline table, or None."""
        for entry in self.entries:
            if entry.node is not None and path[: len(entry.path)] == entry.path:
                found: toml_parser.TomlMember | None = toml_parser.TomlMember(
                    entry.path, entry.raws, entry.start, entry.node
                )
                rest = path[len(entry.path) :]
                while found is not None and rest:
                    found = next((m for m in found.node.members if m.names and rest[: len(m.names)] == m.names), None)
                    rest = rest[len(found.names) :] if found is not None else rest
                if found is not None:
                    return found
        return None

    def start_of(self, path: toml_parser.KeyPath) -> int | None:
        """Return the start of the entry at ``path``, or of the first entry below it, or None."""
        member = self.member(path)
        if member is not None:
            return member.start
        return next((entry.start for entry in self.entries if entry.under(path)), None)

    def empty(self, path: toml_parser.KeyPath) -> bool:
        """Return whether there is an empty table at ``path``."""
        member = self.member(path)
        if member is not None:
            return member.node.kind == "{" and not member.node.members
        inside = [entry for entry in self.entries if entry.under(path)]
        return bool(inside) and all(e.node is None and not e.array and e.path == path for e in inside)

    def comments(self, node: toml_parser.TomlNode) -> set[str]:
        """Return the comments inside a value, at any depth."""
        found: set[str] = set()
        here = node.start
        for member in node.members:
            found.update(re.findall(r"#[^\r\n]*", self.text[here : member.start]))
            found.update(self.comments(member.node))
            here = member.node.end
        if node.kind in ("[", "{"):
            found.update(re.findall(r"#[^\r\n]*", self.text[here : node.end]))
        return found

    # -- layout ----------------------------------------------------------------------------------------------------

    def _indent_of(self, entry: toml_parser.TomlEntry) -> str:
        return self.text[entry.first : entry.start]

    def _key_indent(self, header: toml_parser.TomlEntry) -> str:
        """Return how much deeper than its header an assignment is indented.

        The example is an assignment in this table or in a table inside it, or else any assignment of the file.
        """
        at = self.entries.index(header)
        for entry in [*self.entries[at + 1 :], *reversed(self.entries[:at])]:
            above = next((h for h in self.entries if h.node is None and h.path == entry.table), None)
            if entry.node is not None and above is not None and entry.table[: len(header.path)] == header.path:
                return self._deeper(above, entry)
        return self._any_key_indent()

    def _any_key_indent(self) -> str:
        header = None
        found = None
        for entry in self.entries:
            if entry.node is None:
                header = entry
            elif header is not None:
                found = self._deeper(header, entry)
        return found or ""

    def _nesting(self) -> str:
        """Return how much deeper than its parent a table is indented in this file."""
        headers = {e.path: e for e in self.entries if e.node is None}
        for path, entry in reversed(list(headers.items())):
            if path[:-1] in headers:
                return self._deeper(headers[path[:-1]], entry)
        return ""

    def _deeper(self, outer: toml_parser.TomlEntry, inner: toml_parser.TomlEntry) -> str:
        above, below = self._indent_of(outer), self._indent_of(inner)
        return below[len(above) :] if below.startswith(above) else ""

    def _lead(self, entry: toml_parser.TomlEntry) -> int:
        """Return the start of the comment lines directly above ``entry``.

        An entry that is commented out belongs to the table above.
        """
        start = entry.first
        while start:
            above = self.text.rfind("\n", 0, start - 1) + 1
            line = self.text[above:start]
            if not line.lstrip().startswith("#") or _COMMENTED_ENTRY.match(line):
                break
            start = above
        return start

    def _last_line(self, limit: int) -> int:
        """Return the end of the last line above offset ``limit`` that is not blank, or 0 if there is none."""
        end = len(self.text[:limit].rstrip())
        return toml_parser.line_end(self.text, end) if end else 0

    def _block_end(self, entry: toml_parser.TomlEntry) -> int:
        """Return the end of the table whose last entry is ``entry``, with the comments that belong to it."""
        index = self.entries.index(entry)
        following = self.entries[index + 1] if index + 1 < len(self.entries) else None
        limit = self._lead(following) if following is not None else len(self.text)
        end, adjacent = entry.last, True
        here = self.text.find("\n", end) + 1
        while 0 < here < limit:
            stop = toml_parser.line_end(self.text, here)
            line = self.text[here:stop]
            if _COMMENTED_HEADER.match(line):
                break
            if line.strip() and (adjacent or _COMMENTED_ENTRY.match(line)):
                end = stop
            adjacent = end == stop
            here = self.text.find("\n", here) + 1
        return end

    def _commented_out(self, table: toml_parser.KeyPath, name: str) -> int | None:
        """Return the start of the line ``# NAME = …`` in a table, or None. Packages install files with such lines."""
        pattern = re.compile(r"^[ \t]*#[ \t]*" + re.escape(name) + r"[ \t]*=[^\n]*[^\s\[]", re.MULTILINE)
        starts = [e.last for e in self.entries if e.node is None and not e.array and e.path == table]
        for start in starts if table else [0]:
            end = next((e.first for e in self.entries if e.node is None and e.first >= start), len(self.text))
            # What follows a commented header belongs to its table, which may be switched on later.
            end = next(self._comment_starts(_COMMENTED_HEADER, start, end), end)
            found = next(self._comment_starts(pattern, start, end), None)
            if found is not None:
                return found
        return None

    def _comment_starts(self, pattern: t.Pattern[str], start: int, end: int) -> t.Iterator[int]:
        """Where ``pattern`` matches outside the values, such as a string over several lines."""
        for found in pattern.finditer(self.text, start, end):
            if not any(e.start < found.start() < e.end for e in self.entries):
                yield found.start()

    def _blank_before(self, at: int) -> bool:
        """Return whether a table that is inserted behind offset ``at`` is separated by a blank line."""
        following = self.text[at:].split("\n", 2)
        if len(following) > 1 and (len(following) > 2 or following[1]):
            return not following[1].strip()
        return self._sets_off(self.entries)

    def _sets_off(self, entries: list[toml_parser.TomlEntry]) -> bool:
        """Return whether blank lines separate most tables. Headers directly below another header are not used."""
        votes = [
            "\n" in self.text[above.last : self._lead(entry)].strip(" \t\r\n") or self._gap(above, entry) > 1
            for above, entry in zip(entries, entries[1:])
            if entry.node is None and above.node is not None
        ]
        return sum(votes) * 2 >= len(votes)

    def _gap(self, above: toml_parser.TomlEntry, entry: toml_parser.TomlEntry) -> int:
        return self.text[above.last : entry.first].count("\n")

    def _blank_inside(self, example: toml_parser.TomlEntry | None, outer: bool) -> bool:
        """Return whether a blank line separates a table from the tables in it.

        The tables inside ``example`` decide. If they show nothing, the result is ``outer``.
        """
        inside = [e for e in self.entries if example is not None and e.under(example.path)]
        votes = any(e.node is None and e is not example for e in inside) and any(e.node is not None for e in inside)
        return self._sets_off(inside) if votes else outer

    # -- spelling --------------------------------------------------------------------------------------------------

    def _table_lines(
        self,
        path: toml_parser.KeyPath,
        value: dict[str, t.Any],
        indent: str,
        example: toml_parser.TomlEntry | None,
        blank: bool,
    ) -> list[str]:
        tables = {name: entry for name, entry in value.items() if isinstance(entry, dict)}
        lines: list[str] = []
        if len(tables) < len(value) or not value:
            deeper = indent + (self._key_indent(example) if example is not None else "")
            lines = [indent + "[" + self._names(path) + "]"]
            for name, entry in value.items():
                if name not in tables:
                    lines.append(deeper + self._assignment((*path, name), entry))
        inner = indent
        if lines:
            inner += self._nesting()
        for name, entry in tables.items():
            if lines and blank:
                lines.append("")
            lines += self._table_lines((*path, name), entry, inner, example, blank)
        return lines

    def _dotted_lines(self, path: toml_parser.KeyPath, table: toml_parser.KeyPath, value: t.Any) -> list[str]:
        """Return assignments with dotted names, to be written in ``table``."""
        if isinstance(value, dict) and value:
            return [line for name, inner in value.items() for line in self._dotted_lines((*path, name), table, inner)]
        return [f"{self._names(path, len(table))} = {self._spelled(path, value)}"]

    def _assignment(self, path: toml_parser.KeyPath, value: t.Any) -> str:
        narrow = sum(1 if e.equals == "=" else -1 for e in self.entries if e.node is not None) > 0
        equals = "=" if narrow else " = "
        return self._name(path[-1]) + equals + self._spelled(path, value)

    def _source_node(self, path: toml_parser.KeyPath) -> toml_parser.TomlNode | None:
        member = self.source.member(path) if self.source is not None else None
        return None if member is None or member.node.kind == "{" else member.node

    def _spelled(self, path: toml_parser.KeyPath, value: t.Any) -> str:
        node = self._source_node(path)
        return self._value(value) if self.source is None or node is None else self.source.text[node.start : node.end]

    def _names(self, path: toml_parser.KeyPath, outer: int = 0) -> str:
        """Return a dotted path without its first ``outer`` names. Each name is spelled as in the file."""
        known: dict[toml_parser.KeyPath, str] = {}
        for entry in self.entries:
            for index, raw in enumerate(reversed(entry.raws)):
                known.setdefault(entry.path[: len(entry.path) - index], raw)
        return ".".join(known.get(path[: i + 1]) or self._name(path[i]) for i in range(outer, len(path)))

    def _name(self, name: str) -> str:
        return toml_parser.spell_name(name, self._string)

    def _string(self, value: str) -> str:
        nodes = [e.node for e in self.entries if e.node is not None]
        kinds = [node.kind for node in [*nodes, *(member.node for outer in nodes for member in outer.members)]]
        literal = kinds.count("'") > kinds.count('"')
        if literal and "'" not in value and value.isprintable():
            return f"'{value}'"
        return toml_parser.quote_string(value)

    def _value(self, value: t.Any) -> str:
        return toml_parser.spell_value(value, self._string)
