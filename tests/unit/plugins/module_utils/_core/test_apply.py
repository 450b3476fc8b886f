# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime as dt
import os
import posixpath
import re
import tempfile
import typing as t

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import (
    BACKUPS_KEPT,
    RECORD_SUFFIX,
    backups_of,
    load_backup,
    remove_backup,
    save_backup,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import (
    BACKUP_DIR,
    OriginalFile,
    digest,
    record_path,
)

if t.TYPE_CHECKING:
    from pathlib import Path

DAEMON = "/etc/docker/daemon.json"


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    return HostFS(str(tmp_path), live=False)


# -- load_backup ---------------------------------------------------------------------------------------------------


RECORD = OriginalFile("docker", DAEMON, b"original", 0, 0, 0o644).to_bytes()


def test_a_backup_is_loaded_with_its_record(host: HostFS) -> None:
    assert load_backup(host, save_backup(host, "/b", DAEMON, b"content", RECORD)) == (b"content", RECORD)
    assert load_backup(host, save_backup(host, "/b", DAEMON, b"content")) == (b"content", None)
    assert load_backup(host, "/b/missing") is None


@pytest.mark.parametrize("content", [b"", b"conten", b"other"])
def test_a_damaged_backup_is_refused(tmp_path: Path, host: HostFS, content: bytes) -> None:
    backup = save_backup(host, "/b", DAEMON, b"content")
    (tmp_path / backup[1:]).write_bytes(content)
    with pytest.raises(HostError, match=f"^{backup} is damaged"):
        load_backup(host, backup)


def test_a_backup_with_a_damaged_record_is_refused(host: HostFS) -> None:
    backup = save_backup(host, "/b", DAEMON, b"content", RECORD.replace(b"docker", b"podman")[:-5])
    with pytest.raises(HostError, match=r"^/b/.*record is damaged"):
        load_backup(host, backup)


def test_a_backup_of_an_earlier_version_is_loaded(tmp_path: Path, host: HostFS) -> None:
    (tmp_path / "b").mkdir()
    old = "/b/etc~docker~daemon.json~20260821T143000.123456Z.backup"
    (tmp_path / old[1:]).write_bytes(b"content")
    assert load_backup(host, old) == (b"content", None)
    assert backups_of(host, "/b", DAEMON) == [old]


# -- save_backup, backups_of ---------------------------------------------------------------------------------------


def test_backup_is_private(tmp_path: Path, host: HostFS) -> None:
    backup = save_backup(host, BACKUP_DIR, DAEMON, b'{"secret": 1}\xff')
    file = tmp_path / backup[1:]
    assert file.read_bytes() == b'{"secret": 1}\xff'
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / BACKUP_DIR[1:]).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "var/lib").stat().st_mode & 0o777 == 0o755
    assert backups_of(host, BACKUP_DIR, DAEMON) == [backup]


