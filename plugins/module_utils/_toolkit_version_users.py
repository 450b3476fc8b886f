# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: who still needs a version of the toolkit that is no longer the current one.

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import SPECIFICATION_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import mentioning

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


def users(host: HostRoot, folder: str) -> list[str]:
    """Processes, running containers, and CDI specifications that need something below ``folder``, in words.

    A process needs the program that it runs, the libraries that it has loaded, and the script that its shell reads.
    In an offline tree nothing runs.
    """
    return [*_processes(host, f"{folder}/"), *_containers(host, f"{folder}/"), *_specifications(host, f"{folder}/")]


def _processes(host: HostRoot, folder: str) -> t.Iterator[str]:
    for pid in host.readable_entries("/proc") if host.live else ():
        if pid.isdigit() and int(pid) != os.getpid() and _needs(host, pid, folder):
            yield f"process {pid} ({host.read_text(f'/proc/{pid}/comm').strip()})"


def _needs(host: HostRoot, pid: str, folder: str) -> bool:
    process = host.outer(f"/proc/{pid}")
    links = [f"{process}/exe", *(f"{process}/fd/{name}" for name in host.readable_entries(f"/proc/{pid}/fd"))]
    return any(folder in _target(link) for link in links) or folder in host.read_text(f"/proc/{pid}/maps")


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        # It has ended meanwhile, or is one of the kernel's.
        return ""


def _containers(host: HostRoot, folder: str) -> list[str]:
    return [f"container {name}" for name in mentioning(host, folder)]


def _specifications(host: HostRoot, folder: str) -> t.Iterator[str]:
    for place in SPECIFICATION_FOLDERS:
        for name in host.readable_entries(place):
            path = f"{place}/{name}"
            if name.endswith((".yaml", ".json")) and folder in host.read_text(path):
                yield f"CDI specification {path}"
