# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._configured_programs import configured_programs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

if t.TYPE_CHECKING:
    from pathlib import Path

FOLDER = "/opt/nvidia/toolkit"
PROGRAM = f"{FOLDER}/nvidia-container-runtime"
FILES = {
    "docker": (
        "etc/docker/daemon.json",
        f'{{"runtimes": {{"nvidia": {{"path": "{PROGRAM}"}}, "x": {{"path": "/x"}}}}}}',
    ),
    "containerd": (
        "etc/containerd/config.toml",
        (
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n"
            "runtime_type = 'io.containerd.runc.v2'\n"
            f"options = {{BinaryName = '{PROGRAM}'}}\n"
        ),
    ),
    "crio": (
        "etc/crio/crio.conf.d/99-nvidia.conf",
        f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{PROGRAM}"\nruntime_type = "oci"\n',
    ),
}


def write(root: Path, engine: str) -> None:
    name, text = FILES[engine]
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(text)
    if engine == "crio":
        (root / "etc/crio/crio.conf").write_text("[crio]\n")


@pytest.mark.parametrize("engine", FILES)
def test_one_engine(engine: str, tmp_path: Path) -> None:
    host = HostRoot.of(str(tmp_path), live=False)
    assert configured_programs(host, FOLDER) == {}
    write(tmp_path, engine)
    assert configured_programs(host, FOLDER) == {engine: ["nvidia"]}
    assert configured_programs(host, "/opt/nvidia/tool") == {}
    assert configured_programs(host, "/usr/bin") == {}


def test_all_engines_but_what_cannot_be_read(tmp_path: Path) -> None:
    for engine in FILES:
        write(tmp_path, engine)
    host = HostRoot.of(str(tmp_path), live=False)
    assert set(configured_programs(host, FOLDER)) == set(FILES)
    (tmp_path / "etc/docker/daemon.json").write_text("{")
    assert set(configured_programs(host, FOLDER)) == set(FILES) - {"docker"}
