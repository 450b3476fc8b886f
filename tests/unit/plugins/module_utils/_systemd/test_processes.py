# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes as systemd_processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.processes import (
    changed_since_start,
    find_process,
    start_time,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit

if t.TYPE_CHECKING:
    from pathlib import Path

UNIT = Unit("containerd.service", "/lib/systemd/system/containerd.service")
COMMS = {7: "containerd", 8: "containerd-shim", 9: "nvidia-smi", 10: "containerd"}


def host(root: Path, groups: t.Mapping[str, str], live: bool = True) -> HostFS:
    """A tree with the processes COMMS, and the control groups by folder below /sys/fs/cgroup."""
    for pid, comm in COMMS.items():
        put(root, f"proc/{pid}/comm", comm + "\n")
    for folder, processes in groups.items():
        put(root, f"sys/fs/cgroup/{folder}/cgroup.procs", processes)
    return HostFS(str(root), live)


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


# -- which process ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "pid"),
    [
        ({"system.slice/containerd.service": "7\n"}, 7),
        ({"systemd/system.slice/containerd.service": "7\n"}, 7),
        ({"unified/system.slice/containerd.service": "7\n"}, 7),
        # Shims stay in the group, also without their engine.
        ({"system.slice/containerd.service": "8\n9\n7\n"}, 7),
        ({"system.slice/containerd.service": "8\n9\n"}, None),
        # On both hierarchies at once, one of them is empty.
        ({"unified/system.slice/containerd.service": "", "systemd/system.slice/containerd.service": "7\n"}, 7),
        # Another unit's, such as Docker's own containerd.
        ({"system.slice/docker.service": "10\n"}, None),
        ({"containerd.service": "7\n"}, None),
        ({"system.slice/containerd.service": "a\n../proc/7\n\u00b2\n7\n"}, 7),
        # A process that has ended in between, and one of another namespace.
        ({"system.slice/containerd.service": "4711\n0\n7\n"}, 7),
        ({"system.slice/containerd.service": ""}, None),
        ({}, None),
    ],
)
def test_the_process_in_the_units_control_group(tmp_path: Path, groups: dict[str, str], pid: int | None) -> None:
    assert find_process(host(tmp_path, groups), UNIT, "containerd") == pid


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("runtime.slice", "runtime.slice"),
        ("pods-burst-a.slice", "pods.slice/pods-burst.slice/pods-burst-a.slice"),
        ("-.slice", ""),
    ],
)
def test_another_slice(tmp_path: Path, name: str, folder: str) -> None:
    tree = host(tmp_path, {f"{folder}/containerd.service": "7\n"})
    assert find_process(tree, UNIT._replace(slice=name), "containerd") == 7
    assert find_process(tree, UNIT, "containerd") is None


def test_nothing_is_looked_up_for_an_offline_tree_or_without_a_unit(tmp_path: Path) -> None:
    groups = {"system.slice/containerd.service": "7\n"}
    assert find_process(host(tmp_path, groups, live=False), UNIT, "containerd") is None
    assert find_process(host(tmp_path, groups), None, "containerd") is None


# -- its age ---------------------------------------------------------------------------------------------------------


def test_a_process_that_was_just_started() -> None:
    before = time.time()
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    try:
        birth = start_time(HostFS(), child)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert birth is not None
    # The kernel counts hundredths.
    assert before - 0.05 <= birth <= time.time() + 0.05


def test_what_changed_after_the_start_is_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd_processes, "start_time", lambda _host, _pid: 1000.0)
    tree = HostFS(str(tmp_path))
    for name, changed in (("older", 999.0), ("younger", 1000.5)):
        put(tmp_path, name, "")
        os.utime(tmp_path / name, (changed, changed))
    assert not changed_since_start(tree, 7, ["/older", "/none"])
    assert changed_since_start(tree, 7, ["/older", "/younger"])
    assert not changed_since_start(tree, 7, [])
    monkeypatch.setattr(systemd_processes, "start_time", lambda _host, _pid: None)
    assert not changed_since_start(tree, 7, ["/younger"])


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    """As proc(5) says: the name ends with the last bracket."""
    ticks = os.sysconf("SC_CLK_TCK")
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    begun = int((uptime - 5) * ticks)
    columns = ["S", "1", *["0"] * 17, str(begun), "99", "98"]
    put(tmp_path, "proc/7/stat", f"7 (a) b (c 1 2) {' '.join(columns)}\n")
    birth = start_time(HostFS(str(tmp_path)), 7)
    assert birth is not None
    assert abs(time.time() - 5 - birth) < 1


@pytest.mark.parametrize("text", [None, "", "7 (x)", "7 (x) S 1 2"])
def test_a_process_that_is_gone_has_no_age(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        put(tmp_path, "proc/7/stat", text)
    tree = HostFS(str(tmp_path))
    assert start_time(tree, 7) is None
    assert not changed_since_start(tree, 7, ["/proc/7/stat"])
