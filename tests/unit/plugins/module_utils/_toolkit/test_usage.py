# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
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
    users,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import VERSIONS

if t.TYPE_CHECKING:
    from pathlib import Path


# -- Configured programs ---------------------------------------------------------------------------------------------

FOLDER = "/opt/nvidia/toolkit"
PROGRAM = f"{FOLDER}/nvidia-container-runtime"
ENGINE_FILES = {
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
    name, text = ENGINE_FILES[engine]
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(text)
    if engine == "crio":
        (root / "etc/crio/crio.conf").write_text("[crio]\n")


@pytest.mark.parametrize("engine", ENGINE_FILES)
def test_programs_of_one_engine(engine: str, tmp_path: Path) -> None:
    host = HostFS.of(str(tmp_path), live=False)
    assert configured_programs(host, [FOLDER]) == {}
    write(tmp_path, engine)
    assert configured_programs(host, ["/x", FOLDER]) == {engine: {"nvidia": PROGRAM}}
    assert configured_programs(host, ["/opt/nvidia/tool"]) == {}
    assert configured_programs(host, ["/usr/bin"]) == {}


def test_programs_of_all_engines(tmp_path: Path) -> None:
    for engine in ENGINE_FILES:
        write(tmp_path, engine)
    host = HostFS.of(str(tmp_path), live=False)
    assert set(configured_programs(host, [FOLDER])) == set(ENGINE_FILES)
    (tmp_path / "etc/docker/daemon.json").write_text("{")
    # A broken file may name any program.
    ((name, program),) = configured_programs(host, [FOLDER])["docker"].items()
    assert name.startswith("unknown: /etc/docker/daemon.json, line 1")
    assert program is None
    found = configured_programs(host, [FOLDER])
    assert programs_among(found, {"nvidia-container-runtime"}) == ["containerd (nvidia)", "crio (nvidia)"]
    assert programs_among(found, {"nvidia-ctk"}) == []


@pytest.mark.parametrize(
    "spelling", ["/link/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime", "/opt/nvidia/real/x"]
)
def test_links_and_other_spellings(spelling: str, tmp_path: Path) -> None:
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


def test_unit_flags(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/docker.service"
    unit.parent.mkdir(parents=True)
    flag = f"--add-runtime=gpu={PROGRAM}"
    unit.write_text(f"[Service]\nExecStart=/usr/bin/dockerd {flag} --default-runtime gpu\n")
    host = HostFS.of(str(tmp_path), live=False)
    assert configured_programs(host, [FOLDER]) == {"docker": {flag: PROGRAM}}


def test_flags_of_crio(tmp_path: Path) -> None:
    """The path is between other parts of a runtime and before another runtime."""
    unit = tmp_path / "etc/systemd/system/crio.service"
    unit.parent.mkdir(parents=True)
    flag = f"--runtimes=nvidia:{PROGRAM}:/run/nvidia,runc:/usr/bin/runc"
    unit.write_text(f"[Service]\nExecStart=/usr/bin/crio {flag}\n")
    (tmp_path / "etc/crio").mkdir()
    (tmp_path / "etc/crio/crio.conf").write_text("[crio]\n")
    assert configured_programs(HostFS.of(str(tmp_path), live=False), [FOLDER])["crio"][flag] == PROGRAM


class Running(NamedTuple):
    """The configuration of a running daemon."""

    runtimes: dict[str, str]
    outdated: bool = False


@pytest.mark.parametrize(
    ("live", "message"),
    [
        (Running({"nvidia": PROGRAM, "runc": "runc"}), ["docker.service still uses these runtimes: nvidia."]),
        (Running({"nvidia": "/usr/bin/nvidia-container-runtime"}), []),
        (Running({}, outdated=True), ["docker.service has not read its current configuration yet."]),
        (None, []),
    ],
)
def test_running_daemons(
    live: Running | None, message: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "docker")
    (tmp_path / "etc/docker/daemon.json").write_text("{}")
    docker = DOCKER
    found = docker.inspect(HostFS.of(str(tmp_path), live=False))._replace(pid=7)
    monkeypatch.setattr(type(docker), "inspect", lambda *_args: found)
    monkeypatch.setattr(type(docker), "live", lambda *_args: live)
    host = HostFS.of(str(tmp_path), live=True)
    assert configured_programs(host, [FOLDER]) == {}
    assert engines_still_using(host, [FOLDER]) == message


def test_interrupted_restart(tmp_path: Path) -> None:
    write(tmp_path, "docker")
    note = tmp_path / restart_journal_path("docker").lstrip("/")
    note.parent.mkdir(parents=True)
    note.write_text("{}")
    (message,) = engines_still_using(HostFS.of(str(tmp_path), live=True), [FOLDER])
    assert "restart of docker.service was interrupted" in message


# -- Users of a version ----------------------------------------------------------------------------------------------

VERSION = f"{VERSIONS}/1.19.1-0123456789ab"


class ProcessTree:
    """A host whose processes are files and links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process(1, exe="/sbin/init")

    def process(self, pid: int, exe: str = "/bin/sh", maps: str = "", uid: int | None = None, **handles: str) -> None:
        folder = self.root / f"proc/{pid}"
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"name{pid}\n")
        (folder / "maps").write_text(maps)
        (folder / "status").write_text(f"Name:\tname{pid}\nUid:\t{os.geteuid() if uid is None else uid}\n")
        (folder / "exe").symlink_to(exe)
        for name, target in handles.items():
            (folder / "fd" / name.lstrip("h")).symlink_to(target)

    def file(self, path: str, text: str) -> None:
        (self.root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path[1:]).write_text(text)

    def users(self, live: bool = True) -> list[str]:
        return users(HostFS.of(str(self.root), live=live), VERSION)


@pytest.fixture
def tree(tmp_path: Path) -> ProcessTree:
    return ProcessTree(tmp_path)


def test_no_users(tree: ProcessTree) -> None:
    tree.process(7, f"{VERSION}-2/nvidia-ctk.real", f"7f00 {VERSION}b/libx.so.1\n", h3=VERSION + "x", h4="socket:[7]")
    tree.process(8, f"{VERSIONS}/other/nvidia-ctk.real")
    tree.file("/etc/cdi/nvidia.yaml", "path: /usr/bin/nvidia-cdi-hook\n")
    tree.file("/etc/cdi/nvidia.yaml.bak", f"path: {VERSION}/nvidia-cdi-hook\n")
    (tree.root / "proc/9").mkdir()
    assert tree.users() == []


def test_processes(tree: ProcessTree) -> None:
    tree.process(7, f"{VERSION}/nvidia-ctk.real")
    tree.process(8, f"{VERSION}/nvidia-ctk.real (deleted)")
    tree.process(9, maps=f"7f00-7f01 r-xp 0 08:01 7  {VERSION}/libnvidia-container.so.1.19.1\n")
    # The memory map of another user's process is not read, since that user could block who reads it.
    tree.process(11, maps=f"7f00-7f01 r-xp 0 08:01 7  {VERSION}/libnvidia-container.so.1.19.1\n", uid=os.geteuid() + 1)
    tree.process(10, h3="/dev/null", h10=f"{VERSION}/nvidia-container-runtime")
    tree.process(os.getpid(), f"{VERSION}/nvidia-ctk.real")
    (tree.root / "proc/self").symlink_to("7")
    assert sorted(tree.users()) == sorted(f"process {pid} (name{pid})" for pid in (7, 8, 9, 10))
    assert tree.users(live=False) == []


@pytest.mark.parametrize("path", ["/etc/cdi/x.yaml", "/var/run/cdi/x.json"])
@pytest.mark.parametrize("live", [True, False])
def test_specifications(path: str, live: bool, tree: ProcessTree) -> None:
    tree.file(path, f'"path": "{VERSION}/nvidia-cdi-hook"')
    assert tree.users(live) == [f"file {path}"]


def test_containers(tree: ProcessTree) -> None:
    bundle = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/web"
    tree.file(f"{bundle}/config.json", f'{{"path": "{VERSION}/nvidia-container-runtime-hook"}}')
    tree.file(f"{bundle}/init.pid", "1")
    assert tree.users() == ["container containerd/k8s.io/web"]
    tree.file(f"{bundle}/init.pid", "4711")
    assert tree.users() == []


def test_shell_that_reads_its_script(tmp_path: Path) -> None:
    """Use a real process of this machine's shell."""
    folder = tmp_path / "version"
    folder.mkdir()
    script = folder / "wrapper"
    script.write_text("#!/bin/sh\necho ready\nread -r line\nexit 0\n")
    script.chmod(0o755)
    with subprocess.Popen([str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = users(HostFS(), str(folder))
        process.communicate(b"\n")
    assert found == [f"process {process.pid} (wrapper)"]
    assert users(HostFS(), str(folder)) == []
