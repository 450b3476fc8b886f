# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Convert CDI specifications between YAML or JSON text and data.

The written YAML has the same meaning for readers of YAML 1.1 and 1.2. Writing, and reading JSON, needs no PyYAML.
"""

from __future__ import annotations

import functools
import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_parser

if t.TYPE_CHECKING:
    from collections.abc import Iterator


_INDENT = "  "

# A string that needs no quotes: a name, a path, NAME=value, an option of a command. It never begins with a digit.
_PLAIN = re.compile(r"(?:-{0,2}[A-Za-z]|\.{0,2}/)(?:[A-Za-z0-9_./+=@%-]|:(?=[A-Za-z0-9_./+=@%:-]))*")
# Strings that some parsers read as booleans or null.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# Characters that are not printable, or that some parsers read as a line break. Lone surrogates are not in this list:
# encoding the text detects them.
_NOT_PRINTABLE = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)
_ESCAPES = {
    **{code: f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}" for code in _NOT_PRINTABLE},
    **str.maketrans({'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r"}),
}
# Characters that json does not escape, but YAML requires to be escaped.
_ESCAPES_OF_JSON = {code: f"\\u{code:04x}" for code in _NOT_PRINTABLE if code > 0x20}
# Names of devices may look like numbers (0) or like times (0:1). All names are quoted, so that they have one form.
_ALWAYS_QUOTED = "name"


def yaml_text(document: t.Any) -> str:
    """Return the text of one YAML document.

    ``document`` consists of mappings with string keys, lists, strings, integers, booleans and None.
    """
    lines = ["---"]
    if _is_simple(document):
        lines.append(_simple(document))
    else:
        lines += _block(document)
    return "\n".join(lines) + "\n"


def json_text(document: t.Any) -> str:
    """Return ``document`` as JSON that is also YAML, because engines read all specifications as YAML."""
    return json.dumps(document, ensure_ascii=False, indent=2).translate(_ESCAPES_OF_JSON) + "\n"


def _block(data: t.Any) -> Iterator[str]:
    """Yield the lines of a mapping or a list that is not empty."""
    if isinstance(data, list):
        for item in data:
            yield from _entry("- ", item)
        return
    for key, value in data.items():
        name = _text(key)
        if _is_simple(value):
            yield f"{name}: {_quoted(value) if key == _ALWAYS_QUOTED and isinstance(value, str) else _simple(value)}"
        else:
            yield f"{name}:"
            yield from (_INDENT + line for line in _block(value))


def _entry(mark: str, value: t.Any) -> Iterator[str]:
    """Yield the lines of ``value`` behind ``mark``, which is as wide as the indentation."""
    if _is_simple(value):
        yield mark + _simple(value)
        return
    for line in _block(value):
        yield mark + line
        mark = _INDENT


def _is_simple(value: t.Any) -> bool:
    """Return whether ``value`` is written in one line."""
    return not value or not isinstance(value, (dict, list))


def _simple(value: t.Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _text(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


# JSON that has another meaning in YAML: line breaks in strings, or between a key and its colon.
_LINE_BREAKS = re.compile('[\x85\u2028\u2029]|"[ \t]*[\r\n]\\s*:')


class _NotJsonError(Exception):
    """The text is not JSON, but may be YAML. The CDI library reads all files as YAML."""


def parse(path: str, content: bytes) -> t.Any:
    """Return the data of the first document in ``content``, or None if there is none.

    Raises ConfigurationError if the CDI library would refuse the file whatever its fields. Raises MissingPackageError
    if the file is not JSON and PyYAML is missing.
    """
    text = yaml_parser.decoded(path, content)
    begin = text.lstrip(" \r\n")[:1]
    if not begin:
        return None
    try:
        data = _json(path, text) if begin in "{[" else yaml_parser.read_yaml(path, text)
    except _NotJsonError:
        data = yaml_parser.read_yaml(path, text)
    # An alias can add levels to those that the parser has seen.
    if json_data.is_too_deep(data, yaml_parser.MAX_LEVELS):
        raise errors.ConfigurationError(path, yaml_parser.TOO_DEEP, yaml_parser.ADVICE)
    return data


def render(document: t.Mapping[str, t.Any], format: str) -> bytes:  # noqa: A002
    """Return ``document``, plain data, as a file in ``format`` (yaml or json). parse() returns the same data for it.

    The order of keys is kept. Raises NvidiaError for a string that UTF-8 cannot encode.
    """
    text = json_text(document) if format == "json" else yaml_text(document)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.NvidiaError(
            "A CDI specification must be in UTF-8, but the name of a file or directory in it is not. Rename this file"
            " or directory."
        ) from error


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(path: str, text: str) -> t.Any:
    if _LINE_BREAKS.search(text):
        raise _NotJsonError
    if json_data.may_exceed(text, "[{,", yaml_parser.MAX_VALUES):
        problem = f"the file has more than {yaml_parser.MAX_VALUES} values"
        raise errors.ConfigurationError(path, problem, yaml_parser.ADVICE)
    try:
        data = json.loads(
            text,
            object_pairs_hook=functools.partial(_unique_mapping, path),
            parse_int=yaml_parser.number,
            parse_float=yaml_parser.number,
            parse_constant=_refuse,
        )
    except RecursionError:
        raise errors.ConfigurationError(path, yaml_parser.TOO_DEEP, yaml_parser.ADVICE) from None
    except ValueError:
        raise _NotJsonError from None
    yaml_parser.check_escapes(path, text)
    return data


def _unique_mapping(path: str, pairs: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
    mapping: dict[str, t.Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise errors.ConfigurationError(path, yaml_parser.twice(key), "Remove one of the two entries.")
        mapping[key] = value
    return mapping


def _refuse(_constant: str) -> t.NoReturn:
    """Raise _NotJsonError, because NaN and Infinity are not JSON, but are strings in YAML."""
    raise _NotJsonError
