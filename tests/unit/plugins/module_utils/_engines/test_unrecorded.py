# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Removals on hosts with NVIDIA runtimes that this collection did not register."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, LiveState, RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import Docker
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.journal import Journal

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

NVIDIA = "/usr/bin/nvidia-container-runtime"
DOCKER, CONTAINERD, CRIO = "/etc/docker/daemon.json", "/etc/containerd/config.toml", "/etc/crio/crio.conf"
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
# The engine, its version, and a file that was written by hand.
HAND_MADE = {
    "docker": ("26.1.5", DOCKER, f'{{"runtimes": {{"nvidia": {{"path": "{NVIDIA}"}}}}, "default-runtime": "nvidia"}}'),
    "containerd": (
        "1.7.24",
        CONTAINERD,
        f'version=2\n[{CRI}]\ndefault_runtime_name="nvidia"\n[{CRI}.runtimes.nvidia.options]\nBinaryName="{NVIDIA}"\n',
    ),
    "crio": (
        "1.31.0",
        CRIO,
        f'[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n',
    ),
}


class Tree:
    """One engine's file in a directory tree."""

    def __init__(self, root: Path, engine: str) -> None:
        self.root = root
        self.engine = engine
        self.version, self.path, self.content = HAND_MADE[engine]
        self.write(self.content)

    def write(self, content: str) -> None:
        file = self.root / self.path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")

    def run(self, request: RuntimeRequest | None = None, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        given: dict[str, t.Any] = {"engine_version": self.version, "validate": "false", **options}
        host = HostFS(str(self.root))
        return ConfigureEngine(Options(self.engine, request, **given), host, _no_command).execute(check_mode)

    def files(self) -> dict[str, bytes]:
        return {f"/{path.relative_to(self.root)}": path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


def _no_command(_argv: t.Sequence[str]) -> tuple[int, str, str]:
    return 1, "", ""


@pytest.fixture(params=sorted(HAND_MADE))
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, request.param)


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_hand_made_file_stays_and_is_named(tree: Tree, check_mode: bool) -> None:
    outcome = tree.run(None, check_mode, keep_unrecorded=True)
    assert (outcome.changed, outcome.unrecorded) == (False, [tree.path])
    assert "nvidia" in outcome.runtimes
    assert tree.files() == {tree.path: tree.content.encode()}


def test_the_module_removes_it_by_default(tree: Tree) -> None:
    outcome = tree.run()
    assert (outcome.changed, outcome.unrecorded) == (True, [])
    assert "nvidia" not in outcome.runtimes


def test_what_was_recorded_goes(tree: Tree) -> None:
    present = RuntimeRequest(extra_modes=("cdi",))
    tree.run(present)
    outcome = tree.run(None, keep_unrecorded=True, purge_backups=True)
    # The first change recorded the runtime that had been there before.
    assert (outcome.changed, outcome.unrecorded) == (True, [])
    assert tree.files() == {tree.path: tree.content.encode()}


def test_nothing_is_named_where_nothing_would_go(tree: Tree) -> None:
    tree.write("{}" if tree.engine == "docker" else "")
    assert tree.run(None, keep_unrecorded=True).unrecorded == []
    (tree.root / tree.path[1:]).unlink()
    assert tree.run(None, keep_unrecorded=True).unrecorded == []


def test_a_drop_in_of_nvidia_ctk_stays_until_it_is_purged(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "crio")
    drop_in, text = "/etc/crio/crio.conf.d/99-nvidia.toml", tree.content
    (tmp_path / drop_in[1:]).parent.mkdir()
    (tmp_path / drop_in[1:]).write_text(text, encoding="utf-8")
    tree.write("")
    assert tree.run(None, keep_unrecorded=True).unrecorded == [drop_in]
    assert tree.files()[drop_in] == text.encode()
    assert [leftover.path for leftover in tree.run(None, keep_unrecorded=True, purge_legacy=True).leftovers] == [
        drop_in
    ]
    assert drop_in not in tree.files()


def test_a_file_that_nothing_changes_need_not_be_valid(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "docker")
    tree.write('{"runtimes": []}')
    outcome = tree.run(None, keep_unrecorded=True)
    # What a removal would find there cannot be known.
    assert (outcome.changed, outcome.unrecorded) == (False, [])


def test_a_removal_that_would_be_refused_is_named_too(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "crio")
    later = tmp_path / "etc/crio/crio.conf.d/99-other.conf"
    later.parent.mkdir()
    later.write_text('[crio.runtime]\ndefault_runtime = "nvidia"\n', encoding="utf-8")
    assert tree.run(None, keep_unrecorded=True).unrecorded == [tree.path]


def test_an_engine_that_no_run_configured_is_not_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "live", lambda *_arguments: LiveState("26.1.5", {}, "runc"))
    tree = Tree(tmp_path, "docker")
    assert tree.run(None, keep_unrecorded=True).pending_action is None
    # An earlier removal ended before its restart.
    Journal.pending_changes(HostFS(str(tmp_path)), "docker").write(())
    assert tree.run(None, keep_unrecorded=True).pending_action is Action.RELOAD
