# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which of the units that a distribution of Kubernetes may have is the one of this host.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of, processes_in
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import UNIT_FOLDERS, load_unit, unit_file

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


def service_of(host: HostRoot, services: t.Sequence[str], program: str, containerd: str) -> str:
    """The unit that runs, else the one that is enabled, the only one that is there, or the first, a server's.

    RKE2's tarball brings both to every node.
    """
    running = [name for name in services if _runs(host, name, program, containerd)]
    enabled = [name for name in services if host.is_there(f"{UNIT_FOLDERS[0]}/multi-user.target.wants/{name}")]
    there = [name for name in services if unit_file(host, name) is not None]
    return [*running, *enabled, *there, *services][0]


def _runs(host: HostRoot, name: str, program: str, containerd: str) -> bool:
    """By the process of the distribution (k3s-server, rke2) or its containerd; the shims outlive both."""
    unit = load_unit(host, name, program)
    return bool(processes_in(host, unit, (program,))) or process_of(host, unit, containerd) is not None
