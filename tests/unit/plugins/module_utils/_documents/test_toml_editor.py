# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_parser import equal


def document(text: str) -> TomlDocument:
    return TomlDocument.from_bytes("/etc/containerd/config.toml", text.encode())


RUN = ("r", "n")
NEW = {"t": "x", "o": {"B": "P"}}

# Layouts of real files, and the text after a careful manual edit.
LAYOUTS = {
    "empty": ("", '[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n'),
    "a comment": ("# c\n", '# c\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n'),
    "no final newline": ("v = 2", 'v = 2\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"'),
    "blanks at the end": ("v = 2  \n\t\n# c \t", 'v = 2  \n\t\n# c \t\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"'),
    "spare lines at the end": ("v = 2\n\n\n", 'v = 2\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n\n\n'),
    "flat": ("[r.a]\nt = 1\n", '[r.a]\nt = 1\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n'),
    "tabs": (
        "[r]\n\t[r.a]\n\t\tt = 1\n\t\t[r.a.o]\n\t\t\tB = 2\n[z]\n",
        '[r]\n\t[r.a]\n\t\tt = 1\n\t\t[r.a.o]\n\t\t\tB = 2\n\t[r.n]\n\t\tt = "x"\n\t\t[r.n.o]\n\t\t\tB = "P"\n[z]\n',
    ),
    "the names' own quotes": (
        "['r'.a]\nt = 'y'\n\n[z]\n",
        "['r'.a]\nt = 'y'\n\n['r'.n]\nt = 'x'\n\n['r'.n.o]\nB = 'P'\n\n[z]\n",
    ),
    "the next table's comment": (
        "[r]\na = 1\n\n# of z\n[z]\n",
        '[r]\na = 1\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n\n# of z\n[z]\n',
    ),
    "comments of the sibling": (
        "[r.a]\nt = 1\n# u = 1\n\n# more\n# w = 1\n\n# [r.b]\n# t = 1\n\n[z]\n",
        '[r.a]\nt = 1\n# u = 1\n\n# more\n# w = 1\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n\n# [r.b]\n# t = 1\n\n[z]\n',
    ),
    "an entry that the sibling could have, right above the next table": (
        "[r.a]\nt = 1\n# u = 1\n[z]\n",
        '[r.a]\nt = 1\n# u = 1\n[r.n]\nt = "x"\n[r.n.o]\nB = "P"\n[z]\n',
    ),
    "out of order": (
        "[r.a]\nt = 1\n[z]\n[r.b]\nt = 2\n[y]\n",
        '[r.a]\nt = 1\n[z]\n[r.b]\nt = 2\n[r.n]\nt = "x"\n[r.n.o]\nB = "P"\n[y]\n',
    ),
    "inline": (
        "[r]\na = { t = 1 }\n\n[z]\n",
        '[r]\na = { t = 1 }\nn = { t = "x", o = { B = "P" } }\n\n[z]\n',
    ),
    "inline around": ("r = {a = {}}\n", 'r = {a = {}, n = { t = "x", o = { B = "P" } }}\n'),
    "empty inline": ("r = {}\n", 'r = { n = { t = "x", o = { B = "P" } } }\n'),
    "dotted": ("r.a.t = 1 # a\nz = 1\n", 'r.a.t = 1 # a\nr.n.t = "x"\nr.n.o.B = "P"\nz = 1\n'),
    "dotted in a table": (
        "[q]\n[r]\n  a.t = 1\n[z]\n",
        '[q]\n[r]\n  a.t = 1\n[r.n]\n  t = "x"\n[r.n.o]\n  B = "P"\n[z]\n',
    ),
    "an array of tables": (
        "[[r.l]]\na = 1\n\n[[z]]\n",
        '[[r.l]]\na = 1\n\n[r.n]\nt = "x"\n\n[r.n.o]\nB = "P"\n\n[[z]]\n',
    ),
    "no spaces around =": ("[r.a]\nt=1\n", '[r.a]\nt=1\n\n[r.n]\nt="x"\n\n[r.n.o]\nB="P"\n'),
}


