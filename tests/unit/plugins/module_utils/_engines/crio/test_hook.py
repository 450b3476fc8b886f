# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    DISTRIBUTION,
    DROP_IN,
    FOLDER,
    HOSTS,
    MAIN,
    table,
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
    PROGRAM,
    STRANGE,
    USUAL,
    HookHost,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import EnginePlan

HOOK_MODE: dict[str, t.Any] = {"config_mode": "hook"}
PID = 4711
FOREIGN_TABLE = table("nvidia", runtime_path='"/usr/bin/nvidia-container-runtime"')


def hooks_dir(*folders: str) -> str:
    return f"[crio.runtime]\nhooks_dir = {list(folders)}\n".replace("'", '"')


class Host:
    """The files and hooks of CRI-O in memory."""

    def __init__(self, content: t.Mapping[str, str | bytes | None], *flags: str) -> None:
        self.files = FakeFiles({PROGRAM: "", **content}, "crio")
        self.unit = Unit("crio.service", "/lib/crio.service", arguments=("/usr/bin/crio", *flags)) if flags else None

    def present(self, **asked: t.Any) -> EnginePlan:
        context = self.files.context(MAIN)._replace(unit=self.unit)
        return self.files.apply(CRIO.present(RuntimeRequest(**asked), context), MAIN)

    def absent(self) -> EnginePlan:
        context = self.files.context(MAIN)._replace(unit=self.unit)
        return self.files.apply(CRIO.absent(context), MAIN, removal=True)

    def text(self, path: str = HOOK) -> str | None:
        content = self.files.content.get(path)
        return None if content is None else content.decode()


# -- present and absent-----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("hook", [None, PACKAGED, FIRST, GENERATED])
def test_present_and_absent(content: dict[str, str], hook: str | None) -> None:
    # One host names two directories in hooks_dir. The last one is used.
    has_setting = any("hooks_dir" in text for text in content.values())
    path = f"/run/containers/oci/hooks.d/{os.path.basename(HOOK)}" if has_setting else HOOK
    host = Host({**content, path: hook})
    before = dict(host.files.content)
    plan = host.present(**HOOK_MODE)
    assert host.files.content == {**before, path: GENERATED.encode()}
    assert plan.drop_in_path == path
    assert plan.state.paths().get("nvidia") is None
    after = dict(host.files.content)
    assert not any(file.changed for file in host.present(**HOOK_MODE).files)
    assert host.files.content == after
    host.absent()
    assert host.files.content == before
    assert host.files.records == {}


@pytest.mark.parametrize("hook", [None, PACKAGED])
def test_change_of_mode(hook: str | None) -> None:
    host = Host({MAIN: DISTRIBUTION, HOOK: hook})
    before = dict(host.files.content)
    host.present(set_as_default=True)
    assert host.text(DROP_IN)
    plan = host.present(**HOOK_MODE)
    # Only the hook remains.
    assert host.files.content == {**before, HOOK: GENERATED.encode()}
    assert plan.action is Action.RESTART
    assert plan.state.default_runtime == "runc"
    host.present()
    assert host.text(HOOK) == hook
    assert host.text(DROP_IN)
    host.present(**HOOK_MODE)
    host.absent()
    assert host.files.content == before
    assert host.files.records == {}


def test_change_from_in_place() -> None:
    host = Host({MAIN: DISTRIBUTION})
    before = dict(host.files.content)
    host.present(config_mode="in_place", set_as_default=True)
    assert host.text(MAIN) != DISTRIBUTION
    host.present(**HOOK_MODE)
    assert host.text(MAIN) == DISTRIBUTION
    host.absent()
    assert host.files.content == before


def test_foreign_runtimes_stay() -> None:
    host = Host({MAIN: DISTRIBUTION + FOREIGN_TABLE})
    plan = host.present(**HOOK_MODE)
    assert host.text(MAIN) == DISTRIBUTION + FOREIGN_TABLE
    assert any("registered NVIDIA's runtimes (nvidia)" in warning for warning in plan.warnings)
    # The record of the hook proves that the runtime is foreign.
    host.absent()
    assert host.text(MAIN) == DISTRIBUTION + FOREIGN_TABLE
    assert host.text(HOOK) is None


def test_equivalent_hook_is_unchanged() -> None:
    spelled = GENERATED.replace("\n", " ").replace("  ", "")
    host = Host({HOOK: spelled})
    assert not any(file.changed for file in host.present(**HOOK_MODE).files)
    host.absent()
    assert host.text(HOOK) == spelled


