# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Use the roles in plays of a user, with correct and misspelled variables, and facts. Modules answer from files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="plays run on the controller only")
import yaml

COLLECTION = Path(__file__).resolve().parents[2]
ROLES = ("nvidia_toolkit", "nvidia_cdi", "nvidia_runtime")
CHECK = {"ansible.builtin.import_playbook": "gpufleet.nvidia.check"}
# Ansible calls it with the path of the module's file. It notes the module.
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
echo "${{module%.py}}" >>"{folder}/called"
cat "{folder}/../answers/${{module%.py}}.json" 2>/dev/null || echo '{{"changed": false}}'
"""
INFO = {
    "changed": False, "engines": [],
    "toolkit": {"package_manager": "apt", "gpg": None, "repository_files": [],
                "gpu": {"present": True, "kind": "driver", "message": "/sys/bus/pci"}},
}  # fmt: skip


class Played(t.NamedTuple):
    """The output of ansible-playbook, and its working directory."""

    output: str
    work: Path

    def error(self, host: str) -> str:
        found = re.findall(rf"^fatal: \[{host}\].*$", self.output, re.MULTILINE)
        assert len(found) <= 1, found
        return found[0] if found else ""

    def called(self, host: str) -> list[str]:
        path = self.work / host / "called"
        return path.read_text(encoding="utf-8").split() if path.exists() else []


def play(work: Path, plays: list[dict[str, t.Any]], variables: t.Mapping[str, t.Mapping[str, t.Any]]) -> Played:
    """Run plays with hosts whose modules answer from files."""
    place = work / "ansible_collections/gpufleet/nvidia"
    for name in ("playbooks", "plugins", "roles", "meta"):
        shutil.copytree(COLLECTION / name, place / name)
    (work / "answers").mkdir()
    (work / "answers/nvidia_container_info.json").write_text(json.dumps(INFO), encoding="utf-8")
    hosts = {}
    for name, own in variables.items():
        (work / name).mkdir()
        interpreter = work / name / "python"
        interpreter.write_text(INTERPRETER.format(folder=work / name), encoding="utf-8")
        interpreter.chmod(0o755)
        hosts[name] = {"ansible_connection": "local", "ansible_python_interpreter": str(interpreter), **own}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    (work / "plays.yml").write_text(json.dumps(plays), encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000"}  # fmt: skip
    done = subprocess.run(
        [program, "-i", "hosts.json", "plays.yml"], cwd=work, env=environ, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return Played(done.stdout, work)


def of_role(role: str) -> dict[str, t.Any]:
    return {"hosts": "all", "gather_facts": False, "roles": [f"gpufleet.nvidia.{role}"]}


def readme_example(role: str) -> list[dict[str, t.Any]]:
    """The first example in the README of a role, for all hosts."""
    text = (COLLECTION / "roles" / role / "README.md").read_text(encoding="utf-8")
    check, example = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    return [check, {**example, "hosts": "all", "gather_facts": False}]


@pytest.mark.parametrize("role", ROLES)
def test_the_example_of_a_role_refuses_misspelt_variables(tmp_path: Path, role: str) -> None:
    misspelt = {"nvidia_runtime_set_default": True, "nvidia_own_variables": ["nvidia_toolkit_owner"]}
    found = play(tmp_path, readme_example(role), {"misspelt": misspelt, "correct": {"nvidia_toolkit_owner": "me"}})
    assert "Did you mean nvidia_runtime_set_as_default?" in found.error("misspelt")
    assert "nvidia_toolkit_owner is not a variable" in found.error("correct")
    assert (found.called("misspelt"), found.called("correct")) == ([], [])


@pytest.mark.parametrize("role", ROLES)
def test_the_example_of_a_role_accepts_correct_variables(tmp_path: Path, role: str) -> None:
    found = play(tmp_path, readme_example(role), {"correct": {"nvidia_driver_branch": "580"}})
    assert found.error("correct") == ""
    assert [name for name in found.called("correct") if name.startswith("nvidia_")]


@pytest.mark.parametrize(
    "later",
    [
        *(of_role(role) for role in ROLES),
        {"hosts": "all", "gather_facts": False, "tasks": [{"gpufleet.nvidia.nvidia_container_info": {}}]},
    ],
    ids=[*ROLES, "task"],
)
def test_every_task_refuses_facts(tmp_path: Path, later: dict[str, t.Any]) -> None:
    """A module of a host can return facts. They stop only this host."""
    fact = {"ansible.builtin.set_fact": {"cacheable": True, "nvidia_toolkit_files": ["/x"]}}
    first = {"hosts": "facts", "gather_facts": False, "tasks": [fact]}
    found = play(tmp_path, [first, later], {"facts": {}, "other": {}})
    assert "nvidia_toolkit_files: set by facts of this host" in found.error("facts")
    assert found.error("other") == ""
    assert [name for name in found.called("facts") if name.startswith("nvidia_")] == []
    assert [name for name in found.called("other") if name.startswith("nvidia_")]


def test_the_check_does_not_evaluate_variables_again(tmp_path: Path) -> None:
    """No task of nvidia_toolkit or nvidia_cdi evaluates this variable."""
    counted = "{{ lookup('ansible.builtin.pipe', 'echo x >>' ~ inventory_dir ~ '/counted; echo nvidia') }}"
    found = play(tmp_path, [CHECK, of_role("nvidia_toolkit"), of_role("nvidia_cdi")],
                 {name: {"nvidia_runtime_name": counted} for name in ("one", "two")})  # fmt: skip
    assert "failed=0" in found.output, found.output
    assert len((tmp_path / "counted").read_text(encoding="utf-8").splitlines()) == 2
