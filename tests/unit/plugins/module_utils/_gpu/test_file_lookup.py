# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS, strip_root, under
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.racing_links import (
    CHANGES,
    MESSAGE,
    change_links_before_reading,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.file("/usr/lib/libb.so.2")
    made.file("/usr/lib/liba.so.1")
    made.program("/usr/lib/tool")
    made.folder("/usr/lib/libfolder.so.3")
    made.link("/usr/lib/libz.so", "/etc/alternatives/z")
    made.link("/etc/alternatives/z", "../../usr/lib/libb.so.2")
    made.link("/usr/lib/lost.so", "nothing")
    made.link("/usr/one", "two")
    made.link("/usr/two", "./one")
    made.link("/usr/up", "../../../../usr/lib")
    return made


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/usr/one", None),
        ("/usr/one/more", None),
        ("/a" * 300, None),
        (f"/usr/{'a' * 300}", f"/usr/{'a' * 300}"),
    ],
)
def test_resolves_links(tree: Tree, path: str, real: str | None) -> None:
    assert CachedFS(tree.host()).real(path) == real


PARTS = ("usr", "lib", "one", "up", "..", ".", "libz.so", "lost.so", "liba.so.1", "none")


@pytest.mark.parametrize("first", PARTS)
def test_resolves_links_as_the_host_does(tree: Tree, first: str) -> None:
    host, lookup = tree.host(), CachedFS(tree.host())
    for parts in itertools.product((first,), PARTS, PARTS):
        path = "/" + "/".join(parts)
        try:
            real = host.resolve(path)
        except HostError:
            assert lookup.real(path) is None
        else:
            assert lookup.real(path) == real
            assert (lookup.status(path) is not None) == host.exists(path)
            assert (lookup.lstat(path) is not None) == host.lexists(path)


def test_types(tree: Tree) -> None:
    lookup = CachedFS(tree.host())
    names = ["liba.so.1", "libz.so", "lost.so", "libfolder.so.3", "tool", "none", "liba.so.1/x"]
    paths = [f"/lib/{name}" for name in names]
    assert [name for name, path in zip(names, paths) if lookup.is_file(path)] == ["liba.so.1", "libz.so", "tool"]
    assert [name for name, path in zip(names, paths) if lookup.is_directory(path)] == ["libfolder.so.3"]
    assert [name for name, path in zip(names, paths) if lookup.is_program(path)] == ["tool"]
    assert [lookup.link_target(path) for path in paths[:4]] == [None, "/etc/alternatives/z", "nothing", None]
    assert not lookup.is_file("/usr/one")
    assert lookup.lstat("/usr/one") is not None
    assert lookup.lstat("/usr/one/more") is None
    assert lookup.link_target("/usr/one/more") is None


@pytest.mark.parametrize(
    ("folder", "pattern", "found"),
    [
        ("/lib", "lib*.so.*", ["/lib/liba.so.1", "/lib/libb.so.2"]),
        ("/lib", "*.so", ["/lib/libz.so"]),
        ("/lib", "libb.so.2", ["/lib/libb.so.2"]),
        ("/usr", "l*/lib[ab].so.?", ["/usr/lib/liba.so.1", "/usr/lib/libb.so.2"]),
        ("/usr/one", "*", []),
        ("/usr/lib/tool", "*", []),
        ("/missing", "*", []),
        ("/lib", "LIB*", []),
    ],
)
def test_glob(tree: Tree, folder: str, pattern: str, found: list[str]) -> None:
    assert CachedFS(tree.host()).glob(folder, pattern) == found


def test_directory_is_not_a_pattern(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.file("/opt/[a]*/lib.so")
    assert CachedFS(tree.host()).glob("/opt/[a]*", "*.so") == ["/opt/[a]*/lib.so"]


def test_reads_nothing_twice(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    listed: list[str] = []
    followed: list[str] = []

    def lstat(path: str) -> os.stat_result:
        checked.append(path)
        return os.stat(path, follow_symlinks=False)

    real_readlink = os.readlink

    def readlink(path: str) -> str:
        followed.append(path)
        return real_readlink(path)

    def listdir(path: str) -> list[str]:
        listed.append(path)
        return [entry.name for entry in os.scandir(path)]

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(os, "readlink", readlink)
    lookup = CachedFS(tree.host())
    for turn in range(2):
        assert lookup.glob("/lib", "lib*"), turn
        assert lookup.glob("/usr/lib", "*.so*"), turn
        assert lookup.status("/lib/libz.so") != lookup.lstat("/lib/libz.so"), turn
    assert len(checked) == len(set(checked))
    assert len(followed) == len(set(followed)) > 0
    assert listed == [str(tree.path / "usr/lib")]


def test_permission_errors(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> t.NoReturn:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    lookup = CachedFS(tree.host())
    with pytest.raises(HostError, match=r"^/usr/lib cannot be read: Permission denied\. Run the task as root"):
        lookup.glob("/usr/lib", "*")
    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(HostError, match=r"^/usr cannot be read: Permission denied"):
        CachedFS(tree.host()).is_file("/usr/lib/liba.so.1")


def test_invalid_path() -> None:
    with pytest.raises(HostError, match="is not a path"):
        CachedFS(HostFS()).is_file("/a\0b")


def test_opens_files(tree: Tree) -> None:
    tree.file("/usr/lib/libb.so.2", b"content")
    lookup = CachedFS(tree.host())
    with lookup.open("/lib/libz.so") as stream:
        assert stream.read() == b"content"
    with pytest.raises(HostError, match=r"^/lib/lost\.so cannot be read: No such file"), lookup.open("/lib/lost.so"):
        pass


def test_links_to_a_path_that_is_too_long(tree: Tree) -> None:
    # The kernel does not accept the resolved path.
    for number in range(30):
        tree.link(f"/links/{number}", f"/links/{number + 1}/{'x/' * 90}y")
    assert CachedFS(tree.host()).status("/links/0") is None


@pytest.mark.parametrize(
    ("root", "path", "inside"),
    [
        ("/", "/usr/lib", "/usr/lib"),
        ("/run/nvidia", "/run/nvidia/usr/lib", "/usr/lib"),
        ("/run/nvidia/", "/run/nvidia/usr/lib", "/usr/lib"),
    ],
)
def test_joins_and_strips_root(root: str, path: str, inside: str) -> None:
    assert under(root, inside) == path
    assert strip_root(root, path) == inside


def test_path_is_not_below_root() -> None:
    assert strip_root("/run/nvidia", "/run/nvidia-other/lib") == "/run/nvidia-other/lib"
    assert strip_root("/run/nvidia", "/usr/lib") == "/usr/lib"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", ["real", "link_target", "status", "is_file"])
def test_link_changes_while_it_is_read(tree: Tree, monkeypatch: pytest.MonkeyPatch, change: str, call: str) -> None:
    lookup = CachedFS(tree.host())
    # The link /lib is known before, so that only lost.so changes.
    assert lookup.is_directory("/lib")
    change_links_before_reading(monkeypatch, change)
    with pytest.raises(HostError, match=MESSAGE.format("/usr/lib/lost.so")):
        getattr(lookup, call)("/usr/lib/lost.so")
