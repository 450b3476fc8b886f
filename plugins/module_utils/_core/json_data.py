# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Load JSON that programs wrote (records, journal entries, replies of daemons) and check the types of its values.

`_documents/json_document.py` edits configuration files in JSON.
"""

from __future__ import annotations

import base64
import json
import typing as t

_Kind = t.TypeVar("_Kind")
# The highest ID of users and groups. The next number is reserved for "no ID" (chown(2)).
MAX_ID = 2**32 - 2
# No text that this collection reads has a tenth of these values. Three bytes such as "[]," take 64 bytes of memory.
MAX_VALUES = 400_000
# Python needs quadratic time to parse a long integer, and some versions refuse it.
_MAX_DIGITS = 4300


def load(content: bytes | str, max_depth: int | None = None) -> t.Any:
    """Return the data of a JSON text.

    Raises ValueError for invalid or too deeply nested JSON, and for more than MAX_VALUES values. ``max_depth`` is the
    limit of levels; by default only Python's limit applies.
    """
    # The codec "utf-8-sig" is not used, because Python would import it from a file. That fails after a chroot into a
    # directory without Python.
    text = content if isinstance(content, str) else content.decode("utf-8")
    if may_exceed(text, "[{,", MAX_VALUES):
        raise ValueError(f"the JSON has more than {MAX_VALUES} values")
    try:
        data = json.loads(text[1:] if text.startswith("\ufeff") else text, parse_int=_integer)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if max_depth is not None and is_too_deep(data, max_depth):
        raise ValueError(f"the JSON is nested more than {max_depth} levels deep")
    return data


def is_too_deep(data: t.Any, limit: int) -> bool:
    """Return whether lists and objects are nested more than ``limit`` levels deep."""
    holders = [data]
    for _level in range(limit + 1):
        holders = [value for value in holders if isinstance(value, (dict, list))]
        if not holders:
            return False
        holders = [each for value in holders for each in (value.values() if isinstance(value, dict) else value)]
    return True


def may_exceed(text: str, signs: str, limit: int) -> bool:
    """Return whether ``text`` has more than ``limit`` of the characters ``signs``, one of which precedes each value.

    Parsers call this first, because they would need memory for all values before they could count them. Characters
    inside strings count, too.
    """
    return len(text) > limit and sum(map(text.count, signs)) > limit


def check(value: t.Any, kind: type[_Kind]) -> _Kind:
    """Return ``value`` if it has the type ``kind``.

    Raises ValueError otherwise.
    """
    # bool is a subclass of int, so isinstance alone would accept true as an integer.
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ValueError(f"a value is not of the type {kind.__name__}")
    return value


def field(data: t.Any, name: str, kind: type[_Kind]) -> _Kind:
    """Return the field ``name`` of the JSON object ``data``.

    Raises ValueError if ``data`` is no object, or if the field is missing or has another type than ``kind``.
    """
    fields = check(data, dict)
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return check(fields[name], kind)


def number(value: t.Any, maximum: int) -> int:
    """Return ``value`` if it is an integer between 0 and ``maximum``.

    Raises ValueError otherwise.
    """
    if not 0 <= check(value, int) <= maximum:
        raise ValueError(f"{value} is not in the range from 0 to {maximum}")
    return int(value)


def strings(data: t.Any, name: str) -> tuple[str, ...]:
    """Return the field ``name`` of the JSON object ``data`` as a tuple of strings.

    Raises ValueError if the field is missing or is not a list of strings.
    """
    return tuple(check(value, str) for value in field(data, name, list))


def bytes_field(data: t.Any, name: str) -> bytes | None:
    """Return the file content that the field ``name`` contains in base64; None if the field is null.

    Raises ValueError if the field is missing or is not valid base64.
    """
    # The default for a missing field is not a string, so that the type check below fails.
    text = check(data, dict).get(name, 0)
    return None if text is None else base64.b64decode(check(text, str), validate=True)


def encode_bytes(content: bytes | None) -> str | None:
    """Return the value of the field that bytes_field() reads."""
    return None if content is None else base64.b64encode(content).decode("ascii")


def get(data: t.Any, name: str, default: _Kind) -> _Kind:
    """Return the field ``name`` of the JSON object ``data``; ``default`` if it is missing or has another type.

    Unlike field(), this accepts any ``data``, such as the reply of a daemon.
    """
    value = data.get(name) if isinstance(data, dict) else None
    kind = type(default)
    return value if isinstance(value, kind) and isinstance(value, bool) is (kind is bool) else default


def texts(value: t.Any) -> tuple[str, ...]:
    """Return the strings in the list ``value``; none if it is no list."""
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)
