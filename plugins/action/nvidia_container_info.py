# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._shipping import ShippingAction


class ActionModule(ShippingAction):
    """Sends along what a host may lack to read the toolkit's configuration."""

    def packages(self) -> tuple[str, ...]:
        gather = self._task.args.get("gather")
        # Ansible takes a text with commas for a list too, and nothing for the default, which is all.
        subjects = gather.split(",") if isinstance(gather, str) else gather
        wanted = subjects is None or (
            isinstance(subjects, list) and "toolkit" in [str(name).strip() for name in subjects]
        )
        return ("tomlkit",) if wanted else ()
