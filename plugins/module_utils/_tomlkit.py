# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: where tomlkit comes from.  Only a Python older than 3.11 asks for it.

from __future__ import annotations

import typing as t

_offered: list[str] = []


def offer(shipment: str) -> None:
    """Remember what the controller sent; only load() looks into it."""
    _offered[:] = [shipment]


def load() -> t.Any:
    """The module tomlkit, this host's own or the controller's; raises GpufleetError where there is none."""
    # A host that reads TOML itself does not pay for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._shipped import load as load_package  # noqa: PLC0415
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._shipped import offer as offer_package  # noqa: PLC0415

    for shipment in _offered:
        offer_package("tomlkit", shipment)
    return load_package("tomlkit")