@pytest.mark.parametrize(("now", "after"), [(PACKAGED, None), (FOREIGN, FOREIGN), (None, None)])
def test_absent_after_foreign_changes(now: str | None, after: str | None) -> None:
    host = Host({})
    host.present(**HOOK_MODE)
    host.files.put(HOOK, now)
    plan = host.absent()
    assert host.text(HOOK) == after
    assert any("another program wrote it" in warning for warning in plan.warnings) is (now == FOREIGN)


# -- hook directories --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "flags", "path"),
    [
        ((USUAL,), (), HOOK),
        ((USUAL, OVERRIDE), (), HOOK),
        ((OVERRIDE, USUAL + "/"), (), HOOK),
        ((USUAL, OVERRIDE, USUAL), (), HOOK),
        ((OVERRIDE,), (), OVERRIDING),
        (("/opt/a", "/opt/b"), (), "/opt/b/oci-nvidia-hook.json"),
        # Flags take precedence.
        (("/opt/a",), ("--hooks-dir=/opt/c,/opt/d",), "/opt/d/oci-nvidia-hook.json"),
        (("/opt/a",), ("--hooks-dir", "/opt/c", "--hooks-dir", USUAL), HOOK),
    ],
)
def test_hook_dirs(folders: tuple[str, ...], flags: tuple[str, ...], path: str) -> None:
    host = Host({f"{FOLDER}/50": hooks_dir(*folders)}, *flags)
    for _run in range(2):
        assert host.present(**HOOK_MODE).drop_in_path == path
        assert host.text(path) == GENERATED


def test_hook_dirs_of_a_later_file() -> None:
    host = Host({MAIN: hooks_dir("/opt/a"), f"{FOLDER}/50": hooks_dir("/opt/b")})
    assert host.present(**HOOK_MODE).drop_in_path == "/opt/b/oci-nvidia-hook.json"


def test_moves_hook_to_new_hook_dir() -> None:
    host = Host({MAIN: hooks_dir("/opt/a")})
    host.present(**HOOK_MODE)
    host.files.put(MAIN, hooks_dir("/opt/b"))
    host.present(**HOOK_MODE)
    assert sorted(path for path in host.files.content if path.endswith(".json")) == ["/opt/b/oci-nvidia-hook.json"]


@pytest.mark.parametrize(
    ("content", "asked", "problem"),
    [
        ({MAIN: "[crio.runtime]\nhooks_dir = []\n"}, {}, "/etc/crio/crio.conf: hooks_dir contains no absolute path"),
        ({MAIN: '[crio.runtime]\nhooks_dir = "/a"\n'}, {}, "crio.conf, line 2.*hooks_dir is not an array"),
        ({MAIN: "[crio.runtime]\nhooks_dir = [1]\n"}, {}, "crio.conf, line 2.*contains an entry that is not a string"),
        ({MAIN: '[crio.runtime]\nhooks_dir = ["a"]\n'}, {}, "contains no absolute path"),
        ({MAIN: hooks_dir(USUAL, OVERRIDE), OVERRIDING: FOREIGN}, {}, f"{OVERRIDING} overrides {HOOK}"),
        ({PROGRAM: None}, {}, "hook does not exist, and CRI-O does not start with"),
        ({}, {"runtime_dir": "/opt/x"}, "/opt/x/nvidia-container-runtime-hook does not exist"),
        *(({HOOK: content}, {}, "is not NVIDIA's hook") for content in STRANGE.values()),
        ({}, {"set_as_default": True}, "set_as_default would have no effect"),
        ({}, {"extra_modes": ("cdi",), "drop_in_path": "/a"}, "extra_modes, drop_in_path would have no"),
        ({}, {"runtime_type": "oci"}, "runtime_type"),
        ({}, {"runtime_options": {"a": 1}}, "runtime_options"),
        ({}, {"container_annotations": ("a",)}, "container_annotations"),
    ],
)  # fmt: skip
def test_refusals(content: dict[str, str | bytes | None], asked: dict[str, t.Any], problem: str) -> None:
    host = Host(content)
    before = dict(host.files.content)
    with pytest.raises(NvidiaError, match=problem):
        host.present(**HOOK_MODE, **asked)
    assert host.files.content == before


def test_refuses_empty_flag() -> None:
    with pytest.raises(NvidiaError, match="The flag --hooks-dir of the unit contains no absolute path"):
        Host({MAIN: hooks_dir("/opt/a")}, "--hooks-dir=").present(**HOOK_MODE)


