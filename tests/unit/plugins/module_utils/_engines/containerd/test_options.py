# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options

A, B = "/a", "/b"


@pytest.mark.parametrize(
    ("entry", "program"),
    [
        (None, None),
        (5, None),
        ({}, None),
        ({"options": 5}, None),
        ({"options": {}}, None),
        ({"options": {"BinaryName": A}}, A),
        ({"options": {"binaryName": A}}, A),
        ({"options": {"binaryname": A}}, A),
        ({"options": {"Binary_Name": A}}, None),
        # The CRI reports the built-in options, which are empty, beside those of the files.
        ({"options": {"BinaryName": "", "binaryName": A}}, A),
        ({"options": {"binaryName": A, "BinaryName": ""}}, A),
        # nvidia-ctk adds BinaryName to a copy of the options of kubespray.
        ({"options": {"BinaryName": A, "binaryName": B}}, A),
        ({"options": {"binaryName": B, "BinaryName": A}}, A),
    ],
)
def test_program_of(entry: t.Any, program: str | None) -> None:
    assert options.program_of(entry) == program


def test_canonical_options() -> None:
    entry = {"runtime_type": "x", "options": {"systemdCgroup": False, "TypeUrl": "y", "root": "/r"}}
    assert options.canonical(entry) == {
        "runtime_type": "x",
        "options": {"SystemdCgroup": False, "TypeUrl": "y", "Root": "/r"},
    }


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (None, "BinaryName"),
        ({}, "BinaryName"),
        ({"Root": "", "BinaryName": A}, "BinaryName"),
        ({"Root": "", "binaryName": A}, "binaryName"),
    ],
)
def test_key_of_an_option(table: t.Any, key: str) -> None:
    assert options.key_of(table, "BinaryName") == key


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (None, None),
        ({}, None),
        ({"BinaryName": A, "systemdCgroup": True, "shimcgroup": "", "TypeUrl": "", "typeurl": ""}, None),
        # Releases differ in whether they read these.
        ({"BINARYNAME": A}, ("BINARYNAME", "BinaryName")),
        ({"binaryNAME": A}, ("binaryNAME", "BinaryName")),
        # Releases differ in which of these has effect.
        ({"BinaryName": A, "binaryName": B}, ("binaryName", "BinaryName")),
        ({"binaryname": A, "binaryName": B}, ("binaryname", "BinaryName")),
    ],
)
def test_undefined_key(table: t.Any, expected: tuple[str, str] | None) -> None:
    assert options.undefined_key(table) == expected
