# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import PID, Node
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import RancherHost

if t.TYPE_CHECKING:
    from pathlib import Path

# The unit, the root directory, the CRI endpoint and the engine of each distribution.
RUN = "unix:///run"
KNOWN = {
    "kubelet": ("kubelet.service", "/var/lib/kubelet", f"{RUN}/containerd/containerd.sock", "containerd"),
    "kubeadm": ("kubelet.service", "/var/lib/kubelet", "unix:///var/run/containerd/containerd.sock", "containerd"),
    "k3s": ("k3s-agent.service", "/var/lib/kubelet", f"{RUN}/k3s/containerd/containerd.sock", "containerd/k3s"),
    "rke2": ("rke2-agent.service", "/var/lib/kubelet", f"{RUN}/k3s/containerd/containerd.sock", "containerd/rke2"),
    "k0s": ("k0sworker.service", "/var/lib/k0s/kubelet", f"{RUN}/k0s/containerd.sock", "containerd/k0s"),
    "microk8s": (
        "snap.microk8s.daemon-kubelite.service",
        "/var/snap/microk8s/common/var/lib/kubelet",
        "/var/snap/microk8s/common/run/containerd.sock",
        "containerd/microk8s",
    ),
}


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("name", KNOWN)
def test_each_distribution(tmp_path: Path, name: str, running: bool) -> None:
    found = Node(tmp_path, name, running).described()
    assert (found["service"], found["root_dir"], found["cri_endpoint"], found["engine"]) == KNOWN[name]
    assert (found["distribution"], found["running"]) == (name, running)
    assert found["problems"] == []


def test_a_host_without_a_kubelet(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.path("/usr/lib/systemd/system/kubelet.service").unlink()
    assert distributions.find_kubelet(node.host) is None
    found = node.described()
    assert (found["distribution"], found["running"], found["resources"], found["problems"]) == (None, None, [], [])


def test_a_masked_unit_is_no_kubelet(tmp_path: Path) -> None:
    node = Node(tmp_path, running=False)
    node.path("/etc/systemd/system").mkdir(parents=True)
    node.path("/etc/systemd/system/kubelet.service").symlink_to("/dev/null")
    assert node.described()["distribution"] is None


def test_of_two_kubelets_the_one_that_runs_is_described(tmp_path: Path) -> None:
    Node(tmp_path, "k3s", running=False)
    assert Node(tmp_path, "kubeadm").described()["distribution"] == "kubeadm"


def test_of_two_stopped_kubelets_the_enabled_one_is_described(tmp_path: Path) -> None:
    # RKE2's tarball installs the units of server and agent. K3s was there before, and its unit is disabled.
    Node(tmp_path, "k3s", running=False)
    node = Node(tmp_path, "rke2", running=False)
    tree = RancherHost(tmp_path, "rke2", toolkit=False)
    tree.unit("server")
    assert node.described()["service"] == "k3s-agent.service"
    tree.unit("agent", enabled=True)
    assert node.described()["service"] == tree.inspect().service == "rke2-agent.service"
    # A unit of the vendor, in an image whose kubelet is enabled in /usr.
    node.path("/etc/systemd/system/multi-user.target.wants/rke2-agent.service").unlink()
    node.write("/usr/lib/systemd/system/kubernetes.target.requires/rke2-agent.service")
    assert node.described()["service"] == tree.inspect().service == "rke2-agent.service"
    # An enabled kubelet that does not run is not that of the node if another one runs.
    node.runs("rke2-server.service", PID, "/var/lib/rancher/rke2/bin/kubelet")
    assert node.described()["service"] == "rke2-server.service"


@pytest.mark.parametrize(("in_container", "uid", "runs"), [(False, 0, True), (True, 0, False), (False, 1000, False)])
def test_a_kubelet_in_another_control_group(tmp_path: Path, in_container: bool, uid: int, runs: bool) -> None:
    node = Node(tmp_path, "k0s", running=False)
    node.process(PID, "kubelet", "/var/lib/k0s/bin/kubelet", "--root-dir=/mnt", in_container=in_container, uid=uid)
    found = node.described()
    assert (found["running"], found["root_dir"]) == ((True, "/mnt") if runs else (False, "/var/lib/k0s/kubelet"))
    # A kubelet whose namespace is unknown does not count.
    node.write(f"/proc/{PID}/status", "Uid:\t0\t0\t0\t0\n")
    assert node.described()["running"] is False


@pytest.mark.parametrize(
    ("distribution", "unit", "command", "is_node"),
    [
        ("k0s", "k0scontroller.service", "/usr/local/bin/k0s controller", False),
        ("k0s", "k0scontroller.service", "/usr/local/bin/k0s controller --enable-worker=false", False),
        ("k0s", "k0scontroller.service", "/usr/local/bin/k0s controller --enable-worker", True),
        ("k0s", "k0scontroller.service", "/usr/local/bin/k0s controller --single=true", True),
        ("k0s", "k0scontroller.service", "/usr/local/bin/k0s controller --single=1", True),
        ("k3s", "k3s.service", "/usr/local/bin/k3s server --disable-agent", False),
        ("k3s", "k3s.service", "/usr/local/bin/k3s server -disable-agent=TRUE", False),
        ("k3s", "k3s.service", "/usr/local/bin/k3s server --disable-agent=false", True),
        ("k3s", "k3s.service", "/usr/local/bin/k3s server", True),
    ],
)
def test_a_control_plane_without_a_kubelet(
    tmp_path: Path, distribution: str, unit: str, command: str, is_node: bool
) -> None:
    node = Node(tmp_path, distribution, running=False)
    for path in tmp_path.rglob("*.service"):
        path.unlink()
    node.write(f"/etc/systemd/system/{unit}", f"[Service]\nExecStart={command}\n")
    assert (node.described()["distribution"] is not None) is is_node


def test_a_unit_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write("/usr/lib/systemd/system/kubelet.service", "#" * (300 << 10))
    found = node.described()
    assert found["distribution"] is None
    assert [problem["code"] for problem in found["problems"]] == ["host-error"]


def test_a_directory_tree_has_no_running_kubelet(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.live = False
    found = node.described()
    assert (found["distribution"], found["running"]) == ("kubeadm", None)
