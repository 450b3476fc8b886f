# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs site.yml and verify.yml for hosts whose modules answer from files, and reads what ansible-playbook prints."""

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

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
KEY = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
NAME = f"gpufleet-nvidia-container-toolkit-{KEY[-16:].lower()}"
KEYS = {"apt": f"/usr/share/keyrings/{NAME}.asc", "dnf": f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{NAME}"}
# Ansible calls it with the path of the module's file.
INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
cat "{folder}/${{module%.py}}.json" 2>/dev/null || echo '{{"changed": false}}'
"""
# What a host did, and the host, or several for files that are included.
DONE = re.compile(r"^(\w+): (?:\S+ for )?(\[\w+\]|\w+(?:, \w+)*)(?= =>|: FAILED| \(item|$)", re.MULTILINE)
INSTALL = "gpufleet.nvidia.nvidia_toolkit : Install the toolkit"
MESSAGE = "/etc/docker/daemon.json cannot be read. Correct it."
CDI_OFF = "CDI is off in docker and containerd, so"
WITHOUT_CRI = "The kubelet of this host uses containerd, whose CRI is disabled, so no pod can start."
LEFT_OUT = (
    "The kubelet of this host uses containerd, which nvidia_runtime_engines and nvidia_runtime_flavor do not select"
)


def engine(name: str) -> dict[str, t.Any]:
    return {"engine": name, "flavor": "system", "target": name, "user": None, "installed": True, "running": True,
            "service": f"{name}.service", "recorded_files": [], "unfinished_restart": False, "inspected": True,
            "used_by_kubelet": False, "problems": []}  # fmt: skip


def info(
    manager: str = "apt",
    gpu: bool = True,
    engines: tuple[str, ...] = ("docker", "containerd"),
    written: bool = True,
    kubelet: str = "",
) -> dict[str, t.Any]:
    gpus = {"present": gpu, "kind": "driver" if gpu else None, "message": "/sys/bus/pci"}
    files = [KEYS[manager], f"/var/cache/gpufleet-nvidia-key-{KEY[-16:].lower()}.asc"] if written else []
    toolkit = {"package_manager": manager, "gpg": "/usr/bin/gpg", "repository_files": files, "gpu": gpus}
    described = [{**engine(name), "used_by_kubelet": name == kubelet} for name in engines]
    return {"changed": False, "engines": described, "toolkit": toolkit}


def configured(**values: t.Any) -> dict[str, t.Any]:
    """Return the answer of nvidia_runtime_config. Its action plugin ignores engines that the task does not name."""
    engines = [{**CONFIGURED, "target": name, **values} for name in ("docker", "containerd", "crio")]
    return {"changed": values.get("changed", False), "engines": engines}


CONFIGURED = {"changed": False, "service": "docker.service", "restart_required": False, "restart_action": "none",
              "pending_action": "none", "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"},
              "default_runtime": "runc", "backup_files": [], "cdi": True}  # fmt: skip
VERIFIED = {"changed": False, "summary": "2 of 2 GPUs (--runtime nvidia)", "verified": True}
BLIND = "container: A container with `--gpus all` sees 1 of 2 GPUs of this host."


class Host(t.NamedTuple):
    """The variables of a host, and the answers of its modules that differ from those of an unchanged host."""

    variables: dict[str, t.Any]
    answers: dict[str, dict[str, t.Any]]


HOSTS = {
    "apt": Host({}, {"nvidia_runtime_verify": VERIFIED}),
    "dnf": Host({}, {"nvidia_container_info": info("dnf")}),
    # Without the key of the repository.
    "fresh": Host({}, {"nvidia_container_info": info(written=False)}),
    "given": Host({"nvidia_toolkit_key": "KEY"}, {"nvidia_container_info": info("zypper", written=False)}),
    "no_gpu": Host({"nvidia_runtime_engines": ["docker"]}, {"nvidia_container_info": info(gpu=False)}),
    "no_engine": Host({}, {"nvidia_container_info": info(engines=())}),
    "absent": Host({"nvidia_runtime_engines": ["docker", "crio"]}, {}),
    "removed": Host({"nvidia_runtime_engines": ["crio"], "nvidia_runtime_state": "absent"}, {}),
    "cdi_off": Host(
        {"nvidia_toolkit_source": "existing"},
        {"nvidia_cdi_spec": {"changed": False, "device_count": 2}, "nvidia_runtime_config": configured(cdi=False)},
    ),
    # The kubelet uses containerd.
    "node": Host({}, {"nvidia_container_info": info(kubelet="containerd")}),
    "node_left_out": Host(
        {"nvidia_runtime_engines": ["docker"]}, {"nvidia_container_info": info(kubelet="containerd")}
    ),
    "node_of_flavor": Host({"nvidia_runtime_flavor": "k3s"}, {"nvidia_container_info": info(kubelet="containerd")}),
    "node_without_cri": Host(
        {"nvidia_runtime_engines": ["containerd"]},
        {"nvidia_container_info": info(kubelet="containerd"), "nvidia_runtime_config": configured(runtimes={})},
    ),
    # Docker's own containerd has no CRI, and the kubelet uses cri-dockerd.
    "node_of_docker": Host(
        {"nvidia_runtime_engines": ["containerd", "docker"]},
        {"nvidia_container_info": info(kubelet="docker"), "nvidia_runtime_config": configured(runtimes={})},
    ),
    "node_removed": Host(
        {"nvidia_runtime_engines": ["docker"], "nvidia_runtime_state": "absent"},
        {"nvidia_container_info": info(kubelet="containerd")},
    ),
    # As cdi_off, but its play has no role that writes a specification.
    "no_cdi": Host({}, {"nvidia_runtime_config": configured(cdi=False)}),
    "refused": Host(
        {"nvidia_runtime_engines": ["docker"]},
        {"nvidia_runtime_config": {"failed": True, "msg": MESSAGE},
         "nvidia_runtime_verify": {"failed": True, "msg": BLIND, "summary": "1 of 2 GPUs (--gpus all)"}},
    ),
    "not_restarted": Host(
        {"nvidia_runtime_engines": ["docker"]},
        {"nvidia_runtime_config": configured(changed=True, pending_action="restart"),
         "nvidia_runtime_restart": {"failed": True, "msg": MESSAGE},
         # A module that crashes returns no summary.
         "nvidia_runtime_verify": {"failed": True, "msg": MESSAGE}},
    ),
}  # fmt: skip
# For these hosts all roles are run, for the others only nvidia_runtime.
ALL_ROLES = ("apt", "dnf", "fresh", "given", "no_gpu", "cdi_off")
FAILED = {"absent", "refused", "not_restarted"}


class Played(t.NamedTuple):
    """What a run printed: its tasks by host with what they did, and all lines."""

    tasks: dict[str, list[tuple[str, str]]]
    output: str

    def lines(self, host: str, kind: str) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith(f"{kind}: [{host}]")]

    def warnings(self, host: str) -> list[str]:
        start = f"[WARNING]: {host}: "
        return [line[len(start) :] for line in self.output.splitlines() if line.startswith(start)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, and an inventory of the hosts."""
    work = tmp_path_factory.mktemp("plays")
    place = work / "ansible_collections/gpufleet/nvidia"
    for name in ("playbooks", "plugins", "roles", "meta"):
        shutil.copytree(COLLECTION / name, place / name)
    hosts = {}
    for name, host in HOSTS.items():
        folder = work / name
        folder.mkdir()
        answers = {"nvidia_container_info": info(), "nvidia_runtime_config": configured()}
        for module, answer in {**answers, **host.answers}.items():
            (folder / f"{module}.json").write_text(json.dumps(answer), encoding="utf-8")
        interpreter = folder / "python"
        interpreter.write_text(INTERPRETER.format(folder=folder), encoding="utf-8")
        interpreter.chmod(0o755)
        hosts[name] = {"ansible_python_interpreter": str(interpreter), **host.variables}
    inventory = {"all": {"hosts": hosts, "vars": {"ansible_connection": "local"}}}
    (work / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    return work


def play(work: Path, *arguments: str, playbook: str = "site") -> Played:
    program = Path(sys.executable).with_name("ansible-playbook")
    if not program.exists():
        pytest.skip("There is no ansible-playbook beside this Python.")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_FORKS": "3", "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000"}  # fmt: skip
    done = subprocess.run(
        [program, "-i", "hosts.json", f"gpufleet.nvidia.{playbook}", *arguments], cwd=work, env=environ, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    tasks: dict[str, list[tuple[str, str]]] = {name: [] for name in HOSTS}
    for section in re.split(r"\n(?:TASK|RUNNING HANDLER) \[", done.stdout.partition("PLAY RECAP")[0])[1:]:
        title = section.partition("]")[0]
        did = {host: kind for kind, hosts in DONE.findall(section) for host in hosts.strip("[]").split(", ")}
        for host, kind in did.items():
            tasks[host].append((title, kind))
    return Played(tasks, done.stdout)


@pytest.fixture(scope="module")
def played(work: Path) -> Played:
    """All hosts."""
    first = play(work, f"--limit={','.join(ALL_ROLES)}")
    second = play(work, f"--limit=!{',!'.join(ALL_ROLES)}", "--tags=runtime")
    tasks = {name: found or second.tasks[name] for name, found in first.tasks.items()}
    return Played(tasks, first.output + second.output)


@pytest.mark.parametrize(("host", "most", "most_skipped"), [("apt", 14, 6), ("dnf", 14, 6), ("no_gpu", 15, 10)])
def test_an_unchanged_host_lists_the_tasks_that_apply(played: Played, host: str, most: int, most_skipped: int) -> None:
    tasks = played.tasks[host]
    skipped = [title for title, kind in tasks if kind == "skipping"]
    assert len(skipped) <= most_skipped, skipped
    assert 5 < len(tasks) <= most, tasks
    assert len([title for title, _kind in tasks if ".nvidia_toolkit : " in title]) <= (3 if host != "no_gpu" else 4)
    assert played.lines(host, "changed") + played.warnings(host) == []


def test_each_host_runs_its_steps_in_order(played: Played) -> None:
    # Ansible joins equal includes of several hosts, and would run a step that only some hosts have after the others.
    fetch, install = "Fetch the key of the repository", "Install the toolkit"
    order = {"apt": [install], "fresh": [fetch, install], "dnf": [install], "given": [install]}
    for host, expected in order.items():
        titles = [title.rpartition(" : ")[2] for title, _kind in played.tasks[host]]
        assert [title for title in titles if title in (fetch, install)] == expected, host


def test_the_hosts_with_errors_fail_and_no_other(played: Played) -> None:
    recap = dict(re.findall(r"^(\w+) +: .* failed=(\d+) .* ignored=0", played.output, re.MULTILINE))
    assert {name for name, failed in recap.items() if failed != "0"} == FAILED
    assert set(recap) == set(HOSTS)


@pytest.mark.parametrize("host", sorted(FAILED))
def test_an_error_is_printed_once_by_the_last_task(played: Played, host: str) -> None:
    # The last task has a loop, unlike the one that refuses an engine that is absent.
    kind = "fatal" if host == "absent" else "failed"
    (line,) = played.lines(host, kind)
    assert played.tasks[host][-1][1] == kind
    if host != "absent":
        assert line.count(MESSAGE) == 1


def test_an_engine_that_is_named_and_absent_is_an_error(played: Played) -> None:
    (line,) = played.lines("absent", "fatal")
    assert "nvidia_runtime_engines names crio, which this host does not have. Install" in line
    # A removal needs no engine.
    assert "Configure the container engines" in str(played.tasks["removed"])


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("no_engine", ["No container engine was found on this host"]), ("cdi_off", [CDI_OFF]), ("no_cdi", []),
        ("node", []), ("node_left_out", [LEFT_OUT]),
        ("node_without_cri", [WITHOUT_CRI]), ("node_of_docker", []), ("node_removed", []),
        ("node_of_flavor",
         ["nvidia_runtime_engines and nvidia_runtime_flavor select no engine of this host", LEFT_OUT]),
    ],
)  # fmt: skip
def test_warnings_name_the_host(played: Played, host: str, expected: list[str]) -> None:
    warnings = played.warnings(host)
    assert len(warnings) == len(expected)
    assert all(warning.startswith(text) for warning, text in zip(warnings, expected))


def test_tags_select_a_role(played: Played) -> None:
    titles = [title.partition(" : ")[::2] for title, _kind in played.tasks["no_cdi"]]
    assert ("gpufleet.nvidia.nvidia_runtime", "Configure the container engines") in titles
    # The toolkit's role tells whether there is a GPU, and does nothing else.
    assert {task for role, task in titles if role.endswith("toolkit")} == {
        "Inspect the host", "Take the steps that only this host needs"
    }  # fmt: skip
    assert not {"Install the toolkit", "Write the CDI specification"} & {task for _role, task in titles}


# -- verify.yml --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verified(work: Path) -> Played:
    return play(work, "--limit=apt,no_gpu,no_engine,refused,not_restarted", playbook="verify")


@pytest.mark.parametrize(
    ("host", "kind", "labels"),
    [
        ("apt", "ok", ["docker: 2 of 2 GPUs (--runtime nvidia)", "containerd: 2 of 2 GPUs (--runtime nvidia)"]),
        ("no_gpu", "ok", ["not verified: no NVIDIA GPU"]),
        ("no_engine", "ok", ["not verified: no container engine"]),
        ("refused", "failed", ["docker: 1 of 2 GPUs (--gpus all)"]),
        ("not_restarted", "failed", ["docker: failed"]),
    ],
)
def test_one_line_for_each_engine(verified: Played, host: str, kind: str, labels: list[str]) -> None:
    report = verified.output.rpartition("TASK [")[2].partition("PLAY RECAP")[0]
    assert report.startswith("gpufleet.nvidia.nvidia_runtime : Report the GPUs that containers see]")
    found = re.findall(rf"^(\w+): \[{host}\] (?:=> )?\(item=(.*?)\)(?: => .*)?$", report, re.MULTILINE)
    # The last line is about the host.
    assert found[:-1] == [(kind, label) for label in labels]
    assert found[-1] == ("ok", "no NVIDIA GPU; no toolkit" if host == "no_gpu" else "no toolkit")


def test_hosts_whose_containers_lack_gpus_fail(verified: Played) -> None:
    recap = dict(re.findall(r"^(\w+) +: .* changed=0 .* failed=(\d+) .* ignored=0", verified.output, re.MULTILINE))
    assert recap == {"apt": "0", "no_gpu": "0", "no_engine": "0", "refused": "1", "not_restarted": "1"}
    (line,) = verified.lines("refused", "failed")
    assert BLIND in line
    assert not re.search("assertion|evaluated_to", verified.output)


def test_hosts_without_a_gpu_start_no_container(verified: Played) -> None:
    assert [kind for title, kind in verified.tasks["no_gpu"] if "Start a container" in title] == ["skipping"]
