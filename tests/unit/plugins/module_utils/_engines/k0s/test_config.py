# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s.config import (
    K0sFiles,
    containerd_of,
    is_managed,
    is_release,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s.engine import K0S
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.k0s_hosts import (
    CRI_2,
    GENERATED_2,
    GENERATED_3,
    HEADER,
    MAIN_2,
    MAIN_3,
    MAIN_NATIVE,
    RUNC_TYPE,
    document,
    k0s_tree,
    runtimes_2,
)

if t.TYPE_CHECKING:
    from pathlib import Path

MAIN = "/etc/k0s/containerd.toml"
OTHER = "etc/k0s/containerd.d/{0}.toml"


@pytest.mark.parametrize(
    ("version", "release", "containerd"),
    [
        (None, False, None),
        ((1, 26, 3), True, (1, 6)),
        ((1, 27, 1), True, (1, 7)),
        ((1, 35, 9), True, (1, 7)),
        ((1, 36), True, (2, 0)),
        ((1, 36, 1), True, (2, 0)),
        # Versions of containerd, which the CRI reports.
        ((1, 6, 28), False, (1, 6, 28)),
        ((1, 7, 20), False, (1, 7, 20)),
        ((2, 2, 1), False, (2, 2, 1)),
    ],
)
def test_versions_of_k0s_and_containerd(
    version: tuple[int, ...] | None, release: bool, containerd: tuple[int, ...] | None
) -> None:
    assert is_release(version) is release
    assert containerd_of(version) == containerd


@pytest.mark.parametrize(
    ("text", "before_1_36", "since_1_36"),
    [
        ("", False, False),
        (MAIN_2, True, True),
        (MAIN_2.replace("\n", "\r\n"), True, True),
        ("\n" + MAIN_2, True, False),
        ("version = 2\n" + HEADER, True, False),
        ("# mine\n" + HEADER, True, False),
        (" # k0s_managed=true\nversion = 2\n", False, False),
        ("# k0s_managed=false\n", False, False),
        ("version = 2\n", False, False),
    ],
)
def test_is_managed(text: str, before_1_36: bool, since_1_36: bool) -> None:
    assert is_managed(text, None) is before_1_36
    assert is_managed(text, containerd_of((1, 35, 7))) is before_1_36
    assert is_managed(text, containerd_of((1, 36, 1))) is since_1_36


@pytest.mark.parametrize(
    ("main", "engine_version", "version"),
    [
        (MAIN_2, None, 2),
        (MAIN_3, None, 3),
        (MAIN_NATIVE, None, 3),
        (None, None, 2),
        (None, "1.30.4+k0s.0", 2),
        (None, "1.36.0+k0s.0", 3),
        (None, "1.7.20", 2),
        (None, "2.2.1", 3),
        # After an upgrade or downgrade, the next start of k0s writes the main file again.
        (MAIN_2, "1.36.0+k0s.0", 3),
        (MAIN_3, "1.35.1+k0s.0", 2),
        # A running containerd uses the format of the file that it has read.
        (MAIN_2, "1.7.27", 2),
        (MAIN_3.replace("version = 3", "version = 4"), "2.3.5", 4),
    ],
)
def test_configuration_version_at_next_start(
    tmp_path: Path, main: str | None, engine_version: str | None, version: int
) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": main})
    done = tree.present(options={"engine_version": engine_version})
    assert done.config_version == version
    assert document(tree)["version"] == version
    plugin = "io.containerd.grpc.v1.cri" if version == 2 else "io.containerd.cri.v1.runtime"
    assert list(document(tree)["plugins"]) == [plugin]


def test_defines_runc(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path)
    tree.present()
    state = K0S.configured(HostFiles(tree.host, "k0s").as_configured(K0S.inspect(tree.host), None))
    for version in (None, (1, 7, 20), (1, 30, 4), (1, 36), (2, 2)):
        assert K0S.defines_runtime("runc", state, version)
        assert K0S.defines_runtime("nvidia", state, version)
        assert not K0S.defines_runtime("gpu", state, version)


@pytest.mark.parametrize(("version", "known"), [((1, 35), False), ((1, 36), True), ((1, 7, 20), False), ((2, 2), True)])
def test_defines_runc_beside_unmanaged_main_file(tmp_path: Path, version: tuple[int, ...], known: bool) -> None:
    lone = "version = 2\n" + f'[{CRI_2}.containerd.runtimes.nvidia.options]\nBinaryName = "{NVIDIA}"\n'
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": lone})
    state = K0S.configured(HostFiles(tree.host, "k0s").as_configured(K0S.inspect(tree.host), None))
    assert K0S.defines_runtime("runc", state, version) is known


def test_config_files(tmp_path: Path) -> None:
    tree = k0s_tree(tmp_path, files={OTHER.format("x"): "version = 2\n"})
    assert K0S.config_files(tree.host, K0S.inspect(tree.host)) == [
        MAIN,
        "/etc/k0s/containerd.d/x.toml",
        "/run/k0s/containerd-cri.toml",
    ]
    tree.write(MAIN, "[")
    assert K0S.config_files(tree.host, K0S.inspect(tree.host)) == [MAIN]


def test_files_of_an_empty_host() -> None:
    files = K0sFiles(HostFiles(HostFS("/nonexistent", live=False), "k0s"), MAIN, None)
    assert files.managed
    assert files.version == 2
    assert files.runtimes() == {"runc": {"runtime_type": RUNC_TYPE}}


def test_inherits_options_of_generated_runc(tmp_path: Path) -> None:
    generated = GENERATED_2.replace("SystemdCgroup = false", "SystemdCgroup = true").replace(
        'BinaryName = ""', 'BinaryName = "/x/runc"'
    )
    tree = k0s_tree(tmp_path, files={"run/k0s/containerd-cri.toml": generated})
    tree.present()
    assert runtimes_2(tree)["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": NVIDIA}


def test_inherits_options_of_other_drop_ins(tmp_path: Path) -> None:
    text = f"[{CRI_2}.containerd.runtimes.runc]\nbase_runtime_spec = '/b.json'\n"
    text += f"[{CRI_2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    tree = k0s_tree(tmp_path, files={OTHER.format("cgroup"): text})
    tree.present()
    entry = runtimes_2(tree)["nvidia"]
    assert entry == {
        "runtime_type": RUNC_TYPE,
        "base_runtime_spec": "/b.json",
        "options": {"SystemdCgroup": True, "BinaryName": NVIDIA},
    }


@pytest.mark.parametrize("generated", ["not toml", "plugins = 5\n", GENERATED_3, ""])
def test_ignores_broken_generated_file(tmp_path: Path, generated: str) -> None:
    tree = k0s_tree(tmp_path, files={"run/k0s/containerd-cri.toml": generated})
    tree.present()
    assert runtimes_2(tree)["nvidia"]["options"] == {"BinaryName": NVIDIA}


@pytest.mark.parametrize(
    ("text", "version", "managed"),
    [
        ("", "1.30.4", False),
        ("", "1.36.1", False),
        ("\n" + MAIN_2, "1.30.4", True),
        ("\n" + MAIN_3, "1.36.1", False),
        (MAIN_3, "1.36.1", True),
    ],
)
def test_managed_main_file(tmp_path: Path, text: str, version: str, managed: bool) -> None:
    tree = k0s_tree(tmp_path, files={"etc/k0s/containerd.toml": text})
    if managed:
        assert tree.present(options={"engine_version": version}).changed
    else:
        with pytest.raises(NvidiaError, match=r"k0s does not manage .*containerd.toml"):
            tree.present(options={"engine_version": version})
