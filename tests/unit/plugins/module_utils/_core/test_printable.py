# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Texts of a host contain nothing that a terminal executes or that hides other characters."""

from __future__ import annotations

import sys

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable


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
        # A visible character outside of the basic plane.
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_line(text: str, expected: str) -> None:
    assert printable.line(text) == expected


def test_lines_keep_line_breaks_and_tabs() -> None:
    assert printable.lines("a:\n\tb  c\r\n\u2028\x9b\n") == "a:\n\tb  c\\x0d\n\\u2028\\x9b\n"


def test_every_control_character_is_escaped_and_no_other_is_exact() -> None:
    controls = [*map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F)))]
    controls += [*map(chr, range(0x2066, 0x206A)), "\u200e", "\u200f", "\u061c"]
    for character in controls:
        assert printable.line(f"a{character}b").isprintable()
        assert printable.lines(f"a{character}b").replace("\n", "").replace("\t", "").isprintable()
        assert not printable.is_plain(f"a{character}b")
    plain = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isprintable()]
    assert printable.is_plain("".join(plain))
    assert printable.lines("".join(plain)) == "".join(plain)
