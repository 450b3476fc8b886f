# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import (
    control_nodes,
    dev_directory,
    device_numbers,
    kernel_majors,
    may_create_nodes,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path

# /proc/devices with driver 550 or newer. The block device nvidia-uvm must not be confused with the character device.
DEVICES = """\
Character devices:
  1 mem
195 nvidia
510 nvidia-uvm

Block devices:
  8 sd
259 nvidia-uvm
"""
MODULES = "nvidia_uvm 4935680 0 - Live 0x0\nnvidia_modeset 1314816 0 - Live 0x0\nnvidia 56823808 2 - Live"
CONTROL, MODESET, UVM = ["/dev/nvidiactl"], ["/dev/nvidia-modeset"], ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]


def host(root: Path, **files: str) -> HostFS:
    """Return a live host. ``files`` are the contents of files in /proc, by their names there."""
    write(
        root, {f"proc/{name}": content for name, content in {"devices": DEVICES, "modules": MODULES, **files}.items()}
    )
    return HostFS.of(str(root), live=True)


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({}, [*CONTROL, *MODESET, *UVM]),
        ({"devices": "Block devices:\n510 nvidia-uvm\n\nCharacter devices:\n195 nvidia\n"}, [*CONTROL, *MODESET]),
        ({"devices": "Character devices:\n510 nvidia-uvm-tools\n511 my nvidia-uvm\n"}, [*CONTROL, *MODESET]),
        ({"modules": "nvidia_modeset_other 1 0\ndrm 1 1 nvidia_modeset, Live\n"}, [*CONTROL, *UVM]),
        ({"devices": "", "modules": ""}, CONTROL),
    ],
)
def test_control_nodes_of_the_loaded_modules(tmp_path: Path, files: dict[str, str], nodes: list[str]) -> None:
    assert control_nodes(host(tmp_path, **files)) == nodes


@pytest.mark.parametrize(
    ("line", "major"), [("195 nvidia", 195), ("199 nvidia-frontend", 199), ("199 nvidia", 199), ("1 mem", 195)]
)
def test_numbers(tmp_path: Path, line: str, major: int) -> None:
    majors = kernel_majors(host(tmp_path, devices=f"Character devices:\n{line}\n507 nvidia-uvm\n"))
    assert device_numbers("/dev/nvidiactl", majors) == (major, 255)
    assert device_numbers("/dev/nvidia7", majors) == (major, 7)
    assert device_numbers("/dev/nvidia-uvm-tools", majors) == (507, 1)
    assert device_numbers("/dev/nvidia-caps/nvidia-cap3", majors) == (None, 3)
    assert device_numbers("/dev/null", majors) is None


@pytest.mark.parametrize(
    ("folders", "roots", "expected"),
    [
        (["/run/nvidia/driver/dev"], ["/", "/run/nvidia/driver"], "/run/nvidia/driver/dev"),
        (["/dev", "/run/nvidia/driver/dev"], ["/", "/run/nvidia/driver"], "/dev"),
        (["/dev", "/run/nvidia/driver/dev"], ["/run/nvidia/driver/", "/"], "/run/nvidia/driver/dev"),
        (["/opt/driver/dev"], ["/", "/run/nvidia/driver"], "/dev"),
        (["/opt/driver/dev"], ["", "opt/driver", "/opt/driver"], "/opt/driver/dev"),
        ([], ["/run/nvidia/driver"], "/dev"),
    ],
)
def test_directory_with_the_nodes(tmp_path: Path, folders: list[str], roots: list[str], expected: str) -> None:
    write(tmp_path, {f"{folder[1:]}/nvidiactl": "" for folder in folders})
    assert dev_directory(host(tmp_path), roots) == expected


def test_driver_forbids_changes_of_nodes(tmp_path: Path) -> None:
    assert may_create_nodes(host(tmp_path))
    parameters = 'ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nRegistryDwords: ""\n'
    write(tmp_path, {"proc/driver/nvidia/params": parameters})
    assert not may_create_nodes(host(tmp_path))