@pytest.mark.parametrize(("before", "after"), LAYOUTS.values(), ids=LAYOUTS)
def test_writes_a_table_in_the_manner_of_the_file(before: str, after: str) -> None:
    edited = document(before).set(RUN, NEW)
    assert edited.text == after
    assert edited.set(RUN, NEW).text == after
    assert edited.restore(RUN, document(before)).text == before


VALUES = {
    "first": ("[z]\n", ("a",), "a = 1\n\n[z]\n"),
    "first, under a notice": ("# c\n\n[z]\n", ("a",), "# c\n\na = 1\n\n[z]\n"),
    "first, under a notice with blanks": ("# c  \n\n[z]\n", ("a",), "# c  \n\na = 1\n\n[z]\n"),
    "behind the last": ("b = 2 # c\n\n# d\n[z]\n", ("a",), "b = 2 # c\na = 1\n\n# d\n[z]\n"),
    "below a comment that is behind brackets in a string": (
        '[a]\nx = """\n#[b]\n"""\n#key = 5\n',
        ("a", "key"),
        '[a]\nx = """\n#[b]\n"""\n#key = 5\nkey = 1\n',
    ),
    "under a bare header": ("[z]\n\n[y]\n  b = 1\n", ("z", "a"), "[z]\n  a = 1\n\n[y]\n  b = 1\n"),
    "a table known by another": (
        "v = 1\n\n# of z\n[z.y]\nb = 1\n",
        ("z", "a"),
        "v = 1\n\n[z]\na = 1\n\n# of z\n[z.y]\nb = 1\n",
    ),
    "a name that needs quotes": ("b = 1\n", ("a.b c",), 'b = 1\n"a.b c" = 1\n'),
    "aligned": ("b   = 1\n", ("a",), "b   = 1\na = 1\n"),
    "another value": ("a =  2 # c\n", ("a",), "a =  1 # c\n"),
    "another kind of value": ("a =  { b = 1 } # c\n", ("a",), "a =  1 # c\n"),
    "a value over lines": ('a = """\nx\n""" # c\nb = 1\n', ("a",), "a = 1 # c\nb = 1\n"),
}


@pytest.mark.parametrize(("before", "path", "after"), VALUES.values(), ids=VALUES)
def test_writes_a_value_where_it_belongs(before: str, path: tuple[str, ...], after: str) -> None:
    edited = document(before).set(path, 1)
    assert edited.text == after
    assert edited.restore(path, document(before)).text == before


ARRAYS = {
    "one line": ('a = ["x"] # c\n', 'a = ["x", "n"] # c\n'),
    "compact": ('a = ["x","y"]\n', 'a = ["x","y","n"]\n'),
    "its own quotes": ("a = ['x', 'y',]\n", "a = ['x', 'y', 'n',]\n"),
    "lines": ('a = [\n  "x", # c\n  "y" # d\n]\n', 'a = [\n  "x", # c\n  "y", # d\n  "n"\n]\n'),
    "lines with a last comma": (
        'a = [\n  "x",\n  "y", # d\n  # e\n]\n',
        'a = [\n  "x",\n  "y", # d\n  "n",\n  # e\n]\n',
    ),
    "empty": ("a = []\n", 'a = ["n"]\n'),
}


@pytest.mark.parametrize(("before", "after"), ARRAYS.values(), ids=ARRAYS)
def test_adds_to_an_array_and_takes_it_out_again(before: str, after: str) -> None:
    original = document(before)
    edited = original.set(("a",), [*original.value("a"), "n"])
    assert edited.text == after
    assert edited.set(("a",), original.value("a")).text == before
    assert edited.restore(("a",), original).text == before


EMPTY_ARRAYS = {
    "blanks": ("a = [ ]\n", 'a = [ "n", "m" ]\n'),
    "lines": ("a = [\n]\n", 'a = ["n", "m"]\n'),
    "a comment": ('a = [ # c\n    # "x",\n]\n', 'a = [ # c\n    # "x",\n    "n",\n    "m"\n]\n'),
    "a comment behind the bracket": ("  a = [ # c\r\n  ] # d\r\n", '  a = [ # c\r\n    "n",\r\n    "m"\r\n  ] # d\r\n'),
}


