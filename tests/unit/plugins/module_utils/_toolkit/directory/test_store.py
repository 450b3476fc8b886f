# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import errno
import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.store import (
    VersionStore,
    rename_exchange,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.racing_links import (
    CHANGES,
    MESSAGE,
    change_links_before_reading,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    DEST,
    NEW,
    OLD,
    VERSIONS,
    Host,
    refusal,
    tree_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.install(OLD)
    host.install(NEW)
    return host


def test_reads_versions(host: Host) -> None:
    store = host.store
    assert store.current() == host.current().name
    assert store.names() == host.names()
    assert store.foreign_entry_type() is None
    assert not store.has_original()
    assert store.leftovers() == []
    manifest = store.manifest(host.current().name)
    assert manifest is not None
    assert manifest.replaces in store.names()
    assert not store.check_integrity(manifest, thorough=True).is_damaged
    assert store.path("x") == f"{VERSIONS}/x"
    assert store.folder == f"{DEST}.versions"


def test_missing_directory(tmp_path: Path) -> None:
    store = Host(tmp_path).store
    assert (store.current(), store.names(), store.leftovers(), store.foreign_entry_type()) == (None, [], [], None)
    assert not store.is_empty()
    assert store.manifest("x") is None


@pytest.mark.parametrize(
    ("target", "foreign_entry"),
    [
        ("toolkit.versions/x", None),
        ("toolkit.versions/former", "link"),
        ("toolkit.versions/", "link"),
        ("toolkit.versions", "link"),
        ("other.versions/x", "link"),
        (f"{VERSIONS}/x", "link"),
        ("/usr", "link"),
    ],
)
def test_foreign_links(target: str, foreign_entry: str | None, host: Host) -> None:
    host.dest.unlink()
    host.dest.symlink_to(target)
    assert host.store.foreign_entry_type() == foreign_entry
    assert host.store.current() is None


@pytest.mark.parametrize(
    ("names", "foreign"),
    [
        (["nvidia-ctk", "nvidia-ctk.real", "libnvidia-container.so.1", ".config/nvidia-container-runtime/x"], []),
        (["nvidia-ctk", "README"], ["README"]),
        ([".config/other"], [".config/other"]),
        (["nvidia/x"], ["nvidia", "nvidia/x"]),
    ],
)
def test_foreign_names(names: list[str], foreign: list[str], tmp_path: Path) -> None:
    host = Host(tmp_path)
    for name in names:
        (host.dest / name).parent.mkdir(parents=True, exist_ok=True)
        (host.dest / name).write_text("")
    assert host.store.foreign_names() == foreign


def test_foreign_directories_are_not_versions(host: Host) -> None:
    names = host.names()
    (host.versions / "backup").mkdir()
    (host.versions / "backup/notes").write_text("mine")
    (host.versions / "file").write_text("mine")
    assert host.store.names() == names
    host.remove()
    assert sorted(path.name for path in host.versions.iterdir() if path.name != ".created.json") == ["backup", "file"]
    assert not host.remove().changed


def test_removes_leftovers(host: Host) -> None:
    before = tree_of(host.versions)
    (host.versions / ".new/.config").mkdir(parents=True)
    (host.versions / ".link").symlink_to("toolkit.versions/x")
    result = host.install(NEW, check=True)
    assert set(result.removed) == {f"{VERSIONS}/.new", f"{VERSIONS}/.link"}
    assert host.install(NEW) == result
    assert tree_of(host.versions) == before


def test_new_name(host: Host) -> None:
    store, name = host.store, host.current().name
    assert store.new_name("1.21.0-x") == "1.21.0-x"
    assert store.new_name(name) == f"{name}-2"
    (host.versions / f"{name}-2").mkdir()
    assert store.new_name(name) == f"{name}-3"


def test_removes_only_created_directories(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for dest in ("/a/b/c/toolkit", "/opt/nvidia/deep/toolkit"):
        host.install(NEW, dest=dest)
    made = json.loads((tmp_path / "a/b/c/toolkit.versions/.created.json").read_text())
    assert made == ["/a", "/a/b", "/a/b/c", "/a/b/c/toolkit.versions"]
    (tmp_path / "a/mine").write_text("")
    for dest in ("/a/b/c/toolkit", "/opt/nvidia/deep/toolkit"):
        host.remove(dest=dest)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]
    assert list((tmp_path / "opt/nvidia").iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[1, null]", "{}", "7"])
def test_damaged_list_of_created_directories(content: str, host: Host) -> None:
    (host.versions / ".created.json").write_text(content)
    host.remove()
    assert not host.versions.exists()
    assert host.dest.parent.exists()


def test_linked_versions_directory(tmp_path: Path) -> None:
    """The directory of the versions may be a link."""
    host = Host(tmp_path)
    (tmp_path / "var/lib/big").mkdir()
    host.versions.symlink_to("/var/lib/big")
    host.install(NEW)
    assert len(list((tmp_path / "var/lib/big").iterdir())) == 1
    assert os.readlink(str(host.dest)).startswith("toolkit.versions/")
    assert not host.install(NEW).changed


def test_unreadable_dest(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "opt/file").write_text("")
    store = VersionStore(host.host, "/opt/file/toolkit")
    assert "/opt/file/toolkit" in refusal(store.foreign_entry_type)


@pytest.mark.parametrize("change", CHANGES)
def test_original_link_that_changes_while_it_is_read(host: Host, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    host.dest.unlink()
    host.dest.symlink_to("/usr")
    (host.versions / "former").symlink_to("/usr")
    store = host.store
    monkeypatch.setattr(store, "foreign_entry_type", lambda: "link")
    change_links_before_reading(monkeypatch, change)
    with pytest.raises(HostError, match=MESSAGE.format(f"{VERSIONS}/former")):
        store.restore_original()
    assert host.dest.is_symlink()


# -- Exchange two names ----------------------------------------------------------------------------------------------


def test_exchanges_directory_and_link(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir(0o750)
    (folder / "file").write_text("x")
    link.symlink_to("nowhere")
    inode = folder.stat().st_ino
    rename_exchange(str(folder), str(link))
    assert os.readlink(str(folder)) == "nowhere"
    assert link.stat().st_ino == inode
    assert (link / "file").read_text() == "x"


@pytest.mark.parametrize("missing", ["one", "other"])
def test_exchange_requires_both_names(missing: str, tmp_path: Path) -> None:
    for name in {"one", "other"} - {missing}:
        (tmp_path / name).write_text(name)
    with pytest.raises(OSError) as caught:
        rename_exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert caught.value.errno == errno.ENOENT
    assert [path.name for path in tmp_path.iterdir()] == list({"one", "other"} - {missing})


def test_exchange_without_library_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_options: object())
    with pytest.raises(OSError) as caught:
        rename_exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert caught.value.errno == errno.ENOSYS
