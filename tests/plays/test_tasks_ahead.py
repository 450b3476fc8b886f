# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which modules site.yml runs for a host whose first module has already run the later tasks ahead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.tests.compare_plays import hosts

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
PLAN, INFO, INSTALL, CDI, RUNTIME = (
    "nvidia_site_plan", "nvidia_container_info", "nvidia_toolkit_install", "nvidia_cdi_spec", "nvidia_runtime_config"
)  # fmt: skip
ALL = (INSTALL, CDI, RUNTIME)
# Answers for all modules, and records them with the modules whose options were sent with the first one.
RECORDER = """
import copy, json, os
from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase

def answer(self, *args, **kwargs):
    host = kwargs["task_vars"]["inventory_hostname"]
    module = str(kwargs.get("module_name") or self._task.action).rpartition(".")[2]
    given = kwargs.get("module_args") or self._task.args
    sent = json.loads((given.get("_bundled") or {}).get("ahead", "{}"))
    with open(f"{host}.called", "a") as stream:
        stream.write(json.dumps([module, sent, given], default=str) + "\\n")
    with open(f"{host}.answers") as stream:
        return copy.deepcopy(json.load(stream).get(module, {"changed": False}))

ActionBase._execute_module = answer

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "recorder"
"""
ENGINES = {"changed": False, "engines": hosts.configured()["engines"][:2]}
RESULTS: dict[str, t.Any] = {
    INSTALL: {"changed": False, "version": "1.19.1"}, CDI: {"changed": False, "device_count": 2}, RUNTIME: ENGINES
}  # fmt: skip
REPORT = {**hosts.info(), "ahead": RESULTS}


class Case(t.NamedTuple):
    """The modules that run, the options that are sent with the first one, and what differs from an unchanged host."""

    called: tuple[str, ...]
    sent: tuple[str, ...] = ALL
    arguments: tuple[str, ...] = ()
    variables: t.Mapping[str, t.Any] = types.MappingProxyType({})
    answers: t.Mapping[str, t.Any] = types.MappingProxyType({})
    book: t.Any = "gpufleet.nvidia.site"
    strategy: str = "linear"


def ahead(*modules: str, **more: t.Any) -> dict[str, t.Any]:
    """Return the answers of a host that has run these tasks ahead."""
    return {PLAN: {**REPORT, "ahead": {module: RESULTS[module] for module in modules}, **more}}


SITE = {"ansible.builtin.import_playbook": "gpufleet.nvidia.site"}
# Options without a variable of their own.
OPTIONS = {
    "nvidia_toolkit_module_options": {"create_device_nodes": True},
    "nvidia_cdi_module_options": {"csv_files": ["/{{ inventory_hostname }}.csv"], "use_nvml": False},
    "nvidia_runtime_module_options": {"cri_disabled": "ignore"},
}
ROLE = {"hosts": "all", "gather_facts": False, "roles": ["gpufleet.nvidia.nvidia_cdi"]}
TWO_ROOTS = {"hosts": "all", "gather_facts": False, "tasks": [{
    "ansible.builtin.include_role": {"name": "gpufleet.nvidia.nvidia_toolkit"}, "loop": ["/a", "/b"],
    "vars": {"nvidia_toolkit_host_root": "{{ item }}", "nvidia_toolkit_source": "existing"}}]}  # fmt: skip
