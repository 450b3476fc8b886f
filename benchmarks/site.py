# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What site.yml costs a host on which nothing is to be done: modules that run there, and time beside what roles do
that have no modules of their own.

The host is a tree with the toolkit, Docker, containerd, and eight GPUs; afterwards everything about it is asked for in
one call.  Modules are counted by a callback: those that run on the host, each item of a loop for itself.  The time is a
ratio of two plays of the same round.

usage, as root and with a Python that has pytest: python3 benchmarks/site.py ANSIBLE_PLAYBOOK [rounds]
"""

from __future__ import annotations

import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unchanged import CONFIG_TOML, ROUNDS, TOOLKIT

# What runs on the controller alone.
CONTROLLER = frozenset({
    "assert", "debug", "fail", "group_by", "import_role", "include_role", "include_tasks", "meta", "set_fact",
    "validate_argument_spec",
})  # fmt: skip

COUNTER = """
import collections, json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "counter"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = collections.Counter()

    def _count(self, result, **_more):
        task = getattr(result, "task", None) or result._task
        told = getattr(result, "result", None) or result._result
        if not (isinstance(told, dict) and "results" in told):
            self.counts[task.action] += 1

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_item_on_ok = v2_runner_item_on_failed = _count

    def v2_playbook_on_stats(self, stats):
        with open(os.environ["COUNTED"], "w") as stream:
            json.dump(self.counts, stream)
"""

SITE = """
- import_playbook: gpufleet.nvidia.site
  vars:
    nvidia_toolkit_source: existing
    nvidia_host_root: {tree}
    nvidia_host_root_live: true
    # Its library has no code, and none of its programs can be asked.
    nvidia_cdi_use_nvml: false
    nvidia_cdi_for_engines: []
    nvidia_runtime_validate: "false"
    nvidia_runtime_set_as_default: true
- hosts: all
  gather_facts: false
  tasks:
    - name: Ask for everything
      gpufleet.nvidia.nvidia_container_info:
        host_root: {tree}
"""

# The usual tasks: facts; a source and its key; the packages; the tool for each engine, asked whether that is needed;
# its configuration; a specification; the services.
DANCE = """
- hosts: all
  tasks:
    - name: Look for the key
      ansible.builtin.stat: {{path: {tree}/etc/apt/keyrings/nvidia.gpg}}
    - name: Write the source
      ansible.builtin.copy: {{dest: {tree}/etc/nvidia.list, content: deb, mode: "0644"}}
    - name: Ask for the packages
      ansible.builtin.package_facts: {{manager: auto, strategy: first}}
    - name: Ask the tool for its version
      ansible.builtin.command: {{argv: ["true"]}}
      changed_when: false
    - name: Read the toolkit's configuration
      ansible.builtin.slurp: {{src: {tree}/etc/docker/daemon.json}}
    - name: Settle it
      ansible.builtin.command: {{argv: ["true"]}}
      changed_when: false
    - name: Look for the specification
      ansible.builtin.stat: {{path: {tree}/etc/cdi/nvidia.yaml}}
    - name: Make it
      ansible.builtin.command: {{argv: ["true"]}}
      changed_when: false
    - name: Look for the engine's file
      ansible.builtin.stat: {{path: "{tree}/{{{{ item }}}}"}}
      loop: &files [etc/docker/daemon.json, etc/containerd/config.toml]
    - name: Read it
      ansible.builtin.slurp: {{src: "{tree}/{{{{ item }}}}"}}
      loop: *files
    - name: Have the tool write it
      ansible.builtin.command: {{argv: ["true"]}}
      changed_when: false
      loop: *files
    - name: Ask for the services
      ansible.builtin.service_facts:
"""
PLAYS = {"site": SITE, "dance": DANCE}


def prepare(folder: Path) -> None:
    """A host's tree, and the plays."""
    tree = folder / "host"
    driver = Path(__file__).parents[1] / "tests/hosts/fixtures/gpu_tree.py"
    subprocess.run([sys.executable, "-B", driver, tree, "580.95.05", "8"], check=True)
    for name in ("etc/docker", "etc/containerd", "usr/bin", "var/lib"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for program in ("dockerd", "containerd", "python3.11", "nvidia-cdi-hook", *TOOLKIT):
        (tree / "usr/bin" / program).write_text("")
        (tree / "usr/bin" / program).chmod(0o755)
    (tree / "etc/docker/daemon.json").write_text('{\n  "log-driver": "journald"\n}\n')
    (tree / "etc/containerd/config.toml").write_text(CONFIG_TOML)
    (folder / "callbacks").mkdir()
    (folder / "callbacks/counter.py").write_text(COUNTER)
    for name, text in PLAYS.items():
        (folder / f"{name}.yml").write_text(text.format(tree=tree))


def play(playbook: str, folder: Path, name: str) -> tuple[float, dict[str, int]]:
    """Seconds of one play, and how often each action ran; the second play of a tree changes nothing."""
    counted = folder / "counted.json"
    environ = {
        **os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_RETRY_FILES_ENABLED": "false",
        "ANSIBLE_CALLBACK_PLUGINS": str(folder / "callbacks"), "ANSIBLE_CALLBACKS_ENABLED": "counter",
        "COUNTED": str(counted),
    }  # fmt: skip
    argv = [playbook, "-i", "localhost,", "-c", "local", str(folder / f"{name}.yml")]
    started = time.perf_counter()
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout}\n{done.stderr}")
    actions = json.loads(counted.read_text())
    return spent, {name: count for name, count in actions.items() if name.rpartition(".")[2] not in CONTROLLER}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    playbook = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="gpufleet-benchmark-") as name:
        folder = Path(name)
        prepare(folder)
        for case in PLAYS:
            play(playbook, folder, case)  # writes what there is to write, and fills caches
        times: dict[str, list[float]] = collections.defaultdict(list)
        counts: dict[str, dict[str, int]] = {}
        for _round in range(rounds):
            for case in PLAYS:
                spent, counts[case] = play(playbook, folder, case)
                times[case].append(spent)
    for case, counted in counts.items():
        print(f"{case}: {sum(counted.values())} modules on the host:", dict(sorted(counted.items())))
    ratios = [one / other for one, other in zip(times["site"], times["dance"])]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"{rounds} rounds; site.yml and info / the usual tasks: {middle:.2f} [{low:.2f} to {high:.2f}]")


if __name__ == "__main__":
    main()
