# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The play of docs/flavors.md for a rootless Docker: every module of its tasks and handlers runs as the user.

The interpreter of the host returns results from files. The stand-in of sudo tells it the user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

from ansible_collections.gpufleet.nvidia.tests.documentation import COLLECTION, blocks

INTERPRETER = """\
#!/bin/sh
module=${{1##*/AnsiballZ_}}
echo "${{module%.py}} $BECOME" >>"{folder}/called"
cat "{folder}/${{module%.py}}.json"
"""
# Runs the command as the same user: ... -u USER /bin/sh -c COMMAND.
SUDO = """\
#!/bin/sh
while [ "$1" != /bin/sh ]; do [ "$1" = -u ] && export BECOME="$2"; shift; done
exec "$@"
"""
# A user that every host has. The page names another one.
USER, NAMED = "nobody", "alice"
OWN, OTHER = f"docker/rootless/{USER}", "docker/rootless/daemon"


def engine(target: str, **values: t.Any) -> dict[str, t.Any]:
    user = target.rpartition("/")[2] if "/" in target else None
    return {"engine": "docker", "flavor": "rootless" if user else "system", "target": target, "user": user,
            "installed": True, "running": True, "service": "docker.service", "recorded_files": [], "inspected": True,
            "unfinished_restart": False, "used_by_kubelet": False, "problems": [], "readable": True,
            **values}  # fmt: skip


ANSWERS: dict[str, dict[str, t.Any]] = {
    "nvidia_container_info": {
        "changed": False, "engines": [engine("docker"), engine(OWN), engine(OTHER, inspected=False)],
        "toolkit": {"version": "1.19.1", "gpu": {"present": True, "kind": "driver"}},
    },
    "nvidia_runtime_config": {
        # Other engines than the requested one are ignored.
        "changed": True, "engines": [
            {"target": target, "changed": True, "service": "docker.service", "restart_required": True,
             "restart_action": "restart", "pending_action": "restart", "default_runtime": "runc", "backup_files": [],
             "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "cdi": True}
            for target in (OTHER, OWN, "docker")
        ],
    },
    "nvidia_runtime_restart": {"changed": True, "state": "applied"},
    "nvidia_runtime_verify": {"changed": False, "verified": True, "summary": "1 of 1 GPUs"},
}  # fmt: skip


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with the play, the inventory, and the answers of the host."""
    (play,) = [block for block in blocks("docs/flavors.md") if block.file == "rootless.yml"]
    files = {
        "rootless.yml": play.text.replace(NAMED, USER), "python": INTERPRETER.format(folder=tmp_path), "sudo": SUDO,
        **{f"{module}.json": json.dumps(answer) for module, answer in ANSWERS.items()},
    }  # fmt: skip
    host = {"ansible_connection": "local", "ansible_python_interpreter": str(tmp_path / "python"),
            "ansible_become_exe": str(tmp_path / "sudo"), "ansible_shell_allow_world_readable_temp": True,
            "nvidia_runtime_verify": "config", "nvidia_runtime_engines": ["podman"]}  # fmt: skip
    files["hosts.json"] = json.dumps({"gpu": {"hosts": {"gpu-1": host}}})
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in ("python", "sudo"):
        (tmp_path / name).chmod(0o755)
    place = tmp_path / "ansible_collections/gpufleet/nvidia"
    place.parent.mkdir(parents=True)
    place.symlink_to(COLLECTION)
    return tmp_path


def run(work: Path, *arguments: str) -> tuple[list[str], str]:
    """Run ansible-playbook. Return the modules that were called, each with its user, and the output."""
    program = Path(sys.executable).with_name("ansible-playbook")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    done = subprocess.run(
        [program, "-i", "hosts.json", *arguments], cwd=work, env=environ, check=False, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return (work / "called").read_text(encoding="utf-8").splitlines(), done.stdout


def test_the_tasks_and_handlers_run_as_the_user(work: Path) -> None:
    called, output = run(work, "rootless.yml")
    modules = ("nvidia_container_info", "nvidia_runtime_config", "nvidia_runtime_restart", "nvidia_runtime_verify")
    assert called == [f"{module} {USER}" for module in modules]
    assert f"changed: [gpu-1] => (item={OWN})" in output


def test_the_playbook_verify_runs_as_the_user(work: Path) -> None:
    selected = "nvidia_runtime_engines=docker nvidia_runtime_flavor=rootless"
    called, output = run(work, "gpufleet.nvidia.verify", "-b", f"--become-user={USER}", "-e", selected)
    assert called == [f"nvidia_container_info {USER}", f"nvidia_runtime_verify {USER}"]
    assert f"(item={OWN}: 1 of 1 GPUs)" in output
