# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the YAML of CDI specifications as the CDI library does (sigs.k8s.io/yaml), with limits for size and depth.

PyYAML only finds where the parts of a document begin and end. The values are constructed here, because PyYAML
constructs other values than the Go library (version 2, YAML 1.1 without numbers in base 60; dates stay strings).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled, errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from collections.abc import Iterator


class KeyProblemError(errors.NvidiaError):
    """An invalid key in a mapping. ``problem`` is a part of a sentence."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem[0].upper()}{problem[1:]}. {advice}")
        self.problem = problem
        self.advice = advice


def _twice(key: object) -> str:
    return f"the key {core_text.quoted(str(key))} is used twice in one mapping"


def unique_mapping(pairs: t.Iterable[tuple[t.Any, t.Any]]) -> dict[t.Any, t.Any]:
    """Return a mapping of ``pairs``, for loaders, such as ``object_pairs_hook`` of json.

    Raises KeyProblemError for a duplicate key, as the library does.
    """
    mapping: dict[t.Any, t.Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise KeyProblemError(_twice(key), "Remove one of the two entries.")
        mapping[key] = value
    return mapping


_PREFIX = "tag:yaml.org,2002:"
_WORDS: dict[str, t.Any] = {
    **{word: True for name in ("y", "yes", "true", "on") for word in (name, name.capitalize(), name.upper())},
    **{word: False for name in ("n", "no", "false", "off") for word in (name, name.capitalize(), name.upper())},
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: math.inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_DECIMAL = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
_OTHER_BASES = (
    (re.compile(r"[+-]?0[oO]?[0-7]+"), 8),
    (re.compile(r"[+-]?0[xX][0-9a-fA-F]+"), 16),
    (re.compile(r"[+-]?0[bB][01]+"), 2),
)
_FLOAT = re.compile(r"[+-]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][+-]?[0-9]+)?")
# In this form, underscores must be between digits.
_FRACTION = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9]{1,2}:[0-9:.]+(?:Z|[+-][0-9]{2}:[0-9]{2})?)?")
# More digits than any 64-bit number has.
_LONG = 100
_LEAST, _MOST = -(2**63), 2**64 - 1


class ScalarError(ValueError):
    """A scalar that does not fit its tag. The message is a part of a sentence."""


def scalar(tag: str | None, text: str, plain: bool) -> t.Any:
    """Return the value of ``text``.

    ``plain`` is true if the text has no quotes, or is marked as without a type (``!``). Raises ScalarError if the text
    does not fit ``tag``.
    """
    if tag is None:
        return _resolved(text) if plain else text
    name = tag[len(_PREFIX) :] if tag.startswith(_PREFIX) else ""
    if name == "binary":
        return _binary(text)
    if name not in _KINDS:
        # The library ignores all other tags.
        return text
    value: t.Any = text if name == "timestamp" else _resolved(text)
    fits = isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")
    if name == "timestamp":
        fits = _TIMESTAMP.fullmatch(text) is not None
    elif name == "float" and fits:
        value = float(value)
    if not fits:
        raise ScalarError(f"the value does not match its tag !!{name}")
    return value


# The Python types that fit the tags of the library.
_KINDS: dict[str, t.Any] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "null": type(None),
    "timestamp": str,
}


def number(text: str) -> t.Any:
    """Return a number of JSON as the library reads it. A number that is far too large becomes a string.

    The library reads JSON as YAML.
    """
    return _resolved(text)


def _resolved(text: str) -> t.Any:
    if text in _WORDS:
        return _WORDS[text]
    first = text[0]
    if first == ".":
        return _float(_FRACTION, text, text)
    if first not in "+-0123456789":
        return text
    figures = text.replace("_", "")
    value = _integer(figures)
    return _float(_FLOAT, figures, text) if value is None else value


def _integer(figures: str) -> int | None:
    if len(figures) > _LONG:
        return None
    value = None
    if _DECIMAL.fullmatch(figures):
        value = int(figures)
    else:
        for form, base in _OTHER_BASES:
            if form.fullmatch(figures):
                # The library reads octal numbers with and without the letter. int() with base 8 needs none.
                value = int(figures.replace("o", "").replace("O", ""), base) if base == 8 else int(figures, base)
                break
    if value is None or not _LEAST <= value <= _MOST:
        return None
    # Only a number without a sign may be 2**63 or larger.
    return None if value >= 2**63 and figures[0] == "+" else value


def _float(form: re.Pattern[str], figures: str, text: str) -> t.Any:
    """Return the number that ``figures`` represent if they match ``form`` and the number is finite, else ``text``."""
    if form.fullmatch(figures) is None:
        return text
    value = float(figures)
    return value if math.isfinite(value) else text


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", "").encode(), validate=True).decode(
            "utf-8", "replace"
        )
    except (binascii.Error, ValueError):
        raise ScalarError("the value of a tag !!binary is not base64") from None


# No field of a specification is nested deeper than eight levels.
MAX_LEVELS = 32

ADVICE = "Correct the file, or remove it if it is not needed."
TOO_DEEP = f"lists and mappings are nested more than {MAX_LEVELS} levels deep"

# Characters that YAML does not allow, in ASCII and Latin 1 (_CONTROL) and beyond (_BEYOND). One expression for all
# takes long to compile.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
# Some parsers read the first, a byte order mark inside the text, as a blank, and others read it as a part of the text.
_BEYOND = "\ufeff\ufffe\uffff"
_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
# A backslash and the next character. The library refuses the escaped slash of JSON, and surrogates.
_ESCAPE = re.compile(r"\\(?:(/|u[dD][89a-fA-F])|.)", re.DOTALL)


def decoded(path: str, content: bytes) -> str:
    """Return the text of a file without its byte order mark.

    Raises ConfigurationError if the file is too large, has another encoding, or contains a character that YAML does not
    allow.
    """
    if len(content) > hostfs.CDI_SPEC_BYTES:
        problem = f"the file is larger than {hostfs.CDI_SPEC_BYTES >> 20} MiB, the limit for CDI specifications"
        raise errors.ConfigurationError(path, problem, ADVICE)
    encoding = "utf-8"
    for mark, with_mark in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            content, encoding = content[len(mark) :], with_mark
            break
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        name = "UTF-8" if encoding == "utf-8" else "UTF-16"
        raise error_at(path, f"invalid {name}", content[: error.start].decode(encoding)) from error
    control = _CONTROL.search(text)
    places = [text.find(character) for character in _BEYOND] + ([control.start()] if control is not None else [])
    first = min((place for place in places if place >= 0), default=None)
    if first is not None:
        raise error_at(path, f"the character U+{ord(text[first]):04X} is not allowed in YAML", text[:first])
    return text


def check_escapes(path: str, text: str, start: int = 0, end: int | None = None) -> None:
    """Raise ConfigurationError for an escape in quotes, between ``start`` and ``end``, that the library refuses."""
    for found in _ESCAPE.finditer(text, start, len(text) if end is None else end):
        if found.group(1):
            what = found.group() if found.group(1) == "/" else "of a surrogate"
            raise error_at(path, f"engines reject the escape {what}", text[: found.start()])


def error_at(path: str, problem: str, before: str) -> errors.ConfigurationError:
    """Return an error with the position directly behind ``before``."""
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return errors.ConfigurationError(path, problem, ADVICE, line, column)


# A document may have at most this many values after all aliases are followed. Above it, the library becomes stricter,
# too.
MAX_VALUES = 400_000
# The characters of all strings after aliases are followed. Without aliases, the size of a file limits them.
MAX_TEXT = 50 << 20
# The library refuses a document if more than this share of its decoded values comes from aliases. Small documents are
# exempt.
_ALIASED_SHARE, _FREE_ALIASED, _FREE_VALUES = 0.99, 100, 1000

_MERGE_TAG = "tag:yaml.org,2002:merge"
_BREAKS = "\r\n\x85\u2028\u2029"


def read_yaml(path: str, text: str) -> t.Any:
    """Return the data of the first document in ``text``.

    Raises ConfigurationError if the library would refuse the document, and the NvidiaError of import_bundled() if
    PyYAML is missing.
    """
    yaml: t.Any = bundled.import_bundled("yaml")
    builder = _Builder(path, text, yaml)
    try:
        for event in _events(yaml, text):
            builder.add(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (mark.line + 1, mark.column + 1) if mark is not None else ()
        problem = f"invalid YAML: {getattr(error, 'problem', None) or 'unreadable characters'}"
        raise errors.ConfigurationError(path, problem, ADVICE, *place) from error
    except (ValueError, OverflowError) as error:
        # PyYAML raises these errors for the code of a character that does not exist.
        raise errors.ConfigurationError(
            path, "invalid YAML: the character of an escape does not exist", ADVICE
        ) from error
    return builder.document


def _events(yaml: t.Any, text: str) -> Iterator[t.Any]:
    """Yield the events of the first document. The text behind it is not read."""
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
    """PyYAML's Python scanner, changed to read tabs as blanks where its compiled scanner and the library do."""

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
        """Return the blanks and line breaks inside a string without quotes, or an empty list at its end."""
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
    """The value of one event, or of all events from the beginning to the end of a collection.

    ``values`` is how many values the library decodes for it, aliases included. ``levels`` is how many levels of
    collections it contains. ``text`` is the number of characters, aliases included. ``merges`` is true for a merge key.
    """

    data: t.Any
    values: int = 1
    text: int = 0
    levels: int = 0
    merges: bool = False


