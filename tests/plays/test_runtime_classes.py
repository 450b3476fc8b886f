# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the playbook runtime_classes. The module is replaced by a script that returns the engines of each host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")
import yaml

COLLECTION = Path(__file__).resolve().parents[2]
PROGRAM = "/usr/bin/nvidia-container-runtime"
INTERPRETER = '#!/bin/sh\ncat "{path}"\n'


def engine(target: str, runtimes: t.Mapping[str, str], used: bool = True) -> dict[str, t.Any]:
    return {"target": target, "runtimes": runtimes, "used_by_kubelet": used}


HOSTS = {
    "kubeadm": [
        engine("docker", {"nvidia-docker": PROGRAM}, used=False),
        engine("containerd", {"nvidia": PROGRAM, "nvidia-cdi": f"{PROGRAM}.cdi", "kata": "/opt/kata/bin/kata"}),
    ],
    "k3s": [engine("containerd/k3s", {"nvidia": "/usr/local/nvidia/toolkit/nvidia-container-runtime"})],
    "workstation": [engine("docker", {"gpu": PROGRAM}, used=False)],
    "hostile": [
        engine("crio", dict.fromkeys(["../up", "a/b", "", "UP", "x\ny: 1", "a" * 64, "{{ 7 * 7 }}", "true"], PROGRAM))
    ],
}


class Written(t.NamedTuple):
    """The parsed files, by their paths in the working directory, and what was printed."""

    files: dict[str, t.Any]
    output: str


def write(work: Path, *options: str) -> Written:
    place = work / ".collections/ansible_collections/gpufleet/nvidia"
    place.parent.mkdir(parents=True)
    place.symlink_to(COLLECTION)
    hosts = {}
    for name, engines in HOSTS.items():
        answer, interpreter = work / f".{name}.json", work / f".{name}"
        answer.write_text(json.dumps({"changed": False, "engines": engines}), encoding="utf-8")
        interpreter.write_text(INTERPRETER.format(path=answer), encoding="utf-8")
        interpreter.chmod(0o755)
        hosts[name] = {"ansible_python_interpreter": str(interpreter)}
    # Variables for all hosts do not apply to the controller.
    variables = {"ansible_connection": "local", "ansible_become": True, "ansible_become_exe": "/nonexistent"}
    local = {name: {**values, "ansible_become": False} for name, values in hosts.items()}
    inventory = {"all": {"hosts": local, "vars": variables}}
    (work / ".hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work / ".collections"), "PWD": str(work),
               "ANSIBLE_HOME": str(work / ".home"), "ANSIBLE_NOCOLOR": "1"}  # fmt: skip
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [program, "-i", ".hosts.json", "gpufleet.nvidia.runtime_classes", *options], cwd=work, env=environ, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    found = [path for path in work.rglob("*") if path.is_file() and not path.relative_to(work).parts[0].startswith(".")]
    parsed = {str(path.relative_to(work)): yaml.safe_load(path.read_text(encoding="utf-8")) for path in found}
    return Written(parsed, done.stdout)


def test_each_registered_runtime_has_a_class(tmp_path: Path) -> None:
    found = write(tmp_path)
    assert found.files == {
        f"runtime-classes/{name}.yml": {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": name,
        }
        # A valid name that a YAML parser would read as a boolean.
        for name in ("nvidia", "nvidia-cdi", "true")
    }


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, "--check").files == {}