CASES = {
    "site": Case((PLAN,)),
    "rolling": Case((PLAN,), book="gpufleet.nvidia.rolling"),
    "check_mode": Case((PLAN,), arguments=("--check", "--diff")),
    "strategy_free": Case((PLAN,), strategy="free"),
    "tag_toolkit": Case((PLAN,), (INSTALL,), ("--tags=toolkit",)),
    "tag_cdi": Case((PLAN,), (CDI,), ("--tags=cdi",)),
    "tag_runtime": Case((PLAN,), (RUNTIME,), ("--tags=runtime",)),
    "without_runtime": Case((PLAN,), (INSTALL, CDI), ("--skip-tags=runtime",)),
    "without_cdi": Case((PLAN,), (INSTALL, RUNTIME), variables={"nvidia_cdi_enabled": False}),
    "start_at_a_task": Case((INFO, RUNTIME), (), ("--start-at-task=Configure the container engines",)),
    "twice": Case((PLAN, PLAN), (*ALL, *ALL), book=[SITE, SITE]),
    "site_then_a_role": Case((PLAN, CDI), book=[SITE, ROLE]),
    "a_role_alone": Case((CDI,), (), book=[ROLE]),
    "a_role_with_a_wrong_option": Case((), (), variables={"nvidia_cdi_module_options": {"csv_file": []}}, book=[ROLE]),
    "two_host_roots": Case((INFO, INSTALL, INFO, INSTALL), (), answers={INFO: REPORT}, book=[TWO_ROOTS]),
    # What the host has not run ahead.
    "no_result": Case((PLAN, *ALL), answers=ahead()),
    "no_result_of_cdi": Case((PLAN, CDI), answers=ahead(INSTALL, RUNTIME)),
    "an_installation_without_change": Case((PLAN, INSTALL), answers=ahead(CDI, RUNTIME)),
    "an_installation_with_a_change": Case(
        (PLAN, *ALL), answers={**ahead(CDI, RUNTIME), INSTALL: {"changed": True, "version": "1.19.1"}}
    ),
    "a_specification_with_a_change": Case(
        (PLAN, CDI, RUNTIME), answers={**ahead(INSTALL, RUNTIME), CDI: {"changed": True, "device_count": 2}}
    ),
    "other_engines": Case(
        (PLAN, RUNTIME),
        answers={**ahead(INSTALL, CDI, RUNTIME, engines=hosts.info()["engines"][:1]), RUNTIME: ENGINES},
    ),
    "a_key_to_fetch": Case(
        (PLAN, "nvidia_toolkit_key", *ALL), answers={PLAN: {**hosts.info(written=False), "ahead": RESULTS}}
    ),
    "the_inspection_fails": Case((PLAN, INFO), answers={name: {"failed": True, "msg": "No."} for name in (PLAN, INFO)}),
    "no_report": Case((PLAN, INFO, *ALL), answers={PLAN: {"changed": False}}),
    # What is not known when the first task runs, or differs later.
    "a_variable_from_the_inspection": Case(
        (PLAN, CDI), (INSTALL, RUNTIME), variables={"nvidia_cdi_class": "{{ nvidia_toolkit_info.engines[0].engine }}"}
    ),
    "a_variable_with_another_value": Case(
        (PLAN, CDI), variables={"nvidia_cdi_path": "/etc/cdi/{{ 1000000000000 | random }}.yaml"}
    ),
    "options_of_modules": Case((PLAN,), variables=OPTIONS),
    "a_directory": Case(
        (PLAN, INSTALL), (CDI, RUNTIME),
        variables={"nvidia_toolkit_source": "directory", "nvidia_toolkit_src": "/x", "nvidia_toolkit_files_on": "node"},
    ),
}  # fmt: skip


def run(work: Path, cases: t.Mapping[str, Case]) -> str:
    """Run the playbook of these cases, each of which is a host. Return the output."""
    place = work / "ansible_collections/gpufleet/nvidia"
    for name in ("playbooks", "plugins", "roles", "meta"):
        shutil.copytree(COLLECTION / name, place / name)
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {"all": {"hosts": {name: {**case.variables} for name, case in cases.items()}, "vars": common}}
    for name, case in cases.items():
        answers = {**RESULTS, PLAN: REPORT, INFO: hosts.info(), **case.answers}
        (work / f"{name}.answers").write_text(json.dumps(answers), encoding="utf-8")
        (work / f"{name}.called").touch()
    case = next(iter(cases.values()))
    for name, value in {"hosts.json": inventory, "book.json": case.book}.items():
        (work / name).write_text(json.dumps(value), encoding="utf-8")
    (work / "callbacks").mkdir()
    (work / "callbacks/recorder.py").write_text(RECORDER, encoding="utf-8")
    book = case.book if isinstance(case.book, str) else "book.json"
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_CALLBACK_PLUGINS": str(work / "callbacks"), "ANSIBLE_STRATEGY": case.strategy}  # fmt: skip
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "hosts.json", book, *case.arguments],
        cwd=work, env=environ, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.stdout


def groups() -> dict[str, dict[str, Case]]:
    """Return the cases that one run of ansible-playbook can try, by the name of the first one."""
    found: dict[str, dict[str, Case]] = {}
    for name, case in CASES.items():
        run_of = json.dumps([case.arguments, case.book, case.strategy])
        found.setdefault(run_of, {})[name] = case
    return {next(iter(group)): group for group in found.values()}


@pytest.mark.parametrize("cases", groups().values(), ids=groups())
def test_modules_that_run(tmp_path: Path, cases: dict[str, Case]) -> None:
    output = run(tmp_path, cases)
    for name, case in cases.items():
        calls = calls_of(tmp_path, name)
        assert [module for module, _sent, _given in calls] == list(case.called), output
        assert [module for _module, sent, _given in calls for module in sent] == list(case.sent), output


def calls_of(work: Path, name: str) -> list[tuple[str, dict[str, t.Any], dict[str, t.Any]]]:
    """Return the modules that a host has run: the name, what was sent for later tasks, and the options."""
    return [json.loads(line) for line in (work / f"{name}.called").read_text(encoding="utf-8").splitlines()]


def test_options_of_modules_are_sent_ahead_and_with_their_tasks(tmp_path: Path) -> None:
    output = run(tmp_path, {"host": Case((), variables=OPTIONS, answers=ahead())})
    calls = {module: (sent, given) for module, sent, given in calls_of(tmp_path, "host")}
    expected: dict[str, dict[str, t.Any]] = {
        INSTALL: {"create_device_nodes": True},
        CDI: {"csv_files": ["/host.csv"], "use_nvml": False},
        RUNTIME: {"cri_disabled": "ignore"},
    }
    sent, inspection = calls[PLAN]
    for module, options in expected.items():
        for given in (sent[module]["options"], calls[module][1]):
            assert {name: given.get(name) for name in options} == options, output
    assert inspection["inspection"]["require_engines"]["options"]["cri_disabled"] == "ignore"
