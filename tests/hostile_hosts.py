# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs all playbooks for hosts that attack the controller, and fails if one of them succeeds.

    hostile_hosts.py ANSIBLE_PLAYBOOK    # in an environment in which Ansible finds the collection

No module is executed: the interpreter of each host prints one of ANSWERS. Every string and every dictionary of an
answer has a template that creates a file on the controller. Answers also have keys that Ansible would execute, warnings
that name other hosts, and control characters, in results of each kind (KINDS). Other hosts have facts in the cache that
choose files of the controller (CACHED).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

EVALUATED, CALLED, ELSEWHERE = "evaluated", "called", "elsewhere"
# An expression of a role may cut a string at a dash, so there is none.
LOOKUP = "lookup('ansible.builtin.pipe', 'touch $GPUFLEET_EVALUATED')"
TEMPLATE = f"{{{{ {LOOKUP} }}}}{{% if {LOOKUP} %}}{{% endif %}}"
# What a role branches on. Hosts of the kind "appended" answer these as they are, so that all tasks are reached.
NAMES = {"engine", "flavor", "kind", "nvidia", "package_manager", "pending_action", "restart_action", "target"}
KEY = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
RPM_KEYS = [f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-{number:016x}" for number in (1, 2)]


def engine(name: str, flavor: str = "system", service: str | None = None) -> dict[str, t.Any]:
    """Return a running engine as nvidia_container_info describes it."""
    return {
        "engine": name, "flavor": flavor, "target": name if flavor == "system" else f"{name}/{flavor}", "user": None,
        "installed": True, "running": True, "service": service, "version": "1.0", "default_runtime": "runc",
        "recorded_files": ["/etc/file"], "unfinished_restart": False, "restart_required": True,
        "inspected": True, "problems": [{"code": "code", "message": "problem"}],
        "used_by_kubelet": flavor == "k3s", "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"},
    }  # fmt: skip


