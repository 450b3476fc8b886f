# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check correct and wrong variables and tags with ansible-playbook.

The plays run the module nvidia_check_settings, or playbooks of the collection that begin with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

COLLECTION = Path(__file__).resolve().parents[2]
# The variables of each host, and the texts of the expected errors and warnings.
HOSTS: dict[str, tuple[dict[str, t.Any], list[str]]] = {
    "correct": ({"nvidia_runtime_set_as_default": "yes", "nvidia_runtime_verify": False, "nvidia_cdi_path": None,
                 "nvidia_toolkit_hold": "{{ omit }}", "nvidia_toolkit_key_url": "{{ nvidia_toolkit_base_url }}/x",
                 "nvidia_toolkit_src": "{{ nvidia_toolkit_info.toolkit.directory.path }}",
                 "nvidia_cdi_library_search_paths": ["{{ paths.own }}"],
                 "paths": {"own": "/{{ nvidia_toolkit_info.toolkit.package_manager }}"},
                 "nvidia_toolkit_version": "{{ later | default('1.19.1') }}",
                 "nvidia_runtime_after_restart": "{{ playbook_dir }}/hook.yml", "nvidia_driver_branch": "580"}, []),
    "misspelt": ({"nvidia_toolkit_verison": "{{ none }}", "nvidia_runtime_set_default": True, "nvidia_host": "x"},
                 ["Did you mean nvidia_toolkit_version?", "Did you mean nvidia_runtime_set_as_default?",
                  "Did you mean nvidia_hosts?"]),
    "options": ({"nvidia_cdi_module_options": {"csv_file": ["/a"], "state": "absent"},
                 "nvidia_toolkit_module_options": {"checksum": "fast"},
                 "nvidia_runtime_module_options": {"drop_in_path": "a.toml"}},
                ["Unknown option: nvidia_cdi_module_options.csv_file, nvidia_cdi_module_options.state.", ", csv_files,",
                 "Value of checksum must be one of: stat, full, got: fast found in nvidia_toolkit_module_options",
                 "nvidia_runtime_module_options: drop_in_path has the relative path 'a.toml'."]),
    "accepted_options": ({
        "nvidia_cdi_module_options": {"use_nvml": "no", "csv_files": ["{{ my_folder | default('/a') }}/l4t.csv"]},
        "nvidia_toolkit_module_options": '{"checksum": "full"}'}, []),
    "own": ({"nvidia_toolkit_owner": "me", "nvidia_own_variables": ["nvidia_toolkit_owner"]}, []),
    # PLAYS sets a fact with an unknown name. Facts are not checked.
    "fact": ({}, []),
    # The roles refuse these facts, where they stop only this host.
    "refused_facts": ({}, []),
    "maybe": ({"nvidia_runtime_set_as_default": "maybe", "nvidia_cdi_mode": "{{ 'x' }}y"},
              ["nvidia_runtime_set_as_default", "nvidia_cdi_mode", "must be one of: auto, nvml", "got: xy"]),
    # Rules about several variables, of which only some are set.
    "repository": ({"nvidia_toolkit_key_fingerprint": "ABCD", "nvidia_host_root": "/tree", "nvidia_cdi_host_root": "/"},
                   ["must have 40 hexadecimal digits and nothing else.", "nvidia_cdi_host_root is /."]),
    "shapes": ({"nvidia_toolkit_files": "/a.deb", "nvidia_runtime_engines": None},
               ["nvidia_toolkit_files is a text.", "nvidia_runtime_engines is empty."]),
    "hook": ({"nvidia_runtime_before_restart": "{{ playbook_dir }}/none.yml"},
             ["none.yml is not a file on the controller"]),
    "trees": ({"nvidia_toolkit_host_root": "/tree"}, ["The roles would change different trees"]),
    "tree": ({"nvidia_host_root": "/tree"}, []),
    "undefined": ({"nvidia_toolkit_version": "{{ my_version }}", "nvidia_runtime_engines": ["{{ my_engine }}"],
                   "nvidia_toolkit_settings": "{{ mine }}", "mine": {"a": "{{ my_setting }}"},
                   "nvidia_runtime_register": "{{ my_hosts.all }}", "nvidia_cdi_path": "{{ groups['none'] }}"},
                  ["nvidia_toolkit_version cannot be evaluated: 'my_version' is undefined.",
                   "nvidia_runtime_engines cannot be evaluated: 'my_engine' is undefined.",
                   "nvidia_toolkit_settings cannot be evaluated: 'my_setting' is undefined.",
                   "nvidia_runtime_register cannot be evaluated: 'my_hosts' is undefined.",
                   "nvidia_cdi_path cannot be evaluated: "]),
    "template": ({"nvidia_toolkit_key": "{{ lookup('ansible.builtin.file', '/none') }}"},
                 ["nvidia_toolkit_key cannot be evaluated: "]),
}  # fmt: skip
PLAYS = [
    {"hosts": "fact", "gather_facts": False,
     "tasks": [{"ansible.builtin.set_fact": {"cacheable": True, "nvidia_toolkit_fact": "x"}}]},
    {"hosts": "refused_facts", "gather_facts": False,
     "tasks": [{"ansible.builtin.set_fact": {"cacheable": True, "nvidia_own_variables": {"a": 1}}}]},
    {"hosts": "all", "gather_facts": False, "ignore_errors": True, "tasks": [
        {"gpufleet.nvidia.nvidia_check_settings": {"own_variables": "{{ nvidia_own_variables | default([]) }}"},
         "register": "checked"},
        {"ansible.builtin.copy": {
            "content": "{{ dict(groups.all | zip(groups.all | map('extract', hostvars, 'checked'))) }}",
            "dest": "{{ playbook_dir }}/answers.json"}, "run_once": True},
    ]},
]  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a copy of the collection, in which the plays run."""
    work = tmp_path_factory.mktemp("check")
    copy = work / "ansible_collections/gpufleet/nvidia"
    for name in ("playbooks", "plugins", "roles", "meta"):
        shutil.copytree(COLLECTION / name, copy / name)
    return work


def ansible_playbook(work: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ansible-playbook")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"), **variables}
    return subprocess.run([program, *arguments], cwd=work, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def answers(work: Path) -> dict[str, dict[str, t.Any]]:
    """The result of the check for each host."""
    connection = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {name: {**variables, **connection} for name, (variables, _expected) in HOSTS.items()}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    (work / "play.yml").write_text(json.dumps(PLAYS), encoding="utf-8")
    (work / "hook.yml").touch()
    done = ansible_playbook(work, "-i", "hosts.json", "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    answers: dict[str, dict[str, t.Any]] = json.loads((work / "answers.json").read_text(encoding="utf-8"))
    return answers


@pytest.mark.parametrize("host", HOSTS)
def test_reports_problems(answers: dict[str, dict[str, t.Any]], host: str) -> None:
    answer, (_variables, expected) = answers[host], HOSTS[host]
    reported = [answer.get("msg", ""), *answer.get("warnings", [])] if expected else []
    assert answer["failed"] is bool(expected), answer
    assert [text for text in expected if text not in "\n".join(reported)] == []
    assert expected or not answer.get("warnings"), answer


@pytest.mark.parametrize(
    ("arguments", "variables", "nearest"),
    [
        (["--tags=toolkit, runtimes"], {}, "runtime"),
        (["--tags=mine", "--skip-tags=cdi", "--skip-tags=tolkit"], {}, "toolkit"),
        ([], {"ANSIBLE_RUN_TAGS": "rutime"}, "runtime"),
        # docker and gpu resemble no tag of the collection, so they may be tags of other plays.
        (["--tags=all,tagged,toolkit,docker"], {"ANSIBLE_SKIP_TAGS": "untagged,gpu"}, None),
        (["--tags=cdn,runtime", '--extra-vars={"nvidia_own_tags": ["cdn"]}'], {}, None),
    ],
)
def test_refuses_misspelt_tags(
    work: Path, arguments: list[str], variables: dict[str, str], nearest: str | None
) -> None:
    done = ansible_playbook(work, "-i", "localhost,", "-c", "local", "gpufleet.nvidia.check", *arguments, **variables)
    assert (done.returncode == 0) is (nearest is None), done.stdout
    assert ("Did you mean" in done.stdout) is (nearest is not None)
    assert nearest is None or f"Did you mean {nearest}?" in done.stdout


@pytest.mark.parametrize(
    ("playbook", "name", "failed"),
    [
        # Without the check, the playbook would run on all hosts.
        ("site", "nvidia_hosts", True),
        ("audit", "nvidia_hosts", True),
        ("audit", "nvidia_audit_fail_on", True),
        # The audit reports the host, and ends with 0.
        ("audit", "nvidia_toolkit_dest", False),
    ],
)
def test_settings_that_cannot_be_evaluated(work: Path, playbook: str, name: str, failed: bool) -> None:
    done = ansible_playbook(
        work, "-i", "localhost,", "-c", "local", f"gpufleet.nvidia.{playbook}",
        "--extra-vars", json.dumps({name: "{{ my_value }}", "nvidia_audit_dir": str(work / "report")}),
    )  # fmt: skip
    problem = f"{name} cannot be evaluated: 'my_value' is undefined. Define what it refers to, or correct {name}."
    assert problem in done.stdout
    assert (done.returncode != 0) is failed, done.stdout


@pytest.mark.parametrize(
    ("playbook", "settings", "problem"),
    [
        ("rolling", {"nvidia_serial": 0}, "nvidia_serial is 0. Use a number of hosts above 0,"),
        ("check", {"nvidia_toolkit_source": "directory"}, "requires either nvidia_toolkit_src (src) or"),
        # A removal needs no source.
        ("remove", {"nvidia_toolkit_source": "directory"}, None),
    ],
)
def test_refuses_what_no_host_can_do(
    work: Path, tmp_path: Path, playbook: str, settings: dict[str, t.Any], problem: str | None
) -> None:
    interpreter = {"ansible_python_interpreter": sys.executable, "nvidia_host_root": str(tmp_path)}
    done = ansible_playbook(
        work, "-i", "localhost,", "-c", "local", "--limit=localhost", f"gpufleet.nvidia.{playbook}",
        "--extra-vars", json.dumps({**interpreter, **settings}),
    )  # fmt: skip
    assert (done.returncode == 0) is (problem is None), done.stdout
    assert problem is None or problem in done.stdout
    assert ("Inspect the host" in done.stdout) is (problem is None)
