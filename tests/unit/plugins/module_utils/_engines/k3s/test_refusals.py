# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What K3s and RKE2 are not given, because it would not count, would stop them, or has no place there."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import (
    OPERATOR,
    node_with,
)

if t.TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("program", ["k3s", "rke2"])


# -- what counts more ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "file", "culprit"),
    [
        ([], "zz.yaml", "/etc/rancher/k3s/config.yaml.d/zz.yaml"),
        (["--default-runtime=crun"], "a.yaml", "the unit k3s.service"),
        (["--default-runtime", "crun"], "a.yaml", "the unit k3s.service"),
    ],
)
def test_refuses_overriding_default(tmp_path: Path, flags: list[str], file: str, culprit: str) -> None:
    node = node_with(tmp_path, "k3s", "server", *flags)
    node.settings("default-runtime: crun\n", file)
    before = node.bytes_and_modes()
    with pytest.raises(NvidiaError, match=rf"^{culprit}: default-runtime is crun here and overrides"):
        node.present(set_as_default=True)
    assert node.bytes_and_modes() == before
    # Where nothing is asked, nothing is in the way.
    assert node.present().default_runtime == "crun"


def test_overrides_earlier_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.settings("default-runtime: crun\n")
    node.settings("default-runtime: crun\n", "50.yaml")
    outcome = node.present(set_as_default=True)
    assert outcome.default_runtime == "nvidia"
    assert node.absent().default_runtime == "crun"


def test_accepts_equal_default_of_flag(tmp_path: Path) -> None:
    node = node_with(tmp_path, "k3s", "server", "--default-runtime=nvidia")
    outcome = node.present(set_as_default=True)
    # It was the default before, and stays it.
    assert (outcome.changed, outcome.restart_action) == (True, Action.NONE)
    assert node.absent().restart_action is Action.NONE
    (warning,) = node.present(set_as_default=False).warnings
    assert warning.startswith("the unit k3s.service makes nvidia the default runtime")


def test_refuses_overriding_empty_default(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.settings("default-runtime:\n", "zz.yaml")
    with pytest.raises(NvidiaError, match="default-runtime is empty here"):
        node.plan(set_as_default=True)


def test_refuses_config_file_on_the_network(tmp_path: Path) -> None:
    node = node_with(tmp_path, "k3s", "server", "--config", "https://host/k3s.yaml")
    assert not node.present().changed
    with pytest.raises(NvidiaError, match=r"https://host/k3s\.yaml, which is not a file on this host"):
        node.present(set_as_default=True)


@pytest.mark.parametrize("text", ["default-runtime: [\n", "- default-runtime: x\n", b"default-runtime: \xff"])
def test_names_broken_settings(tmp_path: Path, text: str | bytes) -> None:
    node = node_with(tmp_path)
    node.write("/etc/rancher/k3s/config.yaml", text)
    with pytest.raises(NvidiaError, match=r"/etc/rancher/k3s/config\.yaml"):
        node.present(set_as_default=True)
    assert not node.own_file.exists()


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"runtime_name": "gpu"}, "does not register a runtime gpu"),
        ({"runtime_name": "nvidia-legacy"}, "does not register a runtime nvidia-legacy"),
        ({"extra_modes": ("legacy",)}, "does not register a runtime nvidia-legacy"),
        ({"runtime_options": {"a": 1}}, "Unsupported options for K3s: runtime_options"),
        ({"runtime_type": "x"}, "Unsupported options for K3s: runtime_type"),
        ({"container_annotations": ("a",)}, "Unsupported options for K3s: container_annotations"),
        ({"drop_in_path": "/x"}, "Unsupported options for K3s: drop_in_path"),
        ({"config_mode": "drop_in"}, "Unsupported options for K3s: config_mode"),
        ({"config_mode": "in_place"}, "K3s does not support config_mode"),
        (
            {"runtime_dir": "/opt/nv"},
            r"runtime_dir /opt/nv, only /usr/local/nvidia/toolkit, .*/etc/default/k3s,",
        ),
    ],
)
@pytest.mark.parametrize("set_as_default", [True, None])
def test_refuses_unsupported_options(
    tmp_path: Path, asked: dict[str, t.Any], said: str, set_as_default: bool | None
) -> None:
    node = node_with(tmp_path)
    before = node.bytes_and_modes()
    with pytest.raises(NvidiaError, match=said):
        node.present(set_as_default=set_as_default, **asked)
    assert node.bytes_and_modes() == before


