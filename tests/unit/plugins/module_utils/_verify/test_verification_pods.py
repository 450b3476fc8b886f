# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.verify import (
    BrokenChainError,
    Verification,
    VerifyOptions,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import FakeCri, cri_host

NVIDIA = "/usr/bin/nvidia-container-runtime"
CONTAINERD_TOML = "/etc/containerd/config.toml"
CONTAINERD_FILE = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
"""
CONTAINERD_TOLD = {
    "sandboxImage": "pause:1",
    "containerd": {
        "defaultRuntimeName": "runc",
        "runtimes": {
            "nvidia": {
                "runtimeType": "io.containerd.runc.v2",
                "options": {"BinaryName": NVIDIA, "SystemdCgroup": True},
            }
        },
    },
}


@pytest.fixture
def cri() -> t.Iterator[FakeCri]:
    """A containerd that runs with what its file says."""
    with cri_host() as made:
        files = {
            "usr/bin/containerd": "",
            NVIDIA: "",
            CONTAINERD_TOML: CONTAINERD_FILE,
            "usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/containerd -a /run/cri.sock\n",
            "sys/fs/cgroup/system.slice/containerd.service/cgroup.procs": "77\n",
            "proc/77/comm": "containerd\n",
        }
        for path, content in files.items():
            write(made, path, content)
        made.config = json.loads(json.dumps(CONTAINERD_TOLD))
        with made.answers():
            yield made


def write(cri: FakeCri, path: str, content: str) -> None:
    file = cri.root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o755)


def verify_pods(cri: FakeCri, run: t.Any = None, **wanted: t.Any) -> dict[str, t.Any]:
    given = VerifyOptions(**{"engine": "containerd", "level": "engine", "image": "busybox:1", **wanted})
    return Verification(given, cri.host, run or (lambda _argv: (0, "", ""))).execute(check_mode=False)


def pod_failure(cri: FakeCri, **wanted: t.Any) -> str:
    with pytest.raises(BrokenChainError) as caught:
        verify_pods(cri, **wanted)
    return str(caught.value)


def test_containerd(cri: FakeCri) -> None:
    result = verify_pods(cri)
    assert [check["ok"] for check in result["checks"]] == [True, True, True]
    assert result["output"] == "hello"
    assert cri.pods == {}


def test_containerd_whose_pause_image_is_missing(cri: FakeCri) -> None:
    del cri.images["pause:1"]
    assert pod_failure(cri).startswith("container: The pause image pause:1 is not on this host")


def test_containerd_2_tells_its_pause_image_in_its_dump(cri: FakeCri) -> None:
    del cri.config["sandboxImage"]
    asked: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        asked.append(argv)
        return 0, "[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = 'pause:3'\n", "warning"

    assert "The pause image pause:3 is not on this host" in pod_failure(cri, run=run)
    assert asked == [["chroot", str(cri.root), "/usr/bin/containerd", "--config", CONTAINERD_TOML, "config", "dump"]]
    cri.images["pause:3"] = "sha256:cc"
    assert verify_pods(cri, run=run)["broken"] is None
    # What cannot be known is the engine's business.
    assert verify_pods(cri, run=lambda _argv: (1, "", "x"))["broken"] is None
    assert verify_pods(cri, run=lambda _argv: (0, "= =", ""))["broken"] is None


def test_containerd_whose_cri_is_switched_off(cri: FakeCri) -> None:
    write(cri, CONTAINERD_TOML, 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n' + CONTAINERD_FILE)
    message = pod_failure(cri)
    assert message.startswith(
        f"engine file: {CONTAINERD_TOML} or a file that it imports switches containerd's CRI off."
    )


def test_containerd_that_refuses_the_pod(cri: FakeCri) -> None:
    cri.errors["RunPodSandbox"] = "OCI runtime create failed: https://u:secret@h/"
    message = pod_failure(cri)
    assert "containerd cannot start the pod: OCI runtime create failed: https://********@h/." in message
    assert "Of what a GPU needs" in message


def test_crio(cri: FakeCri) -> None:
    """It tells nothing of its runtimes, and only the image of pods of its configuration."""
    for path, content in {
        "usr/bin/crio": "",
        "etc/crio/crio.conf": f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{NVIDIA}"\n',
        "usr/lib/systemd/system/crio.service": "[Service]\nExecStart=/usr/bin/crio --listen /run/cri.sock\n",
        "sys/fs/cgroup/system.slice/crio.service/cgroup.procs": "78\n",
        "proc/78/comm": "crio\n",
    }.items():
        write(cri, path, content)
    cri.config = {"sandboxImage": "pause:1"}
    result = verify_pods(cri, engine="crio")
    assert [check["ok"] for check in result["checks"]] == [True, True, True]
    assert "does not tell which runtimes it knows" in result["checks"][1]["detail"]
    cri.errors["RunPodSandbox"] = "failed to find runtime handler nvidia from runtime list map[crun:0xc0]"
    message = pod_failure(cri, engine="crio")
    assert message.startswith("container: crio cannot start the pod: failed to find runtime handler nvidia")
    assert "journalctl --unit crio.service" in message
