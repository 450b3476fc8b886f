# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that compares two versions is in no session, so its tasks are checked here."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.compare_versions import transcript, trees
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.argument_specs import specs

if t.TYPE_CHECKING:
    from pathlib import Path


def test_modules_know_the_options_of_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = specs(monkeypatch)
    unknown = [
        f"{case.name}: {name}"
        for case in trees.cases()
        for arguments in (case.common, *case.present)
        for name in arguments
        if name not in known[case.module]
    ]
    assert unknown == []


@pytest.mark.parametrize("option", ["lines", "config"])
def test_a_task_with_an_unknown_option(tmp_path: Path, option: str) -> None:
    class Worker:
        def run(self, *_task: t.Any, **_mode: t.Any) -> dict[str, t.Any]:
            message = f"Unsupported parameters for (basic.py) module: {option}." if option == "config" else "No line."
            return {"failed": True, "msg": message}

    run = transcript.Run(trees.Case("x", "nvidia_cdi_spec", lambda _root: None, {}, ({},)), tmp_path / "tree")
    run.build()
    run.present(t.cast("transcript.Worker", Worker()))
    assert run.unknown is (option == "config")
