# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import info
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import KUBELET_CONFIG, PID, Node

if t.TYPE_CHECKING:
    from pathlib import Path

CONFIG = "/var/lib/kubelet/config.yaml"
CRIO = "unix:///var/run/crio/crio.sock"


def engine_with(node: Node, endpoint: str) -> tuple[str | None, str | None]:
    """Return the CRI endpoint and the engine of a kubelet that runs with a flag."""
    node.runs("kubelet.service", PID, "/usr/bin/kubelet", f"--container-runtime-endpoint={endpoint}")
    found = node.described()
    return found["cri_endpoint"], found["engine"]


@pytest.mark.parametrize(
    ("endpoint", "engine"),
    [
        ("unix:///run/containerd/containerd.sock", "containerd"),
        ("/run/containerd/containerd.sock", "containerd"),
        ("unix:///run/cri-dockerd.sock", "docker"),
        ("unix:///var/run/cri-dockerd.sock", "docker"),
        (CRIO, "crio"),
        ("unix:///run/crio/crio.sock", "crio"),
        ("unix:/run/crio/crio.sock", "crio"),
        ("Unix://localhost/run/crio/crio.sock", "crio"),
        ("tcp:/run/crio/crio.sock", None),
        ("run/crio/crio.sock", None),
        ("unix:///run/isulad.sock", None),
        ("npipe:////./pipe/containerd", None),
        ("unix://", None),
        ("unix:///run/" + "x" * 5000, None),
    ],
)
def test_the_engine_behind_an_endpoint(tmp_path: Path, endpoint: str, engine: str | None) -> None:
    node = Node(tmp_path)
    node.write("/usr/bin/crio")
    assert engine_with(node, endpoint) == (endpoint, engine)


def test_the_socket_of_a_second_containerd(tmp_path: Path) -> None:
    node = Node(tmp_path)
    command = "/usr/bin/containerd --config /etc/containerd/gpu.toml --address /run/containerd-gpu/containerd.sock"
    node.write("/etc/systemd/system/containerd-gpu.service", f"[Service]\nExecStart={command}\n")
    endpoint = "unix:///run/containerd-gpu/containerd.sock"
    assert engine_with(node, endpoint) == (endpoint, "containerd/system/containerd-gpu.service")


