# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import stat
import sys
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import HEADER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import (
    RancherHost,
    node_with,
)

if t.TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("program", ["k3s", "rke2"])
OURS = HEADER + b"default-runtime: nvidia\n"


# -- there and back --------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("role", ["server", "agent"])
@pytest.mark.parametrize("settings", [None, b"token: x\n", b"\xff not [ ours"], ids=["no file", "a token", "strange"])
def test_present_and_absent(tmp_path: Path, program: str, role: str, settings: bytes | None) -> None:
    node = node_with(tmp_path, program, role)
    if settings is not None:
        node.write(f"/etc/rancher/{program}/config.yaml", settings, 0o600)
    before = node.bytes_and_modes()

    foretold = node.present(check_mode=True, set_as_default=True)
    assert node.bytes_and_modes() == before
    done = node.present(set_as_default=True)
    assert foretold.changed is done.changed is True
    assert foretold.files == done.files
    assert node.own_file.read_bytes() == OURS
    assert stat.S_IMODE(node.own_file.stat().st_mode) == 0o644
    assert stat.S_IMODE(node.own_file.parent.stat().st_mode) == 0o755
    assert done.default_runtime == "nvidia"
    assert done.runtimes == {"nvidia": NVIDIA}
    assert done.restart_action is foretold.restart_action is Action.RESTART
    assert done.warnings == []
    assert done.drop_in_path == f"/etc/rancher/{program}/config.yaml.d/99-gpufleet-nvidia.yaml"
    assert done.config_path == f"/var/lib/rancher/{program}/agent/etc/containerd/config.toml"
    assert (done.target, done.engine_version) == (f"containerd/{program}", f"1.30.6+{program}1")

    once = node.bytes_and_modes()
    for again in (node.present(set_as_default=True), node.present(), node.present(runtime_name="nvidia-experimental")):
        assert (again.changed, again.files, again.restart_action) == (False, [], Action.NONE)
        assert again.default_runtime == "nvidia"
    assert node.bytes_and_modes() == once

    gone = node.absent(purge_backups=True)
    assert (gone.changed, gone.restart_action, gone.default_runtime) == (True, Action.RESTART, "runc")
    assert node.bytes_and_modes() == before
    assert not node.absent(purge_backups=True).changed


def test_no_file_without_a_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    before = node.bytes_and_modes()
    for asked in ({}, {"set_as_default": False}, {"extra_modes": ("cdi",)}, {"enable_cdi": True}):
        outcome = node.present(**asked)
        assert (outcome.changed, outcome.files, outcome.drop_in_path) == (False, [], None)
        assert outcome.restart_action is Action.NONE
    assert node.bytes_and_modes() == before
    assert not node.absent().changed


def test_removes_own_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    before = node.bytes_and_modes()
    node.present(set_as_default=True)
    outcome = node.present(set_as_default=False)
    assert (outcome.changed, outcome.restart_action, outcome.default_runtime) == (True, Action.RESTART, "runc")
    assert not node.own_file.parent.exists()
    node.absent(purge_backups=True)
    assert node.bytes_and_modes() == before


def test_changes_own_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write(NVIDIA + ".cdi", mode=0o755)
    node.present(set_as_default=True)
    outcome = node.present(set_as_default=True, runtime_name="nvidia-cdi")
    assert node.own_file.read_bytes() == HEADER + b"default-runtime: nvidia-cdi\n"
    assert outcome.runtimes == {"nvidia": NVIDIA, "nvidia-cdi": NVIDIA + ".cdi"}
    assert node.present().default_runtime == "nvidia-cdi"


def test_own_file_needs_no_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setattr(bundled, "_registered", {})
    node = node_with(tmp_path)
    assert node.present(set_as_default=True).default_runtime == "nvidia"
    assert not node.present().changed
    assert node.absent().default_runtime == "runc"


