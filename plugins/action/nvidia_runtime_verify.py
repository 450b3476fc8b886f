# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._shipping import ShippingAction

# At these the toolkit's config.toml is read too, whatever the engine.
_LEVELS_WITH_TOML = ("engine", "gpu")


class ActionModule(ShippingAction):
    """Sends along what a host may lack to read configuration files, and CDI specifications if it has to read one."""

    def packages(self) -> tuple[str, ...]:
        return ("tomlkit",) if str(self._task.args.get("level")) in _LEVELS_WITH_TOML else super().packages()

    def packages_on_demand(self) -> tuple[str, ...]:
        # They are read before a container is started, so that this happens once.
        return ("yaml",) if str(self._task.args.get("level")) == "gpu" else super().packages_on_demand()
