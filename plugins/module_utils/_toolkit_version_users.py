# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: who still needs a version of the toolkit that is no longer the current one.

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._configured_programs import configured_programs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import uid_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import SPECIFICATION_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import mentioning

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# Where engines look for what they do to containers; what nvidia-ctk wrote names the programs that it was run beside.
SPECIFICATIONS_AND_HOOKS = (
    *SPECIFICATION_FOLDERS,
    "/etc/containers/oci/hooks.d",
    "/usr/share/containers/oci/hooks.d",
)


def users(host: HostRoot, folder: str) -> list[str]:
    """Who needs something below ``folder``, in words: processes, containers, engines, and files of CDI and of hooks.

    A process needs the program that it runs, the libraries that it has loaded, the script that its shell reads, and
    what is mounted for it from there.  In an offline tree nothing runs.
    """
    # The kernel knows no links.
    folders = tuple(dict.fromkeys((folder, host.resolve(folder))))
    return [
        *_processes(host, folders),
        *(f"container {name}" for each in folders for name in mentioning(host, f"{each}/")),
        *(f"engine {name}" for name in configured_programs(host, folders)),
        *(f"file {path}" for path in mentioned_in(host, SPECIFICATIONS_AND_HOOKS, folders)),
    ]


def mentioned_in(host: HostRoot, places: t.Iterable[str], folders: t.Iterable[str]) -> list[str]:
    """The files in ``places`` in which something below ``folders`` is named."""
    return [
        f"{place}/{name}"
        for place in places
        for name in host.readable_entries(place)
        if name.endswith((".yaml", ".json"))
        and any(f"{folder}/" in host.read_text(f"{place}/{name}") for folder in folders)
    ]


def _processes(host: HostRoot, folders: t.Sequence[str]) -> t.Iterator[str]:
    for pid in host.readable_entries("/proc") if host.live else ():
        if pid.isdigit() and int(pid) != os.getpid() and any(_needs(host, pid, folder) for folder in folders):
            yield f"process {pid} ({host.read_text(f'/proc/{pid}/comm').strip()})"


def _needs(host: HostRoot, pid: str, folder: str) -> bool:
    process = host.outer(f"/proc/{pid}")
    links = [f"{process}/exe", *(f"{process}/fd/{name}" for name in host.readable_entries(f"/proc/{pid}/fd"))]
    if any(f"{folder}/" in _target(link) for link in links):
        return True
    # A user can block who reads the memory map of a process of that user. What such a process has loaded stays loaded.
    if uid_of(host, pid) in (0, os.geteuid()) and f"{folder}/" in host.read_text(f"/proc/{pid}/maps"):
        return True
    # The root of a mount is told from the file system's own; two names are enough to know it by.
    root = "/".join(["", *folder.split("/")[-2:]])
    lines = host.read_text(f"/proc/{pid}/mountinfo").splitlines()
    return any((line.split(" ")[3] + "/").find(f"{root}/") >= 0 for line in lines if line.count(" ") > 3)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        # It has ended meanwhile, or is one of the kernel's.
        return ""
