# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: entries of a TOML text that are commented out, as packages ship their defaults: where they
# stand, and how such a line is turned on and off.

from __future__ import annotations

import functools
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_reader import line_end, parse, scan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_layout import Layout
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_reader import Entry, KeyPath

_COMMENT = re.compile(r"^([ \t]*)#([ \t]*)([^\r\n]*)", re.MULTILINE)
# What may be an entry or a table's header; whether it is one is for the parser to say.
_LIKELY = re.compile(r"""[A-Za-z0-9_."' \t-]+=|\[[^\[]""")


class Commented(t.NamedTuple):
    """One line with an entry or a header that is commented out.

    ``indent``, ``gap`` and ``body`` are what stands before the ``#``, between it and the name, and from there on.
    ``first`` and ``last`` are where the line starts and ends, ``header`` is the commented header above, if any.
    """

    first: int
    last: int
    indent: str
    gap: str
    body: str
    entry: Entry  # of the body
    value: t.Any
    header: Commented | None = None

    @property
    def turned_on(self) -> str:
        """The line as a person leaves it who takes the ``#`` away."""
        return self.indent_when_on + self.body

    @property
    def indent_when_on(self) -> str:
        """One blank behind the ``#`` is there for the eye, more are the line's own indentation."""
        return self.indent + ("" if self.gap == " " else self.gap)

    def with_value(self, spelled: str) -> str:
        """The line turned on, with another value."""
        node = self.entry.node
        start, end = (0, 0) if node is None else (node.start, node.end)
        return self._replace(body=self.body[:start] + spelled + self.body[end:]).turned_on

    @property
    def spelled_value(self) -> str:
        """The value as the line spells it; a header has none."""
        node = self.entry.node
        return "" if node is None else self.body[node.start : node.end]

    @property
    def without_remark(self) -> str:
        """The line up to the end of its value, without a remark behind it."""
        return f"{self.indent}#{self.gap}{self.body[: self.entry.end]}"


def commented_entries(layout: Layout, path: KeyPath) -> list[Commented]:
    """The lines in which the entry at ``path`` is commented out, first those in tables that are there."""
    found = [line for line in _commented(layout) if line.entry.node is not None and line.entry.path == path]
    return sorted(found, key=lambda line: line.header is not None)


def usual_gap(layout: Layout) -> str:
    """What stands between ``#`` and a name where entries are commented out in this text."""
    gaps = [line.gap for line in _commented(layout) if line.gap in ("", " ")]
    return " " if gaps.count(" ") * 2 > len(gaps) else ""


def commented_headers(layout: Layout, path: KeyPath) -> list[Commented]:
    """The lines in which the header of the table at ``path`` is commented out."""
    return [line for line in _commented(layout) if line.entry.node is None and line.entry.path == path]


def _commented(layout: Layout) -> t.Iterator[Commented]:
    """All such lines; the path of an entry begins with the table that it would be in."""
    text, entries = layout.text, layout.entries
    header: Commented | None = None
    table: KeyPath = ()
    following = 0
    for found in _COMMENT.finditer(text):
        first = found.start()
        while following < len(entries) and entries[following].first < first:
            # A header ends what a commented one has begun; so does an entry, which would not be in that table now.
            table, header = _table_of(entries[following]), None
            following += 1
        inside = following and entries[following - 1].end > first
        if inside or not _LIKELY.match(found.group(3)):
            continue
        read = _read(found.group(3))
        if read is None:
            continue
        entry, value = read
        line = Commented(first, line_end(text, first), found.group(1), found.group(2), found.group(3), entry, value)
        if entry.node is None:
            header = line
            yield line
        else:
            inner = header.entry.path if header is not None else table
            yield line._replace(entry=entry._replace(path=inner + entry.path, table=inner), header=header)


def _table_of(entry: Entry) -> KeyPath:
    return entry.path if entry.node is None else entry.table


@functools.lru_cache(maxsize=128)
def _read(body: str) -> tuple[Entry, t.Any] | None:
    """What the text behind a ``#`` would be without it, None where that is neither an entry nor a header."""
    try:
        # Lines of comments would drive whole files out of its cache.
        value: t.Any = parse.__wrapped__("", body)
        (entry,) = scan(body)
    except (ConfigurationError, ValueError):
        # Prose, or the first line of an array that goes on.
        return None
    for name in entry.path:
        value = value[name]
    return entry, value
