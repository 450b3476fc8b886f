# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure site.yml on unchanged hosts, as ratios to plays of pings and of ordinary tasks.

The hosts are directory trees with the toolkit, eight GPUs, Docker, containerd and CRI-O, over local connections or SSH.
Each round runs each play once, one after the other, so that a change of the machine's speed affects all of them. The
ratios are of processor time (controller and modules), which other work on the machine changes less than the elapsed
time. With --connection ssh, an SSH server runs during each play, whose processor time and that of its modules count.

usage, as root: python3 benchmarks/site.py ANSIBLE_PLAYBOOK [--hosts N] [--forks N...] [--rounds N]
                [--engines NAME...] [--plays NAME...] [--connection ssh] [--recorded] [--python PATH]

Variables of Ansible, such as ANSIBLE_PIPELINING and ANSIBLE_STRATEGY, apply. ssh needs the packages of OpenSSH.
--python is the Python of the hosts. With --recorded, all hosts are the same tree, and a module runs once; afterwards a
shell script prints its result. This measures the controller with many hosts, without pipelining.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import yaml
from unchanged import CONFIG_TOML

ENGINES = ("docker", "containerd", "crio")
PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "crio": "crio"}
# Counts the tasks that ended with "ok" or "skipped" on a host. A loop is one task.
COUNTER = """
import collections, json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "counter"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tasks = collections.Counter()

    def v2_runner_on_skipped(self, result, **_more):
        self.tasks[(getattr(result, "host", None) or result._host).name] += 1

    def v2_runner_on_ok(self, result, **_more):
        self.v2_runner_on_skipped(result)

    def v2_playbook_on_stats(self, stats):
        with open(os.environ["COUNTED"], "w") as stream:
            json.dump(max(self.tasks.values()), stream)
"""
NVIDIA_CTK = """#!/bin/sh
case "$*" in *generate*) cat /usr/share/cdi.json ;; *) echo NVIDIA Container Toolkit CLI version 1.19.1 ;; esac
"""
SYSTEMCTL = """#!/bin/sh
[ "$1" != show ] || printf 'LoadState=loaded\\nActiveState=active\\nSubState=exited\\nNeedDaemonReload=no\\n'
"""
# Ansible calls it with the path of the module's file, which it does not have with pipelining.
RECORDED = """#!/bin/sh
answer={answers}/$(basename "$1" .py)
[ -e "$answer" ] || {python} "$@" >"$answer"
cat "$answer"
"""
SITE = """
- import_playbook: gpufleet.nvidia.site
  vars:
    nvidia_toolkit_source: existing
    nvidia_host_root: "{{ tree }}"
    nvidia_host_root_live: true
    # The libraries and programs of the tree contain no code.
    nvidia_cdi_module_options: {use_nvml: false}
    nvidia_cdi_for_engines: []
    nvidia_runtime_validate: "false"
    nvidia_runtime_set_as_default: true
"""
PINGS = "- hosts: all\n  gather_facts: false\n  tasks:" + "\n    - ansible.builtin.ping:" * 9
# The tasks of a role without modules of its own: facts; the key and the source; the packages; config.toml; the CDI
# specification; for each of two engines the state of its file, its content and the command that changes it; services.
# "true" stands for the commands, and the file of Docker for config.toml, which only a part of the trees has.
ORDINARY = """
- hosts: all
  tasks:
    - ansible.builtin.stat: {path: "{{ tree }}/etc/apt/keyrings/nvidia.gpg"}
    - ansible.builtin.copy: {dest: "{{ tree }}/etc/nvidia.list", content: deb, mode: "0644"}
    - ansible.builtin.package_facts: {manager: auto, strategy: first}
    - ansible.builtin.command: {argv: ["true"]}
      changed_when: false
    - ansible.builtin.slurp: {src: "{{ tree }}/etc/docker/daemon.json"}
    - ansible.builtin.command: {argv: ["true"]}
      changed_when: false
    - ansible.builtin.stat: {path: "{{ tree }}/etc/cdi/nvidia.yaml"}
    - ansible.builtin.command: {argv: ["true"]}
      changed_when: false
    - ansible.builtin.stat: {path: "{{ tree }}/{{ item }}"}
      loop: &files [etc/docker/daemon.json, etc/containerd/config.toml]
    - ansible.builtin.slurp: {src: "{{ tree }}/{{ item }}"}
      loop: *files
    - ansible.builtin.command: {argv: ["true"]}
      changed_when: false
      loop: *files
    - ansible.builtin.service_facts:
"""
# The shortest such role, which detects no drift: the key, the source, the packages, config.toml, an engine's command.
PLAIN = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.stat: {path: "{{ tree }}/etc/apt/keyrings/nvidia.gpg"}
    - ansible.builtin.copy: {dest: "{{ tree }}/etc/nvidia.list", content: deb, mode: "0644"}
    - ansible.builtin.command: {argv: ["true"]}
      changed_when: false
    - ansible.builtin.copy: {dest: "{{ tree }}/etc/nvidia.toml", content: mode, mode: "0644"}
    - ansible.builtin.command: {argv: ["true"]}
      changed_when: false
