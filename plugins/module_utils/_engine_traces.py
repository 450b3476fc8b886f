from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._targets import targets_on

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


def engines_on(host: HostRoot) -> list[Engine]:
    """The engines that there is anything of; only these are loaded."""
    return [target.load() for target in targets_on(host)]
