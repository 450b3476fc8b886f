# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names

KNOWN = key_names.fields(
    "version",
    runtimes=key_names.keys(key_names.fields("path", options=key_names.fields("Root"))),
    plugins=key_names.keys(key_names.fields("enable"), "cri"),
)


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("", 0, ""),
        ("version = 1\n[runtimes.a]\npath = '/a'\n[runtimes.A.options]\nRoot = ''\n", 0, ""),
        ("runtimes = 5\n", 0, ""),
        ("[plugins.CRI]\nEnable = 1\n", 0, ""),
        ("[plugins.cri]\nEnable = 1\n", 2, "enable"),
        # No known key has these letters, or the table is not known.
        ("versions = 1\n[other]\nVersion = 1\n[runtimes.a.options.more]\nROOT = 1\n", 0, ""),
        ("Version = 1\n", 1, "version"),
        ("version = 1\nVERSION = 1\n", 2, "version"),
        ("[Runtimes.a]\n", 1, "runtimes"),
        ("[runtimes.a]\nPATH = '/a'\n", 2, "path"),
        ("[runtimes.a]\npath = '/a'\nPath = '/b'\n", 3, "path"),
        ("[runtimes]\na.options.root = ''\n", 2, "Root"),
    ],
)
def test_key_in_another_case_is_refused_with_its_line(text: str, line: int, name: str) -> None:
    document = TomlDocument.from_bytes("/x", text.encode())
    if not name:
        key_names.check(document, KNOWN, "CRI-O")
        return
    with pytest.raises(
        ConfigurationError, match=rf"^/x, line {line}, .* from {name} in case only, .* Rename it to {name}"
    ):
        key_names.check(document, KNOWN, "CRI-O")


@pytest.mark.parametrize(
    ("key", "name"), [("version", None), ("Version", "version"), ("RUNTIMES", "runtimes"), ("versio", None)]
)
def test_other_case(key: str, name: str | None) -> None:
    assert KNOWN.other_case(key) == name
