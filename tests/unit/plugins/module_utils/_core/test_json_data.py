# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import tracemalloc
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.json_data import (
    bytes_field,
    check,
    field,
    get,
    load,
    number,
    strings,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import within

PLUGINS = Path(__file__).parents[5] / "plugins"
# These files may use json directly. They need positions of values, other types of numbers, or the text that follows.
_PARSERS = {"yaml_document.py", "generate.py", "json_document.py", "_results.py"}


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"{", b"1" * 4301, b"1" * 1_000_000, b"[" * 200_000, b'{"a":' * 200_000],
)
def test_what_cannot_be_loaded(content: bytes) -> None:
    with within(20), pytest.raises(ValueError, match=r"."):
        load(content)


@pytest.mark.parametrize("unit", ["[],", "{},", "1,", '"",', '{"a":[]},', '"aé",', "[[[[]]]],"])
def test_many_values_are_refused_before_they_take_memory(unit: str) -> None:
    text = f"[{unit * (5_000_000 // len(unit))}1]"
    tracemalloc.start()
    try:
        with within(20), pytest.raises(ValueError, match="more than 400000 values"):
            load(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(load(f"[{unit * (400_000 // sum(map(unit.count, '[{,')) - 10)}1]")) > 10_000


def test_a_long_string_is_one_value() -> None:
    assert len(load('["' + "QUJD" * 2_000_000 + '"]')[0]) == 8_000_000


def test_load() -> None:
    assert load(b'{"a": [1, 2.5, null, true, "\\ud83d"]}') == {"a": [1, 2.5, None, True, "\ud83d"]}
    assert load("[]") == []


@pytest.mark.parametrize(
    ("value", "kind"), [(True, int), (1, bool), (None, str), ("1", int), ([], dict), ({}, list), (1.0, int)]
)
def test_another_type(value: t.Any, kind: type[t.Any]) -> None:
    with pytest.raises(ValueError, match=f"not of the type {kind.__name__}"):
        check(value, kind)
    with pytest.raises(ValueError, match=f"not of the type {kind.__name__}"):
        field({"a": value}, "a", kind)
    assert get({"a": value}, "a", kind()) == kind()


@pytest.mark.parametrize("data", [None, [], "a", 1, {}])
def test_a_missing_field(data: t.Any) -> None:
    with pytest.raises(ValueError, match=r"missing|not of the type"):
        field(data, "a", str)
    for read in (strings, bytes_field):
        with pytest.raises(ValueError, match=r"missing|not of the type"):
            read(data, "a")
    assert get(data, "a", "none") == "none"


def test_fields() -> None:
    data = {"a": "x", "list": ["x", "y"], "mixed": ["x", 5], "content": "YQ==", "none": None, "bad": "YQ", "n": 5}
    assert field(data, "a", str) == get(data, "a", "") == "x"
    assert strings(data, "list") == ("x", "y")
    assert (bytes_field(data, "content"), bytes_field(data, "none")) == (b"a", None)
    for name in ("bad", "n", "list"):
        with pytest.raises(ValueError, match=r"."):
            bytes_field(data, name)
    with pytest.raises(ValueError, match="not of the type str"):
        strings(data, "mixed")


def test_no_other_code_loads_json() -> None:
    found = [
        path.name
        for path in sorted(PLUGINS.rglob("*.py"))
        if path.name not in {"json_data.py", *_PARSERS}
        if re.search(r"json\.(?:loads?\(|JSONDecoder|decoder)", path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("value", [-1, 11, 10**30, True, "1", None, 1.0])
def test_a_number_out_of_range(value: t.Any) -> None:
    assert number(10, 10) == 10
    assert number(0, 10) == 0
    with pytest.raises(ValueError, match=r"not in the range|not of the type int"):
        number(value, 10)
