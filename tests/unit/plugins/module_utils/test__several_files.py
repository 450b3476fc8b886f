# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from parameters to the disk for an engine with several files, containerd."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _cri_api, _engine_containerd
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cri_api import CriStatus
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_configuration import RuntimeConfiguration
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._outcome import Outcome

MAIN = "etc/containerd/config.toml"
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"
CONFIG = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "pause"\n'
BACKUPS = "var/lib/gpufleet-nvidia/backups"


class Tree:
    def __init__(self, root: Path, mode: int = 0o644) -> None:
        self.root = root
        self.live = False
        (root / "etc/containerd").mkdir(parents=True)
        (root / MAIN).write_text(CONFIG)
        (root / MAIN).chmod(mode)

    def run(self, request: RuntimeRequest | None, check_mode: bool = False, **options: t.Any) -> Outcome:
        given: dict[str, t.Any] = {"engine_version": "1.7.24", "validate": "false", **options}
        host = HostRoot.of(str(self.root), self.live)
        configuration = RuntimeConfiguration(Options("containerd", request, **given), host, lambda _argv: (0, "", ""))
        return configuration.execute(check_mode)

    def present(self, check_mode: bool = False, **asked: t.Any) -> Outcome:
        return self.run(RuntimeRequest(**asked), check_mode)

    def files(self) -> dict[str, tuple[int, bytes]]:
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in paths}


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o644), (0o600, 0o600), (0o640, 0o640), (0o666, 0o666)])
def test_a_drop_in_is_never_more_readable_than_the_main_file(tmp_path: Path, mode: int, expected: int) -> None:
    tree = Tree(tmp_path, mode)
    before = tree.files()
    tree.present(config_mode="drop_in")
    assert tree.files()[DROP_IN][0] == expected
    (tmp_path / MAIN).chmod(0o600)
    (tmp_path / MAIN).write_text(tree.files()[MAIN][1].decode().replace('"pause"', '"other"'))
    tree.present(config_mode="drop_in")
    assert tree.files()[DROP_IN][0] == 0o600
    (tmp_path / MAIN).chmod(mode)
    (tmp_path / MAIN).write_text(tree.files()[MAIN][1].decode().replace('"other"', '"pause"'))
    tree.run(None, purge_backups=True)
    assert tree.files() == before


def test_purge_takes_backups_of_a_drop_in_that_an_earlier_mode_used(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    before = tree.files()
    tree.present(config_mode="drop_in")
    tree.present(config_mode="drop_in", extra_modes=("cdi",))
    tree.present()
    assert [name for name in tree.files() if name.startswith(BACKUPS) and "99-nvidia" in name]
    assert DROP_IN not in tree.files()
    tree.run(None, purge_backups=True)
    assert tree.files() == before


def test_what_an_answering_daemon_does_not_tell_needs_a_restart_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    tree.present(config_mode="drop_in")
    runtimes = {
        name: {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": program}}
        for name, program in (("runc", ""), ("nvidia", "/usr/bin/nvidia-container-runtime"))
    }
    told = CriStatus({"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}, "enableCDI": False}, ())
    monkeypatch.setattr(_engine_containerd, "process_of", lambda *_arguments: 7)
    monkeypatch.setattr(_cri_api, "status", lambda _path: told)
    monkeypatch.setattr(_cri_api, "version", lambda _path: "1.7.24")
    monkeypatch.setattr(_engine_containerd, "outdated", lambda *_arguments: False)
    tree.live = True
    unchanged = tree.present(config_mode="drop_in")
    assert (unchanged.changed, unchanged.pending_action) == (False, Action.NONE)
    (tmp_path / MAIN).write_text(tree.files()[MAIN][1].decode().replace('"pause"', '"other"'))
    for check_mode in (True, False):
        refreshed = tree.present(check_mode, config_mode="drop_in")
        assert refreshed.changed
        assert refreshed.restart_action is refreshed.pending_action is Action.RESTART
