# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Edit the text of a TOML document, so that comments and layout are kept, and hide secrets in such a text.

A TOML library parses the text after each edit. The edit is refused if the parsed data is not as expected.
"""

from __future__ import annotations

import codecs
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking, toml_parser

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_editor

    Token = t.Tuple[int, int, str]


_MISSING: t.Any = object()


class TomlDocument:
    """The text of one file and its parsed data. Every edit returns a new document.

    ``bom`` tells whether the file begins with a byte order mark.
    """

    def __init__(self, path: str, text: str, data: dict[str, t.Any], bom: bool = False) -> None:
        self.path = path
        self.text = text
        self.data = data
        self.bom = bom

    @classmethod
    def from_bytes(cls, path: str, content: bytes) -> TomlDocument:
        """Return the document of ``content``.

        An empty file, or one with only blanks and comments, is an empty configuration. Raises ConfigurationError with
        line and column if ``content`` is not TOML in UTF-8. Raises NvidiaError if this host has no TOML parser.
        """
        text, bom = core_text.decode(path, content, "TOML", hostfs.TOML_BYTES)
        return cls(path, text, toml_parser.parse(path, text), bom)

    def to_bytes(self) -> bytes:
        return (codecs.BOM_UTF8 if self.bom else b"") + self.text.encode("utf-8")

    def value(self, *path: str) -> t.Any:
        """Return the plain value at ``path``, or None if there is none. The caller must not change it."""
        found = _lookup(self.data, path)
        return None if found is _MISSING else found

    def has(self, *path: str) -> bool:
        return _lookup(self.data, path) is not _MISSING

    def error(self, path: toml_parser.KeyPath, problem: str, advice: str) -> errors.ConfigurationError:
        """Return an error with the line and column of the entry at ``path``, if the text contains it."""
        return errors.ConfigurationError(self.path, problem, advice, *(self._position(path) or ()))

    def line(self, path: toml_parser.KeyPath) -> int | None:
        """Return the line of the entry at ``path``, None if the text does not contain it."""
        position = self._position(path)
        return None if position is None else position[0]

    def _position(self, path: toml_parser.KeyPath) -> tuple[int, int] | None:
        try:
            offset = self.editor().start_of(path)
        except ValueError:
            return None
        return None if offset is None else core_text.position(self.text, offset)

    def set(self, path: toml_parser.KeyPath, value: t.Any) -> TomlDocument:
        """Return the document with ``value`` at ``path``. Missing tables on the path are created.

        If the old and the new value are tables, the old table is changed entry by entry until both are equal. Raises
        ConfigurationError if a value on the path is not a table, or if the file cannot be edited without loss.
        """
        return self._set(path, value, None)

    def delete(self, path: toml_parser.KeyPath, prune: bool = False) -> TomlDocument:
        """Return the document without the entry at ``path`` and its lines, or unchanged if there is none.

        With ``prune``, the tables around it that become empty are removed, too. A table without a header (``a`` in
        ``a.b = 1``) is always removed with its last entry.
        """
        if not path or not self.has(*path):
            return self

        def change(editor: toml_editor.Editor) -> None:
            editor.remove(path)
            for depth in range(len(path) - 1, 0, -1):
                if prune and editor.empty(path[:depth]):
                    editor.remove(path[:depth])

        return self._edited(path, change, _replaced(self.data, path, _MISSING), deleted=True)

    def restore(self, path: toml_parser.KeyPath, original: TomlDocument) -> TomlDocument:
        """Return the document with the entry at ``path`` as it is in ``original``, with the same text.

        If the original has no such entry, the entry is removed. The tables around it that become empty are also
        removed, and so is the header that is no longer needed. Tables and headers of the original are kept.
        """
        if original.has(*path):
            return self._set(path, original.value(*path), original)
        return self.delete(path).without_tables_around(path, original)

    def without_bare_header(self, path: toml_parser.KeyPath) -> TomlDocument:
        """Return the document without the header at ``path`` if its table contains only tables.

        TOML does not need such a header, because the headers of the inner tables are sufficient. A header with a
        comment on its line is kept, because this collection writes no comments there.
        """
        header = self.editor().bare_header(path)
        if header is None or self.editor().trailing_comment(header):
            return self

        def change(editor: toml_editor.Editor) -> None:
            editor.remove_bare_header(path)

        return self._edited(path, change, self.data, deleted=True)

    def without_tables_around(self, path: toml_parser.KeyPath, original: TomlDocument) -> TomlDocument:
        """Return the document without empty tables around ``path`` and without unneeded headers.

        Tables and headers that ``original`` has are kept.
        """
        document = self
        for depth in range(len(path) - 1, 0, -1):
            around = path[:depth]
            if document.value(*around) == {}:
                if not original.has(*around):
                    document = document._without_table(around)
            elif depth == len(path) - 1 and original.editor().header(around) is None:
                # The removal can make only the header of the innermost table bare. An outer header was bare before, so
                # the user wrote it.
                document = document.without_bare_header(around)
        return document

    def editor(self, source: TomlDocument | None = None) -> toml_editor.Editor:
        """Return an editor of the text. Raises ValueError if the positions of entries cannot be determined.

        Entries that ``source`` also has get the text that they have there.
        """
        # Imported here because only an edit, or an error with a line number, needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
            toml_editor,
        )

        return toml_editor.Editor(self.text, None if source is None else source.editor())

    def _without_table(self, path: toml_parser.KeyPath) -> TomlDocument:
        """Return the document without the empty table at ``path``, unless its header has a comment on its line."""
        header = self.editor().header(path)
        return self if header is not None and self.editor().trailing_comment(header) else self.delete(path)

    def _set(self, path: toml_parser.KeyPath, value: t.Any, source: TomlDocument | None) -> TomlDocument:
        old = _lookup(self.data, path)
        if old is not _MISSING and toml_parser.equal(old, value):
            return self
        self._require_tables(path)

        def change(editor: toml_editor.Editor) -> None:
            _write(editor, path, old, value)

        return self._edited(path, change, _replaced(self.data, path, value), source=source)

    def _require_tables(self, path: toml_parser.KeyPath) -> None:
        for depth in range(1, len(path)):
            around = _lookup(self.data, path[:depth])
            if around is not _MISSING and not isinstance(around, dict):
                problem = f"{'.'.join(path[:depth])} is {_kind(around)}, but a table is expected"
                raise self.error(path[:depth], problem, "Change it to a table, or remove it.")

    def _edited(
        self,
        path: toml_parser.KeyPath,
        change: t.Callable[[toml_editor.Editor], None],
        expected: t.Any,
        *,
        deleted: bool = False,
        source: TomlDocument | None = None,
    ) -> TomlDocument:
        """Return the document after ``change``.

        The new text is parsed and checked first: its data must equal ``expected``, and all lines that do not belong to
        the entry must be unchanged and in the same order. Raises ConfigurationError otherwise.
        """
        try:
            editor = self.editor(source)
            before = editor.entries
            change(editor)
            document = TomlDocument.from_bytes(self.path, editor.text.encode("utf-8"))
            edited_lines = [_lines(self.text, entry) for entry in before if _is_affected(entry, path, deleted)]
        except (ValueError, errors.ConfigurationError) as error:
            raise self._edit_error(path, getattr(error, "comment", "")) from error
        document.bom = self.bom
        for depth in range(len(path) - 1, 0, -1):
            if _lookup(expected, path[:depth]) == {} and deleted and not document.has(*path[:depth]):
                expected = _replaced(expected, path[:depth], _MISSING)
        if deleted:
            edited_lines += _lines_between_entries(self.text, before, path)
        if not toml_parser.equal(document.data, expected) or not _keeps_other_lines(
            self.text, document.text, edited_lines
        ):
            raise self._edit_error(path)
        return document

    def _edit_error(self, path: toml_parser.KeyPath, lost: str = "") -> errors.ConfigurationError:
        if lost:
            return self.error(
                path,
                f"a change of {'.'.join(path)} would delete the comment inside its value: {lost}",
                "Move the comment above the entry.",
            )
        return self.error(
            path,
            f"{'.'.join(path)} cannot be changed without a change of other entries",
            "Write the table with its own [header] and one entry on each line.",
        )


def _lookup(data: t.Any, path: toml_parser.KeyPath) -> t.Any:
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return _MISSING
        data = data[name]
    return data


def _replaced(data: t.Any, path: toml_parser.KeyPath, value: t.Any) -> t.Any:
    """Return a copy of ``data`` with ``value`` at ``path``, or without an entry there if ``value`` is _MISSING."""
    if not path:
        return value
    changed = dict(data)
    if len(path) == 1 and value is _MISSING:
        changed.pop(path[0], None)
    else:
        changed[path[0]] = _replaced(data.get(path[0], {}), path[1:], value)
    return changed


def _write(editor: toml_editor.Editor, path: toml_parser.KeyPath, old: t.Any, value: t.Any) -> None:
    if old is _MISSING:
        editor.insert(path, value)
    elif isinstance(old, dict) and isinstance(value, dict):
        for name, entry in value.items():
            _write(editor, (*path, name), old.get(name, _MISSING), entry)
        for name in old:
            if name not in value:
                editor.remove((*path, name))
    elif not toml_parser.equal(old, value):
        editor.replace(path, old, value)


def _kind(value: t.Any) -> str:
    names = {bool: "a boolean", str: "a string", int: "a number", float: "a number", list: "an array"}
    return names.get(type(value), "a date or time")


# -- checks of an edit -----------------------------------------------------------------------------------------------


def _is_affected(entry: toml_parser.TomlEntry, path: toml_parser.KeyPath, deleted: bool) -> bool:
    """Return whether a change of the value at ``path`` may change the lines of the entry.

    This is the case if the entry is part of this value or contains it. Headers of tables around the value are affected
    only by a deletion.
    """
    contains = path[: len(entry.path)] == entry.path and (entry.node is not None or deleted)
    return entry.under(path) or contains


def _lines(text: str, entry: toml_parser.TomlEntry) -> tuple[int, int]:
    return text.count("\n", 0, entry.first), text.count("\n", 0, entry.last)


def _lines_between_entries(
    text: str, entries: list[toml_parser.TomlEntry], path: toml_parser.KeyPath
) -> list[tuple[int, int]]:
    """Return the first and last line of each part of the table at ``path`` that is between two of its entries.

    These lines may contain comments, which are removed with the table.
    """
    return [
        (_lines(text, above)[1], _lines(text, below)[0])
        for above, below in zip(entries, entries[1:])
        if above.table[: len(path)] == path and below.table[: len(path)] == path
    ]


def _keeps_other_lines(before: str, after: str, edited_lines: list[tuple[int, int]]) -> bool:
    """Return whether ``after`` keeps all lines of ``before`` in the same order.

    Blank lines and the ranges of lines in ``edited_lines`` are ignored.
    """
    excluded = {number for first, last in edited_lines for number in range(first, last + 1)}
    remaining = iter([line.rstrip("\r") for line in after.split("\n")])
    return all(
        line.rstrip("\r") in remaining
        for number, line in enumerate(before.split("\n"))
        if number not in excluded and line.strip()
    )


# -- masking ---------------------------------------------------------------------------------------------------------

# An entry that is commented out.
_COMMENTED_ENTRY = re.compile(r"(#)([^=#\n]+)(=[ \t]*)([^\r\n]+)")


def mask_toml(text: str) -> str:
    """Return ``text`` with secrets hidden, also in comments.

    Secrets are the values of secret-looking names, all values in tables with such names, and user information in URLs.
    Strings are checked without their escapes. If ``text`` is not TOML, mask_urls() masks it.
    """
    if text.startswith(masking.BYTE_ORDER_MARK):
        return masking.BYTE_ORDER_MARK + mask_toml(text[1:])
    try:
        toml_parser.parse("", text)
        tokens = list(_tokens(text))
    except (errors.NvidiaError, ValueError):
        return masking.mask_urls(text)
    masked = ""
    position = 0
    for start, end, shown in tokens:
        masked += _masked_comments(text[position:start]) + shown
        position = end
    return masked + _masked_comments(text[position:])


def _tokens(text: str) -> t.Iterator[Token]:
    """Yield start, end and masked text of all names and values.

    Between them are only punctuation, blanks and comments.
    """
    entries = list(toml_parser.scan(text))
    named = _named_secrets(text, entries)
    for number, entry in enumerate(entries):
        end = entry.end if entry.node is None else entry.node.start
        yield _masked_names(text, entry.start, end, entry.path[-len(entry.raws) :], entry.raws)
        if entry.node is not None:
            secret = number in named or _is_secret(entry.path, _string_value(text, entry.node))
            yield from _value_tokens(text, entry.node, secret)


def _named_secrets(text: str, entries: t.Sequence[toml_parser.TomlEntry]) -> set[int]:
    """Return the indexes of the values whose names are values of their own, as in name = NAME, value = VALUE."""
    found: set[int] = set()
    table: dict[str, tuple[int, str | None]] = {}
    for number, entry in enumerate([*entries, None]):
        if entry is not None and entry.node is not None:
            if entry.path[-1].lower() in masking.PAIR_MEMBERS:
                table[entry.path[-1]] = (number, _string_value(text, entry.node))
            continue
        member = masking.secret_member((name, value) for name, (_number, value) in table.items())
        found.update([table[member][0]] if member is not None else [])
        table = {}
    return found


def _is_secret(names: t.Sequence[str], value: str | None) -> bool:
    return masking.is_secret(names[-1], value) or any(map(masking.is_secret, names[:-1]))


def _value_tokens(text: str, node: toml_parser.TomlNode, secret: bool) -> t.Iterator[Token]:
    raw = text[node.start : node.end]
    if secret:
        yield node.start, node.end, toml_parser.quote_string(masking.MASK)
    elif node.kind in ("[", "{"):
        values = [_string_value(text, member.node) for member in node.members]
        hidden = masking.secret_items(values) if node.kind == "[" else ()
        named = masking.secret_member(
            (each.names[-1], value) for each, value in zip(node.members, values) if each.names
        )
        for number, (member, value) in enumerate(zip(node.members, values)):
            is_hidden = number in hidden
            if member.names:
                yield _masked_names(text, member.start, member.node.start, member.names, member.raws)
                is_hidden = member.names[-1] == named or _is_secret(member.names, value)
            yield from _value_tokens(text, member.node, is_hidden)
    else:
        yield node.start, node.end, _masked_string(raw, toml_parser.plain_string(raw)) if node.kind else raw


def _string_value(text: str, node: toml_parser.TomlNode) -> str | None:
    """Return the string of a node; for another scalar its text, and None for a collection."""
    raw = text[node.start : node.end]
    if node.kind in ("[", "{"):
        return None
    return toml_parser.plain_string(raw) if node.kind else raw


def _masked_names(text: str, start: int, end: int, names: toml_parser.KeyPath, raws: tuple[str, ...]) -> Token:
    shown = text[start:end]
    for raw, name in zip(raws, names):
        shown = shown.replace(raw, _masked_string(raw, name))
    return start, end, shown


def _masked_string(raw: str, value: str) -> str:
    masked = masking.mask_urls_in_string(value)
    return raw if masked == value else toml_parser.quote_string(masked)


def _masked_comments(text: str) -> str:
    if "#" not in text:
        return text
    return masking.mask_urls(_COMMENTED_ENTRY.sub(_masked_comment, text))


def _masked_comment(found: re.Match[str]) -> str:
    names = re.split(r"[.\"'\s]+", found.group(2).strip("\"' \t"))
    value = re.match(r"\"([^\"]*)\"|'([^']*)'|(\S*)", found.group(4))
    secret = _is_secret(names, value.group(value.lastindex or 0) if value is not None else None)
    return found.group(1) + found.group(2) + found.group(3) + (masking.MASK if secret else found.group(4))
