# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an unchanged host costs, as ratios to the cheapest possible task in the same run.

Every round plays each case once, one after the other, so that a machine whose speed drifts slows all of them alike.
A case is a play that repeats its tasks, or a playbook that is repeated, as for so many hosts; the time of an empty play
is taken off.  Quote the ratios, not the seconds.

usage, as root and with a Python that has pytest: python3 benchmarks/unchanged.py ANSIBLE_PLAYBOOK [rounds]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cdi import make_importable

REPEATS = 10
ROUNDS = 7

MODULE = """
    - name: Configure Docker
      gpufleet.nvidia.nvidia_runtime_config: {engine: docker, host_root: "{{ tree }}", set_as_default: true}
"""

CONTAINERD = """
    - name: Configure containerd
      gpufleet.nvidia.nvidia_runtime_config: {engine: containerd, host_root: "{{ tree }}", set_as_default: true}
"""

# As a guide for Kubernetes has it.
CONFIG_TOML = """# The kubelet uses systemd's control groups too.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.net/pause:3.10"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""

DIRECTORY = """
    - name: Have the toolkit in a directory
      gpufleet.nvidia.nvidia_toolkit_install: {source: directory, src: /srv/toolkit, host_root: "{{ tree }}"}
"""

CDI = """
    - name: Describe the GPUs
      gpufleet.nvidia.nvidia_cdi_spec: {host_root: "{{ tree }}/gpus"}
"""

# What roles without a module of their own do: look, read, merge with Jinja, ask the tool.
DANCE = """
    - name: Look for the file
      ansible.builtin.stat: {path: "{{ tree }}/etc/docker/daemon.json"}
      register: found
    - name: Read it
      ansible.builtin.slurp: {src: "{{ tree }}/etc/docker/daemon.json"}
      register: text
      when: found.stat.exists
    - name: Merge
      ansible.builtin.set_fact:
        merged: "{{ text.content | b64decode | from_json | combine({'default-runtime': 'nvidia'}) }}"
    - name: Ask the tool
      ansible.builtin.command: {argv: ["true"]}
      changed_when: false
"""

CASES = {
    "empty": "",
    "ping": "\n    - name: Ping\n      ansible.builtin.ping:\n",
    "module": MODULE,
    "containerd": CONTAINERD,
    "directory": DIRECTORY,
    "cdi": CDI,
    "dance": DANCE,
    "role": (
        "\n    - name: Run the role of site.yml\n"
        "      ansible.builtin.include_role: {name: gpufleet.nvidia.nvidia_runtime}\n"
        '      vars: {nvidia_runtime_host_root: "{{ tree }}", nvidia_runtime_set_as_default: true}\n'
    ),
    # The playbook itself, once for each repetition: a play of its own for every host, as with serial: 1.
    "site": (
        "\n- import_playbook: gpufleet.nvidia.site\n"
        '  vars: {nvidia_runtime_host_root: "{{ tree }}", nvidia_runtime_set_as_default: true,\n'
        '         nvidia_toolkit_host_root: "{{ tree }}", nvidia_toolkit_source: existing, nvidia_cdi_enabled: false}\n'
    ),
}
# Seven programs and two libraries, 80 MB together.
SIZE = 80_000_000 // 9
TOOLKIT = ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk")
# These stand in place of plays, not in one.
PLAYBOOKS = ("site",)


def prepare(folder: Path) -> None:
    """A host's tree that is configured already, and the plays."""
    tree = folder / "host"
    for name in ("etc/docker", "etc/containerd", "usr/bin", "var/lib"):
        (tree / name).mkdir(parents=True)
    for program in ("dockerd", *TOOLKIT):
        (tree / "usr/bin" / program).write_text("")
        (tree / "usr/bin" / program).chmod(0o755)
    configuration = '{\n  "log-driver": "journald",\n  "features": {"buildkit": true}\n}\n'
    (tree / "etc/docker/daemon.json").write_text(configuration)
    program = Path(__file__).parents[1] / "tests/hosts/fixtures/elf_programs.py"
    subprocess.run([sys.executable, program, "tree", tree / "srv/toolkit", "1.20.0", str(SIZE)], check=True)
    prepare_gpus(tree / "gpus")
    # Without its program: the role's case is that of a host with Docker alone.
    (tree / "etc/containerd/config.toml").write_text(CONFIG_TOML)
    for name, tasks in CASES.items():
        repeats = 1 if name == "empty" else REPEATS
        head = f"- hosts: localhost\n  gather_facts: false\n  vars: {{tree: {tree}}}\n  tasks:"
        if name in PLAYBOOKS:
            head, tasks = "---", tasks.replace("{{ tree }}", str(tree))
        (folder / f"{name}.yml").write_text(head + (tasks * repeats if tasks else " []\n"))


def prepare_gpus(tree: Path) -> None:
    """A host with eight GPUs, whose device nodes only root can make."""
    make_importable()
    # Not before there are packages to import from.
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import (  # noqa: PLC0415
        CdiHost,
    )

    CdiHost(tree, count=8)


def play(playbook: str, folder: Path, name: str) -> float:
    """Seconds of one play."""
    argv = [playbook, "-i", "localhost,", "-c", "local", str(folder / f"{name}.yml")]
    environ = {**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_RETRY_FILES_ENABLED": "false"}
    started = time.perf_counter()
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout}\n{done.stderr}")
    return spent


def row(label: str, ratios: list[float], goal: float | None) -> str:
    wanted = f"  (goal: at most {goal:.2f})" if goal is not None else ""
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    return f"{label:<46} {middle:5.2f}  [{low:.2f} to {high:.2f}]{wanted}"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    playbook = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="gpufleet-benchmark-") as name:
        folder = Path(name)
        prepare(folder)
        for case in CASES:
            play(playbook, folder, case)  # writes what there is to write, and fills caches
        times: dict[str, list[float]] = {case: [] for case in CASES}
        for _round in range(rounds):
            for case, spent in times.items():
                spent.append(play(playbook, folder, case))
    per_task = {
        case: [(spent - empty) / REPEATS for spent, empty in zip(times[case], times["empty"])] for case in CASES
    }
    print(f"{rounds} rounds of {REPEATS} repetitions; median ratio [lowest to highest]")
    for label, one, other, goal in (
        ("nvidia_runtime_config, unchanged / ping", "module", "ping", 1.4),
        ("nvidia_runtime_config / stat, slurp, command", "module", "dance", 0.5),
        ("the same for containerd, unchanged / ping", "containerd", "ping", 1.5),
        ("nvidia_toolkit_install, a directory / ping", "directory", "ping", 2.0),
        ("nvidia_cdi_spec, 8 GPUs / ping", "cdi", "ping", 1.6),
        ("whole role of site.yml, unchanged / ping", "role", "ping", None),
        ("whole role / stat, slurp, command", "role", "dance", None),
        ("whole playbook site.yml, unchanged / ping", "site", "ping", None),
        ("whole playbook site.yml / stat, slurp, command", "site", "dance", None),
    ):
        print(row(label, [a / b for a, b in zip(per_task[one], per_task[other])], goal))
    print("milliseconds, median:", {case: round(statistics.median(spent) * 1000) for case, spent in per_task.items()})


if __name__ == "__main__":
    main()
