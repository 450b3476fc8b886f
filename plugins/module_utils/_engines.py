# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the table of engines.  A new engine is a file of its own and a row here.

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine


# Each is imported when it is asked for: a task for one engine does not pay for the others.
def _docker() -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import DOCKER  # noqa: PLC0415

    return DOCKER


def _containerd() -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_containerd import CONTAINERD  # noqa: PLC0415

    return CONTAINERD


def _crio() -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_crio import CRIO  # noqa: PLC0415

    return CRIO


ENGINES: dict[str, t.Callable[[], Engine]] = {"docker": _docker, "containerd": _containerd, "crio": _crio}
