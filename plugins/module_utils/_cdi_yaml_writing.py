# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: plain data as YAML that all readers, of YAML 1.1 and 1.2, take for the same.  That is much
# less than PyYAML can write, needs no package on a host, and gives the same bytes everywhere.  And as JSON.

from __future__ import annotations

import json
import math
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError

if t.TYPE_CHECKING:
    from collections.abc import Iterator

_INDENT = "  "
# Readers want a key and its colon within 1024 characters of one line.
_LONG_KEY = 120

# A text that needs no quotes: a word, a path, NAME=value, an option of a command.  Nothing that begins with a figure.
_PLAIN = re.compile(r"(?:-{0,2}[A-Za-z]|\.{0,2}/)(?:[A-Za-z0-9_./+=@%-]|:(?=[A-Za-z0-9_./+=@%:-]))*")
# Words that are none to some reader.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# Not printable, or a line break to some readers; half a character stays, and is found when the text is encoded.
_NOT_PRINTABLE = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF)
_ESCAPES = {
    **{code: f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}" for code in _NOT_PRINTABLE},
    **str.maketrans({'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r"}),
}
# What json leaves as it is, though YAML does not.
_ESCAPES_OF_JSON = {code: f"\\u{code:04x}" for code in _NOT_PRINTABLE if code > 0x20}
# Names of devices look like numbers (0), and like times (0:1), or not: in quotes they look alike.
_ALWAYS_QUOTED = "name"


def yaml_text(document: t.Any) -> str:
    """The text of one YAML document: mappings with texts as keys, lists, texts, numbers, truths, None."""
    lines = ["---"]
    if _is_simple(document):
        lines.append(_simple(document))
    else:
        lines += _block(document)
    return "\n".join(lines) + "\n"


def json_text(document: t.Any) -> str:
    """Return ``document`` as JSON that is YAML, too: engines read all specifications as that.

    Raises GpufleetError for a number that JSON cannot express.
    """
    try:
        text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    except ValueError as error:
        raise GpufleetError(
            "A CDI specification in JSON cannot hold an infinite number or NaN. Use format yaml, or correct the number."
        ) from error
    return text.translate(_ESCAPES_OF_JSON) + "\n"


def _block(data: t.Any) -> Iterator[str]:
    """The lines of a mapping or a list that is not empty."""
    if isinstance(data, list):
        for item in data:
            yield from _entry("- ", item)
        return
    for key, value in data.items():
        name = _text(key)
        if len(name) > _LONG_KEY:
            yield f"? {name}"
            yield from _entry(": ", value)
        elif _is_simple(value):
            yield f"{name}: {_quoted(value) if key == _ALWAYS_QUOTED and isinstance(value, str) else _simple(value)}"
        else:
            yield f"{name}:"
            yield from (_INDENT + line for line in _block(value))


def _entry(mark: str, value: t.Any) -> Iterator[str]:
    """``value`` behind ``mark``, which is as wide as the indentation."""
    if _is_simple(value):
        yield mark + _simple(value)
        return
    for line in _block(value):
        yield mark + line
        mark = _INDENT


def _is_simple(value: t.Any) -> bool:
    """Whether ``value`` is written in one line."""
    return not value or not isinstance(value, (dict, list))


def _simple(value: t.Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return _float(value) if isinstance(value, float) else str(value)


def _text(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _float(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 wants a point in it.
    return text if "." in text else text.replace("e", ".0e")
