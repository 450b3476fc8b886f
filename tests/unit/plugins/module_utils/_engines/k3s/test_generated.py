# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Context, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import generated as k3s_generated
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import (
    OPERATOR,
    RancherHost,
    generated,
)

if t.TYPE_CHECKING:
    from pathlib import Path

TOOLKIT_DIR, WASM_DIR = "/usr/local/nvidia/toolkit", "/opt/kwasm/bin"
SERVICE = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
FIXED = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"]


def context_of(
    root: Path, version: tuple[int, ...] | None = None, environment: t.Mapping[str, str] | None = None
) -> Context:
    unit = Unit("k3s.service", "/u", environment=environment or {})
    return HostFiles(HostFS(str(root), live=False), "k3s").context("/none", unit, version)


def test_files_without_a_host_are_refused() -> None:
    with pytest.raises(TypeError, match="FakeFiles"):
        k3s_generated.host_of(FakeFiles().context("/none"))


# -- releases --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "release", "sets_default", "registers_cdi"),
    [
        ((1, 25, 16), True, False, False),
        ((1, 26, 11), True, False, False),
        ((1, 26, 12), True, True, False),
        ((1, 27, 8), True, False, False),
        ((1, 27, 9), True, True, False),
        ((1, 28, 4), True, False, False),
        ((1, 28, 5), True, True, False),
        ((1, 28), True, False, False),
        ((1, 29, 0), True, True, False),
        ((1, 30, 5), True, True, False),
        ((1, 30, 6), True, True, True),
        ((1, 31, 1), True, True, False),
        ((1, 31, 2), True, True, True),
        ((1, 33), True, True, True),
        # Unknown, or the version of a containerd: treated as a recent release.
        (None, False, True, True),
        ((1, 7, 20), False, True, True),
        ((2, 0, 5), False, True, True),
        ((1,), False, True, True),
        ((), False, True, True),
    ],
)
def test_features_of_releases(
    version: tuple[int, ...] | None, release: bool, sets_default: bool, registers_cdi: bool
) -> None:
    assert k3s_generated.release_of(version) == (version if release else None)
    assert k3s_generated.sets_default(version) is sets_default
    names = {"nvidia", "nvidia-experimental", *(["nvidia-cdi"] if registers_cdi else [])}
    assert set(k3s_generated.registered_programs(version)) == names


def test_first_releases_as_text() -> None:
    assert k3s_generated.default_since() == "v1.26.12, v1.27.9, v1.28.5 and v1.29.0"
    assert k3s_generated.own_path_since() == "v1.28.15, v1.29.10, v1.30.6, v1.31.2 and v1.32.0"


