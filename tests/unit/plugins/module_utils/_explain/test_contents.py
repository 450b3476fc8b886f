# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests for the driver's files among the mounts of a container."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import contents as explain_contents
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import DriverFile

LIBRARY = "/usr/lib/x86_64-linux-gnu"


def line(point: str, root: str = "/") -> str:
    return f"36 35 98:0 {root} {point} ro,nosuid master:1 - ext4 /dev/sda rw\n"


@pytest.mark.parametrize(
    ("point", "root", "expected"),
    [
        (f"{LIBRARY}/libcuda.so.580.95.05", "/", DriverFile(f"{LIBRARY}/libcuda.so.580.95.05", "580.95.05")),
        ("/lib/libcuda.so.1", "/usr/lib/libcuda.so.535.1", DriverFile("/lib/libcuda.so.1", "535.1")),
        (r"/a\040b/libnvidia-ml.so.535.1", "/", DriverFile("/a b/libnvidia-ml.so.535.1", "535.1")),
        ("/usr/bin/nvidia-smi", "/", DriverFile("/usr/bin/nvidia-smi")),
        ("/usr/lib/wsl/drivers/x/libcuda.so.1.1", "/", DriverFile("/usr/lib/wsl/drivers/x/libcuda.so.1.1", "1.1")),
    ],
)
def test_files_of_the_driver(point: str, root: str, expected: DriverFile) -> None:
    assert explain_contents.driver_files(line("/") + line(point, root)) == (expected,)


@pytest.mark.parametrize(
    "point", ["/dev/nvidia0", "/proc/driver/nvidia", "/usr/lib/libc.so.6", "/home/nvidia/notes", "/etc/nvidia.d/a"]
)
def test_other_mounts(point: str) -> None:
    assert explain_contents.driver_files(line(point)) == ()


def test_lines_that_the_kernel_does_not_write() -> None:
    assert explain_contents.driver_files("\n1 2\n - \n") == ()


def test_versions_of_libraries() -> None:
    old, new = DriverFile("/l/libcuda.so.535.1", "535.1"), DriverFile("/l/libcuda.so.580.1", "580.1")
    egl = DriverFile("/l/libnvidia-egl-gbm.so.1.1.2", "1.1.2")
    assert explain_contents.Contents(files=(old, egl)).other_versions("580.1") == [old]
    assert explain_contents.Contents(files=(old, new, egl)).other_versions("580.1") == []
