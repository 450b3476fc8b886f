# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Entries that are commented out: found, turned on where they stand, and off again.

from __future__ import annotations

import typing as t

import pytest
from hypothesis import assume, given

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import same
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.test__toml_properties import (
    Edit,
    changed,
    document,
    edits,
    replaced,
)

Path = t.Tuple[str, ...]


def doc(text: str) -> TomlDocument:
    return TomlDocument.from_bytes("/etc/some.toml", text.encode())


# The text before, what is turned on, and the text after, which a person would have made of it.
TURNED_ON: dict[str, tuple[str, Path, t.Any, str]] = {
    "as it is": ('[a]\n#b = "x"\nc = 1\n', ("a", "b"), "x", '[a]\nb = "x"\nc = 1\n'),
    "with another value": ('[a]\n#b = "x"\nc = 1\n', ("a", "b"), "y", '[a]\nb = "y"\nc = 1\n'),
    "with a blank behind the #": ("# b = false\n", ("b",), True, "b = true\n"),
    "indented": ("[a]\n    #b = 1\n    c = 2\n", ("a", "b"), 3, "[a]\n    b = 3\n    c = 2\n"),
    "indented behind the #": ("[a]\n#    b = 1\n", ("a", "b"), 1, "[a]\n    b = 1\n"),
    "with a remark": ("#b = 1  # the # of it\n", ("b",), 2, "b = 2  # the # of it\n"),
    "narrow": ("#b=1\n", ("b",), 2, "b=2\n"),
    "the other quotes": ("#b = 'x'\n", ("b",), "x", "b = 'x'\n"),
    "a # in the value": ('#b = "x # y"\n', ("b",), "z", 'b = "z"\n'),
    "no final newline": ("a = 1\n#b = 1", ("b",), 2, "a = 1\nb = 2"),
    "Windows line ends": ("a = 1\r\n#b = 1\r\nc = 1\r\n", ("b",), 2, "a = 1\r\nb = 2\r\nc = 1\r\n"),
    "the first of two": ("#b = 1\n#b = 2\n", ("b",), 3, "b = 3\n#b = 2\n"),
    "prose before it": ("# b = the number\n#b = 1\n", ("b",), 3, "# b = the number\nb = 3\n"),
    "of another table": ("[c]\n#b = 1\n[a]\n", ("a", "b"), 3, "[c]\n#b = 1\n[a]\nb = 3\n"),
    "of a commented table": ("[a]\n#[c]\n#b = 1\n", ("a", "b"), 3, "[a]\nb = 3\n#[c]\n#b = 1\n"),
    "with its header": ("d = 1\n\n#[a]\n#b = 1\n#e = 1\n", ("a", "b"), 2, "d = 1\n\n[a]\nb = 2\n#e = 1\n"),
    "with its header, indented": ("[c]\n  # [c.a]\n  # b = 1\n", ("c", "a", "b"), 1, "[c]\n  [c.a]\n  b = 1\n"),
    "below a header in a comment": ("d = 1\n# [a] # new\n#e = 1\n", ("a", "b"), 2, "d = 1\n[a] # new\nb = 2\n#e = 1\n"),
    "in a table of a table": ("[c]\nd = 1\n#[c.a.b]\n", ("c", "a", "b", "x"), 2, "[c]\nd = 1\n[c.a.b]\nx = 2\n"),
    "a header that would catch others": (
        "[c]\n#[a]\n#b = 1\nd = 1\n",
        ("a", "b"),
        2,
        "[c]\n#[a]\n#b = 1\nd = 1\n\n[a]\nb = 2\n",
    ),
    "a table that is there above": (
        "[a]\nx = 1\n#[a]\n#b = 1\n",
        ("a", "b"),
        2,
        "[a]\nx = 1\nb = 2\n#[a]\n#b = 1\n",
    ),
    "dotted": ("#a.b = 1\na.c = 1\n", ("a", "b"), 2, "a.b = 2\na.c = 1\n"),
    "a string over lines": ("c = '''\n#b = 1\n'''\n", ("b",), 2, "c = '''\n#b = 1\n'''\nb = 2\n"),
    "quoted": ('#"b" = 1\n', ("b",), 2, '"b" = 2\n'),
    "there is none": ("[a]\nc = 1\n", ("a", "b"), 2, "[a]\nc = 1\nb = 2\n"),
    "a table that is there below": (
        "#[a]\n#b = 1\n\n[a]\n#b = 3\n",
        ("a", "b"),
        2,
        "#[a]\n#b = 1\n\n[a]\nb = 2\n",
    ),
    "into a table that is there rather": (
        "#[a.x]\n#b = 1\n[a]\n#x.b = 2\n",
        ("a", "x", "b"),
        3,
        "#[a.x]\n#b = 1\n[a]\nx.b = 3\n",
    ),
    "into a bare table": ("[a]\n[a.c]\nx = 1\n", ("a", "b"), 2, "[a]\nb = 2\n[a.c]\nx = 1\n"),
    "below an entry that is on": ("#[a]\nb = 1\n#c = 1\n", ("c",), 2, "#[a]\nb = 1\nc = 2\n"),
    "below entries that are on": (
        "#[a]\n#x = 1\nb = 1\n#c = 1\nd = 1\n#e = 1\n",
        ("e",),
        2,
        "#[a]\n#x = 1\nb = 1\n#c = 1\nd = 1\ne = 2\n",
    ),
    "it is on": ("#b = 1\nb = 2\n", ("b",), 3, "#b = 1\nb = 3\n"),
}


