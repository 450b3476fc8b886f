# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a play with the callback progress, and reads the lines that it prints about tasks that take long."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.callback", reason="callbacks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
# Each host but the first waits in "Long" for a file, for 30 s at most. The test writes the file after it has read the
# expected line.
PLAY = """
- hosts: all
  gather_facts: false
  strategy: {strategy}
  tasks:
    - name: Short
      ansible.builtin.meta: noop
    - name: Long
      ansible.builtin.raw: "{{{{ 'true' if inventory_hostname == 'host0' else wait }}}}"
      changed_when: false
      vars:
        wait: for attempt in $(seq 300); do test -e ended && break; sleep 0.1; done
"""
LINE = re.compile(r"progress: \d+ s, 1 completed: Long: waiting for host1, host2, host3, host4, host5 and 2 more")


@pytest.mark.parametrize("strategy", ["linear", "free"])
def test_a_long_task_names_the_hosts_that_it_waits_for(tmp_path: Path, strategy: str) -> None:
    place = tmp_path / "ansible_collections/gpufleet/nvidia"
    place.parent.mkdir(parents=True)
    place.symlink_to(COLLECTION)
    hosts: dict[str, t.Any] = {f"host{number}": {} for number in range(8)}
    inventory = {"all": {"hosts": hosts, "vars": {"ansible_connection": "local"}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    (tmp_path / "play.yml").write_text(PLAY.format(strategy=strategy), encoding="utf-8")
    environ = {
        **os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_HOME": str(tmp_path / "home"),
        "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACKS_ENABLED": "gpufleet.nvidia.progress", "PYTHONUNBUFFERED": "1",
        "GPUFLEET_NVIDIA_PROGRESS_INTERVAL": "1",
    }  # fmt: skip
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-f8", "-i", "hosts.json", "play.yml"]
    lines = []
    with subprocess.Popen(argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            lines.append(line.strip())
            if LINE.fullmatch(lines[-1]):
                (tmp_path / "ended").touch()
    assert process.returncode == 0, lines
    assert any(LINE.fullmatch(line) for line in lines), lines
    assert not [line for line in lines if line.startswith("progress") and "Short" in line]
