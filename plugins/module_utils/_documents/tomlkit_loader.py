# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Import tomlkit, from the host or from the task."""

from __future__ import annotations

import typing as t

_offered: list[str] = []


def offer(shipment: str) -> None:
    """Remember what the controller sent; only load() looks into it."""
    _offered[:] = [shipment]


def load() -> t.Any:
    """The module tomlkit, this host's own or the controller's; raises NvidiaError where there is none."""
    # A host that reads TOML itself does not pay for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled  # noqa: PLC0415

    for shipment in _offered:
        bundled.register("tomlkit", shipment)
    return bundled.import_bundled("tomlkit")
