# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.services import describe_fabric_manager
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path

SWITCH = {"proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information": ""}
FABRIC_MANAGER = "/usr/bin/nv-fabricmanager"
OUTPUTS = {FABRIC_MANAGER: (0, "\n\tFabric Manager version is : 580.95.05\n", "")}


class Host(t.NamedTuple):
    root: Path
    commands: list[list[str]]
    outputs: t.Mapping[str, tuple[int, str, str]] = OUTPUTS

    def report(self, *programs: str, **files: str) -> dict[str, t.Any] | None:
        write(self.root, {"proc/2/comm": "kthreadd\n", **files})
        for program in programs:
            write(self.root, {program[1:]: ""})
            (self.root / program[1:]).chmod(0o755)
        return describe_fabric_manager(HostFS(str(self.root)), self.run)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[:2] == ["chroot", str(self.root)]
        self.commands.append(argv[2:])
        return self.outputs[argv[2]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, [])


def test_a_host_that_needs_no_service(host: Host) -> None:
    assert host.report(FABRIC_MANAGER) is None
    assert host.commands == []


def test_fabric_manager(host: Host) -> None:
    missing = {"program": None, "version": None, "running": False}
    assert host.report(**SWITCH) == missing
    stopped = {**missing, "program": FABRIC_MANAGER, "version": "580.95.05"}
    assert host.report(FABRIC_MANAGER) == stopped
    # The kernel cuts the name of a process. One that has ended has no name.
    running = host.report(**{"proc/7/comm": "nv-fabricmanage\n", "proc/8/x": "", "proc/x/comm": "x\n"})
    assert running == {**stopped, "running": True}
    assert host.commands == [[FABRIC_MANAGER, "--version"]] * 2


def test_fabric_manager_in_a_container(host: Host) -> None:
    # The program of the host may have another version, and is not the one that runs.
    process = {"proc/7/comm": "nv-fabricmanage\n", "proc/7/status": "Name:\tx\nNSpid:\t7\t1\n"}
    found = host.report(FABRIC_MANAGER, **process, **SWITCH)
    assert found == {"program": FABRIC_MANAGER, "version": None, "running": True}
    assert host.commands == []
    assert host.report(**{"proc/7/status": "NSpid:\t7\n"}) == {**found, "version": "580.95.05"}


def test_processes_of_the_host_are_not_visible(host: Host) -> None:
    # A container has /proc/driver of the host, but another PID namespace.
    container = {"proc/2/comm": "systemd-journal\n", **SWITCH}
    assert host.report(**container) == {"program": None, "version": None, "running": None}


def test_switches_that_only_have_nodes(host: Host) -> None:
    write(host.root, {"dev/nvidia-nvswitchctl": "", "dev/nvidia-nvswitch0": ""})
    assert host.report() is not None


@pytest.mark.parametrize(
    "output",
    [(0, "", ""), (0, "version is", ""), (1, "Fabric Manager version is : 580.95.05", ""), (127, "", "no program")],
)
def test_unknown_version(host: Host, output: tuple[int, str, str]) -> None:
    found = host._replace(outputs={FABRIC_MANAGER: output}).report(FABRIC_MANAGER, **SWITCH)
    assert found == {"program": FABRIC_MANAGER, "version": None, "running": False}