@pytest.mark.parametrize(("before", "after"), EMPTY_ARRAYS.values(), ids=EMPTY_ARRAYS)
def test_fills_an_empty_array_below_its_comments(before: str, after: str) -> None:
    original = document(before)
    edited = original.set(("a",), ["n", "m"])
    assert edited.text == after
    assert edited.restore(("a",), original).text == before


ELEMENTS: dict[str, tuple[str, list[t.Any], str]] = {
    "first on its line": ("a = [ # c\n  1, 2, # d\n  3\n]\n", [2, 3], "a = [ # c\n  2, # d\n  3\n]\n"),
    "last, with its comment": ("a = [\n  1,\n  # d\n  2 # e\n  # f\n]\n", [1], "a = [\n  1\n  # d\n  # f\n]\n"),
    "all of them": ("a = [\n  # c\n  1,\n  2,\n]\n", [], "a = [\n  # c\n]\n"),
    "one for another": ("a = [\n  1, # c\n  2\n]\n", [1, 3], "a = [\n  1, # c\n  3\n]\n"),
    "of another type": ("a = [1, true, 1.0] # c\n", [1, 1.0], "a = [1, 1.0] # c\n"),
}


@pytest.mark.parametrize(("before", "value", "after"), ELEMENTS.values(), ids=ELEMENTS)
def test_changes_single_elements(before: str, value: list[t.Any], after: str) -> None:
    original = document(before)
    edited = original.set(("a",), value)
    assert edited.text == after
    assert equal(edited.restore(("a",), original).data, original.data)


def test_gives_an_array_back_around_comments_that_came_later() -> None:
    original = document("a = [ 'x' ]\n")
    edited = document('a = [\n  "x", # mine\n  "n"\n]\n')
    assert edited.restore(("a",), original).text == 'a = [\n  "x" # mine\n]\n'


DELETIONS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "a value": ("a = 1 # c\nb = 2\n", ("a",), "b = 2\n"),
    "the last value": ("a = 1\nb = 2", ("b",), "a = 1"),
    "a value over lines": ('a = """\n# x\n"""\nb = 2\n', ("a",), "b = 2\n"),
    "a table": ("[a]\nx = 1\n\n[b]\nx = 1\n\n[c]\n", ("b",), "[a]\nx = 1\n\n[c]\n"),
    "a table with tables": ("[a]\n# c\n[a.b]\nx = 1\n\n[a.b.c]\n[d]\n", ("a", "b"), "[a]\n# c\n[d]\n"),
    "a table in several places": ("[a.b]\nx = 1\n[z]\n[a.c]\ny = 1\n", ("a",), "[z]\n"),
    "comments in the table, not behind": (
        "v = 1\n[a]\n# in\nx = 1\n# behind\n\n[b]\n",
        ("a",),
        "v = 1\n# behind\n\n[b]\n",
    ),
    "an array of tables": ("[[a]]\nx = 1\n[a.b]\n[[a]]\n[c]\n", ("a",), "[c]\n"),
    "dotted": ("a.b.c = 1\nx = 1\na.b.d = 1\na.e = 2\n", ("a", "b"), "x = 1\na.e = 2\n"),
    "in an inline table": ("a = { b = 1, c.d = 2, c.e = 3 }\n", ("a", "c"), "a = { b = 1 }\n"),
    "the first in an inline table": ("a = { b = 1, c = 2 }\n", ("a", "b"), "a = { c = 2 }\n"),
    "all of an inline table": ("a = { b = 1 }\n", ("a", "b"), "a = {}\n"),
    "nothing": ("a = 1\n", ("b", "c"), "a = 1\n"),
}


@pytest.mark.parametrize(("before", "path", "after"), DELETIONS.values(), ids=DELETIONS)
def test_deletes_an_entry_with_its_lines(before: str, path: tuple[str, ...], after: str) -> None:
    assert document(before).delete(path).text == after


