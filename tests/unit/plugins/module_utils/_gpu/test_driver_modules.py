# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import (
    Module,
    gpus_without_driver,
    loaded_modules,
    normalize_or_keep,
    version_problems,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path


def test_loaded_modules(tmp_path: Path) -> None:
    write(tmp_path, {"sys/module/nvidia_uvm/refcnt": "2\n", "sys/module/nvidia_uvm/version": ""})
    # The kernel's own, one that is built in, and a file that is not the kernel's.
    write(tmp_path, {"sys/module/nvidiafb/refcnt": "1\n", "sys/module/nvidia_drm/parameters/modeset": "Y\n"})
    write(tmp_path, {"sys/module/gdrdrv/refcnt": "1" * 5000})
    assert loaded_modules(HostFS(str(tmp_path))) == [Module("nvidia_uvm", None, 2)]


@pytest.mark.parametrize(
    ("modules", "differ"),
    [
        ([], False),
        ([Module("nvidia", "1", 0), Module("nvidia_uvm", "1", 0), Module("nvidia_drm", None, 0)], False),
        ([Module("nvidia", "1", 0), Module("gdrdrv", "2.5", 0)], False),
        ([Module("nvidia", "1", 0), Module("nvidia_uvm", "2", 0)], True),
    ],
)
def test_different_versions(modules: list[Module], differ: bool) -> None:
    assert bool(version_problems(modules)) is differ


def test_gpus_that_nothing_drives(tmp_path: Path) -> None:
    for number, kind in enumerate(["0x030000", "0x030200", "0x068000"]):
        folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
        write(tmp_path, {f"{folder}/vendor": "0x10de\n", f"{folder}/class": f"{kind}\n"})
    host = HostFS(str(tmp_path))
    assert "the GPU 0000:00:00.0 (no driver), 0000:01:00.0 (no" in gpus_without_driver(host, ())[0].message
    assert "the GPU 0000:01:00.0 (no driver). Run" in gpus_without_driver(host, ["0000:00:00.0"])[0].message
    assert gpus_without_driver(host, ["0000:00:00.0", "0000:01:00.0"]) == []


def test_addresses() -> None:
    assert normalize_or_keep("10000:0F:00.0") == "00010000:0f:00.0"
    assert normalize_or_keep("x") == "x"
