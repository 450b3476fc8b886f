# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_parser import iter_leaves
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import (
    HEADER,
    TomlFiles,
    check_options,
    lookup,
    merged,
    plain_copy,
    require,
    revert_own_entries,
    write_table,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

MAIN, OTHER, THIRD = "/etc/main.toml", "/etc/other.toml", "/etc/third.toml"


class Run:
    """One run on files in memory."""

    def __init__(self, files: FakeFiles) -> None:
        self.host = files
        self.files = TomlFiles(files.context(MAIN))

    def apply(self) -> list[str]:
        planned = [file for file in self.files.planned() if file.changed]
        for file in planned:
            record = self.host.records.get(file.path) or OriginalFile("x", file.path, file.before, 0, 0, 0o644)
            self.host.records[file.path] = record.after_write(file.before, file.after, file.keys)
            self.host.put(file.path, file.after)
        return [file.path for file in planned]


def fake(**files: str) -> FakeFiles:
    return FakeFiles({f"/etc/{name}.toml": text for name, text in files.items()}, "containerd")


# -- several files ---------------------------------------------------------------------------------------------------


def test_order_of_drop_ins_and_main_file() -> None:
    host = fake(main="a = 1\n")
    run = Run(host)
    for path in (MAIN, OTHER, THIRD):
        run.files.edit(path).write(("b",), 2)
    assert run.apply() == [OTHER, THIRD, MAIN]
    run = Run(host)
    for path in (MAIN, OTHER, THIRD):
        revert_own_entries(run.files.edit(path))
    run.files.edit(THIRD).write(("c",), 3)
    assert run.files.planned_documents()[OTHER] is None
    assert run.apply() == [THIRD, MAIN, OTHER]
    assert host.content == {MAIN: b"a = 1\n", THIRD: b"c = 3\n"}


def test_order_of_removed_files() -> None:
    host = fake()
    run = Run(host)
    for path in (MAIN, OTHER):
        run.files.edit(path).write(("b",), 2)
    assert run.apply() == [OTHER, MAIN]
    run = Run(host)
    for path in (MAIN, OTHER):
        revert_own_entries(run.files.edit(path))
    assert run.apply() == [MAIN, OTHER]
    assert host.content == {}


def test_overlay_and_planned_files() -> None:
    run = Run(fake(main="a = 1\n", other="b = 1\n"))
    other = run.files.edit(OTHER)
    assert run.files.edit(OTHER) is other
    assert run.files.overlay() == {OTHER: other.document}
    other.write(("c",), 1)
    run.files.edit(THIRD)
    assert {path: doc.data for path, doc in run.files.overlay().items()} == {OTHER: {"b": 1, "c": 1}}
    assert run.files.planned_documents() == run.files.overlay()
    # The main file is always planned, others only if they exist or will exist.
    run.files.edit(MAIN)
    assert [(file.path, file.changed) for file in run.files.planned()] == [(OTHER, True), (MAIN, False)]


def test_mode_limit_of_own_files() -> None:
    host = fake(main="", other="")
    run = Run(host)
    for path in (MAIN, OTHER, THIRD):
        run.files.edit(path).write(("b",), 2)
    assert {file.path: file.like for file in run.files.planned()} == {MAIN: (), OTHER: (), THIRD: (MAIN,)}


@pytest.mark.parametrize(
    ("text", "header"), [(HEADER, HEADER), (HEADER + b"a = 1\n", HEADER), (b"a = 1\n", b""), (b"", b"")]
)
def test_header(text: bytes, header: bytes) -> None:
    assert TomlFiles(FakeFiles({MAIN: text}).context(MAIN)).edit(MAIN).header == header


# -- reverting -------------------------------------------------------------------------------------------------------


def changed(original: str) -> FakeFiles:
    host = fake(main=original)
    run = Run(host)
    for name in ("b", "c"):
        run.files.edit(MAIN).write((name,), 2)
    run.apply()
    return host


def test_revert_restores_bytes() -> None:
    original = "a = 1\n\n\nb   =   1 # x\n"
    edit = Run(changed(original)).files.edit(MAIN)
    revert_own_entries(edit)
    assert edit.document.to_bytes() == original.encode()


@pytest.mark.parametrize("original", ["", "a = 1\n"])
def test_revert_to_empty_original(original: str) -> None:
    host = changed(original)
    edit = TomlFiles(host.context(MAIN)).edit(MAIN)
    revert_own_entries(edit)
    assert edit.document.to_bytes() == original.encode()


def test_revert_keeps_foreign_entries() -> None:
    host = changed("b = 1 # x\n")
    host.content[MAIN] += b"d = 4\n"
    edit = Run(host).files.edit(MAIN)
    revert_own_entries(edit)
    assert edit.document.to_bytes() == b"b = 1 # x\nd = 4\n"


def test_revert_keeps_requested_entries() -> None:
    edit = Run(changed("a = 1\n")).files.edit(MAIN)
    revert_own_entries(edit, lambda path: path == ("b",))
    assert edit.document.data == {"a": 1, "b": 2}
    edit = Run(changed("a = 1\n")).files.edit(MAIN)
    edit.write(("c",), 2)
    revert_own_entries(edit)
    assert edit.document.data == {"a": 1, "c": 2}


def test_revert_without_record() -> None:
    edit = Run(fake(main="b = 2\n")).files.edit(MAIN)
    revert_own_entries(edit)
    assert edit.document is edit.before


# -- tables ----------------------------------------------------------------------------------------------------------


def test_write_table_keeps_other_entries() -> None:
    edit = Run(fake(main="[t]\nx = 1\n[t.u]\ny = 1\n")).files.edit(MAIN)
    write_table(edit, ("t",), {"x": 1, "u": {"z": [1]}, "v": {}, "w": {"s": "s"}})
    assert edit.document.data == {"t": {"x": 1, "u": {"y": 1, "z": [1]}, "w": {"s": "s"}}}
    assert edit.wanted == {("t", "x"): 1, ("t", "u", "z"): [1], ("t", "w", "s"): "s"}


def test_write_table_distinguishes_true_from_one() -> None:
    edit = Run(fake(main="[t]\nx = 1\n")).files.edit(MAIN)
    write_table(edit, ("t",), {"x": True})
    assert edit.document.value("t", "x") is True


def test_write_empty_table() -> None:
    edit = Run(fake(main="")).files.edit(MAIN)
    write_table(edit, ("t",), {})
    assert edit.document is edit.before


def test_table_functions() -> None:
    table = {"a": {"b": 1, "c": {}}, "d": [{}]}
    assert list(iter_leaves(table, ("x",))) == [(("x", "a", "b"), 1), (("x", "d"), [{}])]
    assert plain_copy(table) == {"a": {"b": 1}, "d": [{}]}
    assert plain_copy(table)["d"] is not table["d"]
    assert merged({"a": {"b": 1, "c": 1}, "d": 1}, {"a": {"b": 2}, "d": {"e": 1}}) == {
        "a": {"b": 2, "c": 1},
        "d": {"e": 1},
    }
    assert [lookup(table, path) for path in ((), ("a", "b"), ("a", "x"), ("d", "x"), ("a", "b", "c"))] == [
        *(table, 1),
        *(None, None, None),
    ]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "kind", "message"),
    [
        ("a = 1\n", "a", int, None),
        ("", "a.b", str, None),
        ("a = true\n", "a", bool, None),
        ("a = true\n", "a", int, "line 1, column 1: a is not a number. Do"),
        ("a = 1\n", "a", bool, "line 1, column 1: a is not true or false. Do"),
        ("a = 1\n", "a", dict, "a is not a table"),
        ("a = 1\n", "a", str, "a is not a string"),
        ("a = 1\n", "a", list, "a is not an array"),
        ("\n[a]\nb = 1\n", "a.b.c", str, "line 3, column 1: a.b is not a table. Make it a table"),
    ],
)
def test_require(text: str, path: str, kind: type, message: str | None) -> None:
    document = TomlDocument.from_bytes(MAIN, text.encode())
    keys = tuple(path.split("."))
    if message is None:
        assert require(document, keys, kind, "Do.") == document.value(*keys)
    else:
        with pytest.raises(ConfigurationError) as caught:
            require(document, keys, kind, "Do this.")
        assert message in str(caught.value)


