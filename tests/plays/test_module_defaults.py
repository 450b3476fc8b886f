# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A play sets options of all modules once, with module_defaults and the group gpufleet.nvidia.all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")
import yaml

COLLECTION = Path(__file__).resolve().parents[2]
MODULES = sorted(COLLECTION.glob("plugins/modules/nvidia_*.py"))


def test_the_group_has_the_modules_with_the_common_options() -> None:
    group = yaml.safe_load((COLLECTION / "meta/runtime.yml").read_text(encoding="utf-8"))["action_groups"]["all"]
    assert group == [
        path.stem for path in MODULES if "- gpufleet.nvidia.host_root\n" in path.read_text(encoding="utf-8")
    ]


def test_a_module_uses_the_defaults_of_the_group(tmp_path: Path) -> None:
    tree, place = tmp_path / "tree", tmp_path / "ansible_collections/gpufleet/nvidia"
    for path in (tree / "etc/docker", tree / "usr/bin", place.parent):
        path.mkdir(parents=True)
    place.symlink_to(COLLECTION)
    play = {
        "name": "Configure a tree", "hosts": "localhost", "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable},
        "module_defaults": {"group/gpufleet.nvidia.all": {"host_root": str(tree)}},
        "tasks": [{"name": "Register the runtime", "gpufleet.nvidia.nvidia_runtime_config": {"engine": "docker"}}],
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_HOME": str(tmp_path / "home"),
               "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "play.yml"], cwd=tmp_path, env=environ, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "nvidia-container-runtime" in (tree / "etc/docker/daemon.json").read_text(encoding="utf-8")
