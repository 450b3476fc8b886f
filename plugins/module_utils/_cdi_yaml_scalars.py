# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the CDI library takes a scalar of YAML for.  Its reader, a YAML library for Go of
# version 2, goes by YAML 1.1, but knows no numbers to the base of 60, and leaves dates the texts that they are.

from __future__ import annotations

import base64
import binascii
import math
import re
import typing as t

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
# Here, underscores have to be between figures.
_FRACTION = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][+-]?[0-9]+(?:_[0-9]+)*)?")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9]{1,2}:[0-9:.]+(?:Z|[+-][0-9]{2}:[0-9]{2})?)?")
# More figures than any number of 64 bits has.
_LONG = 100
_LEAST, _MOST = -(2**63), 2**64 - 1


class ScalarError(ValueError):
    """A scalar is not what its tag says; the message is a part of a sentence."""


def scalar(tag: str | None, text: str, plain: bool) -> t.Any:
    """The value of ``text``; ``plain`` says that it stands without quotes, or is marked as without a type.

    Raises ScalarError.
    """
    if tag is None:
        return _resolved(text) if plain else text
    name = tag[len(_PREFIX) :] if tag.startswith(_PREFIX) else ""
    if name == "binary":
        return _binary(text)
    if name not in _KINDS:
        # All other tags mean nothing to the library.
        return text
    value: t.Any = text if name == "timestamp" else _resolved(text)
    fits = isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")
    if name == "timestamp":
        fits = _TIMESTAMP.fullmatch(text) is not None
    elif name == "float" and fits:
        value = float(value)
    if not fits:
        raise ScalarError(f"the tag !!{name} in front of what is none")
    return value


# What may stand behind the tags that the library knows.
_KINDS: dict[str, t.Any] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "null": type(None),
    "timestamp": str,
}


def number(text: str) -> t.Any:
    """A number of JSON as the library, which reads it as YAML, has it: a text if it is far too large."""
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
                # Python wants the letter of octal numbers.
                value = int(figures.replace("o", "").replace("O", ""), base) if base == 8 else int(figures, base)
                break
    if value is None or not _LEAST <= value <= _MOST:
        return None
    # Only a number without a sign may be that large.
    return None if value >= 2**63 and figures[0] == "+" else value


def _float(form: re.Pattern[str], figures: str, text: str) -> t.Any:
    """The number that ``figures`` are if they have that form, else ``text``."""
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
        raise ScalarError("the tag !!binary in front of what is not base64") from None
