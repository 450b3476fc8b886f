# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The arguments of modules that run on the controller; tests/plays/test_check_settings.py runs it."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="the action runs on the controller only")

import yaml

from ansible_collections.gpufleet.nvidia.plugins.action import (
    nvidia_check_settings,
    nvidia_host_summary,
)
from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_check_settings as check_settings_module
from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_host_summary as host_summary_module

COLLECTION = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("action", "module"),
    [
        (nvidia_check_settings, check_settings_module),
        (nvidia_host_summary, host_summary_module),
    ],
)
def test_arguments_match_the_documentation(action: t.Any, module: t.Any) -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert {name: {key: value for key, value in option.items() if key not in ("description", "version_added")}
            for name, option in
            documented.items()} == action.ARGUMENTS  # fmt: skip


@pytest.mark.parametrize("playbook", ["site", "rolling"])
def test_playbooks_begin_with_the_check(playbook: str) -> None:
    first = yaml.safe_load((COLLECTION / f"playbooks/{playbook}.yml").read_text(encoding="utf-8"))[0]
    assert first["ansible.builtin.import_playbook"] == "check.yml"
