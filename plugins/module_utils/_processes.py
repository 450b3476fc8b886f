# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the running process of a unit, read from the kernel's files; no command is run.

from __future__ import annotations

import os
import time
import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# systemd's own hierarchy on cgroup v2, on v1, and on both at once.
_HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
# Columns of /proc/PID/stat behind the name, which may hold anything (proc(5)).
_STARTED = 19


def process_of(host: HostRoot, unit: Unit | None, name: str) -> int | None:
    """The process called ``name`` in the unit's control group, None where none runs.

    The group may hold others, such as the shims of containers that outlive their engine.
    """
    found = processes_in(host, unit, (name,), exactly=True)
    return found[0] if found else None


def processes_in(host: HostRoot, unit: Unit | None, names: tuple[str, ...], exactly: bool = False) -> list[int]:
    """The processes in the unit's control group that are called, or whose names begin with, one of ``names``."""
    if unit is None or not host.live:
        return []
    found = []
    for hierarchy in _HIERARCHIES:
        for text in host.read_text(f"{hierarchy}{_slice_path(unit.slice)}/{unit.name}/cgroup.procs").split():
            name = host.read_text(f"/proc/{text}/comm").strip() if text.isdecimal() else ""
            if name in names or (not exactly and name.startswith(names)):
                found.append(int(text))
    return list(dict.fromkeys(found))


def uid_of(host: HostRoot, pid: int | str) -> int | None:
    """The user of a process: a root in namespaces of its own is the user who made them."""
    for line in host.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def arguments_of(host: HostRoot, pid: int) -> tuple[str, ...]:
    """The command line of the process, program first; empty if it is gone."""
    text = host.read_text(f"/proc/{pid}/cmdline")
    return tuple(text.split("\0")[:-1]) if text.endswith("\0") else tuple(text.split("\0")) if text else ()


def started(host: HostRoot, pid: int) -> float | None:
    """When the process started, in seconds since 1970, to about a hundredth."""
    columns = host.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(columns) <= _STARTED or not columns[_STARTED].isdecimal():
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(columns[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def outdated(host: HostRoot, pid: int, paths: t.Iterable[str]) -> bool:
    """Whether any of ``paths`` changed after the process started."""
    birth = started(host, pid)
    return birth is not None and any(host.modified(path) > birth for path in paths)


def _slice_path(name: str) -> str:
    """Where a slice stands: ``a-b.slice`` inside ``a.slice``, and ``-.slice`` at the root (systemd.slice(5))."""
    if name == "-.slice":
        return ""
    parts = name[: -len(".slice")].split("-")
    return "".join("/" + "-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))
