# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Use the roles in plays without the playbooks, with correct and misspelled variables. Modules answer from files."""

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

COLLECTION = Path(__file__).resolve().parents[2]
TOOLKIT, RUNTIME, CDI = (f"gpufleet.nvidia.nvidia_{name}" for name in ("toolkit", "runtime", "cdi"))
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
SET_DEFAULT = (
    "nvidia_runtime_set_default is not a variable of gpufleet.nvidia. Did you mean nvidia_runtime_set_as_default?"
)
# A lookup that counts how often it is evaluated. No task of nvidia_toolkit or nvidia_cdi evaluates this variable.
COUNTED = {
    "nvidia_runtime_name": "{{ lookup('ansible.builtin.pipe', 'echo x >>' ~ inventory_dir ~ '/counted; echo nvidia') }}"
}


def role(name: str, **parameters: t.Any) -> dict[str, t.Any]:
    return {"role": name, **parameters}


def include(name: str, how: str = "include_role", tasks: str = "main", **variables: t.Any) -> dict[str, t.Any]:
    return {f"ansible.builtin.{how}": {"name": name, "tasks_from": tasks}, "vars": variables}


class Case(t.NamedTuple):
    """The variables of a host, and the texts of its error; none for a host that is configured."""

    variables: t.Mapping[str, t.Any]
    expected: tuple[str, ...] = ()


class Play(t.NamedTuple):
    """A play, and its hosts."""

    play: dict[str, t.Any]
    hosts: dict[str, Case]


MISSPELT: dict[str, t.Any] = {"nvidia_runtime_set_default": True}
UNPREFIXED = (
    "set_as_default is not a variable of the role nvidia_runtime. Did you mean nvidia_runtime_set_as_default?",
)
REFUSED, ACCEPTED = Case({}, (SET_DEFAULT,)), Case({})
PLAYS = [
    Play({"roles": [TOOLKIT, CDI, RUNTIME]}, {
        "misspelt": Case(MISSPELT, (SET_DEFAULT,)),
        "value": Case({"nvidia_runtime_engines": ["dokcer"]}, ("nvidia_runtime_engines has 'dokcer'.",)),
        "fingerprint": Case({"nvidia_toolkit_key_fingerprint": "ABCD"},
                            ("must have 40 hexadecimal digits and nothing else.",)),
        "password": Case({"nvidia_toolkit_base_url": "https://me:secret@mirror.example.com"},
                         ("Remove it from nvidia_toolkit_base_url",)),
        "correct": Case({**COUNTED, "nvidia_driver_branch": "580", "nvidia_runtime_engines": "auto"}),
        "own": Case({**MISSPELT, "nvidia_own_variables": [*MISSPELT]}),
    }),
    # A template that tolerates a missing setting must not take a setting that cannot be evaluated for a missing one.
    # Ansible itself evaluates the variables of the role, but not those of other roles.
    Play({"roles": [TOOLKIT]}, {"undefined": Case({"nvidia_toolkit_version": "{{ my_version }}"}, ("my_version",))}),
    Play({"roles": [CDI]}, {"of_other_role": Case(
        {"nvidia_toolkit_settings": "{{ my_settings }}"},
        ("nvidia_toolkit_settings cannot be evaluated: my_settings is not defined. Define it",))}),
    Play({"roles": [TOOLKIT], "tasks": [{"ansible.builtin.set_fact": {"my_name": "gpu"}}, include(RUNTIME)]},
         {"set_later": Case({"nvidia_runtime_name": "{{ my_name }}",
                             "nvidia_cdi_path": "/etc/cdi/{{ nvidia_toolkit_info.toolkit.package_manager }}.yaml"})}),
    Play({"strategy": "ansible.builtin.free", "roles": [RUNTIME]}, {"free": Case(MISSPELT, (SET_DEFAULT,))}),
    Play({"vars": MISSPELT, "tasks": [include(RUNTIME, "include_role", "verify")]}, {"of_play": REFUSED}),
    Play({"tasks": [{"ansible.builtin.set_fact": MISSPELT}, include(RUNTIME)]}, {"set_by_task": REFUSED}),
    # What a play gives to one role. The first role must not change a host that a later one refuses.
    Play({"roles": [TOOLKIT, role(RUNTIME, vars=MISSPELT)]}, {"of_role": REFUSED}),
    Play({"roles": [TOOLKIT, role(RUNTIME, vars={"nvidia_runtime_engines": ["dokcer"]})]},
         {"value_of_role": Case({}, ("nvidia_runtime_engines has 'dokcer'.", "Did you mean docker?"))}),
    Play({"roles": [role(RUNTIME, vars={"set_as_default": True, "my_hook": "x"})]}, {"prefix": Case({}, UNPREFIXED)}),
    Play({"tasks": [include(RUNTIME, **MISSPELT)]}, {"of_include": REFUSED}),
    Play({"tasks": [include(TOOLKIT, "import_role"), include(RUNTIME, "import_role", nvidia_runtme_engines="docker")]},
         {"of_import": Case({}, ("nvidia_runtme_engines is not", "Did you mean nvidia_runtime_engines?"))}),
    # A module of a host can return facts.
    Play({"pre_tasks": [{"ansible.builtin.set_fact": {"cacheable": True, "nvidia_toolkit_files": ["/x"]}}],
          "roles": [TOOLKIT]}, {"facts": Case({}, ("nvidia_toolkit_files: set by facts of this host",))}),
    # A registered result is no setting. A role that is used alone may change another tree than the other roles.
    Play({"pre_tasks": [{"ansible.builtin.command": "true", "register": "nvidia_runtime_before"}],
          "roles": [role(RUNTIME, nvidia_runtime_host_root="/srv/image", vars={"my_hook": "x"})]}, {"alone": ACCEPTED}),
    # A task that is in none of the roles.
    Play({"tasks": [{"gpufleet.nvidia.nvidia_container_info": {}}]}, {"task": Case(MISSPELT)}),
    # The last play, because Ansible ends a run when no host of a batch is left.
    Play({"serial": 1, "tasks": [include(CDI, "import_role", "refresh")]},
         {"batch": ACCEPTED, "entry": Case(MISSPELT, (SET_DEFAULT,))}),
]  # fmt: skip
CASES = {name: case for one in PLAYS for name, case in one.hosts.items()}


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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    plays: list[dict[str, t.Any]] = []
    leave = {"ansible.builtin.meta": "end_host", "when": "inventory_hostname == 'other'"}
    for one in PLAYS:
        # Ansible ends a run in which no host is left.
        hosts = {"hosts": ",".join(["other", *one.hosts]), "gather_facts": False}
        plays.append({**hosts, **one.play, "pre_tasks": [leave, *one.play.get("pre_tasks", ())]})
    return play(
        tmp_path_factory.mktemp("roles"), plays, {"other": {}, **{name: case.variables for name, case in CASES.items()}}
    )