@pytest.mark.parametrize(("before", "path", "value", "after"), list(TURNED_ON.values()), ids=list(TURNED_ON))
def test_is_turned_on_as_a_person_would(before: str, path: Path, value: t.Any, after: str) -> None:
    original = doc(before)
    on = original.turn_on(path, value)
    assert on.text == after
    assert same(on.value(*path), value)
    assert on.turn_on(path, value).text == after
    if not original.has(*path):
        assert on.turn_off(path, None, original).text == before


# The text before, what is turned off, its default, and the text after, where nothing is known of another original.
TURNED_OFF: dict[str, tuple[str, Path, t.Any, str]] = {
    "with its default": ('[a]\nb = "y" # why\n', ("a", "b"), "x", '[a]\n#b = "x" # why\n'),
    "in the manner of the file": ("# c = 1\nb = 2\n", ("b",), 3, "# c = 1\n# b = 3\n"),
    "indented": ("[a]\n  b=2\n", ("a", "b"), 3, "[a]\n  #b=3\n"),
    "without a default": ("a = 1\nb = 2\n", ("b",), None, "a = 1\n"),
    "beside its comment": ("#b = 1\nb = 2\n", ("b",), 1, "#b = 1\n"),
    "the last of its table": ("[a]\nb = 2\n", ("a", "b"), 1, "[a]\n#b = 1\n"),
    "dotted": ("a.b = 2\n", ("a", "b"), 1, "#a.b = 1\n"),
    "in one line with others": ("a = { b = 2, c = 3 }\n", ("a", "b"), 1, "a = { c = 3 }\n"),
    "over several lines": ('b = """\nx\n"""\nc = 1\n', ("b",), "y", '#b = "y"\nc = 1\n'),
    "a # in a string": ("c = '''\n#b = 1\n'''\nb = 2\n", ("b",), 3, "c = '''\n#b = 1\n'''\n#b = 3\n"),
    "not there": ("a = 1\n", ("b",), 1, "a = 1\n"),
}


@pytest.mark.parametrize(("before", "path", "default", "after"), list(TURNED_OFF.values()), ids=list(TURNED_OFF))
def test_is_turned_off_as_a_person_would(before: str, path: Path, default: t.Any, after: str) -> None:
    off = doc(before).turn_off(path, default, doc(before))
    assert off.text == after
    assert not off.has(*path)


@pytest.mark.parametrize("second", ["# b = 2", "#b = 1"])
def test_two_comments_of_one_entry_are_two_again(second: str) -> None:
    original = doc(f"#b = 1\n{second}\n")
    on = original.turn_on(("b",), 3)
    assert on.text == f"b = 3\n{second}\n"
    assert on.turn_off(("b",), 9, original).text == original.text


def test_two_comments_of_one_header_are_two_again() -> None:
    original = doc("#[a]\n#[a]\n[b]\n")
    on = original.turn_on(("a", "x"), 1)
    assert on.text == "[a]\nx = 1\n#[a]\n[b]\n"
    assert on.turn_off(("a", "x"), None, original).text == original.text


def test_what_is_set_stands_below_its_name_whatever_is_above() -> None:
    assert doc("[a]\n#[c]\n#b = 1\n").set(("a", "b"), 3).text == "[a]\n#[c]\n#b = 1\nb = 3\n"


def test_a_header_is_a_comment_again_with_the_last_of_its_entries() -> None:
    original = doc("x = 1\n\n# [a] # extras\n# b = 1\n# c = 1\n")
    on = original.turn_on(("a", "b"), 1).turn_on(("a", "c"), 2).turn_on(("a", "d"), 3)
    assert on.data == {"x": 1, "a": {"b": 1, "c": 2, "d": 3}}
    off = on.turn_off(("a", "b"), 1, original)
    assert off.text == "x = 1\n\n[a] # extras\n# b = 1\nc = 2\nd = 3\n"
    assert off.turn_off(("a", "d"), None, original).turn_off(("a", "c"), 1, original).text == original.text


