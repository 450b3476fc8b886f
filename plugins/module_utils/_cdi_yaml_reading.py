# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: data from YAML as the CDI library has it, by a YAML library for Go of version 2.
#
# PyYAML only tells where the parts of a document begin and end.  What they mean is settled here, for PyYAML constructs
# other values than that library does, and more than data.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import quoted
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_scalars import ScalarError, scalar
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml_text import (
    ADVICE,
    MOST_LEVELS,
    TOO_DEEP,
    check_escapes,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._shipped import load

if t.TYPE_CHECKING:
    from collections.abc import Iterator

# With all aliases followed.  Beyond these the library, too, becomes strict.
MOST_VALUES = 400_000
# The library lets at most so much of what it decodes come from aliases; a small document it leaves alone.
_ALIASED_SHARE, _FREE_ALIASED, _FREE_VALUES = 0.99, 100, 1000

_MERGE_TAG = "tag:yaml.org,2002:merge"
_BREAKS = "\r\n\x85\u2028\u2029"


def read_yaml(path: str, text: str) -> t.Any:
    """The data of the first document in ``text``.  Raises ConfigurationError, and GpufleetError as load()."""
    yaml: t.Any = load("yaml")
    builder = _Builder(path, text, yaml)
    try:
        for event in _events(yaml, text):
            builder.add(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (mark.line + 1, mark.column + 1) if mark is not None else ()
        problem = f"the file is not YAML: {getattr(error, 'problem', None) or 'its characters cannot be read'}"
        raise ConfigurationError(path, problem, ADVICE, *place) from error
    except (ValueError, OverflowError) as error:
        # PyYAML's way with the number of a character that does not exist.
        raise ConfigurationError(path, "the file is not YAML: an escape that stands for nothing", ADVICE) from error
    return builder.document


def _events(yaml: t.Any, text: str) -> Iterator[t.Any]:
    """What the first document consists of; nothing behind it is looked at."""
    kind = yaml.CBaseLoader if yaml.__with_libyaml__ else type("Loader", (_Tabs, yaml.BaseLoader), {"yaml": yaml})
    loader = kind(text)
    try:
        while loader.check_event():
            event = loader.get_event()
            yield event
            if isinstance(event, yaml.DocumentEndEvent):
                break
    finally:
        loader.dispose()


class _Tabs:
    """PyYAML's own scanner, but with tabs where its compiled one and the library take them for blanks."""

    yaml: t.Any
    allow_simple_key: bool
    flow_level: int
    column: int
    peek: t.Callable[..., str]
    prefix: t.Callable[[int], str]
    forward: t.Callable[..., None]
    scan_line_break: t.Callable[[], str]
    get_mark: t.Callable[[], t.Any]

    def scan_to_next_token(self) -> None:
        while True:
            self.yaml.scanner.Scanner.scan_to_next_token(self)
            if self.peek() != "\t" or (self.allow_simple_key and not self.flow_level):
                break
            self.forward()

    def scan_plain_spaces(self, indent: int, start_mark: t.Any) -> list[str]:
        """What stands between two words of a text without quotes; nothing where it ends."""
        width = 0
        while self.peek(width) in (" ", "\t"):
            width += 1
        blanks = self.prefix(width)
        self.forward(width)
        breaks = self._line_breaks(indent, start_mark)
        if not breaks:
            return [blanks] if blanks else []
        if self.column == 0 and self.prefix(3) in ("---", "...") and self.peek(3) in _BREAKS + " \t\0":
            return []
        if breaks == ["\n"]:
            return [" "]
        return breaks[1:] if breaks[0] == "\n" else breaks

    def _line_breaks(self, indent: int, start_mark: t.Any) -> list[str]:
        breaks: list[str] = []
        while self.peek() in _BREAKS or (breaks and self.peek() in " \t"):
            if self.peek() in _BREAKS:
                breaks.append(self.scan_line_break())
                self.allow_simple_key = True
                continue
            if self.peek() == "\t" and self.column < indent:
                problem = "found a tab character that violates indentation"
                raise self.yaml.scanner.ScannerError(None, start_mark, problem, self.get_mark())
            self.forward()
        return breaks


class _Node(t.NamedTuple):
    """What an event, or all from the beginning to the end of a collection, amounts to.

    ``values`` counts it as often as aliases make the library decode it, ``levels`` those of the collections in it.
    """

    data: t.Any
    values: int = 1
    levels: int = 0
    merges: bool = False


class _Collection:
    """A list or a mapping that has not ended."""

    def __init__(self, event: t.Any, is_mapping: bool, merged: bool) -> None:
        self.event = event
        self.is_mapping = is_mapping
        # Whether a list stands behind a merge key.
        self.merged = merged
        self.data: t.Any = {} if is_mapping else []
        self.values = 0 if merged else 1
        self.levels = 1
        self.key: _Node | None = None


class _Builder:
    """Makes the data of a document from PyYAML's events, as the library makes it from its own."""

    def __init__(self, path: str, text: str, yaml: t.Any) -> None:
        self.document: t.Any = None
        self._path = path
        self._text = text
        self._yaml = yaml
        self._open: list[_Collection] = []
        self._anchors: dict[str, _Node | _Collection] = {}
        self._values = self._aliased = 0

    def add(self, event: t.Any) -> None:
        """Raises ConfigurationError."""
        yaml = self._yaml
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._begin(event, isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent) and event.version not in (None, (1, 1)):
            self._fail(event, "engines read YAML 1.1 only")

    def _fail(self, event: t.Any, problem: str) -> t.NoReturn:
        mark = event.start_mark
        raise ConfigurationError(self._path, problem, ADVICE, mark.line + 1, mark.column + 1)

    def _spend(self, event: t.Any, values: int, aliased: int = 0) -> None:
        self._values += values
        self._aliased += aliased
        if self._values > MOST_VALUES:
            self._fail(event, f"the file holds more than {MOST_VALUES} values, with those that aliases repeat")
        small = self._aliased <= _FREE_ALIASED or self._values <= _FREE_VALUES
        if not small and self._aliased > self._values * _ALIASED_SHARE:
            self._fail(event, "nearly all of the file comes from aliases, which engines refuse")

    def _scalar(self, event: t.Any) -> None:
        self._check_spelling(event)
        plain = bool(event.implicit[0])
        merges = event.value == "<<" and (plain or event.tag == _MERGE_TAG)
        if merges and self._expects_key():
            self._put(event, _Node("<<", values=0, merges=True))
            return
        try:
            data = scalar(event.tag, event.value, plain)
        except ScalarError as error:
            self._fail(event, str(error))
        self._spend(event, 1)
        node = _Node(data)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._put(event, node)

    def _check_spelling(self, event: t.Any) -> None:
        """Raises ConfigurationError where PyYAML reads a scalar, and the library does not, or reads another one."""
        start, end = event.start_mark.index, event.end_mark.index
        if event.style == '"':
            check_escapes(self._path, self._text, start, end)
        elif not event.style and self._open and self._open[-1].event.flow_style:
            colon = self._text[end : end + 1] == ":" and self._text[end + 1 : end + 2] in tuple(",?[]{}")
            if colon or "?" in event.value:
                self._fail(event, "a text without quotes in [ ] or { } with a ? in it, or a : without a blank behind")

    def _expects_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _begin(self, event: t.Any, is_mapping: bool) -> None:
        if len(self._open) >= MOST_LEVELS:
            self._fail(event, TOO_DEEP)
        if self._expects_key():
            self._fail(event, "a mapping has a key that is a mapping or a list")
        parent = self._open[-1] if self._open else None
        merged = parent is not None and parent.key is not None and parent.key.merges and not is_mapping
        if not merged:
            self._spend(event, 1)
        begun = _Collection(event, is_mapping, merged)
        if event.anchor is not None:
            self._anchors[event.anchor] = begun
        self._open.append(begun)

    def _end(self) -> None:
        ended = self._open.pop()
        node = _Node(ended.data, ended.values, ended.levels)
        # Something in it may have taken the anchor's name since.
        if self._anchors.get(ended.event.anchor) is ended:
            self._anchors[ended.event.anchor] = node
        self._put(ended.event, node)

    def _alias(self, event: t.Any) -> None:
        if event.anchor not in self._anchors:
            self._fail(event, "an alias of an anchor that does not stand before it")
        node = self._anchors[event.anchor]
        if isinstance(node, _Collection):
            self._fail(event, "an alias of what it is itself a part of")
        self._spend(event, 1 + node.values, node.values)
        self._put(event, node._replace(values=1 + node.values))

    def _put(self, event: t.Any, node: _Node) -> None:
        """``node`` into the collection that is open, or as the document."""
        if not self._open:
            self.document = node.data
            return
        parent = self._open[-1]
        if len(self._open) + node.levels > MOST_LEVELS:
            self._fail(event, TOO_DEEP)
        parent.levels = max(parent.levels, node.levels + 1)
        parent.values += node.values
        if not parent.is_mapping:
            if parent.merged and not isinstance(node.data, dict):
                self._fail(event, "a merge key (<<) has a list with something else than mappings in it")
            parent.data.append(node.data)
        elif parent.key is None:
            parent.key = node if node.merges else node._replace(data=self._key(event, node.data))
        else:
            self._set(event, parent.data, parent.key, node.data)
            parent.key = None

    def _key(self, event: t.Any, data: t.Any) -> t.Any:
        if data is None or isinstance(data, (dict, list)):
            self._fail(event, f"a mapping has a key that is {'null' if data is None else 'a mapping or a list'}")
        # Python takes a truth for the number.
        return str(data).lower() if isinstance(data, bool) else data

    def _set(self, event: t.Any, mapping: dict[t.Any, t.Any], key: _Node, data: t.Any) -> None:
        if key.merges:
            merged = data if isinstance(data, list) else [data]
            if not all(isinstance(each, dict) for each in merged):
                self._fail(event, "a merge key (<<) has something else than mappings")
            # To the library, which is strict, a key that comes twice is a fault here too.
            pairs = [pair for each in merged for pair in each.items()]
        else:
            pairs = [(key.data, data)]
        for name, value in pairs:
            if name in mapping:
                self._fail(event, f"the key {quoted(str(name))} stands twice in one mapping")
            mapping[name] = value
