# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._shipping import ShippingAction


class ActionModule(ShippingAction):
    """Sends along what a host may lack to read the configuration of its toolkit and of its engines.

    Which engines it has is known there only, and so is whether it has CDI specifications in YAML.
    """

    def packages(self) -> tuple[str, ...]:
        return ("tomlkit",)

    def packages_on_demand(self) -> tuple[str, ...]:
        return ("yaml",)
