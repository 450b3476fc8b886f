# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from typing import NamedTuple

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import restart_journal_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.usage import (
    configured_programs,
    engines_still_using,
    programs_among,
)

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
    host = HostFS.of(str(tmp_path), live=False)
    assert configured_programs(host, [FOLDER]) == {}
    write(tmp_path, engine)
    assert configured_programs(host, ["/x", FOLDER]) == {engine: {"nvidia": PROGRAM}}
    assert configured_programs(host, ["/opt/nvidia/tool"]) == {}
    assert configured_programs(host, ["/usr/bin"]) == {}


def test_all_engines_and_what_cannot_be_read(tmp_path: Path) -> None:
    for engine in FILES:
        write(tmp_path, engine)
    host = HostFS.of(str(tmp_path), live=False)
    assert set(configured_programs(host, [FOLDER])) == set(FILES)
    (tmp_path / "etc/docker/daemon.json").write_text("{")
    # It may name any.
    ((name, program),) = configured_programs(host, [FOLDER])["docker"].items()
    assert name.startswith("not known: /etc/docker/daemon.json, line 1")
    assert program is None
    found = configured_programs(host, [FOLDER])
    assert programs_among(found, {"nvidia-container-runtime"}) == ["containerd (nvidia)", "crio (nvidia)"]
    assert programs_among(found, {"nvidia-ctk"}) == []


@pytest.mark.parametrize(
    "spelling", ["/link/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime", "/opt/nvidia/real/x"]
)
def test_other_spellings(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "opt/nvidia/real").mkdir(parents=True)
    (tmp_path / "opt/nvidia/toolkit").symlink_to("real")
    (tmp_path / "link").symlink_to("/opt/nvidia")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-container-runtime").symlink_to("/opt/nvidia/toolkit/nvidia-container-runtime")
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text(f'{{"runtimes": {{"gpu": {{"path": "{spelling}"}}}}}}')
    host = HostFS.of(str(tmp_path), live=False)
    assert configured_programs(host, [FOLDER]) == {"docker": {"gpu": spelling}}
    assert configured_programs(host, ["/usr/lib"]) == {}


def test_flags_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/docker.service"
    unit.parent.mkdir(parents=True)
    flag = f"--add-runtime=gpu={PROGRAM}"
    unit.write_text(f"[Service]\nExecStart=/usr/bin/dockerd {flag} --default-runtime gpu\n")
    host = HostFS.of(str(tmp_path), live=False)
    assert configured_programs(host, [FOLDER]) == {"docker": {flag: PROGRAM}}


class Running(NamedTuple):
    """What a daemon says."""

    runtimes: dict[str, str]
    outdated: bool = False


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Running({"nvidia": PROGRAM, "runc": "runc"}), ["docker.service runs with nvidia still."]),
        (Running({"nvidia": "/usr/bin/nvidia-container-runtime"}), []),
        (Running({}, outdated=True), ["docker.service is older than its configuration."]),
        (None, []),
    ],
)
def test_a_daemon_that_runs_counts_whatever_its_file_says(
    says: Running | None, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "docker")
    (tmp_path / "etc/docker/daemon.json").write_text("{}")
    docker = DOCKER
    found = docker.inspect(HostFS.of(str(tmp_path), live=False))._replace(pid=7)
    monkeypatch.setattr(type(docker), "inspect", lambda *_args: found)
    monkeypatch.setattr(type(docker), "live", lambda *_args: says)
    host = HostFS.of(str(tmp_path), live=True)
    assert configured_programs(host, [FOLDER]) == {}
    assert engines_still_using(host, [FOLDER]) == words


def test_a_restart_that_was_cut_off(tmp_path: Path) -> None:
    write(tmp_path, "docker")
    note = tmp_path / restart_journal_path("docker").lstrip("/")
    note.parent.mkdir(parents=True)
    note.write_text("{}")
    assert engines_still_using(HostFS.of(str(tmp_path), live=True), [FOLDER]) == [
        "A restart of docker.service was cut off."
    ]