def test_keeps_existing_directory(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.settings("token: x\n", "a.yaml")
    node.present(set_as_default=True)
    node.absent(purge_backups=True)
    assert [path.name for path in node.own_file.parent.iterdir()] == ["a.yaml"]


def test_own_file_without_a_record(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml", OURS)
    assert not node.present(set_as_default=True).changed
    assert not node.present().changed
    assert node.absent().changed
    assert not node.own_file.exists()


def test_absent_after_change_of_unrecorded_own_file(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml", OURS)
    node.write(NVIDIA + "-experimental", mode=0o755)
    assert node.present(set_as_default=True, runtime_name="nvidia-experimental").changed
    assert node.absent().changed
    assert not node.own_file.exists()
    assert not node.absent().changed


@pytest.mark.parametrize("program", ["k3s", "rke2"])
def test_path_beside_another_config_file(tmp_path: Path, program: str) -> None:
    node = RancherHost(tmp_path, program)
    node.unit("server", "--config", "/srv/node.yaml", "--data-dir=/srv/data")
    node.generate(folder="/srv/data")
    outcome = node.present(set_as_default=True)
    assert outcome.drop_in_path == "/srv/node.yaml.d/99-gpufleet-nvidia.yaml"
    assert outcome.config_path == "/srv/data/agent/etc/containerd/config.toml"
    assert node.path("/srv/node.yaml.d/99-gpufleet-nvidia.yaml").read_bytes() == OURS
    # Another file is read by now.
    node.unit("server", "--data-dir=/srv/data")
    node.present(set_as_default=True)
    assert node.own_file.read_bytes() == OURS
    assert not node.path("/srv/node.yaml.d").exists()
    node.unit("server", "--config", "/srv/node.yaml")
    node.absent()
    assert not node.own_file.exists()


# -- others' hands ---------------------------------------------------------------------------------------------------


def test_foreign_settings_in_own_file_stay(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.own_file.write_bytes(OURS + b"node-label: [gpu=yes]\n")
    assert not node.present(set_as_default=True).changed
    assert not node.present().changed
    node.absent()
    assert node.own_file.read_bytes() == b"node-label: [gpu=yes]\n"


def test_refuses_foreign_file(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml", "default-runtime: crun\n")
    with pytest.raises(NvidiaError, match="contains settings of another tool"):
        node.present(set_as_default=True)
    assert not node.present().changed
    assert not node.absent().changed
    assert node.own_file.read_text() == "default-runtime: crun\n"


def test_changed_default_is_foreign(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.own_file.write_bytes(HEADER + b"default-runtime: crun # mine\n")
    assert not node.present().changed
    with pytest.raises(NvidiaError, match="contains settings of another tool"):
        node.present(set_as_default=True)
    node.absent()
    assert node.own_file.read_bytes() == b"default-runtime: crun # mine\n"


def test_removed_own_file(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.own_file.unlink()
    assert not node.present().changed
    assert node.present(set_as_default=True).changed
    node.own_file.unlink()
    node.absent(purge_backups=True)
    assert not node.path("/var/lib/gpufleet-nvidia").exists()


# -- around it -------------------------------------------------------------------------------------------------------


def test_no_validator(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    with pytest.raises(NvidiaError, match=r"validate is true, but .* Set validate: auto"):
        node.present(options={"validate": "true"}, set_as_default=True)
    assert not node.own_file.exists()
    assert node.present(options={"validate": "auto"}, set_as_default=True).changed
    # Nothing of it is run but the question for its version, and a command that only fails.
    assert {tuple(argv[2:]) for argv in node.commands} == {("/usr/local/bin/k3s", "--version"), ("false",)}


@pytest.mark.parametrize(("default", "pending"), [("runc", Action.RESTART), ("nvidia", Action.NONE)])
def test_pending_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str, pending: Action) -> None:
    runtimes = {"nvidia": {"options": {"BinaryName": NVIDIA}}}
    config = {"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}}
    monkeypatch.setattr(cri, "runtime_config", lambda _path: config)
    monkeypatch.setattr(cri, "version", lambda _path: "2.0.5-k3s2")
    node = node_with(tmp_path)
    node.runs("k3s.service", "k3s-server", "containerd")
    outcome = node.present(set_as_default=True)
    assert (outcome.pending_action, outcome.service) == (pending, "k3s.service")
    # The release is asked for: the CRI tells only that of its containerd.
    assert outcome.engine_version == "1.30.6+k3s1"
    assert node.present(set_as_default=True).pending_action is pending
