# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names

DECODERS = {
    "containerd 1": key_names.GO_TOML_1,
    "containerd 2, file": key_names.GO_TOML_2,
    "containerd 2, plugins": key_names.GO_TOML_2_SORTED,
    "containerd, unknown": key_names.CONTAINERD,
    "CRI-O": key_names.BURNT_SUSHI,
    "Docker": key_names.GO_JSON,
}


def spellings(*keys: str) -> dict[str, str]:
    return {key: f"value of {key}" for key in keys}


def every(*keys: str) -> dict[str, list[str]]:
    return {name: list(keys) for name in DECODERS}


# For each decoder the keys that set the field BinaryName, the one with effect last.
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("BinaryName",), every("BinaryName")),
        (("binaryName",), every("binaryName")),
        (("BINARYNAME",), every("BINARYNAME")),
        (("binaryNAME",), {**every("binaryNAME"), "containerd 1": []}),
        (("Binary_Name", "BinaryNam"), every()),
        (
            ("binaryName", "BinaryName"),
            {
                "containerd 1": ["BinaryName"],
                "containerd 2, file": ["binaryName", "BinaryName"],
                "containerd 2, plugins": ["BinaryName", "binaryName"],
                "containerd, unknown": ["binaryName", "BinaryName"],
                "CRI-O": ["binaryName", "BinaryName"],
                "Docker": ["binaryName", "BinaryName"],
            },
        ),
        (
            ("BinaryName", "binaryname", "BINARYNAME"),
            {
                "containerd 1": ["BinaryName"],
                "containerd 2, file": ["BinaryName", "binaryname", "BINARYNAME"],
                "containerd 2, plugins": ["BINARYNAME", "BinaryName", "binaryname"],
                "containerd, unknown": ["binaryname", "BinaryName"],
                "CRI-O": ["BinaryName", "binaryname", "BINARYNAME"],
                "Docker": ["BinaryName", "binaryname", "BINARYNAME"],
            },
        ),
    ],
)
def test_keys_of_a_field(keys: tuple[str, ...], expected: dict[str, list[str]]) -> None:
    table = spellings(*keys)
    found = {name: decoder.keys_of(table, "BinaryName") for name, decoder in DECODERS.items()}
    assert found == expected
    for name, decoder in DECODERS.items():
        effective = (expected[name] or ["BinaryName"])[-1]
        assert decoder.key_of(table, "BinaryName") == effective
        assert decoder.canonical(table, key_names.fields("BinaryName")).get("BinaryName") == table.get(effective)


KNOWN = key_names.fields("version", runtimes=key_names.keys(key_names.fields("path", options=key_names.fields("Root"))))


def test_keys_of_maps_are_exact_and_unknown_keys_stay() -> None:
    table = {
        "Version": 2,
        "Runtimes": {"a": {"Path": "/a", "other": 1}, "A": {"path": "/A"}},
        "runtimes": {"a": {"options": {"root": "/r"}}, "b": 5},
    }
    assert key_names.GO_TOML_2.canonical(table, KNOWN) == {
        "version": 2,
        "runtimes": {"a": {"path": "/a", "other": 1, "options": {"Root": "/r"}}, "A": {"path": "/A"}, "b": 5},
    }
    # A key that go-toml 1 does not assign hides nothing.
    assert key_names.GO_TOML_1.canonical({"Runtimes": {"a": {}}, "runtimes": {"b": {}}}, KNOWN) == {
        "Runtimes": {"a": {}},
        "runtimes": {"b": {}},
    }


def document(text: str) -> TomlDocument:
    return TomlDocument.from_bytes("/x", text.encode())


@pytest.mark.parametrize(
    ("text", "refused_for"),
    [
        ("version = 1\n", ()),
        ("Version = 1\n", ()),
        ("version = 1\nVersion = 1\n", ()),
        ("version = 1\nVersion = 2\n", ("CRI-O",)),
        ("[runtimes.a]\npath = '/a'\nPath = '/b'\n", ("CRI-O",)),
        ("[runtimes.a]\npath = '/a'\n[runtimes.A]\npath = '/b'\n", ()),
        ("[runtimes.a.options]\nRoot = '/a'\nroot = '/b'\n", ("CRI-O", "containerd, unknown")),
        ("[runtimes.a.options]\nROOT = '/a'\nroOt = '/b'\n", ("CRI-O", "containerd, unknown")),
        ("runtimes = 5\n", ()),
    ],
)
def test_undefined_order_is_refused(text: str, refused_for: tuple[str, ...]) -> None:
    for name, decoder in DECODERS.items():
        if name not in refused_for:
            decoder.check_order(document(text), KNOWN, "Remove one.")
        else:
            with pytest.raises(ConfigurationError, match=r"^/x, line [1-4], column 1: .* it is undefined which"):
                decoder.check_order(document(text), KNOWN, "Remove one.")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version = 1\n[runtimes.A]\npath = '/a'\n[runtimes.a.options]\nRoot = ''\n", None),
        ("Version = 1\n", 1),
        ("[RUNTIMES.a]\n", 1),
        ("[runtimes.a]\nPATH = '/a'\n", 2),
        ("[runtimes.a]\nPATH = '/a'\npath = '/b'\n", 2),
        ("[runtimes]\na.options.root = ''\n", 2),
    ],
)
def test_other_spelling_is_refused_with_its_line(text: str, line: int | None) -> None:
    if line is None:
        key_names.GO_TOML_2.check_spelling(document(text), KNOWN, "containerd")
        return
    with pytest.raises(ConfigurationError, match=rf"^/x, line {line}, column .*containerd reads .* Rename it to"):
        key_names.GO_TOML_2.check_spelling(document(text), KNOWN, "containerd")


def test_a_document_for_reading_keeps_its_text() -> None:
    text = "Version = 1\n"
    read = key_names.GO_TOML_2.document(document(text), KNOWN)
    assert (read.text, read.data) == (text, {"version": 1})
    same: t.Any = document("version = 1\n")
    assert key_names.GO_TOML_2.document(same, KNOWN) is same