@pytest.mark.parametrize(
    ("before", "kept", "pruned"),
    [
        ("v = 1\n\n[a]\n[a.b]\nx = 1\n", "v = 1\n\n[a]\n[a.b]\n", "v = 1\n"),
        ("v = 1\n[a]\ny = 1\n[a.b]\nx = 1\n", "v = 1\n[a]\ny = 1\n[a.b]\n", "v = 1\n[a]\ny = 1\n"),
        ("a = { b = { x = 1 } }\nv = 1\n", "a = { b = {} }\nv = 1\n", "v = 1\n"),
        ("a.b.x = 1\nv = 1\n", "v = 1\n", "v = 1\n"),
    ],
)
def test_deletes_emptied_tables_only_if_asked(before: str, kept: str, pruned: str) -> None:
    assert document(before).delete(("a", "b", "x")).text == kept
    assert document(before).delete(("a", "b", "x"), prune=True).text == pruned


def test_restores_an_entry_as_it_was_spelled() -> None:
    before = document("a = 0x1F\nb = 'x'\n[c]\nd = [ 1,2 ]\n")
    edited = before.set(("a",), 2).set(("b",), "y").set(("c", "d"), [3]).delete(("b",))
    assert edited.restore(("a",), before).restore(("c", "d"), before).text == before.text.replace("b = 'x'\n", "")


def test_makes_a_table_equal_entry_by_entry() -> None:
    before = document("[a]\n# why\nx = 0x1\ny = 2 # c\nz = 3\n[b]\n")
    wanted: dict[str, t.Any] = {"x": 1, "y": 4, "w": {"v": 5}}
    assert before.set(("a",), wanted).text == "[a]\n# why\nx = 0x1\ny = 4 # c\n[a.w]\nv = 5\n[b]\n"


@pytest.mark.parametrize(
    "value",
    ["", 'a"b', "a\\b", "a\nb", "\x00\x1f\x7f", "é\u2028😀", -1, 1.5, 1e300, float("inf"), [[], [{}]], {"a": {}}],
)
def test_spells_every_value(value: t.Any) -> None:
    assert document(document("").set(("a b", "c"), value).text).value("a b", "c") == value


# The text of an array with comments, the new elements, and the text after the edit.
BETWEEN: dict[str, tuple[str, list[t.Any], str]] = {
    "before the first": ("[\n  1, # one\n]", [2, 1], "[\n  2,\n  1, # one\n]"),
    "before the first, whose comment stands above": (
        "[ # all\n  # one\n  1,\n]",
        [2, 1],
        "[ # all\n  2,\n  # one\n  1,\n]",
    ),
    "between": ("[\n  1, # one\n  # three\n  3 # last\n]", [1, 2, 3], "[\n  1, # one\n  2,\n  # three\n  3 # last\n]"),
    "several": ("[\n  3, # three\n]", [1, 2, 3, 4], "[\n  1,\n  2,\n  3, # three\n  4,\n]"),
    "on one line": ("[1, 3, # three\n]", [1, 2, 3], "[1, 2, 3, # three\n]"),
    "instead of another": ("[\n  1, # one\n  2,\n  3, # three\n]", [1, 9, 3], "[\n  1, # one\n  9,\n  3, # three\n]"),
    "instead of the first": ("[\n  1, # one\n  3, # three\n]", [9, 3], "[\n  9,\n  3, # three\n]"),
    "true is not 1": ("[\n  1, # one\n  true,\n]", [True, 1, True], "[\n  true,\n  1, # one\n  true,\n]"),
}


@pytest.mark.parametrize(("before", "value", "after"), list(BETWEEN.values()), ids=list(BETWEEN))
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_elements_come_between_others_with_their_comments(
    before: str, value: list[t.Any], after: str, newline: str
) -> None:
    original = TomlDocument.from_bytes("/etc/x.toml", f"a = {before}\n".replace("\n", newline).encode())
    changed = original.set(("a",), value)
    assert changed.text == f"a = {after}\n".replace("\n", newline)
    assert changed.restore(("a",), original).text == original.text


def test_the_comment_that_would_be_lost_is_named_without_secrets() -> None:
    document = TomlDocument.from_bytes("/etc/x.toml", b"a = [\n  1, # token=hunter2\n]\n")
    with pytest.raises(ConfigurationError) as raised:
        document.set(("a",), [2])
    assert "would delete the comment inside its value: # token=********. " in str(raised.value)
    assert "Move the comment above the entry" in str(raised.value)
