# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The types of scalars must be the same as with yaml.v2 2.4.0, which sigs.k8s.io/yaml of the CDI library uses. The
# tables have its results.

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_parser import number, read_yaml

NUMBERS: list[tuple[str, t.Any]] = [
    ("0", 0),
    ("-0", 0),
    ("+5", 5),
    ("-12", -12),
    ("1_000", 1000),
    ("0666", 438),
    ("0o17", 15),
    ("00", 0),
    ("08", 8),
    ("0x1F", 31),
    ("-0xff", -255),
    ("0b101", 5),
    ("18446744073709551615", 2**64 - 1),
    ("-9223372036854775808", -(2**63)),
    (".5", 0.5),
    ("1.", 1.0),
    ("-1.5e3", -1500.0),
    ("1e3", 1000.0),
    ("1E-2", 0.01),
    ("1.0", 1.0),
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
    "1" * 5000,
    "0x",
    "0xg",
    "0o8",
    "1-",
    "+",
    ".",
    "..5",
    "-.5.",
    "yEs",
    "tRUE",
    "NuLL",
    "=",
    "_1",
    "e5",
    "inf",
    "nan",
    "\u0663",
]
WORDS: dict[t.Any, list[str]] = {
    True: ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"],
    False: ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"],
    None: ["", "~", "null", "Null", "NULL"],
}


def scalar(text: str) -> t.Any:
    return read_yaml("/etc/cdi/x.yaml", f"- {text}\n")[0]


def same(one: t.Any, other: t.Any) -> bool:
    """Return whether two values have the same type and value. == does not distinguish 1, 1.0 and true."""
    return (repr(one), isinstance(one, bool)) == (repr(other), isinstance(other, bool))


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_numbers(text: str, value: t.Any) -> None:
    assert same(scalar(text), value)


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    assert scalar(text) == text


@pytest.mark.parametrize("value", WORDS)
def test_words(value: t.Any) -> None:
    assert [scalar(text) for text in WORDS[value]] == [value] * len(WORDS[value])
    assert [scalar(f"'{text}'") for text in WORDS[value]] == WORDS[value]


@given(st.integers(-(2**63), 2**64 - 1))
def test_every_number_of_64_bits(value: int) -> None:
    assert same(number(str(value)), value)
    assert same(scalar(str(value)), value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_of_json(value: float) -> None:
    assert same(number(repr(value)), value)