@pytest.mark.parametrize(
    ("version", "environment", "links", "folders"),
    [
        ((1, 29, 1), {"PATH": "/opt/bin"}, {}, [TOOLKIT_DIR, "/usr/bin"]),
        ((1, 28, 6), {}, {}, [TOOLKIT_DIR, "/usr/bin"]),
        ((1, 29, 2), {"PATH": "/opt/bin"}, {}, [TOOLKIT_DIR, WASM_DIR, *FIXED]),
        ((1, 30, 4), {}, {}, [TOOLKIT_DIR, WASM_DIR, *FIXED]),
        ((1, 30, 6), {}, {}, [TOOLKIT_DIR, WASM_DIR, *SERVICE]),
        (None, {"PATH": "/opt/bin:$PATH::bin:/opt/bin"}, {}, [TOOLKIT_DIR, WASM_DIR, "/opt/bin"]),
        (None, {"PATH": ""}, {}, [TOOLKIT_DIR, WASM_DIR]),
        # Debian and Fedora 41; Fedora 42; Arch.
        (None, {}, {"bin": "usr/bin", "sbin": "usr/sbin"}, [TOOLKIT_DIR, WASM_DIR, *SERVICE[:4]]),
        (
            None,
            {},
            {"bin": "usr/bin", "sbin": "usr/sbin", "usr/sbin": "bin", "usr/local/sbin": "bin"},
            [TOOLKIT_DIR, WASM_DIR, "/usr/local/bin", "/usr/bin"],
        ),
        (
            None,
            {},
            {"bin": "usr/bin", "sbin": "usr/bin", "usr/sbin": "bin"},
            [TOOLKIT_DIR, WASM_DIR, "/usr/local/sbin", "/usr/local/bin", "/usr/bin"],
        ),
        (None, {}, {"usr/sbin": "/opt/sbin"}, [TOOLKIT_DIR, WASM_DIR, *SERVICE]),
        # A configured PATH is searched unchanged.
        (
            None,
            {"PATH": "/usr/sbin:/usr/bin"},
            {"usr/sbin": "bin"},
            [TOOLKIT_DIR, WASM_DIR, "/usr/sbin", "/usr/bin"],
        ),
    ],
)
def test_search_dirs(
    tmp_path: Path,
    version: tuple[int, ...] | None,
    environment: dict[str, str],
    links: dict[str, str],
    folders: list[str],
) -> None:
    for folder in ("usr/bin", "usr/local/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    assert k3s_generated.search_dirs(context_of(tmp_path, version, environment)) == folders


def test_find_programs(tmp_path: Path) -> None:
    node = RancherHost(tmp_path, toolkit=False)

    def found(version: tuple[int, ...] | None = None, **environment: str) -> dict[str, str]:
        return k3s_generated.find_programs(context_of(tmp_path, version, environment))

    assert found() == {}
    node.write(NVIDIA, mode=0o644)
    assert found() == {}
    node.write(NVIDIA, mode=0o755)
    node.write(NVIDIA + ".cdi", mode=0o755)
    assert found() == {"nvidia": NVIDIA, "nvidia-cdi": NVIDIA + ".cdi"}
    assert set(found((1, 30, 4))) == {"nvidia"}
    node.write(OPERATOR, mode=0o755)
    node.write(OPERATOR + "-experimental", mode=0o755)
    node.write("/opt/nv/nvidia-container-runtime.cdi", mode=0o755)
    assert found(PATH="/opt/nv/:/usr/bin") == {
        "nvidia": OPERATOR,
        "nvidia-experimental": OPERATOR + "-experimental",
        "nvidia-cdi": "/opt/nv/nvidia-container-runtime.cdi",
    }


# -- state after the next start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["k3s", "rke2"])
@pytest.mark.parametrize(
    ("release", "cdi"),
    [
        ("1.29.15", False),
        ("1.30.14", False),
        ("1.31.5", False),
        ("1.31.6", True),
        ("1.32.1", False),
        ("1.32.2", True),
        ("1.33.0", True),
        ("", None),
        ("1.7.24", None),
    ],
)
def test_no_generated_file(tmp_path: Path, program: str, release: str, cdi: bool | None) -> None:
    node = RancherHost(tmp_path, program, release=release)
    node.unit()
    assert node.state().paths() == {"nvidia": NVIDIA}
    assert node.state().default_runtime is None
    assert node.state().cdi is cdi
    assert RancherHost(tmp_path / "none", toolkit=False).state().runtimes == {}
    # It decides about CDI, and is no TOML.
    node.write(f"{node.data}/agent/etc/containerd/config.toml.tmpl", '{{ template "base" . }}\nenable_cdi = true\n')
    assert node.state().cdi is None


@pytest.mark.parametrize("version", [2, 3])
def test_state_after_next_start(tmp_path: Path, version: int) -> None:
    node = RancherHost(tmp_path)
    node.unit()
    node.generate(version=version)
    assert node.state().paths() == {"nvidia": NVIDIA}
    assert set(node.state().runtimes) == {"runc", "nvidia"}
    node.generate("nvidia", "nvidia-cdi", version=version, default="nvidia")
    # Neither the setting nor the program exists any more.
    assert node.state().default_runtime is None
    assert set(node.state().runtimes) == {"runc", "nvidia"}
    node.settings("default-runtime: nvidia\n", "a.yaml")
    assert node.state().default_runtime == "nvidia"
    node.write(OPERATOR, mode=0o755)
    assert node.state().paths() == {"nvidia": OPERATOR}
    node.path(OPERATOR).unlink()
    node.path(NVIDIA).unlink()
    assert node.state().paths() == {}
    assert set(node.state().runtimes) == {"runc"}


def test_generated_version_1(tmp_path: Path) -> None:
    node = RancherHost(tmp_path, release="1.25.3")
    node.unit()
    text = '[plugins.cri.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    node.write(f"{node.data}/agent/etc/containerd/config.toml", text)
    assert set(node.state().runtimes) == {"runc", "nvidia"}


@pytest.mark.parametrize(
    ("release", "version", "cdi", "known"),
    [
        # containerd 1.7, where it is off by default.
        ("1.30.6", 2, "", False),
        ("1.30.6", 2, "true", True),
        ("1.30.6", 2, "false", False),
        # containerd 2, also with the file of the release before an upgrade.
        ("1.31.6", 2, "", True),
        ("1.31.6", 3, "", True),
        ("1.31.6", 3, "false", False),
        # An unknown release, and a version of containerd.
        ("", 2, "", None),
        ("", 3, "", True),
        ("1.7.24", 2, "", None),
    ],
)
def test_cdi(tmp_path: Path, release: str, version: int, cdi: str, known: bool | None) -> None:
    node = RancherHost(tmp_path, release=release)
    node.unit()
    node.generate(version=version, cdi=cdi)
    assert node.state().cdi is known


@pytest.mark.parametrize(
    ("content", "runtimes", "default"),
    [
        # Another runtime does not change what is found and set.
        ("{runtimes}.kata]\nruntime_type = 'k'\n", {"nvidia": NVIDIA, "kata": None}, "nvidia"),
        ("{runtimes}.nvidia.options]\nSystemdCgroup = true\n", {"nvidia": NVIDIA}, "nvidia"),
        # A default or a program overrides both.
        ("{table}]\ndefault_runtime_name = 'kata'\n", {"nvidia": OPERATOR}, "kata"),
        ("{runtimes}.nvidia.options]\nBinaryName = '/x'\n", {"nvidia": "/x"}, None),
    ],
)
def test_import_of_generated_file(
    tmp_path: Path, content: str, runtimes: dict[str, str | None], default: str | None
) -> None:
    node = RancherHost(tmp_path)
    node.unit()
    folder = f"{node.data}/agent/etc/containerd"
    text = generated({"nvidia": OPERATOR}, version=3, imports=f"{folder}/config-v3.toml.d/*.toml")
    node.write(f"{folder}/config.toml", text)
    table = "[plugins.'io.containerd.cri.v1.runtime'.containerd"
    node.write(
        f"{folder}/config-v3.toml.d/a.toml", "version = 3\n" + content.format(table=table, runtimes=f"{table}.runtimes")
    )
    node.settings("default-runtime: nvidia\n")
    state = node.state()
    assert {name: entry["path"] for name, entry in state.runtimes.items() if name != "runc"} == runtimes
    assert state.default_runtime == default
    if default == "nvidia":
        assert node.plan(set_as_default=True).warnings == ()
        return
    assert node.plan().warnings[0].startswith(f"{folder}/config-v3.toml.d/a.toml overrides the default runtime")
    with pytest.raises(NvidiaError, match=r"config-v3\.toml\.d/a\.toml: this file overrides"):
        node.plan(set_as_default=True)


@pytest.mark.parametrize(
    ("text", "extends"),
    [
        ('{{ template "base" . }}\n', True),
        ("{{- template `base` . -}}\n", True),
        ("{{range $k, $v := .ExtraRuntimes}}{{end}}{{ .NodeConfig.DefaultRuntime }}\n", False),
        (generated(), False),
        (b"\xff", False),
    ],
)
@pytest.mark.parametrize("last", [(), ("nvidia",)])
def test_foreign_template(tmp_path: Path, text: str | bytes, extends: bool, last: tuple[str, ...]) -> None:
    node = RancherHost(tmp_path)
    node.unit()
    node.generate(*last, default="crun")
    node.settings("default-runtime: nvidia\n")
    node.write(f"{node.data}/agent/etc/containerd/config.toml.tmpl", text)
    assert set(node.state().runtimes) == ({"runc", "nvidia"} if extends else {"runc", *last})
    assert node.state().default_runtime == ("nvidia" if extends else "crun")
    # The newer name has precedence, for releases that read it.
    before = node.plan().state
    node.write(f"{node.data}/agent/etc/containerd/config-v3.toml.tmpl", '{{template "base" .}}')
    assert node.plan().state == before
    node.release = "1.32.2"
    assert set(node.plan().state.runtimes) == {"runc", "nvidia"}
    assert (set(node.state().runtimes), node.state().default_runtime) == ({"runc", "nvidia"}, "nvidia")


def test_default_of_foreign_template(tmp_path: Path) -> None:
    node = RancherHost(tmp_path)
    node.unit()
    node.write(f"{node.data}/agent/etc/containerd/config.toml.tmpl", generated())
    node.generate("nvidia", default="nvidia")
    assert node.plan(set_as_default=True).state.default_runtime == "nvidia"
    node.generate("nvidia", default="runc")
    assert node.state().default_runtime is None
    with pytest.raises(NvidiaError, match=r"config\.toml\.tmpl: this file overrides"):
        node.plan(set_as_default=True)
