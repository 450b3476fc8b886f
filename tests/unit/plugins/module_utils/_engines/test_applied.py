# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.applied import Applied, AppliedFiles, Finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import Moment
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.process_starts import BOOT_ID, write_start

if t.TYPE_CHECKING:
    from pathlib import Path

RECORDED = Applied(Moment("boot", 500), {"/a": "1", "/b": "2", "/hooks": "directory"})
SAME = {"/a": "1", "/b": "2"}


@pytest.mark.parametrize(
    ("started", "digests", "all_files", "expected"),
    [
        (("boot", 500), {**SAME, "/hooks": "directory"}, True, Finding.CURRENT),
        # A directory that was removed does not matter, one that was created does.
        (("boot", 500), SAME, True, Finding.CURRENT),
        (("boot", 500), {**SAME, "/more": "directory"}, True, Finding.OUTDATED),
        (("boot", 500), {**SAME, "/a": "3"}, True, Finding.OUTDATED),
        (("boot", 500), {"/a": "1"}, True, Finding.OUTDATED),
        (("boot", 500), {"/a": "1"}, False, Finding.CURRENT),
        (("boot", 500), {"/a": "3"}, False, Finding.OUTDATED),
        (("boot", 500), {"/c": "1"}, False, Finding.OUTDATED),
        (("boot", 501), SAME, True, Finding.LATER),
        (("another boot", 1), SAME, True, Finding.LATER),
        (("boot", 499), SAME, True, Finding.UNKNOWN),
        (("boot", 501), {"/a": "3"}, True, Finding.UNKNOWN),
        (("another boot", 500), {"/a": "3"}, True, Finding.UNKNOWN),
    ],
)
def test_compare(started: tuple[str, int], digests: dict[str, str], all_files: bool, expected: Finding) -> None:
    assert RECORDED.compare(Moment(*started), digests, all_files=all_files) is expected


def test_the_times_of_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / "d").mkdir()
    write_start(tmp_path, 7, 100)
    record = AppliedFiles.of(HostFS(str(tmp_path)), "crio")
    assert (record.compare(7, ["/f", "/d"]), record.is_of(7)) == (Finding.UNKNOWN, False)
    record.write(7, ["/f", "/d"])
    for time in (1, 2**31):
        os.utime(tmp_path / "f", (time, time))
        assert record.compare(7, ["/f", "/d"]) is Finding.CURRENT
    assert record.is_of(7)
    write_start(tmp_path, 7, 5, boot="next-boot")
    assert (record.compare(7, ["/f", "/d"]), record.is_of(7)) == (Finding.LATER, False)
    (tmp_path / "f").write_text("y")
    assert record.compare(7, ["/f", "/d"]) is Finding.UNKNOWN


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '{"boot": 1, "ticks": 1, "files": {}}'])
def test_a_damaged_record_says_nothing(tmp_path: Path, content: str) -> None:
    write_start(tmp_path, 7, 100)
    record = AppliedFiles.of(HostFS(str(tmp_path)), "crio")
    record.write(7, [])
    (tmp_path / record.path[1:]).write_text(content)
    assert record.compare(7, []) is Finding.UNKNOWN


def test_nothing_is_recorded_of_an_unknown_process(tmp_path: Path) -> None:
    write_start(tmp_path, 7, 100)
    record = AppliedFiles.of(HostFS(str(tmp_path)), "crio")
    record.write(None, [])
    record.write(8, [])
    (tmp_path / BOOT_ID).unlink()
    record.write(7, [])
    assert record.read() is None
