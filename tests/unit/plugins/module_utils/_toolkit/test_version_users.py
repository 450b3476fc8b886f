# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.usage import users
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import VERSIONS

if t.TYPE_CHECKING:
    from pathlib import Path

FOLDER = f"{VERSIONS}/1.19.1-0123456789ab"


class Tree:
    """A host whose processes are texts and links."""

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
        return users(HostFS.of(str(self.root), live=live), FOLDER)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_nobody(tree: Tree) -> None:
    tree.process(7, f"{FOLDER}-2/nvidia-ctk.real", f"7f00 {FOLDER}b/libx.so.1\n", h3=FOLDER + "x", h4="socket:[7]")
    tree.process(8, f"{VERSIONS}/other/nvidia-ctk.real")
    tree.file("/etc/cdi/nvidia.yaml", "path: /usr/bin/nvidia-cdi-hook\n")
    tree.file("/etc/cdi/nvidia.yaml.bak", f"path: {FOLDER}/nvidia-cdi-hook\n")
    (tree.root / "proc/9").mkdir()
    assert tree.users() == []


def test_processes(tree: Tree) -> None:
    tree.process(7, f"{FOLDER}/nvidia-ctk.real")
    tree.process(8, f"{FOLDER}/nvidia-ctk.real (deleted)")
    tree.process(9, maps=f"7f00-7f01 r-xp 0 08:01 7  {FOLDER}/libnvidia-container.so.1.19.1\n")
    # The memory map of another user's process is not read, since that user could block who reads it.
    tree.process(11, maps=f"7f00-7f01 r-xp 0 08:01 7  {FOLDER}/libnvidia-container.so.1.19.1\n", uid=os.geteuid() + 1)
    tree.process(10, h3="/dev/null", h10=f"{FOLDER}/nvidia-container-runtime")
    tree.process(os.getpid(), f"{FOLDER}/nvidia-ctk.real")
    (tree.root / "proc/self").symlink_to("7")
    assert sorted(tree.users()) == sorted(f"process {pid} (name{pid})" for pid in (7, 8, 9, 10))
    assert tree.users(live=False) == []


@pytest.mark.parametrize("path", ["/etc/cdi/x.yaml", "/var/run/cdi/x.json"])
@pytest.mark.parametrize("live", [True, False])
def test_specifications(path: str, live: bool, tree: Tree) -> None:
    tree.file(path, f'"path": "{FOLDER}/nvidia-cdi-hook"')
    assert tree.users(live) == [f"file {path}"]


def test_containers(tree: Tree) -> None:
    bundle = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/web"
    tree.file(f"{bundle}/config.json", f'{{"path": "{FOLDER}/nvidia-container-runtime-hook"}}')
    tree.file(f"{bundle}/init.pid", "1")
    assert tree.users() == ["container containerd/k8s.io/web"]
    tree.file(f"{bundle}/init.pid", "4711")
    assert tree.users() == []


def test_a_shell_that_reads_its_script(tmp_path: Path) -> None:
    """As the kernel and this machine's shell really have it."""
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
