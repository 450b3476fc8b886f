# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.nvidia_files import (
    REMOVED,
    WRITTEN,
    hook_records,
    hook_text,
    is_nvidia_hook,
    nvidia_hooks,
    plan_hook_removal,
    restore_hook,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.hook_hosts import (
    FIRST,
    FOREIGN,
    GENERATED,
    HOOK,
    OVERRIDE,
    OVERRIDING,
    PACKAGED,
    STRANGE,
    USUAL,
)

if t.TYPE_CHECKING:
    from pathlib import Path


def test_hook_text() -> None:
    assert hook_text("/usr/bin").decode() == GENERATED


@pytest.mark.parametrize("directory", ["/usr/local/nvidia/toolkit", "/opt/a b/ü"])
def test_hook_text_with_other_directory(directory: str) -> None:
    hook = json.loads(hook_text(directory))["hook"]
    assert hook["path"] == f"{directory}/nvidia-container-runtime-hook"
    assert hook["env"] == [f"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{directory}"]
    assert is_nvidia_hook(hook_text(directory))


@pytest.mark.parametrize("content", [PACKAGED, FIRST, GENERATED, "\ufeff" + PACKAGED])
def test_is_nvidia_hook(content: str) -> None:
    assert is_nvidia_hook(content.encode())


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_is_not_nvidia_hook(content: bytes) -> None:
    assert not is_nvidia_hook(content)


def planned_hook(path: str = HOOK, text: str = GENERATED) -> PlannedFile:
    return PlannedFile(path, None, text.encode())


@pytest.mark.parametrize(
    ("content", "planned", "found"),
    [
        ({}, (), []),
        ({HOOK: PACKAGED}, (), [HOOK]),
        ({f"{USUAL}/a.json": PACKAGED, f"{USUAL}/b.json": FOREIGN}, (), [f"{USUAL}/a.json"]),
        # Only .json files, and no subdirectories.
        ({f"{USUAL}/a.json.rpmsave": PACKAGED, f"{USUAL}/b/a.json": PACKAGED}, (), []),
        # A file in a later directory replaces one of the same name.
        ({HOOK: PACKAGED, OVERRIDING: FOREIGN}, (), []),
        ({HOOK: FOREIGN, OVERRIDING: PACKAGED}, (), [OVERRIDING]),
        ({HOOK: PACKAGED, OVERRIDING: PACKAGED}, (), [OVERRIDING]),
        # With planned changes.
        ({HOOK: PACKAGED}, [plan_hook_removal(HOOK, b"")], []),
        ({HOOK: PACKAGED, OVERRIDING: FOREIGN}, [plan_hook_removal(OVERRIDING, b"")], [HOOK]),
        ({HOOK: FOREIGN}, [planned_hook()], [HOOK]),
        ({HOOK: GENERATED}, [planned_hook(text=FOREIGN)], []),
    ],
)
def test_nvidia_hooks(content: dict[str, str], planned: t.Sequence[PlannedFile], found: list[str]) -> None:
    assert nvidia_hooks(FakeFiles(content), planned=planned) == found


def test_nvidia_hooks_in_other_directories() -> None:
    files = FakeFiles({HOOK: PACKAGED, "/opt/hooks/x.json": PACKAGED})
    assert nvidia_hooks(files, ["/opt/hooks"]) == ["/opt/hooks/x.json"]


def test_nvidia_hooks_ignores_unreadable_files(tmp_path: Path) -> None:
    folder = tmp_path / USUAL.lstrip("/")
    (folder / "directory.json").mkdir(parents=True)
    os.symlink("nowhere.json", folder / "nowhere.json")
    os.symlink("loop.json", folder / "loop.json")
    os.mkfifo(folder / "pipe.json")
    os.symlink("/opt/real", folder / "link.json")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt" / "real").write_text(PACKAGED)
    files = HostFiles(HostFS(str(tmp_path), live=True), "podman")
    assert nvidia_hooks(files) == [f"{USUAL}/link.json"]


# -- restoring -------------------------------------------------------------------------------------------------------


def record(original: str | None, *written: str, key: tuple[str, ...] = WRITTEN) -> OriginalFile:
    before = None if original is None else original.encode()
    made = OriginalFile("crio", HOOK, before, 0, 0, 0o644)
    for text in written or (None,):
        after = None if text is None else text.encode()
        made = made.after_write(before, after, {key: True})
        before = after
    return made


@pytest.mark.parametrize(
    ("known", "content", "after", "kept"),
    [
        # The written hook, unchanged.
        (record(None, GENERATED), GENERATED, None, False),
        (record(PACKAGED, GENERATED), GENERATED, PACKAGED, False),
        (record(FOREIGN, GENERATED), GENERATED, FOREIGN, False),
        # Edited, and still NVIDIA's hook.
        (record(None, GENERATED), PACKAGED, None, False),
        (record(FIRST, GENERATED), PACKAGED, FIRST, False),
        # Replaced by another program, or removed.
        (record(None, GENERATED), FOREIGN, FOREIGN, True),
        (record(PACKAGED, GENERATED), "?", "?", True),
        (record(None, GENERATED), None, None, False),
        (record(PACKAGED, GENERATED), None, None, False),
        # A hook that was removed.
        (record(PACKAGED, key=REMOVED), None, PACKAGED, False),
        (record(PACKAGED, key=REMOVED), PACKAGED, PACKAGED, False),
        (record(PACKAGED, key=REMOVED), GENERATED, GENERATED, True),
        (record(PACKAGED, key=REMOVED), FOREIGN, FOREIGN, True),
    ],
)
def test_restore_hook(known: OriginalFile, content: str | None, after: str | None, kept: bool) -> None:
    file, warning = restore_hook(known, None if content is None else content.encode())
    assert (file.path, file.before) == (HOOK, None if content is None else content.encode())
    assert file.after == (None if after is None else after.encode())
    assert not file.keys
    assert warning.startswith(HOOK) is kept
    assert bool(warning) is kept


def test_hook_records() -> None:
    files = FakeFiles(engine="crio")
    files.records = {
        HOOK: record(None, GENERATED),
        OVERRIDING: record(PACKAGED, key=REMOVED),
        f"{OVERRIDE}/x": record(None, "x", key=("crio", "runtime")),
    }
    assert hook_records(files, [*files.records, "/unknown"]) == [files.records[HOOK], files.records[OVERRIDING]]
