# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import (
    GpuPresence,
    detect_gpu,
    loaded_driver,
    nvidia_devices,
)

if t.TYPE_CHECKING:
    from pathlib import Path

VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 12.3.0\n"
)


def host(root: Path, files: dict[str, str], live: bool = True) -> HostFS:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return HostFS(str(root), live)


def device(number: int, vendor: str, kind: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
    return {f"{folder}/vendor": vendor + "\n", f"{folder}/class": kind + "\n"}


@pytest.mark.parametrize(
    ("files", "kind", "evidence", "driver"),
    [
        (
            {"proc/driver/nvidia/version": VERSION},
            "driver",
            "The NVIDIA driver is loaded: /proc/driver/nvidia/version",
            "580.95.05",
        ),
        ({"sys/module/nvidia/version": "550.54.15\n"}, "driver", "/sys/module/nvidia/version exists", "550.54.15"),
        ({"proc/driver/nvidia/version": "?"}, "driver", "driver is loaded", None),
        (
            device(1, "0x10de", "0x030200"),
            "pci",
            "/sys/bus/pci/devices/0000:01:00.0 is an NVIDIA GPU. No NVIDIA driver",
            None,
        ),
        (device(1, "0x10de", "0x030000"), "pci", "0000:01:00.0", None),
        ({**device(1, "0x8086", "0x030000"), **device(2, "0x10de", "0x030200")}, "pci", "0000:02:00.0", None),
        ({**device(1, "0x10de", "0x068000"), **device(2, "0x10de", "0x030200")}, "pci", "0000:02:00.0", None),
        ({**device(1, "0x8086", "0x030000"), "dev/dxg": ""}, "wsl", "/dev/dxg exists: Windows", None),
        (
            {"proc/device-tree/compatible": "nvidia,p3737-0000\0nvidia,tegra234\0"},
            "tegra",
            "contains the name of a Tegra",
            None,
        ),
    ],
)
def test_a_gpu(tmp_path: Path, files: dict[str, str], kind: str, evidence: str, driver: str | None) -> None:
    found = detect_gpu(host(tmp_path, files))
    assert (found.present, found.kind) == (True, kind)
    assert evidence in found.evidence
    assert found.driver == driver


@pytest.mark.parametrize(
    "files",
    [
        device(1, "0x8086", "0x030000"),
        # An NVSwitch alone, and the sound of a GPU that went to a guest.
        {**device(1, "0x10de", "0x068000"), **device(2, "0x10de", "0x040300")},
        {"sys/bus/platform/x": ""},
        {**device(1, "0x1002", "0x030000"), "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0"},
    ],
)
def test_no_gpu(tmp_path: Path, files: dict[str, str]) -> None:
    found = detect_gpu(host(tmp_path, files))
    assert (found.present, found.kind, found.driver) == (False, None, None)
    assert found.evidence.startswith("No NVIDIA driver is loaded, no NVIDIA GPU is on the PCI bus")


def test_what_cannot_be_known(tmp_path: Path) -> None:
    assert detect_gpu(host(tmp_path, {})).present is None
    offline = detect_gpu(host(tmp_path, {"proc/driver/nvidia/version": VERSION}, live=False))
    assert offline == GpuPresence(None, "The host is an offline tree, which has no hardware.", None)


def test_the_facts_behind_it(tmp_path: Path) -> None:
    found = host(tmp_path, {})
    assert loaded_driver(found) is None
    assert nvidia_devices(found) is None
    host(tmp_path, device(1, "0x8086", "0x030000"))
    assert nvidia_devices(found) == {}
    host(tmp_path, {"sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n"})
    assert nvidia_devices(found) == {"/sys/bus/pci/devices/0000:02:00.0": ""}