def test_other_modes_ignore_hooks_dir() -> None:
    host = Host({MAIN: "[crio.runtime]\nhooks_dir = 7\n", HOOK: PACKAGED})
    assert any(HOOK in warning for warning in host.present().warnings)


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_warns_about_deprecation() -> None:
    host = Host({})
    for _run in range(2):
        (warning,) = host.present(**HOOK_MODE).warnings
        assert "config_mode: hook is deprecated" in warning
        assert "config_mode: auto" in warning
    assert "enable_cdi: false has no effect" in host.present(**HOOK_MODE, enable_cdi=False).warnings[1]


def test_warns_about_duplicate_hooks() -> None:
    foreign = f"{USUAL}/foreign.json"
    host = Host({MAIN: DISTRIBUTION, foreign: PACKAGED, f"{USUAL}/other.json": FOREIGN, OVERRIDING: PACKAGED})
    for asked in ({}, HOOK_MODE):
        (warning,) = [warning for warning in host.present(**asked).warnings if "twice" in warning]
        # CRI-O does not read the other folder.
        assert warning.startswith(foreign)
        assert "purge_legacy" in warning
    assert host.text(foreign) == PACKAGED


def test_no_warning_about_a_removed_hook() -> None:
    host = Host({MAIN: DISTRIBUTION})
    host.present(**HOOK_MODE)
    assert host.present().warnings == ()
    assert host.text() is None


# -- on a host ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> HookHost:
    host = HookHost(tmp_path, "1.31.2")
    host.write(MAIN, DISTRIBUTION)
    host.write("/usr/lib/systemd/system/crio.service", "[Service]\nExecStart=/usr/bin/crio\n")
    return host


def start(tree: HookHost) -> None:
    """A CRI-O that was started a minute ago: this machine may have booted only a little earlier."""
    tree.write("/sys/fs/cgroup/system.slice/crio.service/cgroup.procs", f"{PID}\n")
    tree.write(f"/proc/{PID}/comm", "crio\n")
    ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - 60) * os.sysconf("SC_CLK_TCK")
    tree.write(f"/proc/{PID}/stat", f"{PID} (crio) S " + "0 " * 18 + f"{int(ticks)} 0 0\n")
    for path in tree.root.rglob("*"):
        os.utime(path, (time.time() - 5000,) * 2)


@pytest.mark.parametrize("there", [True, False])
def test_new_hook_dir_requires_a_restart(tree: HookHost, there: bool) -> None:
    if there:
        tree.write(f"{USUAL}/other.json", FOREIGN)
    start(tree)
    needed = Action.NONE if there else Action.RESTART
    predicted = tree.present("crio", check_mode=True, **HOOK_MODE)
    done = tree.present("crio", **HOOK_MODE)
    assert (predicted.restart_action, done.restart_action, done.pending_action) == (needed,) * 3
    again = tree.present("crio", **HOOK_MODE)
    assert not again.changed
    # Later runs report it too.
    assert again.pending_action is needed
    assert done.drop_in_path == HOOK


def test_removed_runtime_requires_a_restart(tree: HookHost) -> None:
    tree.write(f"{USUAL}/other.json", FOREIGN)
    tree.present("crio")
    assert tree.present("crio", **HOOK_MODE).restart_action is Action.RESTART


def test_foreign_hook_requires_no_restart(tree: HookHost) -> None:
    start(tree)
    tree.write(HOOK, PACKAGED)
    live = CRIO.live(tree.host, CRIO.inspect(tree.host))
    assert live is not None
    assert not live.outdated


def test_restores_bytes_and_modes(tree: HookHost) -> None:
    tree.write(HOOK, PACKAGED, 0o640)
    before = tree.snapshot()
    assert tree.present("crio", **HOOK_MODE).changed
    assert tree.text(HOOK) == GENERATED
    assert tree.absent("crio").changed
    assert tree.snapshot() == before
    assert not tree.absent("crio").changed


def test_removes_created_directories(tree: HookHost) -> None:
    before = tree.snapshot()
    tree.present("crio", **HOOK_MODE)
    assert (tree.root / HOOK.lstrip("/")).stat().st_mode & 0o777 == 0o644
    tree.absent("crio")
    assert tree.snapshot() == before


def test_validator_ignores_hooks(tree: HookHost) -> None:
    tree.present("crio", set_as_default=True)
    done = tree.present("crio", options={"validate": "true"}, **HOOK_MODE)
    assert [file.path for file in done.files] == [HOOK, DROP_IN]
    assert done.restart_action is Action.RESTART