def test_name_contains_path_time_and_digest(host: HostFS) -> None:
    before = dt.datetime.now(dt.timezone.utc)
    backup = save_backup(host, BACKUP_DIR, DAEMON, b"")
    match = re.fullmatch(
        rf"/var/lib/gpufleet-nvidia/backups/etc~docker~daemon\.json~(.*)\.{digest(b'')}\.backup", backup
    )
    assert match is not None
    moment = dt.datetime.strptime(match.group(1), "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=dt.timezone.utc)
    assert before <= moment <= dt.datetime.now(dt.timezone.utc)


@pytest.mark.parametrize("path", ["/" + "é" * 127, "/etc/" + "~" * 60, "/etc" + "/folder" * 60 + "/config.toml"])
def test_names_of_long_paths_fit(host: HostFS, path: str) -> None:
    backup = save_backup(host, "/b", path, b"content", RECORD)
    assert load_backup(host, backup) == (b"content", RECORD)
    assert backups_of(host, "/b", path) == [backup]
    assert backups_of(host, "/b", path + "x") == []
    assert len(os.fsencode(posixpath.basename(record_path("containerd", path)))) < 200


def test_existing_directory_keeps_its_mode(tmp_path: Path, host: HostFS) -> None:
    (tmp_path / "keep").mkdir(mode=0o750)
    save_backup(host, "/keep", DAEMON, b"")
    assert (tmp_path / "keep").stat().st_mode & 0o777 == 0o750


def test_only_the_newest_are_kept(tmp_path: Path, host: HostFS) -> None:
    other = save_backup(host, "/b", "/etc/docker/daemon.json.d/x", b"other")
    for foreign in ("notes.txt", "etc~docker~daemon.json~notes", "etc~docker~daemon.jsonx~20200101.backup"):
        (tmp_path / "b" / foreign).write_text("")
    saved = [save_backup(host, "/b", DAEMON, str(number).encode()) for number in range(BACKUPS_KEPT + 3)]
    assert len(set(saved)) == BACKUPS_KEPT + 3
    assert backups_of(host, "/b", DAEMON) == saved[-BACKUPS_KEPT:]
    assert [host.read(path) for path in saved[-BACKUPS_KEPT:]] == [
        str(number).encode() for number in range(3, BACKUPS_KEPT + 3)
    ]
    assert not any(host.exists(path) for path in saved[:-BACKUPS_KEPT])
    assert host.read(other) == b"other"
    assert len(list((tmp_path / "b").iterdir())) == BACKUPS_KEPT + 4


def test_record_is_saved_and_removed_with_the_backup(tmp_path: Path, host: HostFS) -> None:
    saved = [save_backup(host, "/b", DAEMON, b"", f"record {number}".encode()) for number in range(BACKUPS_KEPT + 1)]
    assert host.read(saved[-1] + RECORD_SUFFIX) == f"record {BACKUPS_KEPT}".encode()
    assert backups_of(host, "/b", DAEMON) == saved[-BACKUPS_KEPT:]
    assert len(list((tmp_path / "b").iterdir())) == 2 * BACKUPS_KEPT
    remove_backup(host, saved[-1])
    assert len(list((tmp_path / "b").iterdir())) == 2 * BACKUPS_KEPT - 2


def test_new_backup_survives_a_clock_that_went_back(tmp_path: Path, host: HostFS) -> None:
    """If the clock was wrong, old backups may have later times than the new one. The new one must not be removed."""
    (tmp_path / "b").mkdir()
    for day in range(BACKUPS_KEPT):
        (tmp_path / f"b/etc~docker~daemon.json~2999010{day + 1}T000000.000000Z.backup").write_text("")
    backup = save_backup(host, "/b", DAEMON, b"today")
    assert host.read(backup) == b"today"


_PATHS = st.text(alphabet="ab~/.", min_size=1, max_size=8).map(lambda text: posixpath.normpath("/" + text.lstrip("/")))


@pytest.mark.parametrize(
    ("one", "other"),
    [("/a", "/a/b"), ("/a/b", "/a~b"), ("/a", "/a~"), ("/a~b", "/a~~b"), ("/a~/b", "/a/~b"), ("/a~b", "/a%7Eb")],
)
def test_backups_of_similar_files_are_told_apart(host: HostFS, one: str, other: str) -> None:
    first, second = save_backup(host, "/b", one, b"one"), save_backup(host, "/b", other, b"other")
    assert backups_of(host, "/b", one) == [first]
    assert backups_of(host, "/b", other) == [second]


@given(_PATHS, _PATHS)
def test_backups_of_different_files_are_never_mixed_up(one: str, other: str) -> None:
    assume(one != other and "/" not in (one, other))
    with tempfile.TemporaryDirectory() as folder:
        test_backups_of_similar_files_are_told_apart(HostFS(folder, live=False), one, other)


def test_spellings_of_one_path_share_their_backups(host: HostFS) -> None:
    backup = save_backup(host, "/b", "//etc/docker/./daemon.json", b"")
    assert backups_of(host, "/b", DAEMON) == [backup]


def test_partial_file_of_a_killed_run_is_no_backup(tmp_path: Path, host: HostFS) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/.gpufleet-k1ll3d.tmp").write_text("part")
    backup = save_backup(host, "/b", DAEMON, b"")
    assert backups_of(host, "/b", DAEMON) == [backup]
    assert len(list((tmp_path / "b").iterdir())) == 1


def test_old_backups_stay_when_the_new_one_cannot_be_written(monkeypatch: pytest.MonkeyPatch, host: HostFS) -> None:
    saved = [save_backup(host, "/b", DAEMON, b"") for _number in range(BACKUPS_KEPT)]

    def full(*_args: t.Any) -> None:
        raise HostError("disk full")

    monkeypatch.setattr(atomic_write, "replace_file", full)
    with pytest.raises(HostError, match="disk full"):
        save_backup(host, "/b", DAEMON, b"")
    assert backups_of(host, "/b", DAEMON) == saved
