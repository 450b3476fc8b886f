# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import pod_errors
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubelet_hosts import Node

if t.TYPE_CHECKING:
    from pathlib import Path

# What the kubelet reports, and how it writes that in each of its formats (k8s.io/klog/v2, component-base/logs/json).
REASON = 'failed to "StartContainer" for "cuda" with RunContainerError: "unresolvable CDI devices \\u0007"'
KLOG = f'E0115 10:11:12.1 7 pod_workers.go:1] "Error" err={json.dumps(REASON)} pod="ml/train-0" podUID="8b3f"'
JSON = json.dumps(
    {
        "ts": 1753121332053.9,
        "msg": 'not pod="ml/train-1" err="x"',
        "pod": {"name": "train-0", "namespace": "ml"},
        "err": REASON,
    }
)
OTHER = KLOG.replace("train-0", "train-1")
KUBELET_LOG = "agent/logs/kubelet.log"


def in_k0s(message: str) -> str:
    """Return the line of k0s' logger for a message of the kubelet (TextFormatter of logrus)."""
    return f'time="2026-01-15 10:11:12" level=info msg={json.dumps(message)} component=kubelet stream=stderr'


def reason(node: Node, journal: str = "", name: str = "ml/train-0/cuda") -> str | None:
    """Return the reason for a container, with this journal of the kubelet's unit."""

    def run(argv: list[str]) -> tuple[int, str, str]:
        unit = argv[argv.index("--unit") + 1]
        return 0, f"{journal}\n" if unit == node.described()["service"] else "", ""

    found = pod_errors.last_error(node.host, run, name, [node.described()["engine"]])
    return None if found is None else found.message


@pytest.mark.parametrize(
    ("distribution", "line"),
    [
        ("kubeadm", KLOG),
        ("k3s", KLOG),
        ("microk8s", KLOG),
        ("k0s", in_k0s(KLOG)),
        ("kubeadm", JSON),
        ("k0s", in_k0s(JSON)),
    ],
)
def test_formats_of_the_journal(tmp_path: Path, distribution: str, line: str) -> None:
    node = Node(tmp_path, distribution)
    assert reason(node, f"{line}\n{OTHER}\n{in_k0s(OTHER)}") == REASON
    assert reason(node, line, "train-0/cuda") == REASON
    assert [reason(node, line, name) for name in ("ml/train-0/other", "ml/train-1/cuda", "kube/train-0/cuda")] == [
        None
    ] * 3


@pytest.mark.parametrize(
    "line", ["{", "{}", '{"pod": 7, "err": "x"}', '{"pod": {"name": "train-0", "namespace": "ml"}}', '{"pod":' * 99999]
)
def test_json_that_is_no_error_of_the_pod(tmp_path: Path, line: str) -> None:
    assert reason(Node(tmp_path), f"{JSON}\n{line}") == REASON


def test_a_sign_beyond_ascii_in_json(tmp_path: Path) -> None:
    assert reason(Node(tmp_path), JSON.replace(json.dumps(REASON), '"can\u2019t"')) == "can\u2019t"


def test_the_container_in_json(tmp_path: Path) -> None:
    line = JSON.replace(json.dumps(REASON), '"timeout", "containerName": "cuda"')
    node = Node(tmp_path)
    assert (reason(node, line), reason(node, line, "ml/train-0/other")) == ("timeout", None)


@pytest.mark.parametrize("folder", ["/var/lib/rancher/rke2", "/data/rke2"])
def test_the_file_of_rke2(tmp_path: Path, folder: str) -> None:
    node = Node(tmp_path, "rke2")
    node.write("/etc/rancher/rke2/config.yaml", f"data-dir: {folder}\n")
    node.write(f"{folder}/{KUBELET_LOG}", f"{KLOG}\n{OTHER}\n")
    assert reason(node) == REASON
    # With kubelet-arg log-file= and logtostderr=true, RKE2 writes no file (pkg/logging of RKE2 1.34).
    node.path(f"{folder}/{KUBELET_LOG}").unlink()
    assert (reason(node), reason(node, KLOG)) == (None, REASON)
    node.write(f"{folder}/{KUBELET_LOG}", "")
    assert reason(node, KLOG) == REASON


def test_only_the_end_of_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, "rke2")
    node.write(f"/var/lib/rancher/rke2/{KUBELET_LOG}", f"{KLOG}\n{OTHER}\n")
    monkeypatch.setattr(pod_errors, "_BYTES", len(OTHER) + 2)
    assert (reason(node), reason(node, name="ml/train-1/cuda")) == (None, REASON)
