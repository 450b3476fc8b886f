# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure site.yml on an unchanged booted host with packages of apt, as ratios to a play of nine pings.

The host is a test host with Docker, containerd and the package repository of the scenario "toolkit". Each round runs
each play once. The ratios are of processor time: that of the controller and that of all processes of the host.

usage, as root, with the environment of tests/hosts/env: python3 benchmarks/booted.py ANSIBLE_PLAYBOOK [ROUNDS]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME, SUITE = "gpufleet-benchmark", "trixie"
VARIABLES = {
    "ansible_connection": "containers.podman.podman", "ansible_podman_mount_detection": False,
    "ansible_python_interpreter": "/usr/bin/python3",
}  # fmt: skip
# The host has no GPU, so it gets no CDI specification.
SITE = """
- import_playbook: gpufleet.nvidia.site
  vars:
    nvidia_toolkit_source: {source}
    nvidia_toolkit_base_url: http://127.0.0.1:8088
    nvidia_toolkit_key_fingerprint: {fingerprint}
    nvidia_toolkit_when_no_gpu: configure
    nvidia_cdi_enabled: false
    nvidia_runtime_engines: [docker, containerd]
    nvidia_runtime_allow_disruption: true
"""
PINGS = "- hosts: all\n  gather_facts: false\n  tasks:" + "\n    - ansible.builtin.ping:" * 9


def on_host(*command: str) -> str:
    return subprocess.run(["podman", "exec", NAME, *command], check=True, capture_output=True, text=True).stdout


def host_seconds() -> float:
    """Return the processor time of all processes of the host, in control groups of version 1 or 2."""
    argv = ["podman", "inspect", NAME, "--format", "{{.State.CgroupPath}}"]
    folder = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    first = Path(f"/sys/fs/cgroup/cpuacct{folder}/cpuacct.usage")
    if first.exists():
        return int(first.read_text()) / 1e9
    values = dict(line.split() for line in Path(f"/sys/fs/cgroup{folder}/cpu.stat").read_text().splitlines())
    return int(values["usage_usec"]) / 1e6


def cost(playbook: str, play: Path) -> float:
    """Run a play, and return the processor time of the controller and of the host in seconds."""
    before, host = resource.getrusage(resource.RUSAGE_CHILDREN), host_seconds()
    argv = [playbook, "-i", f"{NAME},", "-e", json.dumps(VARIABLES), str(play)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{play.name} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + host_seconds() - host


def measure(playbook: str, rounds: int, folder: Path) -> None:
    fingerprint = json.loads(on_host("cat", "/srv/repository/fingerprints.json"))["gpgkey"]
    plays = {name: folder / f"{name}.yml" for name in ("repository", "existing", "pings")}
    plays["pings"].write_text(PINGS)
    for source in ("repository", "existing"):
        plays[source].write_text(SITE.format(source=source, fingerprint=fingerprint))
    # The first run changes the host, and the others fill caches.
    for play in plays.values():
        cost(playbook, play)
    rows = [{name: cost(playbook, play) for name, play in plays.items()} for _round in range(rounds)]
    for source in ("repository", "existing"):
        ratios = [row[source] / row["pings"] for row in rows]
        seconds = statistics.median(row[source] for row in rows)
        print(
            f"source {source:<11} / nine pings {statistics.median(ratios):5.2f}"
            f"  [{min(ratios):.2f} to {max(ratios):.2f}]  {seconds:.2f} s"
        )


def main() -> None:
    if not 2 <= len(sys.argv) <= 3 or "GPUFLEET_CACHE" not in os.environ:
        sys.exit(__doc__)
    hosts = ROOT / "tests/hosts"
    # The connection plugin.
    subprocess.run([hosts / "collections", Path(sys.argv[1]).with_name("python")], check=True)
    known, cache = os.environ.get("ANSIBLE_COLLECTIONS_PATH", ""), os.environ["GPUFLEET_CACHE"]
    os.environ["ANSIBLE_COLLECTIONS_PATH"] = f"{known}:{cache}/collections"
    subprocess.run([hosts / "up", NAME, SUITE, "--volume", f"{ROOT / 'molecule'}:/molecule:ro"], check=True)
    try:
        on_host("python3", "-B", "/molecule/toolkit/prepare_host.py", "deb")
        with tempfile.TemporaryDirectory() as folder:
            measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5, Path(folder))
    finally:
        subprocess.run([hosts / "down", NAME], check=False)


if __name__ == "__main__":
    main()
