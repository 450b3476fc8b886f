# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests for ``register: false`` with each engine: the files after it, after a second run, and after a removal."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import DISTRIBUTION, PACKAGED
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import node_with

if t.TYPE_CHECKING:
    from pathlib import Path

DAEMON_JSON = "/etc/docker/daemon.json"
CONFIG_TOML = "/etc/containerd/config.toml"
DOCKER = '{\n\t"log-driver": "journald" ,\n  "runtimes": {"a": {"path": "/usr/bin/a"}}, "default-runtime": "a"\n}'
# A file of containerd 1.7 and one of 2.x, with comments and unusual spaces.
CONTAINERD_1 = """\
version = 2   # as printed
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image="registry.example.com/pause:3.9"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc" # usual
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
CONTAINERD_2 = 'version = 3\n\n[plugins."io.containerd.cri.v1.images"]\n  snapshotter = "overlayfs"  # usual\n'
CRI_2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
CRI_3 = 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n'
K3S = {"/etc/rancher/k3s/config.yaml": "write-kubeconfig-mode: '0640'  # for the group\n", "/usr/local/bin/k3s": ""}

# Engine, flavor, version, files. CDI is on without a setting in each of them.
WITHOUT_SETTING: dict[str, tuple[str, str | None, str, dict[str, str]]] = {
    "docker": ("docker", None, "28.5.2", {DAEMON_JSON: DOCKER}),
    "docker without a file": ("docker", None, "29.1.0", {}),
    "containerd 2": ("containerd", None, "2.1.4", {CONFIG_TOML: CONTAINERD_2}),
    "containerd 2 without a file": ("containerd", None, "2.1.4", {}),
    "crio": ("crio", None, "1.33.0", {PACKAGED: DISTRIBUTION}),
    "k3s": ("containerd", "k3s", "1.34.1", K3S),
}
# Those in which CDI is off by default, and what the file contains with it.
WITH_SETTING = {
    "docker": ("docker", "26.1.5", {DAEMON_JSON: DOCKER}, '"cdi": true'),
    "containerd 1.7": ("containerd", "1.7.24", {CONFIG_TOML: CONTAINERD_1}, "enable_cdi = true"),
}


def tree_of(root: Path, engine: str, flavor: str | None, version: str | None, files: dict[str, str]) -> EngineTree:
    """Return an offline tree with the toolkit, of an engine whose version is known."""
    tree = EngineTree(root, engine, flavor, {**files, NVIDIA: "", "/usr/bin/runc": ""}, live=False)
    tree.options["engine_version"] = version
    return tree


@pytest.mark.parametrize("case", WITHOUT_SETTING)
def test_restores_each_byte_that_an_earlier_run_changed(tmp_path: Path, case: str) -> None:
    tree = tree_of(tmp_path, *WITHOUT_SETTING[case])
    before = tree.files()
    assert tree.present(set_as_default=True).changed
    assert tree.files() != before

    assert tree.present(check_mode=True, register=False).changed
    result = tree.present(register=False)

    assert result.changed
    assert result.default_runtime != "nvidia"
    # K3s registers the runtimes whose programs it finds by itself.
    assert ("nvidia" in result.runtimes) == (case == "k3s")
    assert tree.files() == before
    assert not tree.present(register=False).changed
    # The registration works again afterwards.
    assert tree.present(set_as_default=True).default_runtime == "nvidia"


@pytest.mark.parametrize("case", WITHOUT_SETTING)
def test_changes_nothing_on_a_host_without_a_registration(tmp_path: Path, case: str) -> None:
    tree = tree_of(tmp_path, *WITHOUT_SETTING[case])
    before = tree.files()

    assert not tree.present(register=False).changed
    assert tree.files() == before


@pytest.mark.parametrize("case", WITH_SETTING)
def test_switches_cdi_on_and_registers_nothing(tmp_path: Path, case: str) -> None:
    engine, version, files, setting = WITH_SETTING[case]
    tree = tree_of(tmp_path, engine, None, version, files)
    before = tree.files()
    tree.present(set_as_default=True)

    result = tree.present(register=False)

    assert result.changed
    assert result.cdi
    assert "nvidia" not in {*result.runtimes, result.default_runtime}
    written = b"\n".join(content for _mode, content in tree.files().values()).decode()
    assert setting in written
    assert "nvidia-container-runtime" not in written
    assert not tree.present(register=False).changed
    tree.absent()
    assert tree.files() == before


@pytest.mark.parametrize("case", WITH_SETTING)
def test_needs_no_earlier_registration(tmp_path: Path, case: str) -> None:
    engine, version, files, setting = WITH_SETTING[case]
    tree = tree_of(tmp_path, engine, None, version, files)

    result = tree.present(register=False)

    assert result.cdi
    assert setting in b"\n".join(content for _mode, content in tree.files().values()).decode()
    assert not tree.present(register=False).changed


def test_keeps_what_the_user_changed_since(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "docker", None, "28.5.2", {DAEMON_JSON: '{"log-driver": "journald"}'})
    tree.present(set_as_default=True)
    tree.write(DAEMON_JSON, tree.text(DAEMON_JSON).replace("journald", "local"))

    tree.present(register=False)

    assert tree.text(DAEMON_JSON) == '{"log-driver": "local"}'


def test_keeps_the_runtimes_of_other_tools(tmp_path: Path) -> None:
    tree = tree_of(
        tmp_path,
        "docker",
        None,
        "28.5.2",
        {DAEMON_JSON: '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'},
    )

    assert not tree.present(register=False).changed


def test_removes_the_setting_that_a_newer_release_no_longer_needs(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "docker", None, "26.1.5", {DAEMON_JSON: DOCKER})
    tree.present(register=False)
    tree.options["engine_version"] = "28.5.2"

    assert tree.present(register=False).changed
    assert tree.text(DAEMON_JSON) == DOCKER


@pytest.mark.parametrize(("engine", "version"), [("docker", "24.0.7"), ("containerd", "1.6.20"), ("crio", "1.22.0")])
def test_refuses_releases_without_cdi(tmp_path: Path, engine: str, version: str) -> None:
    tree = tree_of(tmp_path, engine, None, "29.0", {})
    tree.options["engine_version"] = version
    tree.present()
    before = tree.files()

    with pytest.raises(NvidiaError, match=f"{version}.*register: true"):
        tree.present(register=False)
    assert tree.files() == before


@pytest.mark.parametrize(
    ("engine", "version", "files"),
    [
        ("docker", "26.1.5", {DAEMON_JSON: '{"features": {"cdi": false}}'}),
        (
            "containerd",
            "2.1.4",
            {CONFIG_TOML: 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false\n'},
        ),
    ],
)
def test_refuses_to_leave_a_host_without_cdi(tmp_path: Path, engine: str, version: str, files: dict[str, str]) -> None:
    tree = tree_of(tmp_path, engine, None, version, files)
    tree.present()
    before = tree.files()

    with pytest.raises(NvidiaError, match="enable_cdi: true"):
        tree.present(register=False)
    assert tree.files() == before
    assert tree.present(register=False, enable_cdi=True).cdi


@pytest.mark.parametrize("program", ["k3s", "rke2"])
@pytest.mark.parametrize(
    ("release", "generated"),
    [("1.30.6", {}), ("1.34.1", {"version": 3, "cdi": "false"})],
)
def test_refuses_a_distribution_that_switches_cdi_off(
    tmp_path: Path, program: str, release: str, generated: dict[str, t.Any]
) -> None:
    node = node_with(tmp_path, program, release=release)
    node.generate("nvidia", **generated)
    node.present(set_as_default=True)
    before = node.files()

    for enable_cdi in (None, True):
        with pytest.raises(
            NvidiaError, match=r"Upgrade (K3s|RKE2), or remove this line. Or set register: true"
        ) as caught:
            node.present(register=False, enable_cdi=enable_cdi)
        # It has no effect there.
        assert "enable_cdi: true" not in str(caught.value)
    assert node.files() == before
    if not generated:
        # Before the first start.
        node.path(f"{node.data}/agent/etc/containerd/config.toml").unlink()
        with pytest.raises(NvidiaError, match="Upgrade"):
            node.present(register=False)
    # What the advice says helps.
    node.release = "1.34.1"
    node.generate("nvidia", version=3)
    assert node.present(register=False).cdi


def test_refuses_a_k0s_that_concatenates_files(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "containerd", "k0s", "1.27.4", {})

    for enable_cdi in (None, True):
        with pytest.raises(NvidiaError, match=r"Upgrade k0s to 1\.27\.5 or newer, or set register: true"):
            tree.present(register=False, enable_cdi=enable_cdi)
    assert not tree.path("/etc/k0s").exists()
    tree.options["engine_version"] = "1.27.5"
    assert tree.present(register=False).cdi
    # A drop-in of the user switches it on in any release.
    (drop_in,) = tree.path("/etc/k0s/containerd.d").iterdir()
    text = drop_in.read_text()
    tree.absent()
    tree.write("/etc/k0s/containerd.d/50.toml", text)
    tree.options["engine_version"] = "1.27.4"
    assert tree.present(register=False).cdi


@pytest.mark.parametrize(
    ("engine", "version", "path", "text"),
    [
        ("docker", "26.1.5", DAEMON_JSON, '{"cdi-spec-dirs": []}'),
        ("docker", "28.5.2", DAEMON_JSON, '{"cdi-spec-dirs": [""]}'),
        ("crio", "1.33.0", PACKAGED, "[crio.runtime]\ncdi_spec_dirs = []\n"),
        ("containerd", "1.7.24", CONFIG_TOML, f"{CRI_2}cdi_spec_dirs = []\n"),
        ("containerd", "2.1.9", CONFIG_TOML, f"{CRI_2}cdi_spec_dirs = []\nenable_cdi = true\n"),
        ("containerd", "2.3.4", CONFIG_TOML, f"{CRI_3}cdi_spec_dirs = []\n"),
    ],
)
def test_refuses_an_empty_list_of_directories(tmp_path: Path, engine: str, version: str, path: str, text: str) -> None:
    tree = tree_of(tmp_path, engine, None, version, {path: text})
    before = tree.files()

    for enable_cdi in (None, True):
        with pytest.raises(NvidiaError, match=r"empty list (cdi.spec.dirs).*Remove \1 from its files") as caught:
            tree.present(register=False, enable_cdi=enable_cdi)
        assert "enable_cdi: true" not in str(caught.value)
        assert tree.files() == before
    result = tree.present(register=True, enable_cdi=True)
    (warning,) = [text for text in result.warnings if "enable_cdi" in text]
    assert (result.cdi, "Remove the empty list cdi" in warning) == (False, True)
    assert not any("enable_cdi" in text for text in tree.present(register=True).warnings)
    tree.write(path, text.replace('""', "").replace("[]", '["/etc/cdi"]'))
    assert tree.present(register=False).cdi
    assert not any("enable_cdi" in text for text in tree.present(register=True, enable_cdi=True).warnings)


def test_containerd_that_uses_the_usual_directories_for_an_empty_list(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "containerd", None, "2.4.0", {CONFIG_TOML: f"{CRI_3}cdi_spec_dirs = []\n"})
    result = tree.present(register=False)
    assert (result.changed, result.cdi) == (False, True)


def test_refuses_an_empty_list_of_k3s(tmp_path: Path) -> None:
    node = node_with(tmp_path, release="1.34.1")
    node.generate("nvidia", version=3, imports="/etc/k3s-cdi.toml")
    node.write("/etc/k3s-cdi.toml", f"{CRI_3}cdi_spec_dirs = []\n")
    with pytest.raises(NvidiaError, match="Remove cdi_spec_dirs from its files"):
        node.present(register=False)
    (warning,) = [text for text in node.present(enable_cdi=True).warnings if "enable_cdi" in text]
    assert "Remove the empty list cdi_spec_dirs" in warning


def test_refuses_docker_of_unknown_version(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "docker", None, None, {DAEMON_JSON: DOCKER})

    with pytest.raises(NvidiaError, match=r"version of Docker is unknown.*engine_version"):
        tree.present(register=False)
    assert tree.text(DAEMON_JSON) == DOCKER
    assert tree.present(register=False, enable_cdi=True).cdi
    # The file decides now, and auto does not change what it finds.
    tree.write(DAEMON_JSON, '{"features": {"cdi": true}}')
    assert not tree.present(register=False).changed


@pytest.mark.parametrize(
    "given",
    [
        {"set_as_default": True}, {"extra_modes": ("cdi",)}, {"enable_cdi": False}, {"config_mode": "hook"},
        {"runtime_options": {"root": "/run"}}, {"runtime_type": "oci"}, {"container_annotations": ("cdi.k8s.io/*",)},
        {"use_legacy_config": True},
    ],
)  # fmt: skip
def test_refuses_options_of_a_runtime(tmp_path: Path, given: dict[str, t.Any]) -> None:
    tree = tree_of(tmp_path, "containerd", None, "2.1.4", {})

    with pytest.raises(NvidiaError, match=f"options: {next(iter(given))}[.]"):
        tree.present(register=False, **given)


def test_podman_is_configured_as_always(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "podman", None, "5.5.0", {})

    with_registration = tree.present(check_mode=True)
    result = tree.present(register=False)

    assert [file.after for file in result.files] == [file.after for file in with_registration.files]
    assert result.changed


def test_a_disabled_cri_is_a_warning(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, "containerd", None, "1.7.24", {CONFIG_TOML: 'disabled_plugins = ["cri"]\n'})

    result = tree.present(register=False)

    assert not result.changed
    assert CONFIG_TOML in result.warnings[0]
    with pytest.raises(NvidiaError, match="disabled_plugins"):
        tree.present(register=False, cri_disabled="fail")
