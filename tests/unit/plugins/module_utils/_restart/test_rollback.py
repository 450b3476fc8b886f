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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import Change, Rollback, previous_files

MAIN, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    """containerd's files as they are after a drop-in was added, and a copy from before."""
    for name, text in ((MAIN, "new"), (DROP_IN, "ours"), ("/b/main", "old")):
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostFS(str(tmp_path))


def way_back(host: HostFS, *changes: Change) -> Rollback:
    return Rollback(host, "containerd", previous_files(host, changes), "/b")


def test_what_was_written_last_goes_back_first(host: HostFS) -> None:
    """containerd does not start while an import names a file that is not there."""
    rollback = way_back(host, Change(DROP_IN, None), Change(MAIN, "/b/main"))
    assert [file.path for file in rollback.files] == [MAIN, DROP_IN]
    rollback.carry_out()
    assert [entry["path"] for entry in rollback.restored] == [MAIN, DROP_IN]
    assert host.read(MAIN) == b"old"
    assert not host.exists(DROP_IN)
    assert not rollback.possible


def test_a_damaged_backup_is_found_before_anything_is_restored(host: HostFS, tmp_path: Path) -> None:
    backup = apply.save_backup(host, "/b", MAIN, b"old")
    (tmp_path / backup[1:]).write_bytes(b"another")
    with pytest.raises(HostError, match=r"SHA-256 is not the one in its name. Nothing is restored from it."):
        previous_files(host, [Change(DROP_IN, None), Change(MAIN, backup)])


def test_a_link_stays_a_link(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "etc/link.toml").symlink_to(MAIN)
    way_back(host, Change("/etc/link.toml", "/b/main")).carry_out()
    assert (tmp_path / "etc/link.toml").is_symlink()
    assert host.read(MAIN) == b"old"


def test_the_mode_of_a_file_stays(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / MAIN[1:]).chmod(0o640)
    way_back(host, Change(MAIN, "/b/main")).carry_out()
    assert (tmp_path / MAIN[1:]).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change("etc/x", None), "is not an absolute path"),
        (Change(MAIN, "b/main"), "is not an absolute path"),
        (Change(MAIN, "/b/gone"), "no way back"),
        (Change(MAIN, "/b"), "is not a regular file"),
    ],
)
def test_refuses_a_way_that_leads_nowhere(host: HostFS, change: Change, reason: str) -> None:
    with pytest.raises(NvidiaError, match=reason):
        way_back(host, change)
    assert host.read(MAIN) == b"new"


@pytest.fixture
def copies(host: HostFS, tmp_path: Path) -> HostFS:
    """Backups of the main file, each named after its content."""
    for text in ("one", "two", "edited"):
        (tmp_path / "b" / text).write_text(text)
    return host


def of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "former"),
    [
        # Each found what the one before had written, or nobody can tell.
        ([("one", of("two")), ("two", of("new"))], "one"),
        ([("one", None), ("two", None)], "one"),
        ([("one", None), ("edited", of("new"))], "one"),
        # Somebody wrote in between, or took the file away.
        ([("one", of("two")), ("edited", of("new"))], "edited"),
        ([("one", of("two")), ("two", of("x")), ("edited", of("new"))], "edited"),
        ([("one", of("two")), (None, of("new"))], None),
        # It was removed, and made again.
        ([("one", "absent"), (None, of("new"))], "one"),
        ([("one", "absent"), ("edited", of("new"))], "edited"),
    ],
)
def test_the_way_back_ends_where_others_wrote(
    copies: HostFS, changes: list[tuple[str | None, str | None]], former: str | None
) -> None:
    steps = [Change(MAIN, None if text is None else f"/b/{text}", written) for text, written in changes]
    content = None if former is None else former.encode()
    assert [file.content for file in previous_files(copies, steps)] == [content]
    # The same if a killed run has noted the first of them.
    noted, rest = previous_files(copies, steps[:1]), previous_files(copies, steps[1:])
    assert [file.content for file in joined(noted, rest)] == [content]
    # And if that is noted which is given, too.
    assert [file.content for file in joined(joined(noted, rest), rest)] == [content]


@pytest.mark.parametrize(("now", "edited"), [("new", False), ("old", False), ("other", True), (None, True)])
def test_what_neither_we_wrote_nor_stood_there_before_is_an_edit(
    host: HostFS, tmp_path: Path, now: str | None, edited: bool
) -> None:
    rollback = way_back(host, Change(MAIN, "/b/main", of("new")))
    if now is None:
        (tmp_path / MAIN[1:]).unlink()
    else:
        (tmp_path / MAIN[1:]).write_text(now)
    assert rollback.edited_since() == ([MAIN] if edited else [])


def test_a_file_that_was_removed_and_made_by_others_is_an_edit(host: HostFS) -> None:
    assert way_back(host, Change(MAIN, "/b/main", "absent")).edited_since() == [MAIN]


def test_an_error_on_the_way_tells_how_far_it_came(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = way_back(host, Change(DROP_IN, None), Change(MAIN, "/b/main"))

    def fails(*_arguments: t.Any) -> None:
        raise HostError("read-only")

    monkeypatch.setattr(atomic_write, "remove_file", fails)
    with pytest.raises(HostError):
        rollback.carry_out()
    assert [entry["path"] for entry in rollback.restored] == [MAIN]


def test_a_copy_that_takes_the_room_is_given_up(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = way_back(host, Change(MAIN, "/b/main"))
    put = Rollback._put

    def full(self: Rollback, *arguments: t.Any) -> None:
        if len(list(Path(host.real_path("/b")).iterdir())) > 1:
            raise HostError("No space left on device")
        put(self, *arguments)

    monkeypatch.setattr(Rollback, "_put", full)
    rollback.carry_out()
    assert host.read(MAIN) == b"old"
    assert rollback.without_copy() == [MAIN]


def test_owner_and_mode_of_a_file_that_was_removed_come_back(host: HostFS, tmp_path: Path) -> None:
    record = OriginalFile("containerd", MAIN, None, os.geteuid(), os.getegid(), 0o640).to_bytes()
    (tmp_path / MAIN[1:]).unlink()
    Rollback(host, "containerd", [PreviousFile(MAIN, b"old", record)], "/b").carry_out()
    assert (tmp_path / MAIN[1:]).stat().st_mode & 0o777 == 0o640
    assert host.read(record_path("containerd", MAIN)) == record
