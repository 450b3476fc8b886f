# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each call that changes a file fails once, with each error, or ends the run.

After that, each file is the old or the new one. The next run completes the work, and a removal restores the files.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import (
    ConfigOptions,
    ConfigTask,
    SettingsRequest,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.failing_calls import FailingCalls, chosen_steps
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kills import Killed
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.refresh_hosts import RefreshTree

if t.TYPE_CHECKING:
    from pathlib import Path

    Tree = t.Dict[str, t.Tuple[str, t.Optional[bytes]]]

pytestmark = pytest.mark.one_python


class Fault(t.NamedTuple):
    """An error of one call, or of this one and all later ones (``lasting``). None kills the run."""

    error: int | None = None
    lasting: bool = False


_FAULTS = {
    "killed": Fault(),
    "read-only from then on": Fault(errno.EROFS, lasting=True),
    **{
        errno.errorcode[number]: Fault(number)
        for number in (errno.ENOSPC, errno.EIO, errno.EINVAL, errno.EROFS, errno.EACCES)
    },
}
_NIGHTLY = os.environ.get("GPUFLEET_NIGHTLY") == "1"
_OWN = STATE_DIR.rpartition("/")[0].lstrip("/")
_KATA = '{\n  "default-runtime": "kata",\n  "runtimes": {"kata": {"path": "/opt/kata"}}\n}\n'
_CONTAINERD = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'


class Host(t.NamedTuple):
    """A tree, the task that configures it, and the task that removes that. Each returns whether it changed the tree."""

    root: Path
    present: t.Callable[[], bool]
    absent: t.Callable[[], bool]

    def snapshot(self) -> Tree:
        """Return all files and directories, except the state directory and the backups."""
        found: Tree = {}
        for path in sorted(self.root.rglob("*")):
            name, mode = str(path.relative_to(self.root)), path.lstat().st_mode
            if not name.startswith(f"{_OWN}/backups") and name not in (_OWN, f"{_OWN}/state"):
                content = path.read_bytes() if path.is_file() and "/state/" not in name else None
                found[name] = (stat.filemode(mode), content)
        return found


def _engine(engine: str, files: t.Mapping[str, str], **request: t.Any) -> t.Callable[[Path], Host]:
    def made(root: Path) -> Host:
        tree = EngineTree(root, engine, files={NVIDIA: "", **files}, live=False)
        version = {"containerd": "2.1.4", "crio": "1.31.0", "docker": "27.0.0"}[engine]
        options: dict[str, t.Any] = {"engine_version": version}
        return Host(
            root,
            lambda: tree.present(options=options, set_as_default=True, **request).changed,
            lambda: tree.absent(purge_backups=True, **options).changed,
        )

    return made


def _toolkit() -> t.Callable[[Path], Host]:
    def made(root: Path) -> Host:
        host = HostFS(str(root), live=False)
        request = SettingsRequest({"nvidia-container-runtime.mode": "cdi"})
        return Host(
            root,
            lambda: ConfigTask(ConfigOptions(request), host).execute(check_mode=False).changed,
            lambda: ConfigTask(ConfigOptions(None, purge_backups=True), host).execute(check_mode=False).changed,
        )

    return made


def _refresh(with_units: bool) -> t.Callable[[Path], Host]:
    def made(root: Path) -> Host:
        tree = RefreshTree(root)
        if with_units:
            tree.toolkit()
        else:
            tree.generator()
        return Host(
            root,
            lambda: bool(tree.refresh(cdi={"path": "/etc/cdi/nvidia.json"})["changed"]),
            lambda: bool(tree.refresh(state="absent", cdi={"purge_backups": True})["changed"]),
        )

    return made


HOSTS = {
    "docker": _engine("docker", {"/etc/docker/daemon.json": _KATA}),
    "docker, no file": _engine("docker", {}),
    "containerd, drop-in": _engine("containerd", {"/etc/containerd/config.toml": _CONTAINERD}),
    "crio": _engine("crio", {"/etc/crio/crio.conf": "[crio]\n"}),
    "config.toml": _toolkit(),
    "units in place of the toolkit's": _refresh(True),
    "units without a toolkit's": _refresh(False),
}


# On the other hosts, the other errors take the same branches.
_USUAL = ("killed", "EIO", "read-only from then on")
_CASES = [(name, fault) for name in HOSTS for fault in _FAULTS if _NIGHTLY or name == "docker" or fault in _USUAL]


@pytest.fixture
def make(tmp_path: Path) -> t.Callable[[str], Host]:
    numbers = itertools.count()

    def made(name: str) -> Host:
        root = tmp_path / str(next(numbers))
        # The directories exist on each host.
        for folder in ("var/lib", "etc/systemd/system"):
            (root / folder).mkdir(parents=True)
        return HOSTS[name](root)

    return made


@pytest.mark.parametrize("removal", [False, True], ids=["present", "absent"])
@pytest.mark.parametrize(("name", "fault"), _CASES)
def test_one_call_fails(
    make: t.Callable[[str], Host],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: str,
    removal: bool,
) -> None:
    original, new, steps = _without_fault(make(name), monkeypatch, removal)
    old, wanted = (new, original) if removal else (original, new)
    for step in steps:
        host = make(name)
        if removal:
            host.present()
        task = host.absent if removal else host.present
        event = f"step {step}, {_fail(task, monkeypatch, step, _FAULTS[fault])}"
        found = host.snapshot()
        for path in {*found, *old, *wanted} - _extra(found, old, wanted):
            assert found.get(path) in (old.get(path), wanted.get(path)), (event, path)
        if event.endswith("success"):
            assert _without_named(found, wanted) == wanted, event
            continue
        task()
        assert host.snapshot() == wanted, event
        assert not task(), event
        host.absent()
        assert host.snapshot() == original, event


@pytest.mark.parametrize(("name", "fault"), _CASES)
def test_removal_directly_after_the_fault(
    make: t.Callable[[str], Host], monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    original, _new, steps = _without_fault(make(name), monkeypatch, removal=False)
    for step in steps:
        host = make(name)
        event = f"step {step}, {_fail(host.present, monkeypatch, step, _FAULTS[fault])}"
        host.absent()
        assert host.snapshot() == original, event


def _without_fault(host: Host, monkeypatch: pytest.MonkeyPatch, removal: bool) -> tuple[Tree, Tree, t.Sequence[int]]:
    """Return the tree before and after the configuration, and the numbers of the calls that shall fail."""
    original, calls = host.snapshot(), FailingCalls()

    def count(task: t.Callable[[], bool]) -> Tree:
        calls.calls.clear()
        with monkeypatch.context() as patch:
            calls.install(patch)
            task()
        return host.snapshot()

    new = count(host.present)
    if removal:
        assert count(host.absent) == original
    return original, new, range(1, len(calls.calls) + 1) if _NIGHTLY else chosen_steps(calls.calls)


def _fail(task: t.Callable[[], t.Any], monkeypatch: pytest.MonkeyPatch, step: int, fault: Fault) -> str:
    """Run a task in which a call fails. Return what happened."""
    calls = FailingCalls()
    calls.step, calls.error, calls.lasting = step, fault.error, fault.lasting
    errors.take_warnings()
    with monkeypatch.context() as patch:
        calls.install(patch)
        try:
            task()
        except (HostError, Killed) as found:
            return f"{calls.calls[step - 1]}: {found!r}"
    return "success"


def _extra(found: Tree, *expected: Tree) -> set[str]:
    """Return directories and files that only a run in between has: temporary files, and directories for them."""
    known = {path for tree in expected for path in tree}
    return {
        path
        for path in found
        if path not in known and (found[path][0].startswith("d") or ".gpufleet-" in path or "/state/" in path)
    }


def _without_named(found: Tree, wanted: Tree) -> Tree:
    """Return the tree without the empty directories that a warning names."""
    warnings = errors.take_warnings()
    named = {text.partition(" ")[0].lstrip("/") for text in warnings}
    return {path: entry for path, entry in found.items() if path in wanted or path not in named}
