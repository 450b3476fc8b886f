# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests for what a container is compared with on its host."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as explain_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import gpu_hosts
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FakeGpu, FakeMig

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS

FIRST, SECOND = FakeGpu("0000:07:00.0", 0), FakeGpu("0000:0f:00.0", 1)
IN_MIG_MODE = FakeGpu("0000:47:00.0", 0, mig=1, migs=(FakeMig(0, 3, 0),))


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    return gpu_hosts.gpu_host(tmp_path, [FIRST, SECOND])


def test_gpus_and_driver(host: HostFS) -> None:
    found = explain_host.read_host(host)
    assert (found.kind, found.driver) == (procfs.DRIVER, gpu_hosts.VERSION)
    assert [gpu.nodes for gpu in found.gpus] == [("/dev/nvidia0",), ("/dev/nvidia1",)]
    assert {FIRST.identity().lower(), "0000:07:00.0", "00000000:07:00.0"} <= set(found.gpus[0].names)
    # A file of the tree is no device node.
    assert not any(gpu.exists or gpu.is_mig or gpu.in_mig_mode for gpu in found.gpus)


def test_mig_devices(tmp_path: Path) -> None:
    host = gpu_hosts.gpu_host(tmp_path, [IN_MIG_MODE])
    gpu_hosts.nvml_files(tmp_path, gpu_hosts.compiled(tmp_path), [IN_MIG_MODE])
    gpu, mig = explain_host.read_host(host).gpus
    assert (gpu.in_mig_mode, gpu.is_mig, mig.is_mig) == (True, False, True)
    assert "0:0" in mig.names
    assert mig.nodes[0] == "/dev/nvidia0"
    assert len(mig.nodes) == 3


def test_numbers_of_the_kernel(host: HostFS, tmp_path: Path) -> None:
    gpu_hosts.write(tmp_path, {"proc/devices": "Character devices:\n195 nvidia\n510 nvidia-uvm\n"})
    numbers = explain_host.read_host(host).numbers
    assert numbers["/dev/nvidia1"] == (195, 1)
    assert numbers["/dev/nvidia-uvm"] == (510, 0)


def test_numbers_that_the_kernel_does_not_list(host: HostFS) -> None:
    assert "/dev/nvidia1" not in explain_host.read_host(host).numbers


@pytest.mark.parametrize("is_valid", [True, False])
def test_cdi_devices(host: HostFS, tmp_path: Path, is_valid: bool) -> None:
    node = {"path": "/dev/nvidia0", "hostPath": "/opt/node"}
    devices = [
        {"name": "0", "containerEdits": {"deviceNodes": [node]}},
        {"name": "env", "containerEdits": {"env": ["A=b"]}},
    ]
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    gpu_hosts.write(tmp_path, {"etc/cdi/nvidia.json": json.dumps(document), **({"opt/node": ""} if is_valid else {})})
    found = explain_host.read_host(host).cdi
    assert found["nvidia.com/gpu=0"] == explain_host.CdiDevice(("/dev/nvidia0",), is_valid)
    assert found["nvidia.com/gpu=env"] == explain_host.CdiDevice((), is_valid=True)


def test_invalid_specification(host: HostFS, tmp_path: Path) -> None:
    gpu_hosts.write(tmp_path, {"etc/cdi/nvidia.json": "{"})
    assert explain_host.read_host(host).cdi == {}
