# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure one unchanged task of each kind, as a ratio to ping in the same run.

Each case is a play that repeats its task ten times on a directory tree, over a local connection. The processor time of
an empty play is subtracted. Each round runs each case once, one after the other, so that a change of the speed of the
machine affects all of them. Quote the ratios, not the seconds.

usage, as root and with a Python that has pytest: python3 benchmarks/unchanged.py ANSIBLE_PLAYBOOK [ROUNDS]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

from cdi import make_importable

REPEATS = 10
ROUNDS = 7
# A file as guides for Kubernetes have it.
CONFIG_TOML = """# The kubelet uses systemd's control groups too.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.net/pause:3.10"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""


class Case(t.NamedTuple):
    """A task, its name in the output, and the ratio to ping that it should not exceed."""

    label: str
    task: str
    goal: float | None = None


CASES = {
    "empty": Case("", ""),
    "ping": Case("", "ansible.builtin.ping:"),
    "docker": Case(
        "nvidia_runtime_config, Docker",
        'gpufleet.nvidia.nvidia_runtime_config: {engine: docker, host_root: "{{ tree }}", set_as_default: true}',
        1.25,
    ),
    "containerd": Case(
        "nvidia_runtime_config, containerd",
        'gpufleet.nvidia.nvidia_runtime_config: {engine: containerd, host_root: "{{ tree }}", set_as_default: true}',
        1.4,
    ),
    "cdi": Case("nvidia_cdi_spec, 8 GPUs", 'gpufleet.nvidia.nvidia_cdi_spec: {host_root: "{{ tree }}/gpus"}', 1.4),
    "directory": Case(
        "nvidia_toolkit_install, a directory of 80 MB",
        'gpufleet.nvidia.nvidia_toolkit_install: {source: directory, src: /srv/toolkit, host_root: "{{ tree }}"}',
        2.0,
    ),
}
# Seven programs and two libraries, 80 MB together.
SIZE = 80_000_000 // 9


def prepare(folder: Path) -> None:
    """Create the tree of a host, and the plays."""
    tree = folder / "host"
    for name in ("etc/docker", "etc/containerd", "usr/bin", "var/lib"):
        (tree / name).mkdir(parents=True)
    for program in ("dockerd", "nvidia-container-runtime"):
        (tree / "usr/bin" / program).touch(mode=0o755)
    daemon_json = '{\n  "log-driver": "journald",\n  "features": {"buildkit": true}\n}\n'
    (tree / "etc/docker/daemon.json").write_text(daemon_json)
    (tree / "etc/containerd/config.toml").write_text(CONFIG_TOML)
    program = Path(__file__).parents[1] / "tests/hosts/fixtures/elf_programs.py"
    subprocess.run([sys.executable, program, "tree", tree / "srv/toolkit", "1.20.0", str(SIZE)], check=True)
    prepare_gpus(tree / "gpus")
    head = f"- hosts: localhost\n  gather_facts: false\n  vars: {{tree: {tree}}}\n  tasks:"
    for name, case in CASES.items():
        tasks = f"\n    - {case.task}" * REPEATS if case.task else " []"
        (folder / f"{name}.yml").write_text(f"{head}{tasks}\n")


def prepare_gpus(tree: Path) -> None:
    """Create a tree with eight GPUs. Only root can create their device nodes."""
    make_importable()
    # make_importable() creates the package.
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import (  # noqa: PLC0415
        CdiHost,
    )

    CdiHost(tree, count=8)


def play(playbook: str, folder: Path, name: str) -> float:
    """Run one play and return its processor time in seconds, on the controller and in the modules."""
    argv = [playbook, "-i", "localhost,", "-c", "local", str(folder / f"{name}.yml")]
    environ = {**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    completed = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if completed.returncode:
        sys.exit(f"{name} failed:\n{completed.stdout}\n{completed.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="gpufleet-benchmark-") as name:
        folder = Path(name)
        prepare(folder)
        for case in CASES:
            # The first run writes the files of the host, and fills caches.
            play(sys.argv[1], folder, case)
        times: dict[str, list[float]] = {case: [] for case in CASES}
        for _round in range(rounds):
            for case, measured in times.items():
                measured.append(play(sys.argv[1], folder, case))
    print(f"{rounds} rounds of {REPEATS} tasks; median ratio to ping [lowest to highest]")
    for name, case in CASES.items():
        if case.goal is None:
            continue
        triples = zip(times[name], times["ping"], times["empty"])
        ratios = [(task - empty) / (ping - empty) for task, ping, empty in triples]
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{case.label:<46} {middle:5.2f}  [{low:.2f} to {high:.2f}]  (goal: at most {case.goal:.2f})")


if __name__ == "__main__":
    main()
