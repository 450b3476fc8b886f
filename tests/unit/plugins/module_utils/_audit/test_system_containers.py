# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers of LXC, Incus and Proxmox as hosts: what they were not given is no finding, and the rest is checked."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, inventory, nvml, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.info import describe_gpus
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import (
    ConfigOptions,
    ConfigTask,
    SettingsRequest,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.info import describe_toolkit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.checks import check_devices
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FIRST, SECOND, gpu_host, write

if t.TYPE_CHECKING:
    from pathlib import Path

FULL, MAPPED = "         0          0 4294967295\n", "         0     100000      65536\n"
UNPRIVILEGED = {"proc/1/uid_map": MAPPED}
LXC = {"proc/1/uid_map": FULL, "proc/1/environ": "TERM=linux\0container=lxc\0"}
LXC_WITH_SYSTEMD = {"proc/1/uid_map": FULL, "run/systemd/container": "lxc\n"}
PODMAN = {"proc/1/uid_map": FULL, "proc/1/environ": "container=podman\0", "run/systemd/container": "podman\n"}
MACHINE = {"proc/1/uid_map": FULL, "proc/1/environ": "HOME=/\0"}
CONTAINERS = [UNPRIVILEGED, LXC, LXC_WITH_SYSTEMD]
OTHERS = [PODMAN, MACHINE, {}, {"proc/1/environ": "container=lxcfs\0XCONTAINER=container=lxc\0"}]
CONTROL = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0)}
CONFIG = "etc/nvidia-container-runtime/config.toml"


def lacking(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], *nodes: str) -> HostFS:
    """Return a host that sees two GPUs, with the minor numbers 3 and 0, and has only these nodes of them."""
    host = gpu_host(root, [FIRST, SECOND])
    write(root, files)
    for address in (FIRST.bus, SECOND.bus, "0000:99:00.0"):
        write(root, {f"sys/bus/pci/devices/{address}/{name}": text for name, text in PCI_FILES.items()})
    FakeNodes(monkeypatch, root, {**CONTROL, **{f"/dev/{name}": (195, int(name[-1])) for name in nodes}})
    return host


PCI_FILES = {"vendor": "0x10de\n", "class": "0x030200\n"}


@pytest.mark.parametrize("files", [*CONTAINERS, *OTHERS])
def test_the_kernel_is_asked(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert HostFS(str(tmp_path)).is_system_container() is (files in CONTAINERS)
    # The files of an offline tree say nothing about it.
    assert not HostFS(str(tmp_path), live=False).is_system_container()


@pytest.mark.parametrize("files", CONTAINERS)
def test_a_gpu_that_was_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    host = lacking(tmp_path, monkeypatch, files, "nvidia0")
    report = describe_gpus(host)
    assert [(gpu["index"], gpu["bus_id"], gpu["healthy"]) for gpu in report["devices"]] == [(0, SECOND.bus, True)]
    assert report["missing_nodes"] == []
    assert not {problem["code"] for problem in report["problems"]} & {*procfs.WITHOUT_DRIVER, "gpu-not-listed"}
    assert [gpu.bus for gpu in inventory.read_inventory(host, use_nvml=False).gpus] == [SECOND.bus]
    assert check_devices(host, ["/"]).detail == "All device nodes exist. GPUs: 1."


def test_nvml_lists_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = lacking(tmp_path, monkeypatch, UNPRIVILEGED, "nvidia0")
    write(tmp_path, {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": ""})
    given = nvml.NvmlGpu(1, "GPU", SECOND.identity(), 0, f"0000{SECOND.bus}")
    denied = nvml.NvmlGpu(0, "", "", failure="No permission.")
    monkeypatch.setattr(nvml, "query", lambda *_: nvml.NvmlResult("550.163.01", (denied, given)))
    found = inventory.read_inventory(host, use_nvml=True)
    assert ([gpu.bus for gpu in found.gpus], found.warnings) == ([SECOND.bus], ())
    assert [gpu["bus_id"] for gpu in describe_gpus(host)["devices"]] == [SECOND.bus]


def test_no_gpu_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = lacking(tmp_path, monkeypatch, UNPRIVILEGED)
    report = describe_gpus(host)
    assert (report["devices"], report["missing_nodes"], report["problems"]) == ([], [], [])
    # Without a driver on the machine, its GPUs are not those of the container either.
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert procfs.detect_gpu(host).present is False
    assert describe_gpus(host)["problems"] == []


@pytest.mark.parametrize("files", CONTAINERS)
def test_a_given_gpu_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    host = lacking(tmp_path, monkeypatch, files, "nvidia0")
    # A node with the number of another GPU, and no node that CUDA needs as well.
    FakeNodes(monkeypatch, tmp_path, {"/dev/nvidia0": (195, 7)})
    monkeypatch.setattr(device_nodes, "NEEDED_NODES", (*device_nodes.NEEDED_NODES, "/dev/nvidia-needed"))
    report = describe_gpus(host)
    assert [gpu["healthy"] for gpu in report["devices"]] == [False]
    assert report["missing_nodes"] == ["/dev/nvidia-needed"]


@pytest.mark.parametrize("files", OTHERS)
def test_other_hosts_lack_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    host = lacking(tmp_path, monkeypatch, files, "nvidia0")
    report = describe_gpus(host)
    assert [gpu["healthy"] for gpu in report["devices"]] == [False, True]
    assert "/dev/nvidia3" in report["missing_nodes"]
    assert not check_devices(host, ["/"]).ok


@pytest.mark.parametrize("files", [*CONTAINERS, *OTHERS])
def test_no_cgroups(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, {**files, CONFIG: "[nvidia-container-cli]\nno-cgroups = true\n[features]\n"})
    host, is_right = HostFS(str(tmp_path)), files in CONTAINERS
    report = describe_toolkit(host, lambda _argv: (1, "", ""))
    settings = {"features.allow-cuda-compat-libs-from-container": True}
    result = ConfigTask(ConfigOptions(request=SettingsRequest(settings)), host).execute(check_mode=True)
    for messages in (report["unsafe_settings"], [text for text in result.warnings if "features." not in text]):
        assert [text.partition(" ")[0] for text in messages] == [] if is_right else ["nvidia-container-cli.no-cgroups"]
    # Other unsafe settings are reported everywhere.
    assert any("features.allow" in text for text in result.warnings)