"""
PLAYS = {"site": SITE, "pings": PINGS, "ordinary": ORDINARY, "plain": PLAIN}


SSHD_CONFIG = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
Subsystem sftp internal-sftp
"""
PORT = "2522"
# For prctl() of Linux.
PR_SET_CHILD_SUBREAPER = 36
# Counts the modules that are started.
COUNTING = """#!/bin/sh
echo >>{started}
exec {python} "$@"
"""


class Cost(t.NamedTuple):
    """One run: seconds of processor time, seconds, the memory of the controller in MiB, and the tasks of one host."""

    processor: float
    elapsed: float
    memory: int
    tasks: int


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """Write the trees, an inventory, and the plays."""
    names = [f"host{number}" for number in range(options.hosts)]
    trees = {name: folder / ("host0" if options.recorded else name) for name in names}
    for tree in set(trees.values()):
        _write_host(tree, options.engines)
    (folder / "hosts.ini").write_text(
        "".join(f"{name} tree={tree} ansible_host=127.0.0.1\n" for name, tree in trees.items())
    )
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(port=PORT, folder=folder))
    if options.connection == "ssh":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    (folder / "callbacks").mkdir()
    (folder / "callbacks/counter.py").write_text(COUNTER)
    (folder / "answers").mkdir()
    python = folder / "python"
    python.write_text(RECORDED.format(answers=folder / "answers", python=options.python))
    python.chmod(0o755)
    (folder / "counting").write_text(COUNTING.format(started=folder / "started", python=options.python))
    (folder / "counting").chmod(0o755)
    for name, text in PLAYS.items():
        (folder / f"{name}.yml").write_text(text)


