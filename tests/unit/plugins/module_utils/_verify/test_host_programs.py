# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import elf
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import host_programs

if t.TYPE_CHECKING:
    from pathlib import Path

LOADER = "/lib64/ld.so.2"
HEADS = {bits: b"\x7fELF" + bytes((bits // 32, 1, 1)) + bytes(9) + b"\x03\x00\x3e\x00" for bits in (32, 64)}


class Tree:
    """A host whose files are named ELF files with the loader and the libraries that the test gives."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.host = HostFS(str(root), live=True)
        self._links: dict[bytes, elf.Links | None] = {}
        monkeypatch.setattr(host_programs, "_links", lambda content: self._links[content])

    def add(self, path: str, *needed: str, loader: str | None = None, bits: int = 64, size: int = 0) -> None:
        content = HEADS[bits] + path.encode() + bytes(size)
        self._links[content] = elf.Links(loader, needed)
        self.write(path, content)

    def write(self, path: str, content: bytes) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A host with a shell that needs two libraries, in the directories of Debian."""
    made = Tree(tmp_path, monkeypatch)
    made.add("/usr/bin/dash", "libc.so.6", "libedit.so.2", loader=LOADER)
    made.add("/usr/lib/x86_64/ld.so.2")
    made.add("/usr/lib/x86_64/libc.so.6", "ld.so.2")
    made.add("/usr/lib/x86_64/libm.so.6", "libc.so.6")
    made.add("/usr/lib/libedit.so.2", "libtinfo.so.6")
    made.add("/lib64/libtinfo.so.6")
    for link, target in {"bin/sh": "../usr/bin/dash", LOADER[1:]: "../usr/lib/x86_64/ld.so.2"}.items():
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(target)
    return made


def test_shell_with_its_libraries(tree: Tree) -> None:
    # A library for another machine, in a directory that is searched first.
    tree.add("/usr/lib64/libedit.so.2", bits=32)
    tree.add("/usr/lib/x86_64/libnvidia-ml.so.1")
    found = host_programs.collect(tree.host)
    assert sorted(found) == [
        "/bin/sh", "/etc/ld.so.cache", LOADER, "/lib64/libtinfo.so.6", "/usr/lib/libedit.so.2",
        "/usr/lib/x86_64/libc.so.6", "/usr/lib/x86_64/libm.so.6",
    ]  # fmt: skip
    assert found["/bin/sh"].endswith(b"/usr/bin/dash")


def test_shell_without_a_loader(tree: Tree) -> None:
    tree.add("/usr/bin/dash")
    assert sorted(host_programs.collect(tree.host)) == ["/bin/sh", "/etc/ld.so.cache"]


def failure(tree: Tree) -> str:
    with pytest.raises(host_programs.HostProgramsError) as caught:
        host_programs.collect(tree.host)
    return str(caught.value)


def test_host_that_cannot_be_used(tree: Tree) -> None:
    (tree.root / "lib64/libtinfo.so.6").unlink()
    assert failure(tree).startswith(
        "/usr/lib/libedit.so.2 needs libtinfo.so.6, which is not in /usr/lib/x86_64, /lib64"
    )
    tree.add("/usr/lib/libtinfo.so.6", size=10 << 20)
    with pytest.raises(Exception, match=r"libtinfo\.so\.6 is larger than 10240 KiB"):
        host_programs.collect(tree.host)
    tree.add("/usr/lib/libtinfo.so.6", size=9 << 20)
    tree.add("/usr/lib/x86_64/libm.so.6", size=1 << 20)
    assert " bytes, more than 10485760. Run the module nvidia_runtime_verify with an image" in failure(tree)
    (tree.root / "usr/lib/x86_64/ld.so.2").unlink()
    assert failure(tree).startswith(f"{LOADER} does not exist on this host.")
    (tree.root / "usr/bin/dash").unlink()
    assert failure(tree).startswith("/bin/sh does not exist on this host.")


def test_archive(tree: Tree) -> None:
    with tarfile.open(fileobj=io.BytesIO(host_programs.archive(tree.host))) as tar:
        members = {member.name: member for member in tar.getmembers()}
        content = tar.extractfile("bin/sh")
        assert content is not None
        assert content.read().endswith(b"/usr/bin/dash")
    assert {name for name, member in members.items() if member.isdir()} == {
        "bin", "etc", "lib64", "usr", "usr/lib", "usr/lib/x86_64",
    }  # fmt: skip
    assert {member.mode for member in members.values()} == {0o755}
    # A directory comes before its files.
    assert list(members).index("usr/lib") < list(members).index("usr/lib/libedit.so.2")


def test_programs_of_this_machine(tmp_path: Path) -> None:
    """The shell of this machine runs in the directory, with chroot, as it does in a container."""
    content = host_programs.archive(HostFS())
    assert len(content) < host_programs.LIMIT
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert not [name for name in tar.getnames() if "nvidia" in name or "cuda" in name]
        options: dict[str, t.Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(tmp_path, **options)  # noqa: S202
    if os.geteuid() != 0:
        pytest.skip("needs root")
    argv = ["chroot", str(tmp_path), "/bin/sh", "-c", "echo hello; command -v nvidia-smi; exit 3"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "hello\n")
