# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import contents as explain_contents
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import (
    Contents,
    Expected,
    Specifications,
)

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Docker 26.1.5 with a CDI device, shortened.
MOUNTINFO = f"""\
146 58 0:53 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker
147 146 0:56 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
150 147 0:55 / /dev/mqueue rw,nosuid,nodev,noexec,relatime - mqueue mqueue rw
154 146 0:40 /usr/lib/x86_64-linux-gnu/libc.so.6 {LIBRARIES}/libcuda.so.550.54.15 ro,relatime shared:1 - overlay o rw
155 147 0:5 /nvidia0 /dev/nvidia0 ro,nosuid,noexec - devtmpfs devtmpfs rw
156 146 0:5 /x /usr/share/my\\040nvidia\\134x rw - ext4 /dev/sda rw
157 146 0:5 /x /usr/bin/nvidia-smi rw - ext4 /dev/sda rw
158 146 0:5 /x /proc/driver/nvidia rw - proc proc rw
"""
CONFIG = {
    "linux": {"devices": [{"path": "/dev/nvidiactl"}, {"path": "/dev/fuse"}, {"path": "/dev/dri/card0"}]},
    "mounts": [{"destination": f"{LIBRARIES}/libnvidia-ml.so.550.54.15"}, {"destination": "/etc/hosts"}],
}


def test_contents() -> None:
    found = explain_contents.contents_of(CONFIG, MOUNTINFO)
    assert found.devices == {"/dev/nvidiactl", "/dev/nvidia0", "/dev/dri/card0"}
    assert found.files == {
        f"{LIBRARIES}/libcuda.so.550.54.15", f"{LIBRARIES}/libnvidia-ml.so.550.54.15", "/usr/bin/nvidia-smi",
    }  # fmt: skip
    assert found.complete
    assert found.nodes_known
    assert not found.whole_dev
    before = explain_contents.contents_of(CONFIG, "")
    assert before.devices == {"/dev/nvidiactl", "/dev/dri/card0"}
    assert not before.complete
    assert not before.nodes_known
    assert explain_contents.contents_of(None, "") == Contents()


@pytest.mark.parametrize(
    ("mounted", "known"),
    [("/dev/null", True), ("/dev/nvidiactl", True), ("/dev/nvidia0", False), ("/dev/dri/card0", False)],
)
def test_nodes_without_the_config(mounted: str, known: bool) -> None:
    mountinfo = f"1 1 0:5 /x {mounted} rw - devtmpfs udev rw"
    for config, is_final in ((None, True), ({}, False)):
        found = explain_contents.contents_of(config, mountinfo, is_final)
        assert (found.complete, found.nodes_known) == (True, known)
        assert Expected(("/dev/nvidia1",)).missing_devices(found) == (("/dev/nvidia1",) if known else ())
        assert Expected(("/dev/nvidia1",)).unseen_devices(found) == ("/dev/nvidia1",)
    assert explain_contents.contents_of({}, mountinfo).nodes_known


def test_dev_of_the_host() -> None:
    found = explain_contents.contents_of({}, "1 1 0:5 / /dev rw - devtmpfs udev rw")
    assert found.whole_dev
    assert Expected(("/dev/nvidia0",)).missing_devices(found) == ()
    assert not explain_contents.contents_of({}, "1 1 0:5 / /dev/x rw - devtmpfs udev rw").whole_dev


@pytest.mark.parametrize("line", ["", "x", " - ", "1 2 3 4", "1 2 3 4 5", "a b c d /dev/nvidia0", "\0", "1 2 3 4 - x"])
def test_damaged_list_of_mounts(line: str) -> None:
    assert explain_contents.contents_of({}, f"{line}\n{line}").devices == set()


@pytest.mark.parametrize("value", [None, 1, "x", [1], [{"path": 1, "destination": 1}], {"devices": 1}])
def test_damaged_config(value: t.Any) -> None:
    found = explain_contents.contents_of({"linux": value, "mounts": value}, "")
    assert not found.devices | found.files


@pytest.mark.parametrize(
    ("path", "is_file"),
    [
        (f"{LIBRARIES}/libcuda.so.550.54.15", True),
        (f"{LIBRARIES}/libnvidia-ml.so.1", True),
        (f"{LIBRARIES}/libnvcuvid.so.550.54.15", True),
        (f"{LIBRARIES}/libGLX_nvidia.so.550.54.15", True),
        (f"{LIBRARIES}/libEGL_nvidia.so.0", True),
        ("/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin", True),
        ("/usr/bin/nvidia-smi", True),
        (f"{LIBRARIES}/libc.so.6", False),
        ("/etc/hosts", False),
        ("/data/my-nvidia", False),
    ],
)
def test_files_of_the_driver(path: str, is_file: bool) -> None:
    assert bool(explain_contents.contents_of({"mounts": [{"destination": path}]}, "").files) is is_file


def test_other_versions() -> None:
    files = {
        f"/lib/{name}" for name in ("libcuda.so.550.54.15", "libnvidia-ml.so.535.1", "libcuda.so.1", "libnvx.so.3.4")
    }
    found = Contents(files=frozenset(files))
    assert found.other_versions("550.54.15") == ("/lib/libnvidia-ml.so.535.1",)
    assert found.other_versions("535.1") == ("/lib/libcuda.so.550.54.15",)


def test_what_the_driver_gives() -> None:
    found = explain_contents.of_driver("550.1", ("/dev/nvidia1",), {"compute", "utility", "video"})
    assert found == Expected(
        ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"), (), ("libcuda.so.550.1", "libnvidia-ml.so.550.1")
    )
    assert explain_contents.of_driver("550.1", (), {"utility"}).names == ("libnvidia-ml.so.550.1",)
    assert explain_contents.of_driver(None, (), {"utility"}).names == ()
    have = Contents(files=frozenset(("/usr/lib64/libcuda.so.550.1",)), nodes_known=True)
    assert found.missing_files(have) == ("libnvidia-ml.so.550.1",)
    assert found.missing_devices(have) == found.devices


DOCUMENT: dict[str, t.Any] = {
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}], "env": ["A=0"]}},
        {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/fuse"}]}},
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [{"containerPath": "/lib//libcuda.so.1.2"}, {"containerPath": "/etc/x"}, {"hostPath": "/x"}],
    },
}


def test_specifications() -> None:
    found = Specifications((), {"v/c=0": "/etc/cdi/a", "v/c=1": "/etc/cdi/a", "v/d=1": "/x"}, {"/etc/cdi/a": DOCUMENT})
    assert found.expected(["v/c=0", "v/c=1"]) == Expected(
        ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"), ("/lib/libcuda.so.1.2",)
    )
    # The edits of a file are made once, and those of a missing device or document not at all.
    assert len(found.edits(["v/c=0", "v/c=1"])) == 3
    assert found.expected(["v/c=7"]) == found.expected(["v/d=1"]) == Expected()
