# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The types of scalars must be the same as with yaml.v2 2.4.0, which sigs.k8s.io/yaml of the CDI library uses. The
# tables have its results.

from __future__ import annotations

import math
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_parser import ScalarError, number, scalar

NUMBERS: list[tuple[str, t.Any]] = [
    ("0", 0),
    ("-0", 0),
    ("+5", 5),
    ("-12", -12),
    ("1_000", 1000),
    ("1__", 1),
    (".5_0", 0.5),
    ("0666", 438),
    ("0o17", 15),
    ("00", 0),
    ("08", 8.0),
    ("0x1F", 31),
    ("-0xff", -255),
    ("0b101", 5),
    ("9223372036854775808", 2**63),
    ("18446744073709551615", 2**64 - 1),
    ("-9223372036854775808", -(2**63)),
    ("18446744073709551616", 2.0**64),
    ("+9223372036854775808", 2.0**63),
    ("-9223372036854775809", -(2.0**63)),
    (".5", 0.5),
    ("1.", 1.0),
    ("-1.5e3", -1500.0),
    ("1e3", 1000.0),
    ("1E-2", 0.01),
    ("1.0", 1.0),
    (".inf", math.inf),
    ("+.INF", math.inf),
    ("-.Inf", -math.inf),
    ("1" * 101, float("1" * 101)),
]
TEXTS = [
    "0:1",
    "1:0",
    "190:20:30",
    "2001-01-01",
    "2001-01-01T00:00:00Z",
    "0.5.0",
    "1.5e400",
    "0x",
    "0xg",
    "0o8",
    "1-",
    "+",
    "-",
    ".",
    "..5",
    ".5__0",
    ".5_",
    "-.5.",
    "yEs",
    "tRUE",
    "NuLL",
    "<<",
    "=",
    "_1",
    "e5",
    "inf",
    "nan",
    "\u0663",
    " 1",
    "1\n",
]


def same(one: t.Any, other: t.Any) -> bool:
    """Return whether two values have the same type and value. == does not distinguish 1, 1.0 and true."""
    return (repr(one), isinstance(one, bool)) == (repr(other), isinstance(other, bool))


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_numbers(text: str, value: t.Any) -> None:
    assert same(scalar(None, text, True), value)
    assert same(number(text), value)


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    assert scalar(None, text, True) == text


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (True, ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"]),
        (False, ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"]),
        (None, ["", "~", "null", "Null", "NULL"]),
    ],
)
def test_words(value: t.Any, texts: list[str]) -> None:
    assert [scalar(None, text, True) for text in texts] == [value] * len(texts)
    assert [scalar(None, text, False) for text in texts] == texts


def test_no_number() -> None:
    assert math.isnan(scalar(None, ".nan", True))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("str", "1", "1"),
        ("str", "", ""),
        ("int", "0x10", 16),
        ("float", "12", 12.0),
        ("float", "1.5", 1.5),
        ("bool", "on", True),
        ("null", "", None),
        ("timestamp", "2001-01-01", "2001-01-01"),
        ("timestamp", "2001-1-1 2:3:4.5", "2001-1-1 2:3:4.5"),
        ("binary", "aGk=", "hi"),
        ("binary", "aG\nk=\n", "hi"),
        ("binary", "/w==", "\ufffd"),
        ("merge", "<<", "<<"),
        ("python/object:os.system", "ls", "ls"),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_tags(name: str, text: str, value: t.Any, plain: bool) -> None:
    assert same(scalar(f"tag:yaml.org,2002:{name}", text, plain), value)


@pytest.mark.parametrize("tag", ["!", "!x", "tag:example.org:int"])
def test_other_tags_make_texts(tag: str) -> None:
    assert scalar(tag, "12", True) == "12"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("int", "1.5"),
        ("int", "true"),
        ("int", "x"),
        ("float", "x"),
        ("float", "true"),
        ("bool", "1"),
        ("null", "x"),
        ("timestamp", "12"),
        ("timestamp", "x"),
        ("binary", "a"),
        ("binary", "é"),
        ("binary", "a b="),
    ],
)
def test_tags_that_do_not_fit(name: str, text: str) -> None:
    with pytest.raises(ScalarError) as caught:
        scalar(f"tag:yaml.org,2002:{name}", text, True)
    assert str(caught.value).startswith("the value ")


@given(st.integers(-(2**63), 2**64 - 1))
def test_every_number_of_64_bits(value: int) -> None:
    assert same(number(str(value)), value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_of_json(value: float) -> None:
    assert same(number(repr(value)), value)


@given(st.one_of(st.text(), st.text(alphabet="+-.0123456789_xXoObBeEaf:TZ ")))
def test_any_text_has_a_value(text: str) -> None:
    assert isinstance(scalar(None, text, True), (str, int, float, type(None)))
