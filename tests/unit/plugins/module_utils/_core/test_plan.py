# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import TrackedEdit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument

PATH = "/etc/x.toml"
FRESH = b"# ours\n"


def edit(content: bytes | None, record: OriginalFile | None = None, fresh: bytes = b"") -> TrackedEdit[TomlDocument]:
    return TrackedEdit(TomlDocument.from_bytes, PATH, content, record, fresh)


def recorded(original: bytes | None, keys: t.Mapping[tuple[str, ...], t.Any]) -> OriginalFile:
    return OriginalFile("containerd", PATH, original, 0, 0, 0o644, keys=keys)


def test_a_first_change() -> None:
    change = edit(b"a = 1 # foreign\n")
    change.write(("b",), 2)
    change.write(("t", "c"), "x")
    file = change.planned(change.document.to_bytes())
    assert file.after == b'a = 1 # foreign\nb = 2\n\n[t]\nc = "x"\n'
    assert file.keys == {("b",): 2, ("t", "c"): "x"}
    assert (file.path, file.before, file.like, file.changed) == (PATH, b"a = 1 # foreign\n", (), True)


def test_what_stood_there_with_the_same_value_is_not_ours() -> None:
    change = edit(b"a = 1\n")
    change.write(("a",), 1)
    assert change.planned(b"a = 1\n").keys == {}
    later = edit(b"a = 2\n", recorded(b"a = 1\n", {("a",): 2}))
    later.write(("a",), 1)
    assert later.planned(later.document.to_bytes()).keys == {}


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (b"a = 1\nb = 2\n", {("a",): 1}),
        # Another program has changed or removed the entry since.
        (b"a = 3\nb = 2\n", {}),
        (b"b = 2\n", {}),
        # true equals 1 in Python, but is another value.
        (b"a = true\nb = 2\n", {}),
    ],
)
def test_entries_of_earlier_runs_are_owned_until_they_change(content: bytes, keys: t.Any) -> None:
    change = edit(content, recorded(b"b = 2\n", {("a",): 1}))
    assert change.recorded() == [("a",)]
    assert change.owns(("a",)) is bool(keys)
    assert not change.owns(("b",))
    assert change.planned(content).keys == keys


@pytest.mark.parametrize(
    ("original", "content", "after"),
    [
        (b"", b"a = 1\n", b""),
        (b"a = 0x10 # why\n", b"a = 1 # why\n", b"a = 0x10 # why\n"),
        (b"a = 0\n", b"a = 2\n", b"a = 2\n"),
        (None, b"a = 1\nb = 2\n", b"b = 2\n"),
    ],
)
def test_give_back(original: bytes | None, content: bytes, after: bytes) -> None:
    change = edit(content, recorded(original, {("a",): 1}))
    change.restore(("a",))
    assert change.document.to_bytes() == after
    assert change.planned(after).keys == {}


def test_without_a_record_nothing_is_ours() -> None:
    change = edit(b"a = 1\n")
    change.restore(("a",))
    assert change.document is change.before
    assert change.original is change.before
    assert change.recorded() == []


def test_the_original_is_what_was_recorded() -> None:
    assert edit(b"a = 1\n", recorded(b"b = 1\n", {})).original.data == {"b": 1}
    assert edit(b"a = 1\n", recorded(None, {})).original.data == {}
    assert edit(None, None, FRESH).original.data == {}


@pytest.mark.parametrize(
    ("content", "fresh", "emptied"),
    [
        (None, FRESH, True),
        (None, b"", True),
        (FRESH, FRESH, True),
        (FRESH + b" \n\n", FRESH, True),
        (FRESH, b"", False),
        (FRESH + b"# foreign\n", FRESH, False),
        (FRESH + b"a = 1\n", FRESH, False),
    ],
)
def test_emptied(content: bytes | None, fresh: bytes, emptied: bool) -> None:
    assert edit(content, None, fresh).emptied is emptied


def test_a_new_file_begins_with_our_words() -> None:
    change = edit(None, None, FRESH)
    change.write(("a",), 1)
    file = change.planned(change.document.to_bytes(), ("/etc/main.toml",))
    assert (file.before, file.like) == (None, ("/etc/main.toml",))
    assert file.after is not None
    assert file.after.startswith(FRESH)


def test_a_file_that_goes_leaves_nothing_of_ours() -> None:
    change = edit(b"a = 1\n", recorded(None, {("a",): 1}))
    file = change.planned(None)
    assert (file.after, file.keys, file.changed) == (None, {}, True)
