# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _task_digest
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._task_digest import code_digest, task_digest

if t.TYPE_CHECKING:
    from pathlib import Path


def test_another_task_has_another_word() -> None:
    tasks: list[dict[str, t.Any]] = [{}, {"a": 1}, {"a": "1"}, {"a": [1]}, {"a": {"b": 1}}, {"b": 1}, {"a": 1, "b": 1}]
    words = {task_digest(code, task) for code in ("one", "two") for task in tasks}
    assert None not in words
    assert len(words) == 2 * len(tasks)


def test_the_same_task_has_the_same_word() -> None:
    assert task_digest("x", {"a": {"b": 1, "c": 2}, "d": 3}) == task_digest("x", {"d": 3, "a": {"c": 2, "b": 1}})


@pytest.mark.parametrize("value", [object(), {1: 2, "a": 3}, {(1, 2): 3}, b"bytes"])
def test_what_json_cannot_hold(value: t.Any) -> None:
    assert task_digest("x", {"a": value}) is None


def test_other_code_has_another_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("modules", "module_utils", "action"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(_task_digest, "_PLUGINS", str(tmp_path))
    words = [code_digest()]
    (tmp_path / "modules/a.py").write_text("a = 2\n")
    words.append(code_digest())
    (tmp_path / "module_utils/b.py").write_text("")
    words.append(code_digest())
    # What runs on the controller has no say in what a host finds.
    (tmp_path / "action/a.py").write_text("a = 2\n")
    (tmp_path / "modules/a.pyc").write_text("")
    assert code_digest() == words[-1]
    assert len(set(words)) == 3


def test_this_collection_has_one() -> None:
    assert len(code_digest()) == 64
