# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run site.yml and rolling.yml for hosts whose engines cannot be configured.

Such a host fails before its first change, but not because of engines that the play does not configure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.plugins.action", reason="playbooks run on the controller only")

COLLECTION = Path(__file__).resolve().parents[2]
BROKEN = '{\n  "log-driver": json-file\n}\n'
PLACE = "/etc/docker/daemon.json, line 2, column 17: "


def run(work: Path, playbook: str, variables: t.Mapping[str, t.Any], *arguments: str) -> str:
    """Run a playbook for one host. Return the output."""
    place = work / "ansible_collections/gpufleet/nvidia"
    if not place.exists():
        for name in ("playbooks", "plugins", "roles", "meta"):
            shutil.copytree(COLLECTION / name, place / name)
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **variables}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": {"gpu": host}}}), encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    environ = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home"),
               "ANSIBLE_NOCOLOR": "1", "COLUMNS": "10000"}  # fmt: skip
    done = subprocess.run(
        [program, "-i", "hosts.json", f"gpufleet.nvidia.{playbook}", *arguments], cwd=work, env=environ, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.stdout


def last_task(output: str) -> str:
    return str(re.findall(r"^(?:TASK|RUNNING HANDLER) \[(.*)\]", output, re.MULTILINE)[-1])


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A directory tree with a Docker whose file is broken. The modules run."""
    dockerd = tmp_path / "image/usr/bin/dockerd"
    dockerd.parent.mkdir(parents=True)
    dockerd.write_text("#!/bin/sh\n", encoding="utf-8")
    dockerd.chmod(0o755)
    config = tmp_path / "image/etc/docker/daemon.json"
    config.parent.mkdir(parents=True)
    config.write_text(BROKEN, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("playbook", ["site", "rolling"])
def test_a_file_that_cannot_be_parsed_stops_before_the_first_change(image: Path, playbook: str) -> None:
    variables = {"nvidia_host_root": str(image / "image"), "nvidia_toolkit_source": "existing"}
    output = run(image, playbook, variables)
    assert last_task(output) == "gpufleet.nvidia.nvidia_toolkit : Inspect the host", output
    (line,) = re.findall(r"^fatal: \[gpu\].*$", output, re.MULTILINE)
    assert f"{PLACE}" in line.replace(str(image / "image"), "")


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        # Docker is not selected, or no engine is configured.
        ({"nvidia_runtime_engines": ["podman"]}, []),
        ({}, ["--tags=toolkit"]),
        ({}, ["--skip-tags=runtime"]),
    ],
)
def test_files_that_no_task_reads_may_be_broken(image: Path, variables: dict[str, t.Any], arguments: list[str]) -> None:
    known = {"nvidia_host_root": str(image / "image"), "nvidia_toolkit_source": "existing", **variables}
    output = run(image, "site", known, "--check", *arguments)
    assert PLACE not in output.replace(str(image / "image"), "")
    assert "[gpufleet.nvidia.nvidia_toolkit : Install the toolkit]" in output
