# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planned change of a file, and the edits that are tracked for its removal.

A plan is data: `apply.py` writes it.
"""

from __future__ import annotations

import json
import types
import typing as t

if t.TYPE_CHECKING:
    from typing_extensions import Self

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records

    KeyPath = t.Tuple[str, ...]

    # Runs a command, returns its exit status, standard output and standard error.
    Runner = t.Callable[[t.List[str]], t.Tuple[int, str, str]]


# Plain tuples with names, here and everywhere below: a dataclass costs an unchanged task eight times their making.
NOTHING: t.Mapping[t.Any, t.Any] = types.MappingProxyType({})


class Purged(t.NamedTuple):
    """That something of others goes from a file for good; ``original`` is what counts as the file before us then."""

    original: bytes | None


class PlannedFile(t.NamedTuple):
    """One file before and after (None: no file), and the entries in it that are ours afterwards.

    ``like``: files whose modes it never exceeds, for it may hold what they do; a new one takes owner and mode of the
    first.  ``mode`` is another limit, where it is given.  ``purged`` is for one from which leftovers of others go.
    """

    path: str
    before: bytes | None
    after: bytes | None
    keys: t.Mapping[tuple[str, ...], t.Any] = NOTHING
    like: tuple[str, ...] = ()
    mode: int | None = None
    purged: Purged | None = None

    @property
    def changed(self) -> bool:
        return self.before != self.after


class Document(t.Protocol):
    """A text that can be edited entry by entry; every edit returns a new one."""

    def to_bytes(self) -> bytes:
        """The text as it stands in the file."""

    def value(self, *path: str) -> t.Any:
        """The plain value at ``path``, None where there is none."""

    def has(self, *path: str) -> bool:
        """Whether anything stands at ``path``."""

    def set(self, path: KeyPath, value: t.Any) -> Self:
        """Write ``value`` at ``path``."""

    def delete(self, path: KeyPath) -> Self:
        """Remove what stands at ``path``."""

    def restore(self, path: KeyPath, original: Self) -> Self:
        """Give ``path`` back what it is in ``original``."""


Doc = t.TypeVar("Doc", bound=Document)


class TrackedEdit(t.Generic[Doc]):
    """The changes to one file.

    ``read`` makes a document of its path and content, ``fresh`` are the words with which a file of ours begins.
    """

    def __init__(
        self,
        read: t.Callable[[str, bytes], Doc],
        path: str,
        content: bytes | None,
        record: core_records.OriginalFile | None,
        fresh: bytes = b"",
    ) -> None:
        self.path = path
        self.content = content
        self.record = record
        self.fresh = fresh
        self.before = read(path, fresh if content is None else content)
        self.document = self.before
        self.wanted: dict[KeyPath, t.Any] = {}
        # Whether the file goes as a whole, whoever made it.
        self.removed = False
        self._read = read
        self._original: Doc | None = None

    @property
    def original(self) -> Doc:
        """The document as it was before the first change ever made here."""
        if self._original is None:
            recorded = self.record.original if self.record is not None else self.content
            is_current = self.record is None and self.content is not None
            self._original = self.before if is_current else self._read(self.path + " as recorded", recorded or b"")
        return self._original

    @property
    def emptied(self) -> bool:
        """Whether nothing but our own opening words is left of a file."""
        text = self.document.to_bytes()
        return not (text[len(self.fresh) :] if text.startswith(self.fresh) else text).strip()

    def recorded(self) -> list[KeyPath]:
        """The entries that earlier runs wrote."""
        return list((self.record.keys or {}) if self.record is not None else ())

    def owns(self, path: KeyPath) -> bool:
        """Whether what stands at ``path`` is what an earlier run put there."""
        return self.record is not None and self.record.owns(path, self.document.value(*path))

    def write(self, path: KeyPath, value: t.Any) -> None:
        """Put ``value`` at ``path``, and count it as ours."""
        self.document = self.document.set(path, value)
        self.wanted[path] = value

    def give_back(self, path: KeyPath) -> None:
        """Put back what stood at ``path`` before us, unless somebody changed it since."""
        if self.owns(path):
            self.document = self.document.restore(path, self.original)

    def planned(self, after: bytes | None, like: tuple[str, ...] = ()) -> PlannedFile:
        """The file with ``after`` in it; of the entries written now or earlier, those that are still ours."""
        final = self.document
        if after is None or after != final.to_bytes():
            final = self._read(self.path, after or b"")
        candidates = dict((self.record.keys or {}) if self.record is not None else {})
        candidates.update(self.wanted)
        keys = {
            path: value
            for path, value in candidates.items()
            if final.has(*path)
            and _same(final.value(*path), value)
            and not (self.original.has(*path) and _same(self.original.value(*path), value))
        }
        return PlannedFile(self.path, self.content, after, keys, like)


def _same(one: t.Any, other: t.Any) -> bool:
    """As a record compares: true is not 1."""
    return json.dumps(one, default=str) == json.dumps(other, default=str)