def info(manager: str = "apt", present: bool = True, driver: str | None = "580.95.05") -> dict[str, t.Any]:
    """Return an answer of nvidia_container_info."""
    return {
        "engines": [engine("docker", service="docker.service"), engine("containerd", "k3s", "k3s.service"),
                    engine("crio"), engine("podman")],
        "toolkit": {"package_manager": manager, "gpg": "/usr/bin/gpg", "repository_files": RPM_KEYS,
                    "version": "1.17.3",
                    "gpu": {"present": present, "kind": "driver" if driver else "pci", "message": "/sys/bus/pci"},
                    "known_cves": [{"name": "CVE-1"}]},
        "gpus": {"driver_version": driver, "devices": [{"model": "A100", "healthy": True}]},
        "cdi": {"files": [{"path": "/etc/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "cdi_version": "0.5.0"}]},
        "findings": [{"severity": "critical", "id": "id", "subject": "docker", "text": "text", "advice": "advice"}],
    }  # fmt: skip


CONFIGURED = {
    "changed": True,
    "engines": [
        {"changed": True, "target": described["target"], "service": "docker.service", "restart_required": True,
         "restart_action": "restart", "pending_action": "restart", "runtimes": {"nvidia": {"path": "/usr/bin/nvidia"}},
         "default_runtime": "nvidia", "backup_files": ["/var/backup"], "unrecorded": ["/etc/file"], "cdi": False}
        for described in info()["engines"]
    ],
}  # fmt: skip
VERIFIED = {"changed": False, "summary": "1 of 1 GPUs", "verified": True, "gpus": [{"name": "GPU 0", "seen": True}]}
ANSWERS: dict[str, dict[str, t.Any]] = {
    "nvidia_runtime_verify": VERIFIED,
    "nvidia_runtime_config": CONFIGURED,
    "stat": {"stat": {"exists": False}},
}
OTHERWISE = {"changed": True, "msg": "message", "dest": "/etc/file", "results": ["result"], "unrecorded": ["package"]}
FAILURE = {"failed": True, "msg": "message", "module_stderr": "error", "exception": "exception"}

# Ansible calls it with the path of the module's file.
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
module=${{module%.py}}
: >"{called}/$module"
: >"{called}/{name}.$module"
cat "{answers}/$module.json" 2>/dev/null || cat "{answers}/.json"
"""


# What a host adds to each of its results. The first keys change variables, other tasks and, in AWX, the next job.
FORGED: dict[str, t.Any] = {
    "ansible_stats": {"data": {"forged_stat": 1}}, "ansible_facts": {"forged_fact": 1},
    "add_host": {"host_name": "forged_host", "groups": []}, "add_group": "forged_group", "_ansible_no_log": False,
    "\x9b31m": "forged_key", "\u202eforged_key": {"\x9b31m": "\x9b31m"},
    "warnings": ["other: forged warning \x9b31m"], "deprecations": [{"msg": "other: forged deprecation \u202e"}],
}  # fmt: skip
# The kinds of results: the keywords of the task, and what the host answers.
ASYNC = {"ansible_job_id": "j1", "started": 1, "finished": 0, "results_file": "/x"}
KINDS: dict[str, tuple[dict[str, t.Any], dict[str, t.Any]]] = {
    "ok": ({}, {"changed": False, "diff": [{"before": "\x9b", "after": "\u202e", "before_header": "a\nb"}]}),
    "check": ({"check_mode": True}, {"changed": True}),
    "skipped": ({}, {"skipped": True, "msg": "skipped \x9b31m"}),
    "failed": ({}, {"failed": True, "msg": "failed \x9b31m", "exception": "trace \u202e"}),
    "large": ({}, {"changed": False, "summary": "large" * 2_000_000}),
    "started": ({"async": 30, "poll": 0}, ASYNC),
    "awaited": ({"async": 30, "poll": 1}, {**ASYNC, "finished": 1, "summary": "awaited"}),
}  # fmt: skip
# Facts in the cache of the first host: the playbook that reads them, and a text of the refusal.
NO_HOSTS = "No hosts are named, so nothing was removed."
CACHED: dict[str, tuple[str, str, str]] = {
    "nvidia_audit_html": ("audit", "{elsewhere}/page.html", "nvidia_audit_html: set by facts of this host"),
    "nvidia_audit_fail_on": ("audit", "never", "nvidia_audit_fail_on: set by facts of this host"),
    "nvidia_audit_results": ("audit", "forged", "nvidia_audit_results: set by facts of this host"),
    # With newer releases, the value of an option that the inventory does not set.
    "omit": ("audit", "{elsewhere}/page.html", "omit: set by facts of this host"),
    "nvidia_hosts": ("remove", "all", NO_HOSTS),
    "ansible_limit": ("remove", "all", NO_HOSTS),
}


class Host(t.NamedTuple):
    """A host: its variables, how it changes strings, where its answers differ, and the facts that copy returns."""

    variables: dict[str, t.Any]
    change: str = "appended"
    answers: t.Mapping[str, dict[str, t.Any]] = {}
    chooses: t.Mapping[str, t.Any] = {}


# Facts that choose files of the controller. The first ones are of nvidia_toolkit, which runs on a host again in the
# playbook "remove", and the last one of nvidia_runtime.
CHOSEN_FILES = {
    "nvidia_toolkit_source": "files", "nvidia_toolkit_files_on": "controller",
    "nvidia_toolkit_files": ["/named_by_host"],
}  # fmt: skip
CHOSEN_TASKS = {"nvidia_runtime_before_restart": "/named_by_host"}
# Ansible's own module "copy" sends them.
SENT_FILES = {"nvidia_toolkit_source": "files", "nvidia_toolkit_files": [str(Path(__file__).resolve())]}
HOSTS = {
    "chooses_files": Host(SENT_FILES, answers={"copy": OTHERWISE}, chooses=CHOSEN_FILES),
    "chooses_tasks": Host(SENT_FILES, answers={"copy": OTHERWISE}, chooses=CHOSEN_TASKS),
    "apt": Host({"nvidia_toolkit_key": "KEY"}),
    "dnf": Host({}, answers={"nvidia_container_info": info("dnf"), "nvidia_runtime_restart": FAILURE}),
    "directory": Host({"nvidia_toolkit_source": "directory", "nvidia_toolkit_src": "/srv",
                       "nvidia_toolkit_files_on": "node"}, answers={"nvidia_runtime_verify": FAILURE}),
    "no_gpu": Host({}, answers={"nvidia_container_info": info(present=False)}),
    "no_driver": Host({"nvidia_toolkit_source": "existing"}, answers={"nvidia_container_info": info(driver=None)}),
    "refused": Host({"nvidia_toolkit_source": "existing"}, answers={"nvidia_runtime_config": FAILURE}),
    "failed": Host({}, answers={"nvidia_container_info": FAILURE}),
    "replaced": Host({"nvidia_toolkit_source": "existing"}, change="replaced"),
    "expression": Host({"nvidia_toolkit_source": "existing"}, change="expression"),
}  # fmt: skip
VARIABLES = {
    "ansible_connection": "local",
    "nvidia_runtime_verify": "config",
}
# The modules that the playbooks have to reach on some host, and the hosts on which remove and rolling have to reach
# one. Without them the test proves nothing.
REACHED = {
    "copy", "nvidia_cdi_spec", "nvidia_container_info",
    "nvidia_runtime_config", "nvidia_runtime_restart", "nvidia_runtime_verify", "nvidia_toolkit_config",
    "nvidia_toolkit_install", "nvidia_toolkit_key",
    "replaced.nvidia_runtime_restart", "expression.nvidia_runtime_restart",
}  # fmt: skip
# The playbooks and their hosts. They share one run of Ansible, which makes the archive of each module only once. The
# last one ends that run, since a host fails.
PLAYS = {
    "audit": "all",
    "verify": "all:!failed",
    "site": "all:!failed:!replaced:!expression",
    "remove": "dnf:replaced:chooses_files",
    "rolling": "refused:expression",
}
HOOK = """\
- name: Print the engines
  ansible.builtin.debug:
    msg: "{{ nvidia_runtime_restarts }}"
- name: Keep the engines
  ansible.builtin.set_fact:
    kept: "{{ nvidia_runtime_restarts | map(attribute='service') | join(' ') }}"
- name: Print what was kept
  ansible.builtin.debug:
    var: kept
"""


def changed(value: t.Any, change: str, name: str = "") -> t.Any:
    """Put a template into every string of an answer, and add one to every dictionary."""
    if isinstance(value, dict):
        template = TEMPLATE.replace("EVALUATED", f"EVALUATED/key_of_{name}")
        return {template: template, **{key: changed(item, change, key) for key, item in value.items()}}
    if isinstance(value, list):
        return [changed(item, change, name) for item in value]
    if not isinstance(value, str) or (name in NAMES and change == "appended"):
        return value
    text = {"appended": value + TEMPLATE, "replaced": TEMPLATE, "expression": LOOKUP}[change]
    return text.replace("EVALUATED", f"EVALUATED/{name}")


def answers_of(host: Host, elsewhere: Path) -> dict[str, dict[str, t.Any]]:
    """Return what a host answers, by module; the empty name is for all others."""
    found = {}
    for module, answer in {"": OTHERWISE, "nvidia_container_info": info(), **ANSWERS, **host.answers}.items():
        found[module] = changed(answer, host.change)
        if module.startswith("nvidia_"):
            # A fact takes precedence over the inventory. Nothing drops those of Ansible's own modules.
            chosen = {"nvidia_audit_dir": str(elsewhere), "nvidia_runtime_before_restart": "/nowhere"}
            found[module]["ansible_facts"] = chosen
        if module == "copy":
            found[module]["ansible_facts"] = {**changed({"fact": "fact"}, host.change), **host.chooses}
    return found


def make(work: Path) -> dict[str, t.Any]:
    """Make the hosts' interpreters and answers. Returns the inventory."""
    for name in (EVALUATED, CALLED, ELSEWHERE, *HOSTS):
        (work / name).mkdir()
    hook = work / "hook.yml"
    hook.write_text(HOOK, encoding="utf-8")
    hosts = {}
    for name, host in HOSTS.items():
        folder = work / name
        for module, answer in answers_of(host, work / ELSEWHERE).items():
            (folder / f"{module}.json").write_text(json.dumps(answer), encoding="utf-8")
        interpreter = folder / "python"
        interpreter.write_text(INTERPRETER.format(called=work / CALLED, name=name, answers=folder), encoding="utf-8")
        interpreter.chmod(0o755)
        hooks = {"nvidia_runtime_before_restart": str(hook), "nvidia_runtime_after_restart": str(hook)}
        hosts[name] = {"ansible_python_interpreter": str(interpreter), **hooks, **host.variables}
    return {"all": {"hosts": hosts, "vars": {**VARIABLES, "nvidia_audit_dir": str(work)}}}


def plays(playbook: str, hosts: str) -> list[dict[str, t.Any]]:
    """Return the entries of a playbook for one of the collection, and for the hosts that fail in it."""
    clear_errors = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.meta": "clear_host_errors"}]}
    return [
        {"import_playbook": f"gpufleet.nvidia.{playbook}", "vars": {"nvidia_hosts": hosts, "nvidia_serial": "100%"}},
        clear_errors,
    ]


def attack(ansible_playbook: str, work: Path) -> list[str]:
    """Run the playbooks. Returns what is wrong."""
    inventory = work / "hosts.json"
    inventory.write_text(json.dumps(make(work)), encoding="utf-8")
    variables = {"GPUFLEET_EVALUATED": str(work / EVALUATED), "ANSIBLE_FORKS": "10"}
    environ = {**os.environ, **variables}
    playbook = work / "plays.yml"
    playbook.write_text(
        json.dumps([play for name, hosts in PLAYS.items() for play in plays(name, hosts)]), encoding="utf-8"
    )
    done = subprocess.run(
        [ansible_playbook, "-i", inventory, playbook], cwd=work, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    wrong = [f"Ansible has evaluated a template of a host in {name}" for name in sorted(os.listdir(work / EVALUATED))]
    wrong += [f"no playbook has run the module {name}" for name in sorted(REACHED - set(os.listdir(work / CALLED)))]
    wrong += [f"a host has chosen where {name} is written" for name in os.listdir(work / ELSEWHERE)]
    wrong += ["a host has chosen a file of the controller"] if "/named_by_host" in done.stdout else []
    refusals = ("nvidia_toolkit_source: set by facts", "nvidia_runtime_before_restart: set by facts")
    wrong += [f"no host was refused with {text}" for text in refusals if text not in done.stdout]
    report = work / "gpufleet-audit.json"
    content = report.read_text(encoding="utf-8") if report.exists() else ""
    wrong += [f"the report lacks {text}" for text in (*HOSTS, TEMPLATE.partition("$")[0]) if text not in content]
    return wrong


def run(ansible_playbook: str, work: Path, *arguments: str, **variables: str) -> str:
    """Run a playbook in a directory. Returns its output."""
    environ = {**os.environ, "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000", **variables}
    done = subprocess.run(
        [ansible_playbook, *arguments], cwd=work, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, errors="surrogateescape",
    )  # fmt: skip
    return done.stdout


def forge(ansible_playbook: str, work: Path) -> list[str]:
    """Run a task with results of each kind. Returns what is wrong."""
    hosts, tasks = {}, []
    for kind, (keywords, answer) in KINDS.items():
        folder = work / kind
        folder.mkdir(parents=True)
        (folder / ".json").write_text(json.dumps({**answer, **FORGED}), encoding="utf-8")
        interpreter = folder / "python"
        interpreter.write_text(f"#!/bin/sh\ncat {folder}/.json\n", encoding="utf-8")
        interpreter.chmod(0o755)
        hosts[kind] = {"ansible_python_interpreter": str(interpreter), "ansible_connection": "local"}
        tasks.append({
            "gpufleet.nvidia.nvidia_runtime_verify": {"engine": "docker"}, "register": f"of_{kind}", **keywords,
            "ignore_errors": True, "when": f"inventory_hostname == '{kind}'",
        })  # fmt: skip
    kept = f"{{{{ [{', '.join(f'hostvars.{kind}.of_{kind}' for kind in KINDS)}] | to_json }}}}"
    tasks.append({"ansible.builtin.copy": {"content": kept, "dest": str(work / "kept.json"), "mode": "0600"},
                  "delegate_to": "localhost", "run_once": True,
                  "vars": {"ansible_python_interpreter": sys.executable}})  # fmt: skip
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    (work / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    output = run(ansible_playbook, work, "-i", "hosts.json", "play.yml", "-vvv", ANSIBLE_SHOW_CUSTOM_STATS="1")
    wrong = [f"a result has passed on {text}" for text in ("forged_", "large" * 10) if text in output]
    wrong += [f"a result has printed {text!r}" for text in ("\x9b", "\u202e", "\x1b") if text in output]
    for name in ("forged warning", "forged deprecation"):
        hosts_of = [line for line in output.splitlines() if f"other: {name}" in line and "WARNING" in line]
        wrong += [f"a host has forged {line}" for line in hosts_of if not re.search(r": \w+: other: forged", line)]
    wrong += ["no warning was printed"] if "WARNING]: ok: other: forged warning" not in output else []
    # In the order of KINDS.
    found = json.loads((work / "kept.json").read_text("utf-8"))
    texts = [entry.get("msg") or entry.get("summary") for entry in found]
    too_large = "The module returned more than 8 MiB."
    expected = [None, None, "skipped \\x9b31m", "failed \\x9b31m", too_large, None, "awaited"]
    wrong += [] if texts == expected else [f"the results are {str(texts)[:1000]}"]
    if wrong:
        print(output[-20_000:])
    return wrong


def cache(ansible_playbook: str, work: Path) -> list[str]:
    """Run playbooks with a hostile host in the fact cache. Returns what is wrong."""
    hosts = {host: {"ansible_connection": "local"} for host in ("hostile", "other")}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    wrong = []
    for name, (playbook, value, refusal) in CACHED.items():
        folder = work / name
        (folder / ELSEWHERE).mkdir(parents=True)
        cached = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(folder / "cache")}
        facts = {name: value.format(elsewhere=folder / ELSEWHERE), "cacheable": True}
        tasks = [{"ansible.builtin.set_fact": facts}]
        play = {"hosts": "hostile", "gather_facts": False, "tasks": tasks}
        (folder / "fact.yml").write_text(json.dumps([play]), encoding="utf-8")
        run(ansible_playbook, folder, "-i", "../hosts.json", "fact.yml", **cached)
        output = run(ansible_playbook, folder, "-i", "../hosts.json", f"gpufleet.nvidia.{playbook}", **cached)
        if refusal not in output or os.listdir(folder / ELSEWHERE) != []:
            print(output)
            wrong.append(f"the fact {name} was not refused")
    return wrong


def main() -> None:
    """Make the hosts, run the playbooks, and exit with what is wrong."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-hostile-") as name:
        work = Path(name).resolve()
        attacks = {"templates": attack, "results": forge, "facts": cache}
        for folder in attacks:
            (work / folder).mkdir()
        wrong = [text for part, run_one in attacks.items() for text in run_one(sys.argv[1], work / part)]
        sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
