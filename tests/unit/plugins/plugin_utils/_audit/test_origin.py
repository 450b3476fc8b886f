# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit import origin

if t.TYPE_CHECKING:
    from pathlib import Path

AUDIT = "gpufleet.nvidia.audit"
# An argument whose value Ansible reads with its quotes.
TWO_HOSTS = """'nvidia_hosts='"'"'a b'"'"''"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"MANIFEST.json": '{"collection_info": {"version": "1.2.0"}}', "galaxy.yml": "version: 1.1.0\n"}, "1.2.0"),
        ({"galaxy.yml": "name: nvidia\nversion: 1.1.0\n"}, "1.1.0"),
        ({"MANIFEST.json": "[]", "galaxy.yml": "name: nvidia\n"}, None),
        ({"MANIFEST.json": "{"}, None),
        ({}, None),
    ],
)
def test_version(tmp_path: Path, files: dict[str, str], expected: str | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert origin.version(tmp_path) == expected


def test_version_of_this_collection() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", str(origin.version()))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),
        ({"args": ()}, None),
        ({"args": (AUDIT,), "inventory": ("hosts", "more hosts"), "subset": "gpu:!old", "tags": ("all",)},
         f"ansible-playbook {AUDIT} -i hosts -i 'more hosts' --limit 'gpu:!old'"),
        ({"args": [AUDIT], "become": True, "check": True, "tags": ["a"], "skip_tags": ["b"], "forks": 5, "diff": True},
         f"ansible-playbook {AUDIT} --tags a --skip-tags b -b --check"),
        # Only the values of known variables are shown.
        ({"args": (AUDIT,), "extra_vars": ("nvidia_audit_dir=reports nvidia_hosts='a b'", "token=x", "@vars.yml")},
         f"ansible-playbook {AUDIT} -e nvidia_audit_dir=reports -e {TWO_HOSTS} -e token=... -e @vars.yml"),
        ({"args": (AUDIT,), "extra_vars": ('{"token": "x"}', "a='x", "token: x=y")},
         f"ansible-playbook {AUDIT} -e ... -e ... -e ..."),
        ({"args": None, "inventory": 5}, None),
    ],
)  # fmt: skip
def test_command(arguments: dict[str, t.Any], expected: str | None) -> None:
    assert origin.command(arguments) == expected