def test_the_socket_in_the_configuration_of_containerd(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write("/etc/containerd/config.toml", 'version = 2\n[grpc]\n  address = "/run/c.sock"\n')
    assert engine_with(node, "unix:///run/c.sock") == ("unix:///run/c.sock", "containerd")
    # The part on engines reports the damaged file; the usual socket is that of containerd.
    node.write("/etc/containerd/config.toml", "[grpc\n  address = 5\n")
    usual = "unix:///run/containerd/containerd.sock"
    assert engine_with(node, usual) == (usual, "containerd")


def test_the_sources_of_the_endpoint(tmp_path: Path) -> None:
    node = Node(tmp_path, running=False)
    node.write("/usr/bin/crio")
    # kubeadm's file of flags, and a file with precedence over it.
    assert node.described()["cri_endpoint"] == "unix:///var/run/containerd/containerd.sock"
    node.write("/etc/default/kubelet", f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={CRIO}\n")
    assert node.described()["engine"] == "crio"
    # A process still has the flags with which it was started.
    node.runs("kubelet.service", PID, "/usr/bin/kubelet", f"--config={CONFIG}")
    assert node.described()["cri_endpoint"] == "unix:///run/containerd/containerd.sock"
    node.write(CONFIG, KUBELET_CONFIG.replace('Endpoint: ""', f"Endpoint: {CRIO}"))
    assert node.described()["engine"] == "crio"
    node.runs("kubelet.service", PID, "/usr/bin/kubelet", f"--config={CONFIG}", "--container-runtime-endpoint", "/x")
    assert node.described()["cri_endpoint"] == "/x"


def test_drop_ins_are_merged_in_the_order_of_their_names(tmp_path: Path) -> None:
    node = Node(tmp_path, "kubelet")
    folder = "/etc/kubernetes/kubelet/config.json.d"
    node.write(f"{folder}/10-a.conf", json.dumps({"containerRuntimeEndpoint": "unix:///run/a.sock"}))
    node.write(f"{folder}/20-b.conf", "containerRuntimeEndpoint: unix:///run/b.sock\n")
    node.write(f"{folder}/30-c.yaml", json.dumps({"containerRuntimeEndpoint": "unix:///run/c.sock"}))
    found = node.described()
    assert found["cri_endpoint"] == "unix:///run/b.sock"
    assert [path.rpartition("/")[2] for path in found["config_files"]] == ["config.json", "10-a.conf", "20-b.conf"]


@pytest.mark.parametrize(
    ("settings", "endpoint", "engine"),
    [
        ("docker: true\n", "unix:///run/k3s/cri-dockerd/cri-dockerd.sock", "docker"),
        (f"container-runtime-endpoint: {CRIO}\n", CRIO, "crio"),
        ("token: x\n", "unix:///run/k3s/containerd/containerd.sock", "containerd/k3s"),
    ],
)
def test_the_settings_of_k3s(tmp_path: Path, settings: str, endpoint: str, engine: str) -> None:
    node = Node(tmp_path, "k3s")
    node.write("/usr/bin/crio")
    node.write("/etc/rancher/k3s/config.yaml", settings)
    found = node.described()
    assert (found["cri_endpoint"], found["engine"]) == (endpoint, engine)


@pytest.mark.parametrize("dashes", ["", "--"])
def test_flags_of_the_kubelet_in_the_unit_of_k3s(tmp_path: Path, dashes: str) -> None:
    node = Node(tmp_path, "k3s")
    arguments = f"--kubelet-arg={dashes}root-dir=/data/kubelet/ --kubelet-arg {dashes}container-runtime-endpoint={CRIO}"
    command = f"/usr/local/bin/k3s agent {arguments}"
    node.write("/etc/systemd/system/k3s-agent.service", f"[Service]\nExecStart={command}\n")
    found = node.described()
    assert (found["root_dir"], found["cri_endpoint"]) == ("/data/kubelet", CRIO)


def test_another_root_directory(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.runs("kubelet.service", PID, "/usr/bin/kubelet", "--root-dir", "/mnt/kubelet", "--v=2")
    assert node.described()["root_dir"] == "/mnt/kubelet"


@pytest.mark.parametrize(
    ("line", "root_dir"),
    [
        ("--root-dir=/a", "/a"),
        ("  --root-dir /a\t", "/a"),
        ("--v=2 --root-dir='/a'", "/a"),
        ('"--root-dir=/a"b', "/ab"),
        (" # --root-dir=/a", "/var/snap/microk8s/common/var/lib/kubelet"),
    ],
)
def test_arguments_of_microk8s(tmp_path: Path, line: str, root_dir: str) -> None:
    """Its kubelite removes quotes, splits lines at blanks, and expands variables with and without braces."""
    node = Node(tmp_path, "microk8s", running=False)
    path = "/var/snap/microk8s/current/args/kubelet"
    usual = node.path(path).read_text()
    node.write(path, f"{usual}{line}\n")
    assert node.described()["root_dir"] == root_dir
    node.write(
        path, '--root-dir="$SNAP_DATA/kubelet"\n--container-runtime-endpoint "${SNAP_COMMON}/run/containerd.sock"\n'
    )
    found = node.described()
    assert (found["root_dir"], found["engine"]) == ("/var/snap/microk8s/current/kubelet", "containerd/microk8s")


def test_flags_in_the_unit_of_a_stopped_kubelet(tmp_path: Path) -> None:
    node = Node(tmp_path, "kubelet", running=False)
    node.write("/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet --root-dir=/data --v=2\n")
    assert node.described()["root_dir"] == "/data"


def test_drop_ins_of_k3s(tmp_path: Path) -> None:
    node = Node(tmp_path, "k3s")
    path = "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/10-a.conf"
    node.write(path, "containerRuntimeEndpoint: /x\n")
    assert path in node.described()["config_files"]


@pytest.mark.parametrize(
    "content",
    [
        "containerRuntimeEndpoint: [",
        "- containerRuntimeEndpoint: /x",
        "containerRuntimeEndpoint: \xff",
        "{" * 2000000,
    ],
)
def test_a_damaged_configuration_is_a_problem(tmp_path: Path, content: str) -> None:
    node = Node(tmp_path)
    node.runs("kubelet.service", PID, "/usr/bin/kubelet", f"--config={CONFIG}")
    node.write(CONFIG, content.encode("latin-1"))
    found = node.described()
    assert len(found["problems"]) == 1
    assert CONFIG in found["problems"][0]["message"]
    # The file may set the endpoint, so it is unknown.
    assert (found["cri_endpoint"], found["engine"]) == (None, None)


def test_a_pipe_in_place_of_the_configuration(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.path(CONFIG).unlink()
    os.mkfifo(node.path(CONFIG))
    assert [problem["code"] for problem in node.described()["problems"]] == ["host-error"]


def test_values_of_other_types_are_ignored(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.runs("kubelet.service", PID, "/usr/bin/kubelet", f"--config={CONFIG}")
    node.write(CONFIG, f"containerRuntimeEndpoint: [{CRIO}]\n")
    assert node.described()["cri_endpoint"] == "unix:///run/containerd/containerd.sock"


def test_only_files_with_settings_need_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_import", lambda _name: None)
    node = Node(tmp_path)
    found, missing = info.describe_kubernetes(node.host)
    assert (missing, found["problems"]) == (None, [])
    node.write(CONFIG, "containerRuntimeEndpoint: /x\n")
    found, missing = info.describe_kubernetes(node.host)
    assert missing == "yaml"
    assert [problem["code"] for problem in found["problems"]] == ["package-missing"]


def test_flags_in_the_files_of_k3s(tmp_path: Path) -> None:
    node = Node(tmp_path, "k3s")
    command = f"/usr/local/bin/k3s agent --kubelet-arg=container-runtime-endpoint={CRIO}"
    node.write("/etc/systemd/system/k3s-agent.service", f"[Service]\nExecStart={command}\n")
    node.write(
        "/etc/rancher/k3s/config.yaml", "kubelet-arg:\n  - v=2\n  - root-dir=/old\n  - container-runtime-endpoint=/x\n"
    )
    node.write("/etc/rancher/k3s/config.yaml.d/50-cpu.yaml", "kubelet-arg: root-dir=/data\n")
    node.write("/etc/rancher/k3s/config.yaml.d/60-cpu.yaml", "kubelet-arg+: [--root-dir=/data/kubelet, 7]\n")
    found = node.described()
    assert found["problems"] == []
    assert (found["root_dir"], found["cri_endpoint"]) == ("/data/kubelet", CRIO)
    node.write("/etc/rancher/k3s/config.yaml.d/60-cpu.yaml", "kubelet-arg: [root-dir=/data\n")
    found = node.described()
    assert [problem["code"] for problem in found["problems"]] == ["file-invalid"]