def test_a_header_is_a_comment_again_although_its_table_has_tables() -> None:
    original = doc("#[a] # extras\n#b = 1\n[a.c]\nx = 1\n")
    on = original.turn_on(("a", "b"), 2)
    assert on.text == "[a] # extras\nb = 2\n[a.c]\nx = 1\n"
    assert on.turn_off(("a", "b"), None, original).text == original.text
    assert (
        doc(on.text).restore(("a", "b"), doc("#[a] # extras\n[a.c]\nx = 1\n")).text == "#[a] # extras\n[a.c]\nx = 1\n"
    )


# A text with an entry of ours, and the same without it.
HEADERS: dict[str, tuple[str, str]] = {
    "of ours": ("[a]\nb = 1\n[a.c]\nx = 1\n", "[a.c]\nx = 1\n"),
    "of ours, empty": ("x = 1\n[a]\nb = 1\n", "x = 1\n"),
    "with a remark": ("[a] # Ann's\nb = 1\n[a.c]\nx = 1\n", "[a] # Ann's\n[a.c]\nx = 1\n"),
    "with a remark, empty": ("x = 1\n[a] # Ann's\nb = 1\n", "x = 1\n[a] # Ann's\n"),
    "with others": ("[a]\nb = 1\nd = 1\n[a.c]\nx = 1\n", "[a]\nd = 1\n[a.c]\nx = 1\n"),
}


@pytest.mark.parametrize(("before", "after"), list(HEADERS.values()), ids=list(HEADERS))
def test_only_headers_of_ours_go_with_the_entry(before: str, after: str) -> None:
    assert doc(before).turn_off(("a", "b"), None, doc("")).text == after
    # Further out nothing was made bare by it.
    before, after = ("[o]\n" + text.replace("[a", "[o.a") for text in (before, after))
    assert doc(before).turn_off(("o", "a", "b"), None, doc("")).text == after


def test_a_table_that_the_original_has_stays_when_it_is_empty() -> None:
    for original in ("a = {}\n", "[a]\n", "a.c = 1\n"):
        assert doc("[a]\nb = 1\n").turn_off(("a", "b"), None, doc(original)).text == "[a]\n"


def test_what_was_changed_meanwhile_is_spelled_as_in_the_original() -> None:
    original = doc("#b = 'one' # kept\n")
    assert doc("b = 'two' # new\n").turn_off(("b",), "x", original).text == "#b = 'one' # new\n"
    assert doc("'b'='two'\n").turn_off(("b",), "x", original).text == "#'b'='one'\n"


def test_a_value_comes_back_as_it_was_spelled() -> None:
    original = doc("b = 0x1F\n")
    off = original.turn_off(("b",), 1, original)
    assert off.text == "#b = 1\n"
    assert off.turn_on(("b",), 31, original).text == "b = 0x1F\n"
    assert off.turn_on(("b",), 32, original).text == "b = 32\n"


def test_comments_inside_a_value_are_not_lost() -> None:
    before = doc("b = [\n  1, # one\n]\n")
    with pytest.raises(
        ConfigurationError,
        match="line 1, column 1: b cannot be changed here without losing a comment inside its value: # one",
    ):
        before.turn_off(("b",), [], before)


@pytest.mark.parametrize("comment", ["", "#b = 1\n", "#[a]\n#b = 1\n", "#[a.b]\n#b = 1\n", "#a.b = 1\n"])
@pytest.mark.parametrize("path", [("a", "b"), ("a", "b", "b")])
def test_what_stands_in_the_way_is_named(comment: str, path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 2, column 1: a holds a number where a table is expected"):
        doc("#[a]\na = 1\n" + comment).turn_on(path, 1)


@given(edits())
def test_in_any_text_what_is_turned_on_and_off_leaves_no_trace(edit: Edit) -> None:
    before, path, value = edit
    assume(not before.has(*path) and not isinstance(value, dict))
    changed(before, path, value)
    on = before.turn_on(path, value)
    assert same(document(on.to_bytes()).data, replaced(before.data, path, value))
    assert on.turn_off(path, None, before).to_bytes() == before.to_bytes()


@given(edits(leaf=True))
def test_in_any_text_only_the_entry_is_turned_off(edit: Edit) -> None:
    before, path, default = edit
    try:
        off = before.turn_off(path, default, before)
    except ConfigurationError:
        assume(False)
        raise
    assert not off.has(*path)
    again = off.turn_on(path, before.value(*path), before)
    assert same(again.data, before.data)
