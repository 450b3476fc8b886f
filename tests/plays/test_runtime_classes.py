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

from ansible_collections.gpufleet.nvidia.plugins.action import nvidia_runtime_classes

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
        engine(
            "crio",
            dict.fromkeys(
                ["../up", "nvidia/b", "", "UP", "nvidia\ny: 1", "nvidia" * 11, "{{ 7 * 7 }}", "gvisor"], PROGRAM
            ),
        )
    ],
}


class Written(t.NamedTuple):
    """The parsed files, by their paths in the working directory, and what was printed."""

    files: dict[str, t.Any]
    output: str


def write(work: Path, *options: str, status: int = 0) -> Written:
    place = work / ".collections/ansible_collections/gpufleet/nvidia"
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(COLLECTION)
    hosts = {}
    for name, engines in HOSTS.items():
        answer, interpreter = work / f".{name}.json", work / f".{name}"
        answer.write_text(json.dumps({"changed": False, "engines": engines}), encoding="utf-8")
        interpreter.write_text(INTERPRETER.format(path=answer), encoding="utf-8")
        interpreter.chmod(0o755)
        hosts[name] = {"ansible_python_interpreter": str(interpreter)}
    # A task on the controller must not use these variables of the group all: become would fail.
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
    assert done.returncode == status, done.stdout
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
        for name in ("nvidia", "nvidia-cdi")
    }
    assert "No RuntimeClass was written for the runtime gvisor of this host" in found.output.replace("\n", " ")


def test_the_configured_name_has_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A YAML parser would read this name as a boolean."""
    monkeypatch.setitem(HOSTS["k3s"][0]["runtimes"], "true", PROGRAM)
    found = write(tmp_path, "-e", "nvidia_runtime_name=true")
    assert found.files["runtime-classes/true.yml"]["metadata"] == {"name": "true"}


def test_an_empty_name_selects_no_other_runtime() -> None:
    """Every name begins with an empty text."""
    found = [engine("crio", {"nvidia": PROGRAM, "gvisor": PROGRAM})]
    assert nvidia_runtime_classes.names_of(found, "") == (["nvidia"], ["gvisor"])


OLD = """\
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: "nvidia"
handler: "nvidia"
"""


def test_replaces_only_its_own_files(tmp_path: Path) -> None:
    """Version 1.1.0 wrote files without the header."""
    place = tmp_path / "runtime-classes"
    place.mkdir()
    (place / "nvidia.yml").write_text(OLD, encoding="utf-8")
    (place / "nvidia-cdi.yml").write_text(OLD, encoding="utf-8")
    found = write(tmp_path, status=2)
    assert (place / "nvidia.yml").read_text(encoding="utf-8").startswith("# Written by the playbook")
    assert (place / "nvidia-cdi.yml").read_text(encoding="utf-8") == OLD
    assert "nvidia-cdi.yml on the controller was not written by this playbook" in found.output


def test_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "runtime-classes").mkdir()
    (tmp_path / ".own").write_text(OLD, encoding="utf-8")
    (tmp_path / "runtime-classes/nvidia.yml").symlink_to("../.own")
    found = write(tmp_path, status=2)
    assert (tmp_path / ".own").read_text(encoding="utf-8") == OLD
    assert "is not a regular file" in found.output


def test_the_second_run_changes_nothing(tmp_path: Path) -> None:
    assert "changed=1" in write(tmp_path).output
    assert "changed=1" not in write(tmp_path).output


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, "--check").files == {}
