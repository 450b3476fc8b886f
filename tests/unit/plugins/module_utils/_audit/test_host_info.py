# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import sys
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.host_info import describe_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import info as engines_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import FakeDocker, docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import Node

if t.TYPE_CHECKING:
    from pathlib import Path


PROGRAM = "nvidia-container-runtime"


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[FakeDocker]:
    monkeypatch.setattr(engines_registry, "targets_on", lambda *_args: [Target("docker")])
    with docker_host() as made:
        yield made


def test_parts_that_are_not_gathered(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines_info, "describe_engines", lambda *_args: pytest.fail("collected"))
    found = describe_host(docker.host, docker.run, ["toolkit"])
    assert found["engines"] is None
    assert found["toolkit"]["config_path"] == "/etc/nvidia-container-runtime/config.toml"


def test_all_parts_are_gathered_by_default(docker: FakeDocker) -> None:
    found = describe_host(docker.host, docker.run)
    assert [engine["engine"] for engine in found["engines"]] == ["docker"]
    assert found["toolkit"]["programs"] == {}


def test_engines_alone_import_no_other_part(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    # An import of any of these would fail.
    modules = (
        "_toolkit.info",
        "_toolkit.installed",
        "_toolkit.config.settings",
        "_packages.detect",
        "_gpu.info",
        "_cdi.info",
        "_kubernetes.info",
    )
    for unused in modules:
        name = f"ansible_collections.gpufleet.nvidia.plugins.module_utils.{unused}"
        package, _dot, module = name.rpartition(".")
        if package in sys.modules:
            monkeypatch.delattr(sys.modules[package], module, raising=False)
        monkeypatch.setitem(sys.modules, name, None)
    assert describe_host(docker.host, docker.run, ["engines"])["toolkit"] is None
    with pytest.raises(ImportError):
        describe_host(docker.host, docker.run)


def test_toolkits_that_engines_run(docker: FakeDocker) -> None:
    folder = "/usr/local/nvidia/toolkit"
    for path in ("/usr/bin", folder):
        docker.write(f"{path}/{PROGRAM}", mode=0o755)
    docker.write("/etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": f"{folder}/{PROGRAM}"}}}))
    (other,) = describe_host(docker.host, docker.run, ["engines", "toolkit"])["toolkit"]["other_toolkits"]
    assert (other["path"], other["engines"]) == (folder, ["docker"])
    assert describe_host(docker.host, docker.run, ["toolkit"])["toolkit"]["other_toolkits"] == []


def test_directories_of_runtimes(tmp_path: Path) -> None:
    tree = HostFS(str(tmp_path), live=False)
    for folder in ("usr/bin", "opt/a", "opt/b", "snap/docker/1/usr/bin"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / PROGRAM).touch(mode=0o755)
    engines = [
        {"target": "docker", "installed": True, "runtimes": {"nvidia": f"/opt/a/{PROGRAM}", "kata": "/opt/a/kata"},
         "live": {"runtimes": {"nvidia": f"/opt/b/{PROGRAM}", "x": f"/snap/docker/1/usr/bin/{PROGRAM}"}}},
        {"target": "crio", "installed": True, "runtimes": {"nvidia": PROGRAM, "b": f"/opt/b/{PROGRAM}", "c": None,
         "d": f"/opt/gone/{PROGRAM}"}, "live": None},
        {"target": "containerd", "installed": False, "runtimes": {"nvidia": f"/opt/a/{PROGRAM}"}},
    ]  # fmt: skip
    assert host_parts.runtime_directories(tree, engines) == {
        "/opt/a": ["docker"],
        "/opt/b": ["docker", "crio"],
        "/usr/bin": ["crio"],
    }
    assert host_parts.runtime_directories(tree, [{"installed": True, "runtimes": [], "live": {"runtimes": 1}}]) == {}


def test_gpus_and_specifications(docker: FakeDocker) -> None:
    docker.write("/etc/cdi/nvidia.json", "{}")
    found = describe_host(docker.host, docker.run, ["gpus"])
    assert found["gpus"]["devices"] == []
    assert found["cdi"] is None
    found = describe_host(docker.host, docker.run, ["cdi"])
    assert found["gpus"] is None
    assert [file["path"] for file in found["cdi"]["files"]] == ["/etc/cdi/nvidia.json"]
    assert "needed" not in found


def test_missing_package_is_named(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_import", lambda _name: None)
    docker.write("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    assert describe_host(docker.host, docker.run, ["cdi"])["needed"] == "yaml"
    # If specifications are not gathered, no package is needed.
    assert "needed" not in describe_host(docker.host, docker.run, ["gpus"])


# -- the engine of the kubelet -----------------------------------------------------------------------------------------


def no_command(_argv: list[str]) -> tuple[int, str, str]:
    return 127, "", ""


def engines_of(node: Node, *parts: str) -> dict[str, bool]:
    found = describe_host(node.host, no_command, ["engines", *parts])["engines"]
    return {engine["target"]: engine["used_by_kubelet"] for engine in found}


@pytest.mark.parametrize(
    ("distribution", "target"),
    [
        ("kubeadm", "containerd"),
        ("k3s", "containerd/k3s"),
        ("k0s", "containerd/k0s"),
        ("microk8s", "containerd/microk8s"),
    ],
)
def test_engine_of_the_kubelet(tmp_path: Path, distribution: str, target: str) -> None:
    node = Node(tmp_path, distribution)
    node.write("/usr/bin/dockerd")
    found = engines_of(node)
    assert {name for name, used in found.items() if used} == {target}
    assert found["docker"] is False
    assert engines_of(node, "kubernetes") == found


def test_kubelet_with_cri_dockerd(tmp_path: Path) -> None:
    node = Node(tmp_path, running=False)
    node.write("/usr/bin/dockerd")
    node.write(
        "/var/lib/kubelet/kubeadm-flags.env",
        'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/cri-dockerd.sock"\n',
    )
    assert engines_of(node) == {"docker": True, "containerd": False}


def test_kubelet_that_cannot_be_read(tmp_path: Path) -> None:
    node = Node(tmp_path, running=False)
    node.write("/usr/lib/systemd/system/kubelet.service", "x" * (1 << 20))
    assert engines_of(node) == {"containerd": False}


def test_a_host_without_a_kubelet_imports_nothing_about_it(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes"
    if package in sys.modules:
        monkeypatch.delattr(sys.modules[package], "kubelet", raising=False)
    monkeypatch.setitem(sys.modules, f"{package}.kubelet", None)
    assert [engine["used_by_kubelet"] for engine in describe_host(docker.host, docker.run, ["engines"])["engines"]] == [
        False
    ]


@pytest.mark.parametrize(
    ("names", "flavor", "selected"),
    [
        (["podman"], "auto", False),
        (["docker"], "auto", True),
        (["auto"], "auto", True),
        (["auto"], "snap", False),
        (["docker/snap"], "auto", False),
        (["docker/system"], "snap", True),
        ([], "auto", False),
        (["dokcer"], "auto", False),
    ],
)
def test_engines_that_the_variables_select(docker: FakeDocker, names: list[str], flavor: str, selected: bool) -> None:
    options = {"names": names, "flavor": flavor}
    (found,) = describe_host(docker.host, docker.run, ["engines"], selected_engines=options)["engines"]
    assert found["selected"] is selected
    (found,) = describe_host(docker.host, docker.run, ["engines"])["engines"]
    assert "selected" not in found
