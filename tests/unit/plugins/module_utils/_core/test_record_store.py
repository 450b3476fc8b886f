# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, record_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import ChangeWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR, STATE_DIR, load_record

if t.TYPE_CHECKING:
    from pathlib import Path

FILE = "/etc/docker/daemon.json"
KEYS: dict[tuple[str, ...], t.Any] = {("runtimes", "nvidia", "path"): "/usr/bin/nvidia-container-runtime"}


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    for name in ("etc", "var/lib"):
        (tmp_path / name).mkdir(parents=True)
    return HostFS(str(tmp_path), live=False)


def _writer(host: HostFS, removal: bool = False) -> ChangeWriter:
    return ChangeWriter(host, "docker", FILE, BACKUP_DIR, removal=removal, purge=True)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_an_error_removes_the_record_only_while_the_file_is_unchanged(
    host: HostFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, old: bytes | None
) -> None:
    if old is not None:
        (tmp_path / "etc/docker").mkdir()
        (tmp_path / FILE[1:]).write_bytes(old)
    real = atomic_write.replace_file

    def fail(on: HostFS, path: str, *args: t.Any, **more: t.Any) -> None:
        if path != FILE or moment == "after":
            real(on, path, *args, **more)
        if path == FILE:
            raise HostError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, "replace_file", fail)
        with pytest.raises(HostError):
            _writer(host).apply([PlannedFile(FILE, old, b"new", KEYS)])
    record = load_record(host, "docker", FILE)
    if moment == "before":
        assert record is None
        assert (tmp_path / "etc/docker").exists() == (old is not None)
    else:
        assert record is not None
        assert record.original == old
        _writer(host, removal=True).apply([PlannedFile(FILE, b"new", old)])
        assert host.read(FILE) == old
    assert not (tmp_path / STATE_DIR[1:]).exists()


def test_a_file_that_cannot_be_read_after_an_error_keeps_its_record(
    host: HostFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_store.new_record(host, "docker", FILE, None)
    record_store.save(host, record)

    def fail(_host: HostFS, _path: str, _limit: int = 0) -> bytes:
        raise HostError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(HostFS, "read", fail)
        record_store.drop_unused(host, record, None)
    assert load_record(host, "docker", FILE) == record._replace(keys={})


def test_the_record_is_removed_after_the_directories_that_it_lists(
    host: HostFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_store.with_directories(host, record_store.new_record(host, "docker", "/etc/a/b/file", None))
    record_store.save(host, record)
    folder = tmp_path / "etc/a/b"
    folder.mkdir(parents=True)
    (folder / ".gpufleet-1.tmp").write_text("of a killed run")
    found = []
    monkeypatch.setattr(atomic_write, "remove_file", lambda _host, _path: found.append((tmp_path / "etc/a").exists()))
    record_store.drop(host, record)
    assert found == [False]
    assert (tmp_path / STATE_DIR[1:]).exists()


def test_a_directory_in_use_stays(host: HostFS, tmp_path: Path) -> None:
    record = record_store.with_directories(host, record_store.new_record(host, "docker", "/etc/a/file", None))
    record_store.save(host, record)
    (tmp_path / "etc/a").mkdir()
    for name in ("user.conf", ".gpufleet-1.tmp"):
        (tmp_path / "etc/a" / name).write_text("")
    record_store.drop(host, record)
    assert [path.name for path in (tmp_path / "etc/a").iterdir()] == ["user.conf"]


@pytest.mark.parametrize("left", [f"{BACKUP_DIR}/", f"{STATE_DIR}/.gpufleet-1.tmp", f"{BACKUP_DIR}/.gpufleet-1.tmp"])
def test_a_removal_removes_what_killed_runs_left(host: HostFS, tmp_path: Path, left: str) -> None:
    path = tmp_path / left[1:]
    path.parent.mkdir(parents=True)
    if left.endswith("/"):
        path.mkdir()
    else:
        path.write_text("")
    plan = [PlannedFile(FILE, None, None)]
    assert _writer(host, removal=True).has_work(plan)
    _writer(host, removal=True).apply(plan)
    assert not list((tmp_path / "var/lib").iterdir())
    assert not _writer(host, removal=True).has_work(plan)


def test_files_of_the_user_in_the_backup_directory_stay(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / BACKUP_DIR[1:]).mkdir(parents=True)
    (tmp_path / BACKUP_DIR[1:] / "notes").write_text("")
    assert not _writer(host, removal=True).has_work([PlannedFile(FILE, None, None)])
