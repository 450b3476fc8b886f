# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Import tomlkit, from the host or from the archive that is sent with the task."""

from __future__ import annotations

import typing as t

_offered: list[str] = []


def offer(shipment: str) -> None:
    """Store the archive that the controller sent. Only load() opens it."""
    _offered[:] = [shipment]


def load() -> t.Any:
    """Return the module tomlkit of this host or of the controller. Raises NvidiaError if neither has one."""
    # A host whose Python reads TOML does not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled  # noqa: PLC0415

    for shipment in _offered:
        bundled.register("tomlkit", shipment)
    return bundled.import_bundled("tomlkit")
