# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_values import counted, natural, shown, word, words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"), ("  text\n", "text"), ("", None), (" ", None), (5, "5"), (1.5, "1.5"), (0, "0"), (True, None),
        (None, None), ([], None), ({}, None), (b"x", None), (float("nan"), None),
        (float("inf"), None), ("x" * 2000, "x" * 2000), ("x" * 2001, "x" * 2000 + "…"),
    ],
)  # fmt: skip
def test_word(value: object, expected: str | None) -> None:
    assert word(value) == expected


def test_a_number_that_python_refuses_to_write_is_none() -> None:
    assert word(10**5000) is None
    assert word(-(10**5000)) is None


def test_words() -> None:
    assert words(["a", None, 1, [], "b"]) == ["a", "1", "b"]
    assert words("ab") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-1 föö 数", "gpu-1 föö 数"),
        ("a\nb\tc\r\nd\u2028e\u2029f  g", "a b c d e f g"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x00\x7f\x9b\xad", "\\x00\\x7f\\x9b\\xad"),
        ("\u202egpu\u2066\u200b\ufeff", "\\u202egpu\\u2066\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        # A letter of its own, outside of the basic plane.
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_shown(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_natural_order() -> None:
    names = ["", "1", "2", "10", "a", "A1", "a2", "a10", "a10b", "b" + "9" * 5000, "b٣"]
    assert sorted(set(names), key=natural) == names


def test_counted() -> None:
    assert [counted(number, "host") for number in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]
    assert counted(2, "foot", "feet") == "2 feet"
