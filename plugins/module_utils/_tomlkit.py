# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: where tomlkit comes from.  Only a Python older than 3.11 asks for it.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _shipped


def load() -> t.Any:
    """The module tomlkit, this host's own or the controller's; raises GpufleetError where there is none."""
    return _shipped.load("tomlkit")