def _write_host(tree: Path, engines: t.Sequence[str]) -> None:
    fixtures = Path(__file__).parents[1] / "tests/hosts/fixtures"
    subprocess.run([sys.executable, "-B", fixtures / "gpu_tree.py", tree, "580.95.05", "8"], check=True)
    for name in ("etc/docker", "etc/containerd", "etc/crio", "etc/systemd/system", "usr/bin", "usr/share", "var/lib"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in engines:
        (tree / "usr/bin" / PROGRAMS[name]).touch(mode=0o755)
    subprocess.run([sys.executable, "-B", fixtures / "elf_programs.py", "tree", tree, "1.19.1"], check=True)
    _write_shell(tree)
    (tree / "usr/bin/nvidia-ctk").write_text(NVIDIA_CTK)
    shutil.copy(shutil.which("cat") or "/bin/cat", tree / "bin/cat")
    (tree / "etc/docker/daemon.json").write_text('{\n  "log-driver": "journald"\n}\n')
    (tree / "etc/containerd/config.toml").write_text(CONFIG_TOML)
    (tree / "etc/crio/crio.conf").write_text('[crio.runtime]\nlog_level = "info"\nconmon = "/usr/bin/conmon"\n')
    _write_systemd(tree)


def _write_systemd(tree: Path) -> None:
    """Let systemd run in the tree, so that the refresh unit of the specification causes no warning."""
    (tree / "run/systemd/system").mkdir(parents=True)
    (tree / "usr/bin/systemctl").write_text(SYSTEMCTL)
    (tree / "usr/bin/systemctl").chmod(0o755)


def _write_shell(tree: Path) -> None:
    """Copy the shell of this machine with its libraries, so that the programs of the toolkit can run in the tree."""
    shell = Path("/bin/sh").resolve()
    listed = subprocess.run(["ldd", str(shell)], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+)", listed):
        target = tree / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    (tree / "bin").mkdir(exist_ok=True)
    shutil.copy(shell, tree / "bin/sh")


def play(
    options: argparse.Namespace,
    folder: Path,
    name: str,
    forks: int,
    *,
    program: str = "",
    more: tuple[str, ...] = (),
) -> Cost:
    """Run one play and return its cost. ``program`` is what Ansible starts as the Python of the hosts."""
    counted = folder / "counted.json"
    environ = {
        **os.environ, **_ssh_variables(folder), "ANSIBLE_CALLBACK_PLUGINS": str(folder / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "counter", "COUNTED": str(counted),
        "ANSIBLE_PYTHON_INTERPRETER": program or options.python,
        **({"ANSIBLE_PIPELINING": "0"} if options.recorded else {}),
    }  # fmt: skip
    argv = [
        options.playbook, "-i", str(folder / "hosts.ini"), "-c", options.connection, "-f", str(forks), *more,
        str(folder / f"{name}.yml"),
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with _ssh_server(folder) if options.connection == "ssh" else contextlib.nullcontext():
        start = time.perf_counter()
        with subprocess.Popen(
            argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            output = process.stdout.read() if process.stdout else ""
            _pid, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        elapsed = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"{name} failed:\n{output}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(processor, elapsed, usage.ru_maxrss // 1024, json.loads(counted.read_text()))


def _ssh_variables(folder: Path) -> dict[str, str]:
    return {
        "ANSIBLE_REMOTE_PORT": PORT, "ANSIBLE_PRIVATE_KEY_FILE": str(folder / "key"),
        "ANSIBLE_HOST_KEY_CHECKING": "false", "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "control"),
        "ANSIBLE_SSH_COMMON_ARGS": "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
    }  # fmt: skip


@contextlib.contextmanager
def _ssh_server(folder: Path) -> t.Iterator[None]:
    """Run an SSH server, and wait for it and the clients in the background, so that their processor time is counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    Path("/run/sshd").mkdir(exist_ok=True)
    argv = [shutil.which("sshd", path="/usr/sbin:/usr/bin") or "sshd", "-D", "-f", folder / "sshd_config"]
    server = subprocess.Popen(argv)
    time.sleep(0.5)
    try:
        yield
    finally:
        for socket in (folder / "control").glob("*"):
            subprocess.run(["ssh", "-O", "exit", "-S", socket, "host"], capture_output=True, check=False)
        time.sleep(0.5)
        server.terminate()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def ratio(label: str, costs: list[Cost], others: list[Cost]) -> str:
    """Return one line: the median of the ratios of all rounds, and their range."""
    ratios = [one.processor / other.processor for one, other in zip(costs, others)]
    return f"{label:<30} {statistics.median(ratios):5.2f}  [{min(ratios):.2f} to {max(ratios):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("playbook", metavar="ANSIBLE_PLAYBOOK")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--forks", type=int, nargs="+", default=[5])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connection", choices=("local", "ssh"), default="local")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="the Python of the hosts")
    parser.add_argument("--plays", nargs="+", choices=PLAYS, default=list(PLAYS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-benchmark-") as name:
        folder = Path(name)
        prepare(folder, options)
        configure(options, folder)
        for forks in options.forks:
            measure(options, folder, forks)


def configure(options: argparse.Namespace, folder: Path) -> None:
    """Run the plays on hosts that are new, which fills caches too, and record the results if they are wanted."""
    forks, more = max(options.forks), ("-l", "host0") if options.recorded else ()
    variables = "nvidia_cdi_backend=native nvidia_cdi_refresh=none"
    play(options, folder, "site", forks, more=(*more, "-e", variables))
    # nvidia-ctk is a shell script, which prints a specification of the same devices.
    for tree in folder.glob("host[0-9]*"):
        specification = yaml.safe_load((tree / "etc/cdi/nvidia.yaml").read_text())
        (tree / "usr/share/cdi.json").write_text(json.dumps(specification))
    for case in options.plays:
        play(options, folder, case, forks, more=more)
        if options.recorded:
            play(options, folder, case, forks, more=more, program=str(folder / "python"))


def measure(options: argparse.Namespace, folder: Path, forks: int) -> None:
    """Run all rounds with a number of forks, and print the costs and ratios."""
    costs: dict[str, list[Cost]] = {case: [] for case in options.plays}
    for _round in range(options.rounds):
        for case, measured in costs.items():
            program = str(folder / "python") if options.recorded else options.python
            measured.append(play(options, folder, case, forks, program=program))
    print(f"{options.hosts} hosts, {forks} forks, engines: {', '.join(options.engines)}; {options.rounds} rounds")
    for other, label in (("pings", "nine pings"), ("ordinary", "13 ordinary tasks"), ("plain", "five tasks")):
        if {"site", other} <= set(costs):
            print(ratio(f"site.yml / {label}", costs["site"], costs[other]))
    for case, measured in costs.items():
        each = statistics.median(cost.processor for cost in measured) / options.hosts
        elapsed = statistics.median(cost.elapsed for cost in measured)
        memory = max(cost.memory for cost in measured)
        play(options, folder, case, forks, program=str(folder / "counting"), more=("-l", "host0"))
        started = (folder / "started").read_text().count("\n")
        (folder / "started").unlink()
        print(
            f"{case}: {measured[0].tasks} tasks listed and {started} modules run for each host, "
            f"{each:.2f} s of processor time for each host, {elapsed:.1f} s elapsed, {memory} MiB of memory",
            flush=True,
        )


if __name__ == "__main__":
    main()
