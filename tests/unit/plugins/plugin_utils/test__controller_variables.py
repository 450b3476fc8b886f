# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which variables name files of the controller or decide about all hosts."""

from __future__ import annotations

import shutil
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="the checks run on the controller only")

import yaml

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _controller_variables, _settings

COLLECTION = Path(__file__).resolve().parents[4]
SETTINGS = _settings.known_variables(COLLECTION).settings
FOUND = _controller_variables.controller_variables(COLLECTION, SETTINGS)


def test_variables_of_tasks_that_run_on_the_controller_or_once() -> None:
    audit = {f"nvidia_audit_{name}" for name in ("dir", "fail_on", "html", "json", "limit", "time")}
    files = {"nvidia_runtime_before_restart", "nvidia_runtime_after_restart", "nvidia_toolkit_source",
             "nvidia_toolkit_src", "nvidia_toolkit_files", "nvidia_toolkit_files_on"}  # fmt: skip
    all_hosts = {"nvidia_hosts", "nvidia_serial", "ansible_limit", "omit", "nvidia_own_tags", "nvidia_own_variables"}
    assert audit | files | all_hosts <= FOUND
    # A host may choose what concerns only itself.
    assert not {"nvidia_toolkit_version", "nvidia_cdi_mode", "nvidia_runtime_engines"} & FOUND


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"ansible.builtin.debug": {"msg": "{{ nvidia_cdi_mode }}"}}, False),
        ({"ansible.builtin.debug": {"msg": "{{ nvidia_cdi_mode }}"}, "run_once": True}, True),
        ({"ansible.builtin.debug": {"msg": "x"}, "when": "nvidia_cdi_mode == 'x'", "delegate_to": "localhost"}, True),
        ({"ansible.builtin.include_tasks": "{{ nvidia_cdi_mode }}.yml"}, True),
        ({"gpufleet.nvidia.nvidia_audit_report": {"html": "{{ nvidia_cdi_mode }}"}}, True),
        ({"gpufleet.nvidia.nvidia_toolkit_install": {"src": "{{ nvidia_cdi_mode }}", "dest": "/x"}}, True),
        ({"gpufleet.nvidia.nvidia_toolkit_install": {"src": "/x", "dest": "{{ nvidia_cdi_mode }}"}}, False),
        ({"block": [{"ansible.builtin.copy": {"src": "{{ nvidia_cdi_mode }}", "dest": "/x"}}]}, True),
    ],
)
def test_a_new_task_needs_no_entry_in_a_list(tmp_path: Path, task: dict[str, t.Any], expected: bool) -> None:
    for name in ("playbooks", "roles", "plugins/action"):
        shutil.copytree(COLLECTION / name, tmp_path / name)
    play = [{"hosts": "all", "tasks": [task]}]
    (tmp_path / "playbooks/new.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    found = _controller_variables.controller_variables(tmp_path, SETTINGS)
    assert found == (FOUND | {"nvidia_cdi_mode"} if expected else FOUND)


def test_facts_have_no_prefix() -> None:
    facts = ["limit", "nvidia_audit_html", "distribution", "audit_json"]
    assert _controller_variables.chosen_by_facts(FOUND, facts) == ["ansible_limit", "nvidia_audit_html"]