def test_refuses_another_config_path(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    with pytest.raises(NvidiaError, match="is not the file that K3s generates"):
        node.present(options={"config_path": "/etc/containerd/config.toml"})
    assert not node.present(options={"config_path": f"{node.data}/agent/etc/containerd/config.toml"}).changed


def test_runtime_dir_in_configured_path(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write("/opt/nv/nvidia-container-runtime", mode=0o755)
    node.write("/etc/default/k3s", 'PATH="/opt/nv:/usr/bin"\n')
    outcome = node.present(set_as_default=True, runtime_dir="/opt/nv")
    assert outcome.runtimes == {"nvidia": "/opt/nv/nvidia-container-runtime"}
    # An older release would not look there.
    node.release = "1.30.5"
    with pytest.raises(NvidiaError, match="does not search runtime_dir"):
        node.present(runtime_dir="/opt/nv")


def test_runtime_dir_through_a_link(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.path("/bin").symlink_to("usr/bin")
    node.write("/etc/sysconfig/k3s", "PATH=/bin\n")
    outcome = node.present(set_as_default=True)
    # The last start knows it under a name that will do as well.
    assert outcome.runtimes == {"nvidia": NVIDIA}
    node.path(outcome.config_path).unlink()
    assert node.present().runtimes == {"nvidia": "/bin/nvidia-container-runtime"}
    assert outcome.warnings == []


@BOTH
def test_refuses_default_without_program(tmp_path: Path, program: str) -> None:
    node = node_with(tmp_path, program, toolkit=False)
    before = node.bytes_and_modes()
    with pytest.raises(NvidiaError, match="would not start with the default runtime nvidia"):
        node.present(set_as_default=True)
    with pytest.raises(NvidiaError, match=r"because nvidia-container-runtime\.cdi is in none of"):
        node.present(set_as_default=True, runtime_name="nvidia-cdi")
    assert node.bytes_and_modes() == before
    assert "will not register nvidia, because nvidia-container-runtime is in none of" in node.plan().warnings[0]
    assert node.present().runtimes == {}


def test_refuses_own_default_without_program(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.present(set_as_default=True)
    node.path(NVIDIA).unlink()
    with pytest.raises(NvidiaError, match="would not start"):
        node.present()
    node.present(set_as_default=False)
    assert not node.own_file.exists()


@pytest.mark.parametrize(("release", "fits"), [("1.28.4", False), ("1.28.5", True), ("1.25.16", False), ("", True)])
def test_refuses_default_on_old_release(tmp_path: Path, release: str, fits: bool) -> None:
    node = node_with(tmp_path, release=release or "1.30.6")
    if not release:
        # Nobody can be asked in an offline tree.
        node.live = False
    assert not node.present().changed
    if fits:
        assert node.present(set_as_default=True).changed
        return
    with pytest.raises(NvidiaError, match=r"requires v1\.26\.12, v1\.27\.9, v1\.28\.5 and v1\.29\.0"):
        node.present(set_as_default=True)


def test_refuses_cdi_on_old_release(tmp_path: Path) -> None:
    node = node_with(tmp_path, release="1.30.5")
    node.write(NVIDIA + ".cdi", mode=0o755)
    with pytest.raises(NvidiaError, match="does not register a runtime nvidia-cdi"):
        node.present(extra_modes=("cdi",))
    node.release = "1.30.6"
    assert set(node.present(extra_modes=("cdi",)).runtimes) == {"nvidia", "nvidia-cdi"}


@pytest.mark.parametrize(
    ("flags", "settings", "said"),
    [
        (["--docker"], "", r"^the unit k3s\.service: with the setting docker, K3s uses another engine"),
        ([], "docker: true\n", r"^/etc/rancher/k3s/config\.yaml: with the setting docker"),
        ([], "container-runtime-endpoint: unix:///x\n", r"with the setting container-runtime-endpoint"),
        ([], "docker: false\n", ""),
    ],
)
def test_refuses_another_engine(tmp_path: Path, flags: list[str], settings: str, said: str) -> None:
    node = node_with(tmp_path, "k3s", "server", *flags)
    node.settings(settings)
    if not said:
        assert node.present(set_as_default=True).changed
        return
    with pytest.raises(NvidiaError, match=said):
        node.present()
    assert not node.absent().changed


# -- warnings --------------------------------------------------------------------------------------------------------


def test_warns_about_another_program(tmp_path: Path) -> None:
    node = node_with(tmp_path)
    node.write(OPERATOR, mode=0o755)
    outcome = node.present(set_as_default=True)
    assert outcome.runtimes == {"nvidia": OPERATOR}
    (warning,) = node.plan(set_as_default=True).warnings
    assert warning.startswith(f"K3s uses {OPERATOR} for nvidia, because it searches")
    assert outcome.warnings == [warning]
    assert node.plan(runtime_dir="/usr/local/nvidia/toolkit").warnings == ()


@pytest.mark.parametrize("name", ["config.toml.tmpl", "config-v3.toml.tmpl"])
def test_foreign_template(tmp_path: Path, name: str) -> None:
    node = node_with(tmp_path)
    path = f"{node.data}/agent/etc/containerd/{name}"
    for text, warned in (('{{ template "base" . }}\n', False), ("{{range $k, $v := .ExtraRuntimes}}{{end}}\n", True)):
        node.write(path, text)
        before = node.bytes_and_modes()
        warnings = node.present().warnings
        assert [warning.startswith(f"{path} overrides the programs") for warning in warnings] == [True] * warned
        assert node.bytes_and_modes() == before
    with pytest.raises(NvidiaError, match=rf"^{path}: this file overrides"):
        node.present(set_as_default=True)
    assert not node.own_file.exists()


@pytest.mark.parametrize(
    ("asked", "cdi", "warns"),
    [(True, "false", True), (False, "true", True), (True, "true", False), (True, "", False), ("auto", "false", False)],
)
def test_warns_about_enable_cdi(tmp_path: Path, asked: bool | str, cdi: str, warns: bool) -> None:
    node = node_with(tmp_path)
    node.generate("nvidia", cdi=cdi)
    warnings = node.plan(enable_cdi=asked).warnings
    assert [warning.startswith("enable_cdi has no effect") for warning in warnings] == [True] * warns