@pytest.mark.parametrize("host", [name for name, case in CASES.items() if case.expected])
def test_a_role_refuses_what_the_playbooks_refuse(played: Played, host: str) -> None:
    error = played.error(host)
    assert [text for text in CASES[host].expected if text not in error] == [], played.output
    # No module of the collection has run before.
    assert [name for name in played.called(host) if name.startswith("nvidia_")] == []


@pytest.mark.parametrize("host", [name for name, case in CASES.items() if not case.expected])
def test_correct_variables_are_accepted(played: Played, host: str) -> None:
    assert played.error(host) == ""
    assert [name for name in played.called(host) if name.startswith("nvidia_")]


def test_the_first_task_of_a_run_checks(tmp_path: Path) -> None:
    """Each task of a role runs in a process of its own, and the playbook check may have run before."""
    check: dict[str, t.Any] = {"ansible.builtin.import_playbook": "gpufleet.nvidia.check"}
    roles: list[dict[str, t.Any]] = [{"hosts": "all", "gather_facts": False, "roles": [TOOLKIT, CDI]}]
    counts = {}
    runs: dict[str, list[dict[str, t.Any]]] = {"roles": roles * 2, "check": [check, *roles]}
    for name, plays in runs.items():
        work = tmp_path / name
        work.mkdir()
        found = play(work, plays, {"one": COUNTED, "two": COUNTED})
        assert "failed=0" in found.output, found.output
        assert "nvidia_cdi_spec" in found.called("one")
        counts[name] = len((work / "counted").read_text(encoding="utf-8").splitlines())
    assert counts == {"roles": 2, "check": 2}
