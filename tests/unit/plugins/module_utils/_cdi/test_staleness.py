# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.host_check import why_stale
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path

DRIVER = "580.95.05"
LIBRARY = f"/usr/lib/libcuda.so.{DRIVER}"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFS:
    FakeNodes(monkeypatch, tmp_path, {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255)})
    write(tmp_path, {LIBRARY.lstrip("/"): ""})
    return HostFS(str(tmp_path), live=False)


def document(kind: str = "nvidia.com/gpu", library: str = LIBRARY, node: str = "/dev/nvidia0") -> dict[str, t.Any]:
    mounts = [{"hostPath": library, "containerPath": library}]
    edits = {"deviceNodes": [{"path": "/dev/nvidiactl", "major": 195, "minor": 255}], "mounts": mounts}
    devices = [{"name": "0", "containerEdits": {"deviceNodes": [{"path": node}]}}]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": edits}


def test_what_fits(host: HostFS) -> None:
    assert why_stale(document(), host) == ([], [])
    assert why_stale(document(), host, DRIVER) == ([], [])


@pytest.mark.parametrize(
    ("kind", "report"), [("nvidia.com/gpu", True), ("management.nvidia.com/gpu", True), ("example.com/gpu", False)]
)
def test_another_driver(host: HostFS, kind: str, report: bool) -> None:
    reason = f"It is for driver {DRIVER}, but the driver is 590.1."
    assert why_stale(document(kind), host, "590.1") == ([("driver-differs", reason)] * report, [])


def test_missing_paths_are_told_once(host: HostFS) -> None:
    old = document(library="/usr/lib/libcuda.so.1.2", node="/dev/nvidia7")
    old["containerEdits"]["hooks"] = [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}]
    missing = ["/usr/lib/libcuda.so.1.2", "/usr/bin/nvidia-cdi-hook", "/dev/nvidia7"]
    assert why_stale(old, host) == ([("path-missing", f"These paths no longer exist: {', '.join(missing)}.")], missing)


def test_other_numbers(host: HostFS) -> None:
    old = document()
    old["containerEdits"]["deviceNodes"][0]["minor"] = 254
    (reason,), missing = why_stale(old, host)
    assert "/dev/nvidiactl has device number 195:255" in reason.message
    assert missing == []
