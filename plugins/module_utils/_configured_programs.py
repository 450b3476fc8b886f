# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which engines would run programs of one directory.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_traces import leaves_trace
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import ENGINES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


def configured_programs(host: HostRoot, folder: str) -> dict[str, list[str]]:
    """By engine, the names of the runtimes that its files say are below ``folder``.

    An engine whose files cannot be read is passed over: it would not start with them either.  Raises
    MissingPackageError where nothing can read them.
    """
    found = {}
    for name in ENGINES:
        if leaves_trace(name, host):
            names = _runtimes_below(name, host, folder)
            if names:
                found[name] = names
    return found


def _runtimes_below(name: str, host: HostRoot, folder: str) -> list[str]:
    engine = ENGINES[name]()
    try:
        state = engine.configured(HostFiles(host, name).as_configured(engine.inspect(host), None))
    except MissingPackageError:
        # The controller may have it.
        raise
    except GpufleetError:
        return []
    return [runtime for runtime, path in state.paths().items() if (path or "").startswith(f"{folder}/")]
