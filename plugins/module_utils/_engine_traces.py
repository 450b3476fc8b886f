# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: of which engines there is anything on a host, told without knowing them.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import ENGINES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import UNIT_FOLDERS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


def engines_on(host: HostRoot) -> list[Engine]:
    """The engines that there is anything of; only these are loaded."""
    return [load() for name, load in ENGINES.items() if _leaves_trace(name, host)]


def _leaves_trace(name: str, host: HostRoot) -> bool:
    """Whether there is anything of an engine: its program, its unit, its configuration, or our record of that."""
    units = (f"{folder}/{name}.service" for folder in UNIT_FOLDERS)
    return (
        host.find_executable([name, name + "d"]) is not None
        or host.is_there(f"/etc/{name}")
        or any(host.is_there(unit) for unit in units)
        or any(entry.startswith(name + "-") for entry in host.readable_entries(STATE_DIR))
    )