KNOWN = key_names.fields("type", "options", "typed")
RESERVED = {("type",): "runtime_type", ("options", "BinaryName"): "runtime_dir"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, None),
        ({"a": 1, "b": 1.5, "c": True, "d": ["x", 1], "e": {"f": "g"}, "h": [], "typed": 1}, None),
        ({"options": {"Root": "/r"}}, None),
        ({"type": "x"}, r"Remove type from runtime_options and set runtime_type"),
        ({"Type": {"x": 1}}, r"Remove Type\.x from runtime_options and set runtime_type"),
        ({"OPTIONS": {"binaryname": "/x"}}, r"Remove OPTIONS\.binaryname from runtime_options and set runtime_dir"),
        ({"Typed": 1}, r"runtime_options: Typed differs from typed in case only\. Rename it to typed"),
        ({"a": None}, r"runtime_options: a has an unsupported type"),
        ({"a": {"b": b"x"}}, r"runtime_options: a\.b has an unsupported type"),
        ({"a": [1, {"b": 1}]}, r"runtime_options: a has an unsupported type"),
    ],
)
def test_check_options(options: dict[str, t.Any], message: str | None) -> None:
    if message is None:
        check_options(options, RESERVED, KNOWN)
    else:
        with pytest.raises(NvidiaError, match=message):
            check_options(options, RESERVED, KNOWN)