class _Collection:
    """A list or a mapping that has not ended."""

    def __init__(self, event: t.Any, is_mapping: bool, merged: bool) -> None:
        self.event = event
        self.is_mapping = is_mapping
        # Whether this is a list behind a merge key.
        self.merged = merged
        self.data: t.Any = {} if is_mapping else []
        self.values = 0 if merged else 1
        self.text = 0
        self.levels = 1
        self.key: _Node | None = None


class _Builder:
    """The data of a document, built from PyYAML's events as the library builds it from its own events."""

    def __init__(self, path: str, text: str, yaml: t.Any) -> None:
        self.document: t.Any = None
        self._path = path
        self._text = text
        self._yaml = yaml
        self._open: list[_Collection] = []
        self._anchors: dict[str, _Node | _Collection] = {}
        self._values = self._aliased = self._text_size = 0

    def add(self, event: t.Any) -> None:
        """Add one event to the document. Raises ConfigurationError if the library would refuse it."""
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
        raise errors.ConfigurationError(self._path, problem, ADVICE, mark.line + 1, mark.column + 1)

    def _spend(self, event: t.Any, values: int, aliased: int = 0) -> None:
        self._values += values
        self._aliased += aliased
        if self._values > MAX_VALUES:
            self._fail(event, f"the file has more than {MAX_VALUES} values, including those of aliases")
        small = self._aliased <= _FREE_ALIASED or self._values <= _FREE_VALUES
        if not small and self._aliased > self._values * _ALIASED_SHARE:
            self._fail(event, "nearly all values come from aliases, and engines reject such a file")

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
        node = _Node(data, text=len(event.value))
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._put(event, node)

    def _check_spelling(self, event: t.Any) -> None:
        """Raise ConfigurationError for a scalar that PyYAML reads, but the library refuses or reads differently."""
        start, end = event.start_mark.index, event.end_mark.index
        if event.style == '"':
            check_escapes(self._path, self._text, start, end)
        elif not event.style and self._open and self._open[-1].event.flow_style:
            colon = self._text[end : end + 1] == ":" and self._text[end + 1 : end + 2] in tuple(",?[]{}")
            if colon or "?" in event.value:
                self._fail(
                    event, "a string without quotes in [ ] or { } contains a ?, or a : without a space behind it"
                )

    def _expects_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _begin(self, event: t.Any, is_mapping: bool) -> None:
        if len(self._open) >= MAX_LEVELS:
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
        node = _Node(ended.data, ended.values, ended.text, ended.levels)
        # An entry of the collection may have reused the name of the anchor.
        if self._anchors.get(ended.event.anchor) is ended:
            self._anchors[ended.event.anchor] = node
        self._put(ended.event, node)

    def _alias(self, event: t.Any) -> None:
        if event.anchor not in self._anchors:
            self._fail(event, "an alias refers to an anchor that is not defined before it")
        node = self._anchors[event.anchor]
        if isinstance(node, _Collection):
            self._fail(event, "an alias refers to a list or mapping that contains it")
        self._spend(event, 1 + node.values, node.values)
        self._text_size += node.text
        if self._text_size > MAX_TEXT:
            self._fail(event, f"aliases expand to more than {MAX_TEXT} characters")
        self._put(event, node._replace(values=1 + node.values))

    def _put(self, event: t.Any, node: _Node) -> None:
        """Add ``node`` to the open collection, or store it as the document."""
        if not self._open:
            self.document = node.data
            return
        parent = self._open[-1]
        if len(self._open) + node.levels > MAX_LEVELS:
            self._fail(event, TOO_DEEP)
        parent.levels = max(parent.levels, node.levels + 1)
        parent.values += node.values
        parent.text += node.text
        if not parent.is_mapping:
            if parent.merged and not isinstance(node.data, dict):
                self._fail(event, "the list of a merge key (<<) contains a value that is not a mapping")
            parent.data.append(node.data)
        elif parent.key is None:
            parent.key = node if node.merges else node._replace(data=self._key(event, node.data))
        else:
            self._set(event, parent.data, parent.key, node.data)
            parent.key = None

    def _key(self, event: t.Any, data: t.Any) -> t.Any:
        if data is None or isinstance(data, (dict, list)):
            self._fail(event, f"a mapping has a key that is {'null' if data is None else 'a mapping or a list'}")
        # Python treats True as the number 1, so a boolean key becomes a string.
        return str(data).lower() if isinstance(data, bool) else data

    def _set(self, event: t.Any, mapping: dict[t.Any, t.Any], key: _Node, data: t.Any) -> None:
        if key.merges:
            merged = data if isinstance(data, list) else [data]
            if not all(isinstance(each, dict) for each in merged):
                self._fail(event, "the value of a merge key (<<) is not a mapping")
            # The library is strict, so it refuses a duplicate key here, too.
            pairs = [pair for each in merged for pair in each.items()]
        else:
            pairs = [(key.data, data)]
        for name, value in pairs:
            if name in mapping:
                self._fail(event, _twice(name))
            mapping[name] = value
