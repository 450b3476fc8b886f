# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of tests/faults find faults of the code. The session "faults" runs them on the real code."""

from __future__ import annotations

import subprocess
import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.module_utils.basic", reason="needs Ansible")

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors
from ansible_collections.gpufleet.nvidia.tests.faults import calls
from ansible_collections.gpufleet.nvidia.tests.faults.scenarios import scenarios
from ansible_collections.gpufleet.nvidia.tests.faults.trial import Trial, Unsound

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS


def traces() -> bool:
    """Return whether strace can trace a process here."""
    try:
        return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_strace = pytest.mark.skipif(not traces(), reason="needs strace that may trace (apt-get install strace)")


# A processor has one or more of these calls. AArch64 has no rename.
RENAMES = ("rename", "renameat", "renameat2")


def found(folder: Path, names: t.Collection[str], fault: str) -> list[str]:
    """Return what the checks find at each point of the scenario "docker" with one of these calls and this fault."""
    trial = Trial(next(scenario for scenario in scenarios() if scenario.name == "docker"), folder)
    trial.prepare()
    problems = []
    for point in trial.points:
        if point.call.name in names and point.fault == fault:
            try:
                trial.try_point(point)
            except Unsound as error:
                problems.append(str(error))
    return problems


@needs_strace
def test_finds_a_file_that_is_not_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(host: HostFS, path: str, content: bytes, *_others: t.Any, **_more: t.Any) -> None:
        Path(host.real_path(path)).write_bytes(content)

    monkeypatch.setattr(atomic_write, "replace_file", write)
    assert any(
        "daemon.json is neither the old nor the new one" in text for text in found(tmp_path, ["write"], calls.KILL)
    )


@needs_strace
def test_finds_a_record_that_is_written_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_write, waiting = atomic_write.replace_file, []

    def write(*arguments: t.Any, **more: t.Any) -> None:
        if "/state/" in arguments[1]:
            waiting.append((arguments, more))
            return
        really_write(*arguments, **more)
        if arguments[1].endswith("daemon.json"):
            for late, others in waiting:
                really_write(*late, **others)

    monkeypatch.setattr(atomic_write, "replace_file", write)
    assert any("the files differ" in text for text in found(tmp_path, RENAMES, calls.KILL))


@needs_strace
def test_finds_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "os_error", lambda path, _doing, _error: ZeroDivisionError(path))
    assert any("traceback" in text for text in found(tmp_path, RENAMES, "EIO"))


def test_lists_the_calls_that_change_the_tree() -> None:
    log = [
        'openat(AT_FDCWD</>, "/t/etc/a", O_RDONLY|O_CLOEXEC) = 3</t/etc/a>',
        'openat(AT_FDCWD</>, "/t/etc/.gpufleet-x.tmp", O_RDWR|O_CREAT|O_EXCL, 0600) = 4</t/etc/.gpufleet-x.tmp>',
        'write(1</out>, ""..., 9) = 9',
        'write(4</t/etc/.gpufleet-x.tmp>, ""..., 9) = 9',
        'mkdir("/tree/etc", 0777) = 0',
        "+++ exited with 0 +++",
    ]
    points = calls.points(log, Path("/t"))
    assert [point.name for point in points if point.fault in (calls.KILL, "EIO")] == [
        "openat 2 KILL", "openat 2 EIO", "write 2 KILL", "write 2 EIO"
    ]  # fmt: skip
    assert points[-1].injections() == ["--inject=write:error=EIO:when=2"]
