# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import (
    MAX_DEPTH,
    JsonSyntaxError,
    parse,
    plain,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@given(VALUES, st.sampled_from([None, 0, 1, 4, "\t"]), st.booleans())
def test_reads_what_the_standard_library_writes(value: t.Any, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert plain(parse(text)) == value


@given(st.text(alphabet='{}[]":,tfn0-1.eE \\u"ab/\n', max_size=30))
def test_accepts_exactly_what_the_standard_library_accepts(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        if text.strip(" \t\r\n"):
            with pytest.raises(JsonSyntaxError):
                parse(text)
        return
    assert plain(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "offset", "problem"),
    [
        ('{"a": 1,}', 8, "comma after the last entry"),
        ("[1,]", 3, "comma after the last entry"),
        ('{"a" 1}', 5, "':' is expected"),
        ('{"a": 1 "b": 2}', 8, "',' or '}' is expected"),
        ("{'a': 1}", 1, "a quoted name is expected"),
        ('{"a": tru}', 6, "a value is expected"),
        ('{"a": NaN}', 6, "a value is expected"),
        ('{"a": 01}', 7, "',' or '}' is expected"),
        ('{"a": 1', 7, "the file ends"),
        ('{"a": "b\n"}', 6, "does not end on its line"),
        ('{"a": "\\x"}', 6, "invalid escape"),
        ('{\n// why\n"a": 1}', 2, "JSON has no comments"),
        ('{"a": # why\n1}', 6, "JSON has no comments"),
        ("{} {}", 3, "after the end"),
        ("", 0, ""),
    ],
)
def test_names_the_place_of_an_error(text: str, offset: int, problem: str) -> None:
    if not text:
        assert parse(text) is None
        return
    with pytest.raises(JsonSyntaxError) as caught:
        parse(text)
    assert caught.value.offset == offset
    assert problem in caught.value.problem


def test_refuses_a_file_nested_without_end() -> None:
    with pytest.raises(JsonSyntaxError, match=f"deeper than {MAX_DEPTH}"):
        parse("[" * 100_000)


def test_numbers_of_any_length() -> None:
    assert plain(parse("1" * 5000)) == float("inf")
    assert plain(parse("-12")) == -12
    assert isinstance(plain(parse("1.0")), float)


def test_remembers_where_each_value_stands() -> None:
    text = '{ "runtimes" : {"nvidia": {"path": "/usr/bin/x"}} }'
    root = parse(text)
    assert root is not None
    assert root.members is not None
    (member,) = root.members
    assert text[member.start : member.name_end] == '"runtimes"'
    assert text[member.node.start : member.node.end] == '{"nvidia": {"path": "/usr/bin/x"}}'
