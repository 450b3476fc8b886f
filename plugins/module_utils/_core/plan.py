# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planned change of a file, and the edits that are tracked for its removal.

A plan is data: `apply.py` writes it.
"""

from __future__ import annotations

import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

if t.TYPE_CHECKING:
    from typing_extensions import Self

    KeyPath = t.Tuple[str, ...]

    # Runs a command and returns its exit status, standard output and standard error.
    Runner = t.Callable[[t.List[str]], t.Tuple[int, str, str]]


# Data classes of this collection are named tuples, because creating a dataclass type takes eight times as long, and an
# unchanged task would spend that time too.
NOTHING: t.Mapping[t.Any, t.Any] = types.MappingProxyType({})


class PlannedFile(t.NamedTuple):
    """One file before and after the change (None: no file), and the entries of this collection in it afterwards.

    ``like`` names files whose modes this file never exceeds, because it may contain what they contain. A new file gets
    owner and mode of the first. ``mode`` is another limit, if given. ``record`` replaces the record of the file, if
    given: the file of another tool is replaced, and a removal does not restore it.
    """

    path: str
    before: bytes | None
    after: bytes | None
    keys: t.Mapping[tuple[str, ...], t.Any] = NOTHING
    like: tuple[str, ...] = ()
    mode: int | None = None
    record: core_records.OriginalFile | None = None

    @property
    def changed(self) -> bool:
        return self.before != self.after


class Document(t.Protocol):
    """A text that can be edited entry by entry. Every edit returns a new document."""

    def to_bytes(self) -> bytes:
        """Return the content of the file."""

    def value(self, *path: str) -> t.Any:
        """Return the plain value at ``path``; None if there is none."""

    def has(self, *path: str) -> bool:
        """Return whether an entry exists at ``path``."""

    def set(self, path: KeyPath, value: t.Any) -> Self:
        """Return the document with ``value`` at ``path``."""

    def delete(self, path: KeyPath) -> Self:
        """Return the document without the entry at ``path``."""

    def restore(self, path: KeyPath, original: Self) -> Self:
        """Return the document in which ``path`` is the same as in ``original``."""


Doc = t.TypeVar("Doc", bound=Document)


class TrackedEdit(t.Generic[Doc]):
    """The changes to one file.

    ``read`` parses a path and its content into a document. ``header`` is the comment at the top of a file that this
    collection creates.
    """

    def __init__(
        self,
        read: t.Callable[[str, bytes], Doc],
        path: str,
        content: bytes | None,
        record: core_records.OriginalFile | None,
        header: bytes = b"",
    ) -> None:
        self.path = path
        self.content = content
        self.record = record
        self.header = header
        self.before = read(path, header if content is None else content)
        self.document = self.before
        self.wanted: dict[KeyPath, t.Any] = {}
        # True if the whole file is removed, even if this collection did not create it.
        self.removed = False
        self._read = read
        self._original: Doc | None = None

    @property
    def original(self) -> Doc:
        """The document before the first change by this collection."""
        if self._original is None:
            recorded = self.record.original if self.record is not None else self.content
            is_current = self.record is None and self.content is not None
            self._original = self.before if is_current else self._read(self.path + " as recorded", recorded or b"")
        return self._original

    @property
    def emptied(self) -> bool:
        """Whether the file contains nothing but the header of this collection."""
        text = self.document.to_bytes()
        return not (text[len(self.header) :] if text.startswith(self.header) else text).strip()

    def recorded(self) -> list[KeyPath]:
        """Return the entries that earlier runs wrote."""
        return list((self.record.keys or {}) if self.record is not None else ())

    def owns(self, path: KeyPath) -> bool:
        """Return whether the value at ``path`` is the one that an earlier run wrote."""
        return self.record is not None and self.record.owns(path, self.document.value(*path))

    def write(self, path: KeyPath, value: t.Any) -> None:
        """Write ``value`` to ``path``, and track it as an entry of this collection."""
        self.document = self.document.set(path, value)
        self.wanted[path] = value

    def restore(self, path: KeyPath) -> None:
        """Restore the original value at ``path``, unless it has been changed since this collection wrote it."""
        if self.owns(path):
            self.document = self.document.restore(path, self.original)

    def planned(self, after: bytes | None, like: tuple[str, ...] = ()) -> PlannedFile:
        """Return the planned file with the content ``after``.

        It tracks the entries that this run or an earlier one wrote and that are still in ``after``.
        """
        final = self.document
        if after is None or after != final.to_bytes():
            final = self._read(self.path, after or b"")
        candidates = dict((self.record.keys or {}) if self.record is not None else {})
        candidates.update(self.wanted)
        keys = {
            path: value
            for path, value in candidates.items()
            if final.has(*path)
            and core_records.equal(final.value(*path), value)
            and not (self.original.has(*path) and core_records.equal(self.original.value(*path), value))
        }
        return PlannedFile(self.path, self.content, after, keys, like)
