# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import PreviousFile, joined
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import (
    ChangedFile,
    Rollback,
    previous_files,
)

MAIN, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    """containerd's files after a drop-in was added, and backups of the main file, each named after its content."""
    backups = {f"/b/{text}": text for text in ("old", "one", "two", "edited")}
    for name, text in {MAIN: "new", DROP_IN: "drop-in", **backups}.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostFS(str(tmp_path))


def rollback_of(host: HostFS, *changes: ChangedFile) -> Rollback:
    return Rollback(host, "containerd", previous_files(host, changes), "/b")


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_restores_the_last_written_file_first(host: HostFS) -> None:
    """containerd does not start while an import names a missing file."""
    rollback = rollback_of(host, ChangedFile(DROP_IN, None), ChangedFile(MAIN, "/b/old"))
    rollback.restore()
    assert [entry["path"] for entry in rollback.restored] == [MAIN, DROP_IN]
    assert host.read(MAIN) == b"old"
    assert not host.exists(DROP_IN)
    assert not rollback.has_changes


def test_refuses_a_damaged_backup_before_anything_is_restored(host: HostFS) -> None:
    backup = apply.save_backup(host, "/b", MAIN, b"old")
    Path(host.real_path(backup)).write_bytes(b"another")
    with pytest.raises(HostError, match=r"SHA-256 is not the one in its name. Nothing is restored from it."):
        previous_files(host, [ChangedFile(DROP_IN, None), ChangedFile(MAIN, backup)])


def test_keeps_links_and_modes(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "etc/link.toml").symlink_to(MAIN)
    (tmp_path / MAIN[1:]).chmod(0o640)
    rollback_of(host, ChangedFile("/etc/link.toml", "/b/old")).restore()
    assert (tmp_path / "etc/link.toml").is_symlink()
    assert host.read(MAIN) == b"old"
    assert (tmp_path / MAIN[1:]).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (ChangedFile("etc/x", None), "is not an absolute path"),
        (ChangedFile(MAIN, "b/old"), "is not an absolute path"),
        (ChangedFile(MAIN, "/b/gone"), "the backup /b/gone of .* does not exist"),
        (ChangedFile(MAIN, "/b"), "is not a regular file"),
    ],
)
def test_refuses_an_unusable_backup(host: HostFS, change: ChangedFile, reason: str) -> None:
    with pytest.raises(NvidiaError, match=reason):
        rollback_of(host, change)
    assert host.read(MAIN) == b"new"


@pytest.mark.parametrize(
    ("changes", "previous"),
    [
        # Each change replaced the content of the one before, or that is unknown.
        ([("one", checksum("two")), ("two", checksum("new"))], "one"),
        ([("one", None), ("two", None)], "one"),
        ([("one", None), ("edited", checksum("new"))], "one"),
        # Another program wrote or removed the file in between.
        ([("one", checksum("two")), ("edited", checksum("new"))], "edited"),
        ([("one", checksum("two")), ("two", checksum("x")), ("edited", checksum("new"))], "edited"),
        ([("one", checksum("two")), (None, checksum("new"))], None),
        # This collection removed the file and created it again.
        ([("one", "absent"), (None, checksum("new"))], "one"),
        ([("one", "absent"), ("edited", checksum("new"))], "edited"),
    ],
)
def test_restores_no_content_from_before_a_change_of_another_program(
    host: HostFS, changes: list[tuple[str | None, str | None]], previous: str | None
) -> None:
    steps = [ChangedFile(MAIN, None if text is None else f"/b/{text}", written) for text, written in changes]
    content = None if previous is None else previous.encode()
    assert [file.content for file in previous_files(host, steps)] == [content]
    # The result is the same if the first change is from the journal of a killed run,
    first, rest = previous_files(host, steps[:1]), previous_files(host, steps[1:])
    assert [file.content for file in joined(first, rest)] == [content]
    # and if the other changes are in the journal and in the parameters.
    assert [file.content for file in joined(joined(first, rest), rest)] == [content]


@pytest.mark.parametrize(
    ("written", "now", "edited"),
    [
        (checksum("new"), "new", False),
        (checksum("new"), "old", False),
        (checksum("new"), "other", True),
        (checksum("new"), None, True),
        ("absent", "new", True),
    ],
)
def test_detects_changes_of_other_programs(host: HostFS, written: str, now: str | None, edited: bool) -> None:
    rollback = rollback_of(host, ChangedFile(MAIN, "/b/old", written))
    path = Path(host.real_path(MAIN))
    if now is None:
        path.unlink()
    else:
        path.write_text(now)
    assert rollback.edited_since() == ([MAIN] if edited else [])


def test_knows_the_restored_files_after_an_error(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = rollback_of(host, ChangedFile(DROP_IN, None), ChangedFile(MAIN, "/b/old"))

    def fails(*_arguments: t.Any) -> None:
        raise HostError("read-only")

    monkeypatch.setattr(atomic_write, "remove_file", fails)
    with pytest.raises(HostError):
        rollback.restore()
    assert [entry["path"] for entry in rollback.restored] == [MAIN]


def test_removes_the_copy_if_it_uses_the_last_space(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = rollback_of(host, ChangedFile(MAIN, "/b/old"))
    write, backups = Rollback._write, len(host.readable_entries("/b"))

    def disk_full(self: Rollback, *arguments: t.Any) -> None:
        if len(host.readable_entries("/b")) > backups:
            raise HostError("No space left on device")
        write(self, *arguments)

    monkeypatch.setattr(Rollback, "_write", disk_full)
    rollback.restore()
    assert host.read(MAIN) == b"old"
    assert rollback.without_copy == [MAIN]


def test_keeps_the_only_copy_of_the_replaced_content(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = rollback_of(host, ChangedFile(MAIN, "/b/old"))
    write, current = Rollback._write, host.read(MAIN)

    def fails_after_the_change(self: Rollback, *arguments: t.Any) -> None:
        write(self, *arguments)
        raise HostError("Input/output error")

    monkeypatch.setattr(Rollback, "_write", fails_after_the_change)
    with pytest.raises(HostError):
        rollback.restore()
    assert host.read(MAIN) == b"old"
    assert current in [host.read(f"/b/{name}") for name in host.entries("/b")]


@pytest.mark.parametrize(("engine", "mode"), [("containerd", 0o755), ("rootless-alice", 0o700)])
def test_a_directory_in_a_home_stays_private(host: HostFS, tmp_path: Path, engine: str, mode: int) -> None:
    Rollback(host, engine, [PreviousFile("/home/docker/daemon.json", b"{}", None)], "/b").restore()
    assert (tmp_path / "home/docker").stat().st_mode & 0o777 == mode


def test_restores_the_mode_and_the_record_of_a_removed_file(host: HostFS, tmp_path: Path) -> None:
    record = OriginalFile("containerd", MAIN, None, os.geteuid(), os.getegid(), 0o640).to_bytes()
    (tmp_path / MAIN[1:]).unlink()
    Rollback(host, "containerd", [PreviousFile(MAIN, b"old", record)], "/b").restore()
    assert (tmp_path / MAIN[1:]).stat().st_mode & 0o777 == 0o640
    assert host.read(record_path("containerd", MAIN)) == record
